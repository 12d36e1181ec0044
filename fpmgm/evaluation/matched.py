"""Quality at matched entropy: a knob of the sampler is turned until two models' samples are equally diverse.

Low temperature makes any sampler's text more probable and less diverse; comparing generative perplexities is fair only
where the entropies meet.
"""

from dataclasses import dataclass
from typing import Any

import torch

from fpmgm.checkpoint import Model
from fpmgm.evaluation.diversity import unigram_entropy
from fpmgm.generation import Generated, generate
from fpmgm.names import choose

RANGES = {"temperature": (0.3, 1.5), "top_p": (0.05, 1.0)}
"""Where each knob is searched; entropy rises with both."""


@dataclass(frozen=True, kw_only=True)
class Matched:
    """Samples whose entropy is the target's, and the setting that made it so."""

    setting: float
    entropy: float
    is_met: bool
    """Whether the entropy came as near as was asked; otherwise the nearest end of the knob's range was taken."""
    out: Generated


def match_entropy(
    model: Model,
    target: float,
    *,
    knob: str = "temperature",
    within: float = 0.02,
    max_tries: int = 10,
    **sampling: Any,
) -> Matched:
    """Bisect a knob until the mean unigram entropy of samples is the target's, give or take `within`.

    All tries use the same seed, so that they differ in the knob alone.
    """
    low, high = choose("knob", knob, RANGES)
    best = _try(model, knob, high, target, within, sampling)
    if best.is_met or best.entropy < target:
        return best
    bottom = _try(model, knob, low, target, within, sampling)
    if bottom.is_met or bottom.entropy > target:
        return bottom
    for _ in range(max_tries):
        middle = _try(model, knob, (low + high) / 2, target, within, sampling)
        best = min(best, middle, key=lambda found: abs(found.entropy - target))
        if best.is_met:
            return best
        low, high = (middle.setting, high) if middle.entropy < target else (low, middle.setting)
    return best


def _try(model: Model, knob: str, setting: float, target: float, within: float, sampling: dict[str, Any]) -> Matched:
    out = generate(model, **{**sampling, knob: setting})
    entropy = float(unigram_entropy(torch.tensor(out.tokens)).mean())
    return Matched(setting=setting, entropy=entropy, is_met=abs(entropy - target) <= within, out=out)
