"""What is measured of images: samples, by a classifier of the data and by Inception, and held-out codes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from fpmgm.checkpoint import Model, weights_of
from fpmgm.codecs import ImageCodec
from fpmgm.data import Dataset
from fpmgm.data.pixels import PixelsConfig
from fpmgm.denoiser import Denoiser
from fpmgm.evaluation.diversity import unigram_entropy
from fpmgm.evaluation.evaluator import Metric, Validation
from fpmgm.evaluation.frechet import Gaussian, Vectors, frechet_interval
from fpmgm.evaluation.image_judges import (
    Classes,
    ImageJudge,
    Look,
    classifier_for,
    inception_judge,
    load_classifier,
    real_images,
    real_look,
    through_tokenizer,
)
from fpmgm.evaluation.inception import NAME as INCEPTION
from fpmgm.evaluation.inception import load_inception
from fpmgm.evaluation.inception_score import score_interval
from fpmgm.evaluation.intervals import Interval, bootstrap
from fpmgm.evaluation.kernel import kernel_interval
from fpmgm.evaluation.likelihood import masked_cross_entropy
from fpmgm.evaluation.neighbours import density_and_coverage, precision_and_recall
from fpmgm.evaluation.shown import samples_of
from fpmgm.generation import Sampling, generate
from fpmgm.progress import StepProgress
from fpmgm.types import Batch, Tokens

FRECHET = Metric(name="frechet", title="Fréchet distance in the classifier's features", best="lowest")
FID = Metric(name="fid", title="FID", best="lowest")
ENTROPY = Metric(name="entropy", title="unigram entropy of codes", best="highest")
VALIDATED = Metric(name="masked_cross_entropy", title="validation cross entropy, nats a masked token", best="lowest")
MOST_REAL = 10_000
"""At most so many real images are the reference."""
MOST_FOR_INCEPTION = 2_500
"""Inception looks at so many of them: seven minutes of one core, once."""
NEIGHBOURS = 5
IN_CARD = 200
"""Samples that a model card gives numbers of."""


@dataclass(frozen=True, kw_only=True)
class ImageEvaluator:
    """Label accuracy, Fréchet distance, score, density and coverage by a classifier; FID and KID by Inception.

    Samples are compared with held-out images of what the model was trained on. What models are matched by is the
    unigram entropy of the codes of each image: temperature moves it steadily, it needs no judge, and it does not depend
    on the number of samples. It says nothing of images being alike; coverage does.
    """

    judge: str = ""
    """A classifier of ours, by which samples are judged: a bundled one or a folder. If it is empty, nobody judges."""
    inception: bool = False
    """Also FID, KID, precision and recall by Inception: a sixth of a second an image and core."""
    device: str = "auto"
    """Where the judges run. No result depends on it."""
    rest: bool = False
    """Whether visible positions rest after the first iteration of validation. Samples do not depend on it."""
    convention: ClassVar[str] = ""

    @property
    def primary(self) -> Metric:
        return FRECHET if self.judge else FID if self.inception else ENTROPY

    @property
    def validated(self) -> Metric:
        return VALIDATED

    def judged_by(self) -> str:
        return ", ".join(judge.name for judge in self._judges())

    def judged_through(self, model: Model) -> str:
        return "images" if self.judge or self.inception else ""

    def check(self, num_samples: int) -> None:
        if (self.judge or self.inception) and num_samples <= NEIGHBOURS:
            raise ValueError(
                f"num_samples is {num_samples}; nearest neighbours of images need at least {NEIGHBOURS + 1}"
            )

    def prepare(self, model: Model, num_samples: int) -> None:
        self.check(num_samples)
        codec = image_codec(model)
        for judge in self._judges():
            check_reads(judge, codec)
            self._real(judge, model)
        if self.inception:
            load_inception(self.device)

    def measure(
        self, model: Model, tokens: Tokens, *, seed: int = 0, labels: Sequence[int] | None = None
    ) -> dict[str, Interval]:
        found = {"entropy": _mean(unigram_entropy(tokens).numpy(), seed)}
        if self.judge or self.inception:
            images = image_codec(model).images(tokens)
            classes = None if labels is None else np.array(labels)
            found |= self._judged(model, lambda judge: judge.look(images), classes, seed)
        return found

    def per_sample(self, model: Model, tokens: Tokens) -> dict[str, tuple[float | None, ...]]:
        return {}

    def references(self, model: Model, num_samples: int) -> dict[str, dict[str, Interval]]:
        """The same metrics of real images that are not in the reference, and of these through the tokenizer."""
        if not (self.judge or self.inception):
            return {}
        real = real_images(images_of(model), num_samples, is_reference=False)
        made = through_tokenizer(real, image_codec(model).tokenizer)
        name = f"{len(real.images):,} real images"
        return {
            name: self._judged(model, lambda judge: real_look(judge, real), real.labels, 0),
            f"{name} through the tokenizer": self._judged(model, lambda judge: real_look(judge, made), real.labels, 0),
        }

    def diversity(self, tokens: Tokens) -> float:
        return float(unigram_entropy(tokens).mean())

    def validate(self, denoiser: Denoiser, batch: Batch, *, num_iters: int) -> Validation:
        return Validation(**asdict(masked_cross_entropy(denoiser, batch, num_iters=num_iters, rest=self.rest)))

    def key(self) -> tuple[dict[str, Any], str]:
        """The name of the classifier does not matter, its weights do."""
        return {"inception": self.inception, "kind": "image"}, weights_of(self.judge) if self.judge else ""

    def shown(self, model: Model, data: Dataset, num: int) -> tuple[str, list[Any]]:
        return samples_of(model, num)

    def in_card(self, model: Model, data: Dataset) -> list[str]:
        """Samples, real images and what the tokenizer makes of those, side by side; a hint if nobody can judge."""
        try:
            judge = self.judge or classifier_for(model.data)
        except ValueError as error:
            return [f"Label accuracy was not measured: {error}."]
        own = ImageEvaluator(judge=judge, device=str(model.device))
        budget = max(Sampling.budget, model.denoiser.cost.step(1))
        with StepProgress("sampling for the card", math.ceil(IN_CARD / Sampling.batch_size)) as shown:
            out = generate(model, num_samples=IN_CARD, budget=budget, seed=0, on_step=shown)
        measured = own.measure(model, torch.tensor(out.tokens), labels=out.labels)
        found = {f"{IN_CARD} samples, {out.block_evals} block evaluations": measured}
        found |= own.references(model, IN_CARD)
        return [*_card_table(found, own.judged_by()), "", _tokenizer_error(model)]

    def _judged(
        self, model: Model, look: Callable[[ImageJudge], Look], labels: Classes | None, seed: int
    ) -> dict[str, Interval]:
        """What the judges find in images that should look like those that the model was trained on."""
        found: dict[str, Interval] = {}
        for judge in self._judges():
            own, real = look(judge), self._real(judge, model)
            if judge.name == INCEPTION:
                found |= _by_inception(own.features, real.features, labels, seed)
            else:
                found |= _by_classifier(own, real.features, labels, seed)
        return found

    def _judges(self) -> list[ImageJudge]:
        found = [load_classifier(self.judge, device=self.device)] if self.judge else []
        return [*found, inception_judge(self.device)] if self.inception else found

    def _real(self, judge: ImageJudge, model: Model) -> Look:
        most = MOST_FOR_INCEPTION if judge.name == INCEPTION else MOST_REAL
        return real_look(judge, real_images(images_of(model), most))


def image_codec(model: Model) -> ImageCodec:
    """The codec of an image model; a ValueError if it is none."""
    codec = model.speech
    if not isinstance(codec, ImageCodec):
        raise ValueError(f"the model writes {codec.kind}, no images")
    return codec


def check_reads(judge: ImageJudge, codec: ImageCodec) -> None:
    """A ValueError if a judge was made for other images than a model draws."""
    if judge.shape not in (None, codec.tokenizer.image_shape):
        raise ValueError(
            f"judge {judge.name} reads images of shape {judge.shape}, and the model draws "
            f"{codec.tokenizer.image_shape}; train a classifier on the model's data"
        )
    if judge.class_names and judge.class_names != codec.class_names:
        raise ValueError(
            f"judge {judge.name} knows other classes than the model, such as {judge.class_names[0]}; train a "
            "classifier on the model's data"
        )


def images_of(model: Model) -> PixelsConfig:
    """Which images a model was trained on; a ValueError if it does not tell."""
    if not isinstance(model.data, PixelsConfig):
        raise ValueError("the model does not tell which images it was trained on, so there are none to compare with")
    return model.data


def _by_classifier(look: Look, real: Vectors, labels: Classes | None, seed: int) -> dict[str, Interval]:
    found = {} if labels is None else {"accuracy": _mean((look.classes == labels).astype(float), seed)}
    assert look.probabilities is not None
    as_many = _spread(real, len(look.features))
    return {
        **found,
        "frechet": frechet_interval(look.features, Gaussian.of(real), groups=labels, seed=seed),
        "classifier_score": score_interval(look.probabilities, seed=seed),
        **density_and_coverage(look.features, as_many, k=NEIGHBOURS, groups=labels, seed=seed),
    }


def _by_inception(features: Vectors, real: Vectors, labels: Classes | None, seed: int) -> dict[str, Interval]:
    as_many = _spread(real, len(features))
    return {
        "fid": frechet_interval(features, Gaussian.of(real), groups=labels, num_resamples=FID_RESAMPLES, seed=seed),
        "kid": kernel_interval(features, real),
        **precision_and_recall(features, as_many, seed=seed),
    }


FID_RESAMPLES = 20
"""A resample takes five seconds with 2048 features."""


def _spread(rows: Vectors, num: int) -> Vectors:
    """So many rows, spread evenly, or all."""
    return rows[np.linspace(0, len(rows) - 1, min(num, len(rows))).round().astype(int)]


def _mean(values: np.ndarray, seed: int) -> Interval:
    return bootstrap(values.astype(float)[:, None], lambda means: means[:, 0], seed=seed)


def _card_table(found: dict[str, dict[str, Interval]], judge: str) -> list[str]:
    lines = [f"Judged by {judge}, against held-out images; 95 % intervals over images:", ""]
    lines += ["| images | label accuracy | Fréchet distance |", "| --- | --- | --- |"]
    for name, metrics in found.items():
        accuracy = f"{metrics['accuracy']:.3f}" if "accuracy" in metrics else ""
        lines.append(f"| {name} | {accuracy} | {metrics['frechet']:.2f} |")
    return lines


def _tokenizer_error(model: Model) -> str:
    """What of held-out images is lost in their codes."""
    real = real_images(images_of(model), 2000, is_reference=False)
    made = through_tokenizer(real, image_codec(model).tokenizer)
    error = float(((made.images.double() - real.images.double()) / 255).square().mean())
    return (
        f"Its tokenizer makes a mean squared error of {error:.5f} of {len(real.images):,} held-out images (pixels from "
        "0 to 1; 0 for the images themselves)."
    )
