"""The paper's observations, and whether an analysis of a model shows them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fpmgm.analysis.lagged import Lagged
from fpmgm.analysis.solving import Movement, Residuals, Starts
from fpmgm.analysis.trace import MASKED, REVEALED, VISIBLE

PAPERS_ITERATIONS = 4
"""After so many iterations the paper reads its residuals."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A sentence of the paper, whether it holds here, and the numbers that say so."""

    claim: str
    is_shown: bool
    numbers: str

    def __str__(self) -> str:
        return f"{'shown' if self.is_shown else 'not shown'}: {self.claim} ({self.numbers})"


def observations(found: Mapping[str, Any]) -> tuple[Observation, ...]:
    """What the analyses that were made have to say; `found` has them by name."""
    seen: list[Observation] = []
    if "residuals" in found:
        seen += _of_residuals(found["residuals"])
    if "starts" in found:
        seen += _of_starts(found["starts"])
    if "movement" in found:
        seen += _of_movement(found["movement"])
    if "lagged" in found:
        seen += _of_lagged(found["lagged"])
    return tuple(seen)


def _of_residuals(found: Residuals) -> Iterator[Observation]:
    skip = 1 if len(found.times) > 1 else 0
    curves = {reuse: found.by_iteration(index, skip=skip) for index, reuse in enumerate(found.reuses)}
    stop = min(PAPERS_ITERATIONS, len(found.residuals[0][0]) - 1)
    yield Observation(
        claim=f"residuals fall with each of the first {stop} iterations",
        is_shown=all(_falls(curve[: stop + 1]) for curve in curves.values()),
        numbers="; ".join(f"{name} {curve[0]:.3g} to {curve[stop]:.3g}" for name, curve in curves.items()),
    )
    warm = [curve[0] for name, curve in curves.items() if name != "none"]
    if "none" in curves and warm:
        yield Observation(
            claim="warm starts begin closer to the fixed point, by their residuals",
            is_shown=max(warm) < curves["none"][0],
            numbers="; ".join(f"{name} {curve[0]:.3g}" for name, curve in curves.items()),
        )


def _of_starts(found: Starts) -> Iterator[Observation]:
    later = {reuse: start[1:] for reuse, start in zip(found.reuses, found.start, strict=True) if len(start) > 1}
    means = {reuse: sum(start) / len(start) for reuse, start in later.items()}
    if "none" in means and len(means) > 1:
        yield Observation(
            claim="warm starts lie closer to the solution, by their distance",
            is_shown=max(mean for reuse, mean in means.items() if reuse != "none") < means["none"],
            numbers="; ".join(f"{reuse} {mean:.3g}" for reuse, mean in means.items()),
        )


def _of_movement(found: Movement) -> Iterator[Observation]:
    means = {found.kinds[kind]: found.mean(kind) for kind in (VISIBLE, MASKED, REVEALED)}
    known = {name: value for name, value in means.items() if value is not None}
    numbers = "; ".join(f"{name} {value:.3g}" for name, value in known.items())
    if len(known) == len(means):
        order = list(known.values())
        yield Observation(
            claim="newly revealed positions move most", is_shown=order[2] > max(order[:2]), numbers=numbers
        )
        yield Observation(
            claim="unchanged visible positions move least", is_shown=order[0] < min(order[1:]), numbers=numbers
        )
    masked = [each for each in found.moved[MASKED] if each is not None]
    third = len(masked) // 3
    if third:
        early, late = sum(masked[:third]) / third, sum(masked[-third:]) / third
        yield Observation(
            claim="still masked positions move less as denoising goes on",
            is_shown=late < early,
            numbers=f"{early:.3g} in the first third of the steps, {late:.3g} in the last",
        )


def _of_lagged(found: Lagged) -> Iterator[Observation]:
    for name, change in zip(found.models, found.change, strict=True):
        known = [(num, each) for num, each in zip(found.steps, change, strict=True) if each is not None]
        if len(known) > 1:
            yield Observation(
                claim=f"with more steps the logits of {name} change less from step to step",
                is_shown=_falls([each for _, each in sorted(known)]),
                numbers="; ".join(f"{num} steps {each:.3g}" for num, each in known),
            )
    lows, highs = (
        [each for row in ends for each in row if each is not None]
        for ends in (found.reduction_low, found.reduction_high)
    )
    values = [each for row in found.reduction for each in row if each is not None]
    if values:
        yield Observation(
            claim=f"the lagged KL of {found.models[0]} is lower than that of {found.models[1]} at all lags and steps",
            is_shown=min(lows) > 0,
            numbers=f"reduction {100 * sum(values) / len(values):.1f} % on average, from {100 * min(values):.1f} to "
            f"{100 * max(values):.1f} %; all intervals between {100 * min(lows):.1f} and {100 * max(highs):.1f} %",
        )


def _falls(values: Sequence[float]) -> bool:
    return all(later < earlier for earlier, later in pairwise(values))
