"""Transitions: which masked tokens a denoising step reveals, and what it writes there.

A transition has two halves, because most rules choose positions before they see a logit:
`positions(state, t, t_next)` says where logits are needed, `write(state, logits, places, t, t_next)` uses them.
Every rule ends with t_next = 0, where it leaves no mask.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from fpmgm.draws import Draw, probability, race
from fpmgm.masking import MaskSchedule, linear
from fpmgm.names import choose
from fpmgm.randomness import Streams, generator
from fpmgm.types import Chosen, Logits, PerChoice, Places, Positions, State

TransitionName = Literal[
    "ancestral",
    "confidence",
    "confidence-margin",
    "confidence-entropy",
    "confidence-drawn",
    "halton",
    "remdm-cap",
    "remdm-rescale",
    "remdm-conf",
    "remdm-loop",
]
"""What settings call the rules of this file and of `remasking`."""


@runtime_checkable
class Transition(Protocol):
    def positions(self, state: State, t: float, t_next: float, *, rng: Streams) -> Positions: ...

    def write(
        self, state: State, logits: Logits, places: Places, t: float, t_next: float, *, rng: Streams
    ) -> State: ...


@dataclass(frozen=True, kw_only=True)
class Ancestral:
    """MDLM's rule: every masked position is revealed by itself with probability (t - t_next) / t.

    Only the positions to be revealed need logits: MDLM's distribution at a fraction of its cost.
    """

    draw: Draw = field(default_factory=Draw)
    schedule: MaskSchedule = linear

    def positions(self, state: State, t: float, t_next: float, *, rng: Streams) -> Positions:
        return state.is_masked & (rng.uniform(state.length) < self.schedule.reveal(t, t_next)).to(state.device)

    def write(self, state: State, logits: Logits, places: Places, t: float, t_next: float, *, rng: Streams) -> State:
        return state.written(places, self.draw(logits, uniforms_at(places, logits, rng)))


@dataclass(frozen=True, kw_only=True)
class RacedAncestral:
    """`Ancestral` as public code draws it in float32: at each masked position all tokens race against the mask.

    The more steps there are, the less a token weighs against the mask, and the fewer tokens can win at all, so that
    samples are too cold (docs/numerics.md). It is here to show that. It needs logits at every masked position.
    """

    draw: Draw = field(default_factory=Draw)
    schedule: MaskSchedule = linear

    def positions(self, state: State, t: float, t_next: float, *, rng: Streams) -> Positions:
        return state.is_masked

    def write(self, state: State, logits: Logits, places: Places, t: float, t_next: float, *, rng: Streams) -> State:
        reveal = self.schedule.reveal(t, t_next)
        keys = (rng.uniform(1)[:, 0] * 2**53).long().tolist()  # of streams of their own: a number a symbol is too many
        tokens = []
        for key, own in zip(keys, logits.split(list(places.counts)), strict=True):
            weights = reveal * self.draw.filtered(own.float()).softmax(dim=-1)
            weights[:, state.mask_id] = 1 - reveal
            u = torch.rand(weights.shape, generator=generator(key), dtype=torch.float32)
            tokens.append(race(weights, u.to(weights.device)))
        return state.written(places, torch.cat(tokens))


@dataclass(frozen=True, kw_only=True)
class Confidence:
    """MaskGIT's rule: draw a token at every masked position, then reveal the surest of them.

    How many follows the schedule, spread evenly, at least one a step while masks remain.
    """

    score: str = "top-probability"
    """What makes a position sure: `top-probability`, `margin` (of the first over the second token), `entropy` (low)
    or `drawn-probability` (of the token that was drawn). Judged before temperature, top-k and top-p."""
    noise: float = 0.0
    """Gumbel noise on the score (a log-probability where it is a probability), times t_next."""
    draw: Draw = field(default_factory=Draw)
    schedule: MaskSchedule = linear

    def __post_init__(self) -> None:
        choose("confidence score", self.score, SCORES)
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"noise is {self.noise}; it must be a number, 0 or more")

    def positions(self, state: State, t: float, t_next: float, *, rng: Streams) -> Positions:
        return state.is_masked

    def write(self, state: State, logits: Logits, places: Places, t: float, t_next: float, *, rng: Streams) -> State:
        tokens = self.draw(logits, uniforms_at(places, logits, rng))
        score = SCORES[self.score](logits, tokens)
        if self.noise:
            u = uniforms_at(places, logits, rng).clamp_min(torch.finfo(torch.float64).tiny)
            score = score - self.noise * t_next * torch.log(-torch.log(u))
        num_masked = state.is_masked.sum(dim=1, keepdim=True)
        remaining = torch.ceil(num_masked.to(score) * (1 - self.schedule.reveal(t, t_next)) - 1e-9)
        num_revealed = num_masked - torch.minimum(remaining.to(num_masked), num_masked - 1)
        everywhere = places.put(torch.full_like(state.confidence, -torch.inf), score)
        rank = everywhere.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        revealed = state.is_masked & (rank < num_revealed)
        drawn = places.put(state.z, tokens)
        return replace(state, z=torch.where(revealed, drawn, state.z))


def _log_top_probability(logits: Logits, tokens: Chosen) -> PerChoice:
    return logits.log_softmax(dim=-1).amax(dim=-1)


def _margin(logits: Logits, tokens: Chosen) -> PerChoice:
    best = logits.softmax(dim=-1).topk(2, dim=-1).values
    return best[:, 0] - best[:, 1]


def _negative_entropy(logits: Logits, tokens: Chosen) -> PerChoice:
    p = logits.softmax(dim=-1)
    return torch.special.xlogy(p, p).sum(dim=-1)


def _log_drawn_probability(logits: Logits, tokens: Chosen) -> PerChoice:
    return probability(logits, tokens).log()


SCORES: dict[str, Callable[[Logits, Chosen], PerChoice]] = {
    "top-probability": _log_top_probability,
    "margin": _margin,
    "entropy": _negative_entropy,
    "drawn-probability": _log_drawn_probability,
}


@cache
def halton_order(height: int, width: int) -> tuple[int, ...]:
    """All cells of a grid, as row * width + column, in the order a Halton sequence first meets them.

    Bases 2 (rows) and 3 (columns), from index 1 on.

    >>> [divmod(cell, 16) for cell in halton_order(16, 16)[:4]]
    [(8, 5), (4, 10), (12, 1), (2, 7)]
    """
    met: dict[int, None] = {}
    index = 0
    while len(met) < height * width:
        index += 1
        row, column = int(_radical_inverse(index, 2) * height), int(_radical_inverse(index, 3) * width)
        met[row * width + column] = None
    return tuple(met)


@cache
def halton_rank(height: int, width: int) -> Tensor:
    """When each cell comes."""
    return torch.tensor(halton_order(height, width)).argsort()


def _radical_inverse(index: int, base: int) -> float:
    value, digit = 0.0, 1.0
    while index:
        digit /= base
        index, remainder = divmod(index, base)
        value += remainder * digit
    return value


@dataclass(frozen=True, kw_only=True)
class Halton:
    """Halton-MaskGIT's rule: cells of a grid in low-discrepancy order, few at first, on an arccos schedule."""

    height: int = 1
    width: int | None = None
    """Columns. With None, as many as the sequence has positions: a text is one row."""
    roll: bool = False
    """Whether each sequence begins the order at a place of its own, drawn from its stream, and goes round."""
    draw: Draw = field(default_factory=Draw)

    def __post_init__(self) -> None:
        if self.height < 1 or (self.width is not None and self.width < 1):
            raise ValueError(f"a grid of {self.height} x {self.width} cells; it needs at least 1 x 1")

    def num_visible(self, t_next: float, num_cells: int) -> int:
        """How many cells of the order are visible at time t_next."""
        return int(num_cells * (1 - math.acos(1 - t_next) / (math.pi / 2)))

    def shown(self, num_steps: int, num_cells: int) -> list[int]:
        """How many cells of the order are visible before the first of so many even steps, and after each.

        >>> Halton().shown(4, 16)
        [0, 2, 5, 8, 16]
        """
        found = [0]
        for step in range(num_steps):
            found.append(min(max(found[-1] + 1, self.num_visible(1 - (step + 1) / num_steps, num_cells)), num_cells))
        return found

    def positions(self, state: State, t: float, t_next: float, *, rng: Streams) -> Positions:
        length = state.z.shape[1]
        width = length if self.width is None else self.width
        num_cells = self.height * width
        if length != num_cells:
            raise ValueError(
                f"a Halton order of {self.height} x {width} cells cannot fill {length} positions; it takes {num_cells}"
            )
        rank = self._rank(width, rng).to(state.z.device).expand_as(state.z)
        next_rank = rank.masked_fill(~state.is_masked, num_cells).amin(dim=1, keepdim=True)
        return state.is_masked & (rank < (next_rank + 1).clamp_min(self.num_visible(t_next, num_cells)))

    def _rank(self, width: int, rng: Streams) -> Tensor:
        """When each cell comes: for all sequences alike or, rolled, for each by itself and the same at every step."""
        rank = halton_rank(self.height, width)
        return (rank + (rng.fixed * len(rank)).long()[:, None]) % len(rank) if self.roll else rank

    def write(self, state: State, logits: Logits, places: Places, t: float, t_next: float, *, rng: Streams) -> State:
        return state.written(places, self.draw(logits, uniforms_at(places, logits, rng)))


def uniforms_at(places: Places, logits: Logits, rng: Streams) -> PerChoice:
    """A number in [0, 1) for each place: the next of its sequence's stream, there where the logits are."""
    return places.take(rng.uniform(places.length).to(logits.device))
