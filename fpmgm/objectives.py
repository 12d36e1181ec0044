"""Objectives: losses on a batch."""

from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn import functional as F  # noqa: N812

from fpmgm.denoiser import Denoiser
from fpmgm.gradients import Gradient, IterationCounts, sjfb
from fpmgm.masking import MaskSchedule, corrupt, linear, stratified_times, without_mask
from fpmgm.names import choose
from fpmgm.solvers import Solver, picard
from fpmgm.types import Chosen, Logits, PerChoice, PerSequence, Tokens

Scalar = Float[Tensor, ""]


@dataclass(frozen=True, kw_only=True)
class Losses:
    total: Scalar  # what the optimiser minimises
    residual: PerSequence  # of the fixed point; 0 for a plain stack


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

    def __post_init__(self) -> None:
        choose("weighting", self.weighting, {"bound": None, "masked": None})

    def __call__(self, denoiser: Denoiser, x: Tokens, *, rng: Generator) -> Losses:
        t = stratified_times(len(x), rng=rng).to(x.device)
        z = corrupt(x, t, mask_id=denoiser.mask_id, rng=rng, schedule=self.schedule)
        num_no_grad, num_grad = self.counts(rng=rng) if denoiser.cost.fp else (0, 0)
        is_masked = z == denoiser.mask_id
        features, residual = denoiser(
            z,
            t,
            is_masked,
            num_no_grad=num_no_grad,
            num_grad=num_grad,
            gradient=self.gradient,
            solver=self.solver,
        )
        nll = token_nll(denoiser.head(features), x[is_masked], mask_id=denoiser.mask_id)
        if self.weighting == "masked":
            total = nll.sum() / is_masked.sum().clamp_min(1)
        else:
            weight = self.schedule.weight(t)[:, None].expand(x.shape)[is_masked]
            total = (weight * nll).sum() / x.numel()
        return Losses(total=total, residual=residual)


def token_nll(logits: Logits, tokens: Chosen, *, mask_id: int) -> PerChoice:
    """-log p of each token under SUBS at masked positions."""
    return F.cross_entropy(without_mask(logits, mask_id=mask_id), tokens, reduction="none")
