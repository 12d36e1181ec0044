"""Quality at matched entropy: a knob of the sampler is turned until two models' samples are equally diverse.

Low temperature makes any sampler's text more probable and less diverse; comparing generative perplexities is fair only
where the entropies meet.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fpmgm.names import choose

RANGES = {"temperature": (0.3, 1.5), "top_p": (0.05, 1.0)}
"""Where each knob is searched; entropy rises with both."""
FIRST_STEP = 0.1
SLOPE = 1.0
"""A guess of how many nats a setting higher by 1 adds: a small difference is met in the first step if it holds."""
WITHIN = 0.01
"""Entropies this near are equal."""


def is_near(entropy: float, target: float, within: float = WITHIN) -> bool:
    """Whether two entropies are taken as equal."""
    return abs(entropy - target) <= within


@dataclass(frozen=True, kw_only=True)
class Matched:
    """A setting of the knob and the entropy that it gives."""

    setting: float
    entropy: float
    is_met: bool
    """Whether the entropy came as near as was asked; otherwise this is the nearest that was tried."""


def match_entropy(
    entropy: Callable[[float], float],
    target: float,
    *,
    knob: str = "temperature",
    start: float = 1.0,
    within: float = WITHIN,
    max_tries: int = 12,
) -> Matched:
    """Turn a knob until `entropy(setting)` is the target's, give or take `within`.

    From `start` on, in growing steps, until the target lies between two tries; then where the straight line between
    them meets it. Every try may be a minute of sampling, and most searches take three.
    """
    low, high = choose("knob", knob, RANGES)
    setting, step = min(max(start, low), high), 0.0
    tried: list[Matched] = []
    for _ in range(max_tries):
        found = entropy(setting)
        step = step or min(FIRST_STEP, abs(found - target) / SLOPE)
        tried.append(Matched(setting=setting, entropy=found, is_met=is_near(found, target, within)))
        too_low = [each for each in tried if each.entropy < target]
        too_high = [each for each in tried if each.entropy >= target]
        if tried[-1].is_met or setting == (high if found < target else low):
            break
        if too_low and too_high:
            below, above = max(too_low, key=_setting), min(too_high, key=_setting)
            share = (target - below.entropy) / (above.entropy - below.entropy)
            setting = below.setting + min(max(share, 0.1), 0.9) * (above.setting - below.setting)
        else:
            setting = min(max(setting + (step if found < target else -step), low), high)
            step *= 2
    return min(tried, key=lambda each: abs(each.entropy - target))


def _setting(found: Matched) -> float:
    return found.setting
