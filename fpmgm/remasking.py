"""Remasking: ReMDM's transition, in which visible tokens may be masked again, and its four rules for when.

The names are those of its paper (Wang et al., 2025, "Remasking Discrete Diffusion Models with Inference-Time Scaling").
"""

from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch

from fpmgm.draws import Draw, categorical, probability
from fpmgm.randomness import Streams
from fpmgm.transitions import uniforms_at
from fpmgm.types import Logits, Places, Positions, State, Uniforms


@runtime_checkable
class RemaskRule(Protocol):
    """How ReMDM masks visible tokens again."""

    def alphas(self, t: float, t_next: float) -> tuple[float, float]:
        """The shares of tokens that are visible before and after a step."""
        ...

    def sigma(self, state: State, t: float, limit: float) -> Uniforms:
        """The probability that a token is masked again, at most `limit`."""
        ...


@dataclass(frozen=True, kw_only=True)
class ReMDMCap:
    """sigma = eta, or the limit where that is less."""

    eta: float = 0.008

    def __post_init__(self) -> None:
        _require_share("eta", self.eta)

    def alphas(self, t: float, t_next: float) -> tuple[float, float]:
        return 1 - t, 1 - t_next

    def sigma(self, state: State, t: float, limit: float) -> Uniforms:
        return torch.full_like(state.confidence, min(self.eta, limit))


@dataclass(frozen=True, kw_only=True)
class ReMDMRescale:
    """sigma = eta times the limit."""

    eta: float = 0.015

    def __post_init__(self) -> None:
        _require_share("eta", self.eta)

    def alphas(self, t: float, t_next: float) -> tuple[float, float]:
        return 1 - t, 1 - t_next

    def sigma(self, state: State, t: float, limit: float) -> Uniforms:
        return torch.full_like(state.confidence, self.eta * limit)


@dataclass(frozen=True, kw_only=True)
class ReMDMConf:
    """sigma = the limit, shared out over visible tokens: the less sure one was when written, the more."""

    def alphas(self, t: float, t_next: float) -> tuple[float, float]:
        return 1 - t, 1 - t_next

    def sigma(self, state: State, t: float, limit: float) -> Uniforms:
        may_go = ~(state.is_masked | state.is_given)
        share = (-state.confidence).masked_fill(~may_go, -torch.inf).softmax(dim=1)
        return limit * share.nan_to_num(0.0)  # nan: no token may go


@dataclass(frozen=True, kw_only=True)
class ReMDMLoop:
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

    def alphas(self, t: float, t_next: float) -> tuple[float, float]:
        """The part of the schedule in which a step begins holds for all of it, as in the public code.

        So a step that crosses t_on goes on to reveal as before it, and one that crosses t_off still revises. There are
        two differences: no share exceeds 1, and the step that ends at 0 reveals everything.
        """
        if t_next == 0:
            return self._alpha(t, t), 1.0
        return self._alpha(t, t), min(self._alpha(t_next, t), 1.0)

    def _alpha(self, t: float, begin: float) -> float:
        """The share at time t of a step that begins at `begin`."""
        if begin > self.t_on:
            return (1 - t) / (1 - self.t_on) * self.alpha_on
        return self.alpha_on if begin > self.t_off else 1 - t / self.t_off * (1 - self.alpha_on)

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

    rule: RemaskRule = field(default_factory=ReMDMCap)
    draw: Draw = field(default_factory=Draw)

    def positions(self, state: State, t: float, t_next: float, *, rng: Streams) -> Positions:
        alpha, alpha_next = self.rule.alphas(t, t_next)
        # `ReMDMConf` gives masked positions no sigma, as ReMDM does: they are revealed as without remasking.
        reveal = (alpha_next - (1 - self._sigma(state, t, t_next)) * alpha) / (1 - alpha)
        return state.is_masked & _below(reveal, rng)

    def write(self, state: State, logits: Logits, places: Places, t: float, t_next: float, *, rng: Streams) -> State:
        logits = self.draw.filtered(logits)
        tokens = categorical(logits, uniforms_at(places, logits, rng))
        goes = _below(self._sigma(state, t, t_next), rng)
        goes &= ~(state.is_masked | state.is_given)
        confidence = places.put(state.confidence, probability(logits, tokens))
        z = state.z.masked_fill(goes, state.mask_id)
        return replace(state, z=z, confidence=confidence).written(places, tokens)

    def _sigma(self, state: State, t: float, t_next: float) -> Uniforms:
        alpha, alpha_next = self.rule.alphas(t, t_next)
        limit = min(1.0, (1 - alpha_next) / alpha) if alpha > 0 else 1.0
        return self.rule.sigma(state, t, limit)


def _below(share: Uniforms, rng: Streams) -> Positions:
    """Where the next number of each position is below its share."""
    return rng.uniform(share.shape[1]).to(share) < share
