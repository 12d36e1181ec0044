"""Transitions: which masked tokens a denoising step reveals, and what it writes there.

A transition has two halves, because most rules choose positions before they see a logit:
`positions(state, t, t_next)` says where logits are needed, `write(state, logits, positions, t, t_next)` uses them.
Every rule ends with t_next = 0, where it leaves no mask.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fpmgm.draws import Draw, categorical, probability
from fpmgm.masking import MaskSchedule, linear
from fpmgm.names import choose
from fpmgm.randomness import Streams
from fpmgm.types import Chosen, Logits, PerChoice, Positions, State, Uniforms


@runtime_checkable
class Transition(Protocol):
    def positions(self, state: State, t: float, t_next: float, *, rng: Streams) -> Positions: ...

    def write(
        self, state: State, logits: Logits, positions: Positions, t: float, t_next: float, *, rng: Streams
    ) -> State: ...


@dataclass(frozen=True, kw_only=True)
class Ancestral:
    """MDLM's rule: every masked position is revealed by itself with probability (t - t_next) / t.

    Only the positions to be revealed need logits: MDLM's distribution at a fraction of its cost.
    """

    draw: Draw = field(default_factory=Draw)
    schedule: MaskSchedule = linear

    def positions(self, state: State, t: float, t_next: float, *, rng: Streams) -> Positions:
        return state.is_masked & (_uniforms(state, rng) < self.schedule.reveal(t, t_next))

    def write(
        self, state: State, logits: Logits, positions: Positions, t: float, t_next: float, *, rng: Streams
    ) -> State:
        tokens = self.draw(logits, _uniforms(state, rng)[positions])
        return state.written(positions, tokens)


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
        if self.noise < 0:
            raise ValueError(f"noise is {self.noise}; it must be 0 or more")

    def positions(self, state: State, t: float, t_next: float, *, rng: Streams) -> Positions:
        return state.is_masked

    def write(
        self, state: State, logits: Logits, positions: Positions, t: float, t_next: float, *, rng: Streams
    ) -> State:
        tokens = self.draw(logits, _uniforms(state, rng)[positions])
        score = SCORES[self.score](logits, tokens)
        if self.noise:
            u = _uniforms(state, rng)[positions].clamp_min(torch.finfo(torch.float64).tiny)
            score = score - self.noise * t_next * torch.log(-torch.log(u))
        num_masked = positions.sum(dim=1, keepdim=True)
        remaining = torch.ceil(num_masked.double() * (1 - self.schedule.reveal(t, t_next)) - 1e-9)
        num_revealed = num_masked - torch.minimum(remaining, num_masked - 1)
        everywhere = torch.full_like(state.confidence, -torch.inf).masked_scatter(positions, score)
        rank = everywhere.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        revealed = positions & (rank < num_revealed)
        return state.written(revealed, tokens[revealed[positions]])


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


@runtime_checkable
class RemaskRule(Protocol):
    """How ReMDM masks visible tokens again."""

    def alpha(self, t: float) -> float:
        """The share of tokens that is visible at time t."""
        ...

    def sigma(self, state: State, t: float, limit: float) -> Uniforms:
        """The probability that a token is masked again, at most `limit`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Cap:
    """sigma = eta, or the limit where that is less."""

    eta: float = 0.008

    def __post_init__(self) -> None:
        _require_share("eta", self.eta)

    def alpha(self, t: float) -> float:
        return 1 - t

    def sigma(self, state: State, t: float, limit: float) -> Uniforms:
        return torch.full_like(state.confidence, min(self.eta, limit))


@dataclass(frozen=True, kw_only=True)
class Rescale:
    """sigma = eta times the limit."""

    eta: float = 0.04

    def __post_init__(self) -> None:
        _require_share("eta", self.eta)

    def alpha(self, t: float) -> float:
        return 1 - t

    def sigma(self, state: State, t: float, limit: float) -> Uniforms:
        return torch.full_like(state.confidence, self.eta * limit)


@dataclass(frozen=True, kw_only=True)
class Conf:
    """sigma = the limit, shared out over visible tokens: the less sure one was when written, the more."""

    def alpha(self, t: float) -> float:
        return 1 - t

    def sigma(self, state: State, t: float, limit: float) -> Uniforms:
        may_go = ~(state.is_masked | state.is_given)
        share = (-state.confidence).masked_fill(~may_go, -torch.inf).softmax(dim=1)
        return limit * share.nan_to_num(0.0)  # nan: no token may go


@dataclass(frozen=True, kw_only=True)
class Loop:
    """Reveal up to alpha_on by time t_on; revise with sigma = eta until t_off; then reveal the rest."""

    eta: float = 0.02
    t_on: float = 0.55
    t_off: float = 0.05
    alpha_on: float = 0.9

    def __post_init__(self) -> None:
        _require_share("eta", self.eta)
        if not 0 < self.t_off < self.t_on < 1:
            raise ValueError(f"t_on {self.t_on}, t_off {self.t_off}; they must satisfy 0 < t_off < t_on < 1")
        if not 0 < self.alpha_on < 1:
            raise ValueError(f"alpha_on is {self.alpha_on}; it must lie between 0 and 1")

    def alpha(self, t: float) -> float:
        if t > self.t_on:
            return (1 - t) / (1 - self.t_on) * self.alpha_on
        return 1 - min(t / self.t_off, 1) * (1 - self.alpha_on)

    def sigma(self, state: State, t: float, limit: float) -> Uniforms:
        is_on = self.t_off < t <= self.t_on
        return torch.full_like(state.confidence, min(self.eta, limit) if is_on else 0.0)


def _require_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}; it must lie between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class Remasking:
    """ReMDM's rule: ancestral, but visible tokens may be masked again with probability sigma, and revealed anew.

    Masked tokens are revealed with probability (alpha_s - (1 - sigma) alpha_t) / (1 - alpha_t), s = t_next.
    Given tokens stay.
    """

    rule: RemaskRule = field(default_factory=Cap)
    draw: Draw = field(default_factory=Draw)

    def positions(self, state: State, t: float, t_next: float, *, rng: Streams) -> Positions:
        alpha, alpha_next = self.rule.alpha(t), self.rule.alpha(t_next)
        # `Conf` gives masked positions no sigma, as ReMDM does: they are revealed as without remasking.
        reveal = (alpha_next - (1 - self._sigma(state, t, t_next)) * alpha) / (1 - alpha)
        return state.is_masked & (_uniforms(state, rng) < reveal)

    def write(
        self, state: State, logits: Logits, positions: Positions, t: float, t_next: float, *, rng: Streams
    ) -> State:
        logits = self.draw.filtered(logits)
        tokens = categorical(logits, _uniforms(state, rng)[positions])
        goes = _uniforms(state, rng) < self._sigma(state, t, t_next)
        goes &= ~(state.is_masked | state.is_given)
        confidence = state.confidence.masked_scatter(positions, probability(logits, tokens).to(state.confidence))
        z = state.z.masked_fill(goes, state.mask_id)
        return replace(state, z=z, confidence=confidence).written(positions, tokens)

    def _sigma(self, state: State, t: float, t_next: float) -> Uniforms:
        alpha, alpha_next = self.rule.alpha(t), self.rule.alpha(t_next)
        limit = min(1.0, (1 - alpha_next) / alpha) if alpha > 0 else 1.0
        return self.rule.sigma(state, t, limit)


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
def _halton_rank(height: int, width: int) -> Tensor:
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

    height: int
    width: int
    draw: Draw = field(default_factory=Draw)

    def num_visible(self, t_next: float) -> int:
        """How many cells of the order are visible at time t_next."""
        return int(self.height * self.width * (1 - math.acos(1 - t_next) / (math.pi / 2)))

    def positions(self, state: State, t: float, t_next: float, *, rng: Streams) -> Positions:
        num_cells = self.height * self.width
        if state.z.shape[1] != num_cells:
            raise ValueError(
                f"a Halton order of {self.height} x {self.width} cells cannot fill {state.z.shape[1]} positions; "
                f"it takes {num_cells}"
            )
        rank = _halton_rank(self.height, self.width).to(state.z.device).expand_as(state.z)
        next_rank = rank.masked_fill(~state.is_masked, num_cells).amin(dim=1, keepdim=True)
        return state.is_masked & (rank < (next_rank + 1).clamp_min(self.num_visible(t_next)))

    def write(
        self, state: State, logits: Logits, positions: Positions, t: float, t_next: float, *, rng: Streams
    ) -> State:
        tokens = self.draw(logits, _uniforms(state, rng)[positions])
        return state.written(positions, tokens)


def _uniforms(state: State, rng: Streams) -> Tensor:
    return rng.uniform(state.z.shape[1]).to(state.z.device)
