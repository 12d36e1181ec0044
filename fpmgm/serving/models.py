"""The models that a server offers, by the names that requests give."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

from fpmgm.checkpoint import Model, load, weights_of
from fpmgm.codecs import TextCodec
from fpmgm.serving.exact import RowByRow


@dataclass(frozen=True, kw_only=True, eq=False)
class Served:
    """A text model under the name by which it is asked for."""

    name: str
    model: Model
    codec: TextCodec
    fingerprint: str
    """It changes when the weights change or the library does: texts of equal fingerprint and seed are equal."""
    created: int

    @cached_property
    def denoiser(self) -> RowByRow:
        """The model's denoiser, whose last block and head look at one sequence at a time."""
        return RowByRow(self.model.denoiser)

    @property
    def length(self) -> int:
        return self.model.config.vocabulary.length

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.denoiser.parameters())


def load_served(sources: Sequence[str], *, device: str, dtype: str) -> dict[str, Served]:
    """The models by name; a ValueError if one writes no text, or if two would have the same name."""
    if not sources:
        raise ValueError("no models are given; name at least one, as in --models NAME")
    found: dict[str, Served] = {}
    for source in sources:
        name = name_of(source)
        if name in found:
            raise ValueError(f"two models would be called {name}; give each model once, and folders of different names")
        found[name] = served(load(source, device=device, dtype=dtype), name, fingerprint=weights_of(source))
    return found


def served(model: Model, name: str, *, fingerprint: str) -> Served:
    """A model to be served; a ValueError if it writes no text."""
    codec = model.codec
    if codec is None:
        raise ValueError(f"{name} has no tokenizer, so it cannot read a prompt; give a model folder with one")
    if not isinstance(codec, TextCodec):
        raise ValueError(
            f"{name} is a model of images, and serve answers with text; `fpmgm sample {name}` draws with it"
        )
    if model.denoiser.is_causal:
        raise ValueError(f"{name} is causal, made to judge text; serve a masked model")
    fingerprint = f"fpmgm-{version('fpmgm')}-{fingerprint}"
    return Served(name=name, model=model, codec=codec, fingerprint=fingerprint, created=int(time.time()))


def name_of(source: str) -> str:
    """What a model is called: a folder by its last part (that of a run, if the model lies in one), others as given."""
    path = Path(source)
    if not path.is_dir():
        return source
    path = path.resolve()
    return path.parent.name if path.name == "model" else path.name
