"""The models that the page offers, each with what was measured of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fpmgm.checkpoint import BUNDLED, DEFAULT, Model, find_folder, load, read_config
from fpmgm.denoiser import Denoiser
from fpmgm.names import choose
from fpmgm.schema import read_json

KINDS = ("text", "image")
"""What the page can show."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A model by the name that visitors see."""

    name: str
    model: Model
    report: Mapping[str, Any] = field(default_factory=dict)
    """The report.json of its folder; empty if there is none."""

    @property
    def kind(self) -> str:
        """What it makes: text or image."""
        return self.model.speech.kind

    @property
    def described(self) -> str:
        """A line on what the model is."""
        config = self.model.config
        size = sum(parameter.numel() for parameter in self.model.denoiser.parameters())
        return f"{config.kind}, {config.cost} blocks, {size:,} parameters, {config.vocabulary.length} tokens"


Offers = Mapping[str, Offer]


def offer_of(name: str, model: Model) -> Offer:
    """A model that is loaded; a ValueError if the page cannot show what it makes."""
    is_sampled = isinstance(model.denoiser, Denoiser) and not model.denoiser.is_causal
    if not is_sampled or model.codec is None or model.codec.kind not in KINDS:
        raise ValueError(f"{name} cannot be shown; the page shows masked models that write text or draw images")
    return Offer(name=Path(name).name or name, model=model, report=read_report(name))


def read_report(name: str) -> Mapping[str, Any]:
    """What was measured of a model, as its folder keeps it."""
    file = find_folder(name) / "report.json"
    return read_json(file) if file.is_file() else {}


def offered(names: Sequence[str], *, device: str = "auto", dtype: str = "float32") -> dict[str, Offer]:
    """Load these models, or all bundled ones that can be shown if none is named."""
    found: dict[str, Offer] = {}
    for name in names or bundled():
        offer = offer_of(name, load(name, device=device, dtype=dtype))
        if offer.name in found:
            raise ValueError(f"two models are called {offer.name}; rename the folder of one of them")
        found[offer.name] = offer
    return found


def bundled() -> list[str]:
    """The bundled models that can be shown, the default one first."""
    folders = sorted(path for path in BUNDLED.glob("*") if (path / "config.json").is_file())
    names = [folder.name for folder in folders if _is_shown(folder)]
    return sorted(names, key=lambda name: (name != DEFAULT, name))


def _is_shown(folder: Path) -> bool:
    config = read_config(folder)
    return not config.is_causal and config.vocabulary.shape is None


def of_kind(offers: Offers, kind: str) -> dict[str, Offer]:
    """Those that make text, or images."""
    return {name: offer for name, offer in offers.items() if offer.kind == kind}


def chosen(offers: Offers, name: Any) -> Offer:
    """The model of that name; a ValueError with the names there are if a request asks for another one."""
    return choose("model", str(name), offers)
