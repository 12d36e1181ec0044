"""Guidance: the logits of a class, moved away from those of no class, with a weight for every denoising step.

Both halves run as one doubled batch: first the sequences with their classes, then the same sequences without one. Each
half has hidden states and a solver state of its own, because each of its sequences is a row of the batch of its own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fpmgm.names import choose
from fpmgm.types import NO_CLASS, Labels, Logits, Places, Tokens

GuidanceName = Literal["constant", "ramp", "late"]


@dataclass(frozen=True, kw_only=True)
class Guidance:
    """Classifier-free guidance: logits are (1 + w) conditional - w unconditional, and a rule says w at each step."""

    weight: float = 0.0
    """The largest w. With 0 nothing is guided, and no unconditional half runs."""
    rule: GuidanceName = "constant"
    """`constant`: w at every step. `ramp`: from 0 at the first step to w at the last. `late`: 0, and w from `begin`."""
    begin: float = 0.5
    """The share of the steps after which `late` begins; the last step always has the weight."""

    def __post_init__(self) -> None:
        choose("guidance", self.rule, GUIDANCES)
        if not 0 <= self.weight < math.inf:
            raise ValueError(f"cfg_weight is {self.weight}; it must be a number, 0 or more")
        if not 0 <= self.begin <= 1:
            raise ValueError(f"guidance_begin is {self.begin}; it must lie between 0 and 1")

    def weights(self, num_steps: int) -> tuple[float, ...]:
        """w at every step.

        >>> Guidance(weight=3.0, rule="ramp").weights(4)
        (0.0, 1.0, 2.0, 3.0)
        >>> Guidance(weight=3.0, rule="late").weights(4)
        (0.0, 0.0, 3.0, 3.0)
        """
        share = GUIDANCES[self.rule]
        return tuple(float(self.weight * share(i, num_steps, self.begin)) for i in range(num_steps))

    def runs_both(self, num_steps: int, *, is_kept: bool) -> tuple[bool, ...]:
        """Whether the unconditional half runs, for every step.

        It runs where the weight is not 0. If solver states are kept from step to step (`is_kept`), it runs at every
        step, so that its state is as far as that of the conditional half when the weight comes.
        """
        weights = self.weights(num_steps)
        return tuple(bool(weight or (is_kept and self.weight)) for weight in weights)


def _constant(i: int, num_steps: int, begin: float) -> float:
    return 1.0


def _ramp(i: int, num_steps: int, begin: float) -> float:
    return i / (num_steps - 1) if num_steps > 1 else 1.0


def _late(i: int, num_steps: int, begin: float) -> float:
    return float(i >= min(math.ceil(begin * num_steps), num_steps - 1))


GUIDANCES: dict[str, Callable[[int, int, float], float]] = {"constant": _constant, "ramp": _ramp, "late": _late}
"""The share of the weight at step i of num_steps."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What one pass of the network is asked: sequences, their classes, and where logits are needed."""

    z: Tokens
    label: Labels | None
    places: Places
    weight: float = 0.0
    is_doubled: bool = False

    def doubled(self, weight: float) -> "Asked":
        """The same for both halves."""
        assert self.label is not None
        return Asked(
            z=torch.cat([self.z, self.z]),
            label=torch.cat([self.label, torch.full_like(self.label, NO_CLASS)]),
            places=doubled(self.places),
            weight=weight,
            is_doubled=True,
        )

    def mixed(self, logits: Float[Tensor, "K V"]) -> Logits:
        """The logits to draw from: those of both halves mixed, or those of the only half as they are."""
        if not self.is_doubled:
            return logits
        cond, uncond = logits.chunk(2)
        return (1 + self.weight) * cond - self.weight * uncond


def doubled(places: Places) -> Places:
    """The places of a batch followed by itself, without another search for them."""
    num_rows, most = places.by_row.shape
    return replace(
        places,
        flat=torch.cat([places.flat, places.flat + num_rows * places.length]),
        by_row=torch.cat([places.by_row, places.by_row]),
        slots=torch.cat([places.slots, places.slots + num_rows * most]),
        counts=places.counts * 2,
    )
