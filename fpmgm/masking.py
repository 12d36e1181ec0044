"""Masking: which tokens are hidden at time t, how the loss weighs them, and what may be predicted.

t = 0 is clean, t = 1 all masked; alpha(t) is the probability that a token is kept.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from fpmgm.names import choose
from fpmgm.types import Logits, PerSequence, Tokens, Uniforms

Time = Float[Tensor, "*shape"]


@dataclass(frozen=True)
class MaskSchedule:
    """The masked share 1 - alpha(t) and its slope -alpha'(t), both free of cancellation near t = 0."""

    name: str
    masked: Callable[[Time], Time]
    slope: Callable[[Time], Time]

    def alpha(self, t: Time) -> Time:
        """The probability that a token is still visible at time t."""
        return 1 - self.masked(t)

    def weight(self, t: Time) -> Time:
        """w(t) = -alpha'(t) / (1 - alpha(t)), the weight of the cross entropy (Eq. 1).

        The paper prints alpha' / (1 - alpha) and declares w positive; alpha falls, so the sign is here.
        `cosine` is flat at t = 1: there its weight is the smallest positive number instead of 0.
        """
        return (self.slope(t) / self.masked(t)).clamp_min(torch.finfo(t.dtype).tiny)

    def reveal(self, t: float, t_next: float) -> float:
        """The probability that a token masked at t is visible at t_next; (t - t_next) / t if linear."""
        masked, masked_next = self.masked(torch.tensor([t, t_next], dtype=torch.float64)).tolist()
        return 1 - masked_next / masked


linear = MaskSchedule("linear", lambda t: t, torch.ones_like)
"""1 - alpha = t, w = 1 / t: all is masked at t = 1."""

KEPT = 1e-3
"""The share of tokens that the public code of MDLM leaves visible at t = 1."""
log_linear = MaskSchedule("log-linear", lambda t: (1 - KEPT) * t, lambda t: torch.full_like(t, 1 - KEPT))
"""As the public code of MDLM masks: sigma(t) = -log(1 - (1 - 1e-3) t), and a share 1 - exp(-sigma) = (1 - 1e-3) t is
masked. Its weight sigma' / (exp(sigma) - 1) is 1 / t too."""

cosine = MaskSchedule(
    "cosine", lambda t: torch.sin(math.pi / 2 * t), lambda t: math.pi / 2 * torch.sin(math.pi / 2 * (1 - t))
)
"""MaskGIT's cosine: with r = 1 - t of the way done, a share cos(pi r / 2) is masked."""

arccos = MaskSchedule(
    "arccos", lambda t: 2 / math.pi * torch.acos(1 - t), lambda t: 2 / math.pi / torch.sqrt(t * (2 - t))
)
"""Halton-MaskGIT's arccos: with r = 1 - t of the way done, a share arccos(r) / (pi / 2) is masked."""

exponential = MaskSchedule("exponential", lambda t: -torch.expm1(-5 * t), lambda t: 5 * torch.exp(-5 * t))
"""eMIGM's: a share 1 - exp(-5 t) is masked, so that most updates see little. It is for training: at t = 1 the share is
0.993."""

ScheduleName = Literal["linear", "log-linear", "cosine", "arccos", "exponential"]
SCHEDULES: dict[str, MaskSchedule] = {
    schedule.name: schedule for schedule in (linear, log_linear, cosine, arccos, exponential)
}
BoundName = Literal["linear", "log-linear"]
"""Schedules by which validation bounds the likelihood of text."""


def mask_schedule_by_name(name: str) -> MaskSchedule:
    """The mask schedule of that name: `linear`, `log-linear`, `cosine`, `arccos` or `exponential`."""
    return choose("mask schedule", name, SCHEDULES)


def stratified_times(num: int, *, rng: Generator, eps: float = 1e-3) -> PerSequence:
    """`num` times in (eps, 1], one in each of `num` equal strata, latest stratum first.

    The strata are those of the whole batch: with several processes, draw for all and take a slice.
    """
    u = (torch.arange(num) + torch.rand(num, generator=rng, dtype=torch.float64)) / num
    return (1 - (1 - eps) * u).float()


def cleaner_times(t: PerSequence, *, rng: Generator, gap_min: float = 0.05, gap_max: float = 0.30) -> PerSequence:
    """t less a gap drawn from U[gap_min, gap_max], but not below 0."""
    if not 0 < gap_min <= gap_max <= 1:
        raise ValueError(f"gaps are {gap_min} to {gap_max}; they must satisfy 0 < gap_min <= gap_max <= 1")
    gap = gap_min + (gap_max - gap_min) * torch.rand(len(t), generator=rng)
    return (t - gap.to(t)).clamp_min(0)


def corrupt(x: Tokens, t: PerSequence, *, mask_id: int, rng: Generator, schedule: MaskSchedule = linear) -> Tokens:
    """z: each token of x masked by itself with probability 1 - alpha(t)."""
    return masked_below(x, _uniforms_like(x, rng), t, mask_id=mask_id, schedule=schedule)


def masked_below(x: Tokens, u: Uniforms, t: PerSequence, *, mask_id: int, schedule: MaskSchedule = linear) -> Tokens:
    """z for given uniform numbers: a token is masked where its number is below 1 - alpha(t)."""
    return torch.where(u < schedule.masked(t)[:, None].to(u), mask_id, x)


def nested_pair(
    x: Tokens,
    t_noisier: PerSequence,
    t_cleaner: PerSequence,
    *,
    mask_id: int,
    rng: Generator,
    schedule: MaskSchedule = linear,
) -> tuple[Tokens, Tokens]:
    """(noisier, cleaner) from shared uniforms: what the cleaner masks is a strict part of what the noisier does."""
    return nested_below(x, _uniforms_like(x, rng), t_noisier, t_cleaner, mask_id=mask_id, schedule=schedule)


def nested_below(
    x: Tokens,
    u: Uniforms,
    t_noisier: PerSequence,
    t_cleaner: PerSequence,
    *,
    mask_id: int,
    schedule: MaskSchedule = linear,
) -> tuple[Tokens, Tokens]:
    """`nested_pair` for given uniform numbers.

    Where both would be the same, the cleaner shows the position that the falling time would reveal next.
    Only a sequence with no mask at all stays as it is: there is nothing to show.
    """
    if bool((t_cleaner > t_noisier).any()):
        raise ValueError("t_cleaner is above t_noisier in some sequence; it must be at most t_noisier")
    noisier = masked_below(x, u, t_noisier, mask_id=mask_id, schedule=schedule)
    cleaner = masked_below(x, u, t_cleaner, mask_id=mask_id, schedule=schedule)
    next_revealed = u.masked_fill(noisier != mask_id, -1).argmax(dim=1, keepdim=True)
    shown = cleaner.scatter(1, next_revealed, x.gather(1, next_revealed))
    is_same = (noisier == cleaner).all(dim=1, keepdim=True)
    return noisier, torch.where(is_same, shown, cleaner)


def _uniforms_like(x: Tokens, rng: Generator) -> Uniforms:
    return torch.rand(x.shape, generator=rng).to(x.device)


def subs(logits: Float[Tensor, "B L V"], z: Tokens, *, mask_id: int) -> Float[Tensor, "B L V"]:
    """MDLM's SUBS: log-probabilities that never predict the mask and copy every visible token."""
    log_p = without_mask(logits.flatten(0, 1), mask_id=mask_id).log_softmax(dim=-1).view_as(logits)
    copied = torch.full_like(log_p, -torch.inf).scatter(-1, z.unsqueeze(-1), 0.0)
    return torch.where((z == mask_id).unsqueeze(-1), log_p, copied)


def without_mask(logits: Logits, *, mask_id: int) -> Logits:
    """The first half of SUBS, all that masked positions need: the mask is never predicted."""
    return logits.index_fill(-1, torch.tensor([mask_id], device=logits.device), -torch.inf)
