"""Objectives: losses on a batch."""

from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn import functional as F  # noqa: N812

from fpmgm.denoiser import Denoiser
from fpmgm.gradients import Gradient, IterationCounts, sjfb
from fpmgm.masking import MaskSchedule, corrupt, linear, stratified_times, without_mask
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

    schedule: MaskSchedule = linear
    counts: IterationCounts = field(default_factory=IterationCounts)
    gradient: Gradient = sjfb
    solver: Solver = picard

    def __call__(self, denoiser: Denoiser, x: Tokens, *, rng: Generator) -> Losses:
        """The mean over all tokens, masked or not: a bound on their negative log-likelihood, in nats."""
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
        weight = self.schedule.weight(t)[:, None].expand(x.shape)[is_masked]
        return Losses(total=(weight * nll).sum() / x.numel(), residual=residual)


def token_nll(logits: Logits, tokens: Chosen, *, mask_id: int) -> PerChoice:
    """-log p of each token under SUBS at masked positions."""
    return F.cross_entropy(without_mask(logits, mask_id=mask_id), tokens, reduction="none")
