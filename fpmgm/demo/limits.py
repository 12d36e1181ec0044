"""What a visitor may ask for. Every request is checked here, whoever made it and however it came."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fpmgm.budget import ALLOCATIONS
from fpmgm.names import choose
from fpmgm.reuse import REUSES
from fpmgm.schema import has_surrogates, require, shortened

MODES = ("Continue the text", "Fill in the blanks")
LARGEST_SEED = 2**32 - 1
TEXT_ORDERS = {
    "model's own": "auto",
    "by chance": "ancestral",
    "surest first": "confidence",
    "masks some again": "remdm-rescale",
}
IMAGE_ORDERS = {"Halton": "halton", "surest first": "confidence"}
"""Which tokens a step reveals, as the page calls it and as `Sampling` does."""
ANY_CLASS = "all classes in turn"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that one request may ask for. A request beyond it is refused."""

    budget: int = 768
    """Block evaluations of a text or an image."""
    steps: int = 256
    letters: int = 4000
    """Letters of a prompt, before anything is made of them."""
    images: int = 16
    guidance: float = 8.0
    temperature: float = 2.0
    waiting: int = 16
    """Requests that wait for their turn; further ones are told to come back later."""

    def __post_init__(self) -> None:
        for name in ("budget", "steps", "letters", "images", "waiting"):
            require(f"the limit of {name}", getattr(self, name), 1)


@dataclass(frozen=True, kw_only=True)
class TextRequest:
    """What the page's form for text holds, as it came: nothing of it is trusted."""

    mode: Any
    text: Any
    budget: Any
    seed: Any

    def settings(self, way: "Way", limits: Limits) -> dict[str, Any]:
        """What `generate` is asked for; a ValueError if it is beyond the limits or no such setting."""
        if self.mode not in MODES:
            raise ValueError(f"the mode is {shortened(self.mode)}; it must be one of: {', '.join(MODES)}")
        text = _text(self.text, limits.letters)
        found = {"budget": _whole("the budget", self.budget, 1, limits.budget), **way.settings(limits)}
        found["seed"] = _whole("the seed", self.seed, 0, LARGEST_SEED)
        if self.mode == MODES[1]:
            return {"infill": (text,), **found}
        return {"prompts": (text,) if text.strip() else (), **found}


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a text is sampled: all that two sides of a comparison may differ in, but for the model."""

    steps: Any = 0
    allocation: Any = "auto"
    reuse: Any = "auto"
    tolerance: Any = 0
    temperature: Any = 1.0
    top_p: Any = 1.0
    order: Any = "model's own"

    def settings(self, limits: Limits) -> dict[str, Any]:
        """Fields of `Sampling`. 0 steps leave their number open, a tolerance of 0 runs all iterations."""
        steps = _whole("the number of steps", self.steps, 0, limits.steps)
        tolerance = _number("the tolerance", self.tolerance, 0, 1)
        top_p = _number("top-p", self.top_p, 0, 1)
        temperature = _number("the temperature", self.temperature, 0, limits.temperature)
        return {
            "steps": steps or None,
            "allocation": _choice("allocation", self.allocation, {"auto": None, **ALLOCATIONS}),
            "reuse": _choice("reuse", self.reuse, {"auto": None, **REUSES}),
            "tolerance": tolerance or None,
            "temperature": temperature,
            "top_p": None if top_p == 1 or temperature == 0 else top_p,
            "transition": choose("order", str(self.order), TEXT_ORDERS),
        }


@dataclass(frozen=True, kw_only=True)
class ImageRequest:
    """What the page's form for images holds, as it came."""

    wanted: Any
    count: Any
    guidance: Any
    order: Any
    budget: Any
    steps: Any
    temperature: Any
    seed: Any

    def settings(self, limits: Limits) -> dict[str, Any]:
        """What `generate` is asked for; a ValueError if it is beyond the limits or no such setting."""
        steps = _whole("the number of steps", self.steps, 0, limits.steps)
        return {
            "classes": () if self.wanted in (None, "", ANY_CLASS) else (_text(self.wanted, 200),),
            "num_samples": _whole("the number of images", self.count, 1, limits.images),
            "cfg_weight": _number("the guidance", self.guidance, 0, limits.guidance),
            "transition": choose("order", str(self.order), IMAGE_ORDERS),
            "budget": _whole("the budget", self.budget, 1, limits.budget),
            "steps": steps or None,
            "temperature": _number("the temperature", self.temperature, 0, limits.temperature),
            "seed": _whole("the seed", self.seed, 0, LARGEST_SEED),
        }


def sentence(error: Exception) -> str:
    """What an error says, as a whole sentence for a visitor.

    >>> sentence(ValueError("the budget is 0; it must be 1 to 768"))
    'The budget is 0; it must be 1 to 768.'
    """
    words = " ".join(str(error).split()) or "this cannot be done"
    words = words[0].upper() + words[1:]
    return words if words.endswith((".", "?", "!")) else f"{words}."


def _text(given: Any, most: int) -> str:
    if given is None:
        return ""
    if not isinstance(given, str) or has_surrogates(given):
        raise ValueError(f"the text is {shortened(given)}; give letters")
    if len(given) > most:
        raise ValueError(f"the text has {len(given)} letters; this page takes at most {most}: please shorten it")
    return given


def _choice(name: str, given: Any, choices: Mapping[str, object]) -> str:
    choose(name, str(given), choices)
    return str(given)


def _number(name: str, given: Any, least: int, most: int | float) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise ValueError(f"{name} is {shortened(given)}; it must be a number from {least} to {most:g}")
    if not least <= given <= most:
        raise ValueError(f"{name} is {shortened(given)}; it must be {least} to {most:g}")
    return float(given)


def _whole(name: str, given: Any, least: int, most: int) -> int:
    number = _number(name, given, least, most)
    if not math.isclose(number, round(number)):
        raise ValueError(f"{name} is {shortened(given)}; it must be a whole number")
    return round(number)
