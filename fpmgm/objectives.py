"""Objectives: losses on a batch.

An objective draws its random numbers for the whole batch at once (`draw`), then computes the loss of any part of it:
parts add up to the loss of the whole, whether they are processes, accumulation steps or one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from fpmgm.denoiser import Denoised, Denoiser
from fpmgm.gradients import Gradient, IterationCounts, sjfb
from fpmgm.head_loss import weighed_nll
from fpmgm.masking import MaskSchedule, linear, masked_below, stratified_times, without_mask
from fpmgm.names import choose
from fpmgm.solvers import Solver, picard
from fpmgm.types import Chosen, Features, PerChoice, PerSequence, Positions, Tokens, Uniforms

Scalar = Float[Tensor, ""]

LOGITS_AT_ONCE = 1 << 26
"""How many logits a loss holds at a time: a quarter of a gigabyte in float32."""


@dataclass(frozen=True, kw_only=True)
class Losses:
    """What a part of a batch adds to the loss of the whole."""

    total: Scalar  # what the optimiser minimises
    residual: PerSequence  # of the fixed point; 0 for a plain stack
    terms: dict[str, Scalar] = field(default_factory=dict)  # what `total` is made of, if of several things


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The random numbers of a batch, or of some rows of it."""

    t: PerSequence
    u: Uniforms
    num_no_grad: int
    num_grad: int
    num_tokens: int  # of the whole batch, without padding
    num_masked: int  # of those

    def rows(self, part: slice) -> "Noise":
        """The numbers of some rows; the totals stay those of the whole batch."""
        return replace(self, t=self.t[part], u=self.u[part])


@dataclass(frozen=True, kw_only=True)
class MaskedCrossEntropy:
    """The paper's base objective: cross entropy at masked positions, weighted by w(t) (Eq. 1)."""

    weighting: str = "bound"
    """`bound`: w(t), mean over all tokens: a bound on their negative log-likelihood, in nats (MDLM).
    `masked`: no weight, mean over masked tokens (MaskGIT)."""
    schedule: MaskSchedule = linear
    counts: IterationCounts = field(default_factory=IterationCounts)
    gradient: Gradient = sjfb
    solver: Solver = picard
    pad_id: int | None = None
    """What fills sequences up: seen and masked like any token, but no part of the loss (MDLM on LM1B)."""

    def __post_init__(self) -> None:
        choose("weighting", self.weighting, {"bound": None, "masked": None})

    def __call__(self, denoiser: Denoiser, x: Tokens, *, rng: Generator) -> Losses:
        """The loss of a whole batch."""
        return self.loss(denoiser, x, self.draw(denoiser, x, rng=rng))

    def draw(self, denoiser: Denoiser, x: Tokens, *, rng: Generator, update: int = 0) -> Noise:
        """Times, uniform numbers and iteration counts for a whole batch."""
        num_no_grad, num_grad = self.counts(rng=rng) if denoiser.cost.fp else (0, 0)
        t = stratified_times(len(x), rng=rng)
        u = torch.rand(x.shape, generator=rng)
        counts = not_padding(x, self.pad_id).cpu()
        return Noise(
            t=t,
            u=u,
            num_no_grad=num_no_grad,
            num_grad=num_grad,
            num_tokens=int(counts.sum()),
            num_masked=int((counts & (u < self.schedule.masked(t)[:, None])).sum()),
        )

    def loss(self, denoiser: Denoiser, x: Tokens, noise: Noise) -> Losses:
        """What the rows x of a batch, with their part of its noise, add to its loss."""
        t = noise.t.to(x.device)
        z = masked_below(x, noise.u.to(x.device), t, mask_id=denoiser.mask_id, schedule=self.schedule)
        asked = (z == denoiser.mask_id) & not_padding(x, self.pad_id)
        features, residual = self.read(denoiser, z, asked, noise)
        return Losses(total=self.score(denoiser, features, x, asked, noise), residual=residual)

    def read(self, denoiser: Denoiser, z: Tokens, asked: Positions, noise: Noise) -> Denoised:
        """The pass that learns, with the iterations that were drawn."""
        counts = {"num_no_grad": noise.num_no_grad, "num_grad": noise.num_grad}
        found: Denoised = denoiser(z, noise.t.to(z.device), asked, gradient=self.gradient, solver=self.solver, **counts)
        return found

    def score(self, denoiser: Denoiser, features: Features, x: Tokens, asked: Positions, noise: Noise) -> Scalar:
        """The weighed cross entropy of what was masked, from the features there."""
        if self.weighting == "masked":
            weights = torch.full_like(x[asked], 1 / max(noise.num_masked, 1), dtype=torch.float32)
        else:
            weights = self.schedule.weight(noise.t.to(x.device))[:, None].expand(x.shape)[asked] / noise.num_tokens
        return weighed_nll(features, *denoiser.backbone.head_weights(), x[asked], weights, mask_id=denoiser.mask_id)


def not_padding(x: Tokens, pad_id: int | None) -> Positions:
    """Where x counts."""
    return torch.ones_like(x, dtype=torch.bool) if pad_id is None else x != pad_id


def token_nll(denoiser: Denoiser, features: Features, tokens: Chosen) -> PerChoice:
    """-log p of each token under SUBS at masked positions (a causal model has no mask to forbid)."""

    def nll(features: Features, tokens: Chosen) -> PerChoice:
        logits = denoiser.head(features)
        if not denoiser.is_causal:
            logits = without_mask(logits, mask_id=denoiser.mask_id)
        return F.cross_entropy(logits, tokens, reduction="none")

    return in_parts(nll, denoiser.vocab_size, features, tokens)


def in_parts(of_rows: Callable[..., PerChoice], vocab_size: int, *rows: Tensor) -> PerChoice:
    """A function of chosen positions that makes logits, for all of them.

    More logits than LOGITS_AT_ONCE are computed in parts, and again in the backward pass, so that few are held.
    """
    at_once = max(1, LOGITS_AT_ONCE // vocab_size)
    if len(rows[0]) <= at_once:
        return of_rows(*rows)
    parts = zip(*(tensor.split(at_once) for tensor in rows), strict=True)
    return torch.cat([checkpoint(of_rows, *part, use_reentrant=False) for part in parts])


@dataclass(frozen=True, kw_only=True)
class NextToken:
    """Cross entropy of the next token: for causal models of the same blocks."""

    pad_id: int | None = None
    """What fills sequences up; no part of the loss."""

    def draw(self, denoiser: Denoiser, x: Tokens, *, rng: Generator, update: int = 0) -> Noise:
        """Nothing is random here but dropout."""
        nothing = torch.zeros(len(x))
        num_tokens = int(not_padding(x, self.pad_id)[:, 1:].sum())
        return Noise(t=nothing, u=nothing[:, None], num_no_grad=0, num_grad=0, num_tokens=num_tokens, num_masked=0)

    def loss(self, denoiser: Denoiser, x: Tokens, noise: Noise) -> Losses:
        """What the rows x of a batch add to its mean over tokens."""
        asked = torch.zeros_like(x, dtype=torch.bool)
        asked[:, :-1] = not_padding(x, self.pad_id)[:, 1:]
        tokens = x.roll(-1, dims=1)[asked]
        weights = torch.full_like(tokens, 1 / noise.num_tokens, dtype=torch.float32)
        features = denoiser(x, 0.0, asked).features
        total = weighed_nll(features, *denoiser.backbone.head_weights(), tokens, weights, mask_id=None)
        return Losses(total=total, residual=torch.zeros(len(x), device=x.device))


def next_token_nll(model: Denoiser, x: Tokens) -> Float[Tensor, "B N"]:
    """-log p(x_i | x_<i) under a causal model, for every token but the first."""
    positions = torch.ones_like(x, dtype=torch.bool)
    positions[:, -1] = False
    features = model(x, 0.0, positions).features
    return token_nll(model, features, x[:, 1:].flatten()).view(len(x), -1)
