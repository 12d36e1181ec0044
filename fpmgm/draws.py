"""Drawing a token from logits: temperature, top-k, top-p, and one inverse-CDF draw."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fpmgm.devices import has_float64
from fpmgm.names import choose
from fpmgm.types import Chosen, Logits, PerChoice

RACE_EPS = 1e-10
"""Keeps the logarithm and the quotient of a race finite; the public code of MDLM has the same number."""
NUMBERS_AT_ONCE = 1 << 18
"""How many probabilities a draw on the CPU works on at a time: two megabytes in float64."""
COLDEST = 1e-6
"""The lowest temperature above 0: with much lower ones logits overflow."""


def exact(logits: Logits) -> Logits:
    """Logits in float64, as draws need them; on the CPU if their device has no float64 (MPS)."""
    return logits.double() if has_float64(logits.device) else logits.cpu().double()


def categorical(logits: Logits, u: PerChoice) -> Chosen:
    """The token whose slice of the cumulative distribution holds u, a uniform number in [0, 1).

    One number per position instead of one per symbol. The arithmetic is that of `logits.dtype`: the sampler
    passes float64, because in float32 the mass of rare symbols is rounded away (`docs/numerics.md`). On the CPU some
    rows are drawn at a time, so that they stay in the cache from one pass over them to the next.
    """
    at_once = max(1, NUMBERS_AT_ONCE // logits.shape[-1]) if logits.device.type == "cpu" else len(logits)
    if len(logits) <= at_once:
        return _drawn(logits, u)
    return torch.cat([_drawn(*part) for part in zip(logits.split(at_once), u.split(at_once), strict=True)])


def _drawn(logits: Logits, u: PerChoice) -> Chosen:
    cumulative = (logits - logits.amax(dim=-1, keepdim=True)).exp_().cumsum_(dim=-1)
    total = cumulative[:, -1]
    if not bool(total.isfinite().all()):
        raise FloatingPointError("logits are not finite: the weights are broken, or training has diverged")
    target = torch.minimum(u.to(total) * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]


def race(weights: Logits, u: Logits) -> Chosen:
    """The entrant of each row with the largest weight over an exponential number, as the public code of MDLM draws.

    The arithmetic is that of `u`. In float32 a uniform number has 24 bits, so that exponential numbers are never below
    6e-8, and a weight that is much smaller than another one never wins.
    """
    return (weights / (RACE_EPS - (u + RACE_EPS).log())).argmax(dim=-1)


def probability(logits: Logits, tokens: Chosen) -> PerChoice:
    """The probability of each of these tokens."""
    return (logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(dim=-1)).exp()


def keep_top_k(logits: Logits, k: int) -> Logits:
    """Leave the k largest logits (and those equal to the k-th), forbid the rest."""
    if k >= logits.shape[-1]:
        return logits
    floor = logits.topk(k, dim=-1).values[:, -1:]
    return logits.masked_fill(logits < floor, -torch.inf)


def _reaches(before: Tensor, at: Tensor, p: float) -> Tensor:
    return before < p


def _stays_within(before: Tensor, at: Tensor, p: float) -> Tensor:
    return at <= p


NucleusName = Literal["inclusive", "strict"]
NUCLEI: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "inclusive": _reaches,
    "strict": _stays_within,
}
"""Two conventions in use for the set top-p keeps, from the most probable token down.

`inclusive`: up to and with the token at which the sum reaches p (transformers, Duo).
`strict`: while the sum stays at or below p, and always the first (ReMDM).
"""


def keep_top_p(logits: Logits, p: float, nucleus: str = "inclusive") -> Logits:
    """Leave the most probable tokens whose probabilities add up to p, forbid the rest.

    >>> keep_top_p(torch.tensor([[0.5, 0.3, 0.2]]).log(), 0.6).exp()
    tensor([[0.5000, 0.3000, 0.0000]])
    >>> keep_top_p(torch.tensor([[0.5, 0.3, 0.2]]).log(), 0.6, "strict").exp()
    tensor([[0.5000, 0.0000, 0.0000]])
    """
    rule = choose("nucleus", nucleus, NUCLEI)
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.softmax(dim=-1)
    at = probabilities.cumsum(dim=-1)
    keep = rule(at - probabilities, at, p)
    keep[:, 0] = True
    return logits.masked_fill(~keep.gather(1, order.argsort(dim=-1)), -torch.inf)


@dataclass(frozen=True, kw_only=True)
class Draw:
    """How a token is drawn: temperature first, then top-k, then top-p."""

    temperature: float = 1.0
    """Divides the logits; 0 takes the most probable token."""
    top_k: int | None = None
    """How many of the most probable tokens may be drawn; None for all."""
    top_p: float | None = None
    """The probability mass that may be drawn; None for all."""
    nucleus: NucleusName = "inclusive"
    """Which set `top_p` keeps: `inclusive` or `strict` (see `NUCLEI`)."""

    def __post_init__(self) -> None:
        if self.temperature != 0 and not COLDEST <= self.temperature < math.inf:  # nan neither
            raise ValueError(f"temperature is {self.temperature}; it must be 0 (greedy) or a number from {COLDEST} up")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k is {self.top_k}; it must be at least 1, or None for all tokens")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be above 0 and at most 1, or None for all")
        choose("nucleus", self.nucleus, NUCLEI)
        if self.temperature == 0 and (self.top_k is not None or self.top_p is not None):
            raise ValueError(
                "temperature 0 takes the most probable token; top_k and top_p would do nothing: leave them out"
            )
        if self.nucleus != "inclusive" and self.top_p is None:
            raise ValueError(f"nucleus is {self.nucleus} but top_p is not set, so it would do nothing")

    def __call__(self, logits: Logits, u: PerChoice) -> Chosen:
        """One token per row of logits, from one uniform number per row."""
        return categorical(self.filtered(logits), u)

    def filtered(self, logits: Logits) -> Logits:
        """The logits that tokens are drawn from: tempered, and -inf where a token may not be drawn."""
        if self.temperature == 0:
            best = logits.argmax(dim=-1, keepdim=True)
            return torch.full_like(logits, -torch.inf).scatter(1, best, logits.gather(1, best))
        if self.temperature != 1:
            logits = logits / self.temperature
        if self.top_k is not None:
            logits = keep_top_k(logits, self.top_k)
        if self.top_p is not None and self.top_p < 1:
            logits = keep_top_p(logits, self.top_p, self.nucleus)
        return logits
