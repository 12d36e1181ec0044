"""What is measured of a classifier of images: how often it names the class of a held-out image."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from fpmgm.backbones.classifier import Classified
from fpmgm.checkpoint import Model
from fpmgm.codecs.image_tokenizer import to_signed
from fpmgm.data import Dataset
from fpmgm.denoiser import evaluating
from fpmgm.evaluation.evaluator import Metric, Validation, WithoutSamples
from fpmgm.progress import tracked
from fpmgm.types import Batch, Tokens

ACCURACY = Metric(name="accuracy", title="held-out accuracy", best="highest")
AT_ONCE = 256


@torch.no_grad()
def classified(classifier: Any, images: UInt8[Tensor, "B C H W"]) -> Classified:
    """What a classifier finds in images, on the CPU."""
    place = next(classifier.parameters()).device
    with evaluating(classifier):
        parts = tracked(images.split(AT_ONCE), "judging images")
        found = [classifier(to_signed(part.to(place))) for part in parts]
    return Classified(*(torch.cat(each).float().cpu() for each in zip(*found, strict=True)))


@dataclass(frozen=True, kw_only=True)
class ClassificationEvaluator(WithoutSamples):
    """The share of held-out images whose class is found."""

    refusal: ClassVar[str] = "a classifier draws no samples; give it as --judge of a model that does, such as fashion"

    @property
    def primary(self) -> Metric:
        return ACCURACY

    @property
    def validated(self) -> Metric:
        return ACCURACY

    def validate(self, denoiser: Any, batch: Batch, *, num_iters: int) -> Validation:
        """Over these images; the error is that of a share."""
        is_right = self._is_right(denoiser, batch)
        value = float(is_right.mean())
        error = math.sqrt(value * (1 - value) / len(is_right))
        return Validation(value=value, error=error, num_sequences=len(is_right))

    def shown(self, model: Model, data: Dataset, num: int) -> tuple[str, list[Any]]:
        """The first held-out images, and what each is taken for."""
        network: Any = model.denoiser
        rows = data.held_out[:num]
        taken = classified(network, _images(network, data.batch(rows).x)).logits.argmax(dim=1).tolist()
        names: Any = getattr(data.codec, "class_names", ())
        words = ", ".join(names[index] if index < len(names) else str(index) for index in taken)
        shown = [data.codec.show(data.tokens(row)) for row in rows.tolist()]
        return f"Held-out images, which it takes for: {words}.", shown

    def in_card(self, model: Model, data: Dataset) -> list[str]:
        """The accuracy on all held-out images, by class."""
        batch = data.batch(data.held_out)
        is_right, label = self._is_right(model.denoiser, batch), batch.label
        assert label is not None
        names: Any = getattr(data.codec, "class_names", ())
        lines = [f"On all {len(is_right):,} held-out images: {float(is_right.mean()):.4f}. By class:", ""]
        lines += ["| class | held-out accuracy |", "| --- | --- |"]
        lines += [f"| {name} | {float(is_right[label == index].mean()):.3f} |" for index, name in enumerate(names)]
        return [*lines, "", _feature_words(model)]

    def _is_right(self, classifier: Any, batch: Batch) -> Float[Tensor, " B"]:
        if batch.label is None:
            raise ValueError("these images have no classes, so that nothing says what a classifier gets right")
        found = classified(classifier, _images(classifier, batch.x)).logits.argmax(dim=1)
        return (found == batch.label.cpu()).double()


def _feature_words(model: Model) -> str:
    return (
        f"It judges image models: the Fréchet distance is taken in the {model.config.width} features that its last "
        "layer reads."
    )


def _images(classifier: Any, x: Tokens) -> UInt8[Tensor, "B C H W"]:
    return x.to(torch.uint8).view(len(x), *classifier.config.shape)
