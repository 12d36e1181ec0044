"""What a student learns from a teacher: the teacher's pass, and how far two distributions are apart."""

from collections.abc import Callable

import torch

from fpmgm.denoiser import Denoiser, evaluating
from fpmgm.draws import categorical, exact
from fpmgm.masking import without_mask
from fpmgm.objectives import LOGITS_AT_ONCE, MaskedCrossEntropy, Noise
from fpmgm.solvers import solver_by_name
from fpmgm.types import Chosen, Features, Logits, PerChoice, PerSequence, Places, Positions, Tokens

TEACHER_ITERS = 6
"""Solver iterations of a teacher with a fixed point whose student has none."""


@torch.no_grad()
def teacher_features(
    teacher: Denoiser,
    z: Tokens,
    t: PerSequence,
    places: Positions | Places,
    noise: Noise,
    base: MaskedCrossEntropy,
) -> Features:
    """What the teacher's head reads: no gradients, no dropout, as many iterations of the solver as the student's."""
    counts = {"num_no_grad": noise.num_no_grad, "num_grad": noise.num_grad or TEACHER_ITERS}
    with evaluating(teacher):
        solver = solver_by_name(base.solver)
        asked = {**(counts if teacher.cost.fp else {}), "rest": base.rests(teacher)}
        return teacher(z, t, places, label=noise.label, solver=solver, **asked).features


def log_probabilities(denoiser: Denoiser, features: Features, temperature: float = 1.0) -> Logits:
    """Of every symbol; the mask, which is never predicted, gets -inf."""
    return without_mask(denoiser.head(features) / temperature, mask_id=denoiser.mask_id).log_softmax(dim=-1)


def with_mask_column(denoiser: Denoiser, features: Features) -> Logits:
    """log-probabilities with the mask's column as SUBS leaves it, less the million that SUBS takes off.

    All other columns are those of `log_probabilities`. A difference of two such columns does not depend on the million.
    """
    logits = denoiser.head(features)
    return logits - without_mask(logits, mask_id=denoiser.mask_id).logsumexp(dim=-1, keepdim=True)


@torch.no_grad()
def drawn_tokens(denoiser: Denoiser, features: Features, u: PerChoice) -> Chosen:
    """Tokens that a network draws at chosen positions, some at a time: float64 logits of a large head fill memory."""
    at_once = max(1, LOGITS_AT_ONCE // denoiser.vocab_size)
    parts = zip(features.split(at_once), u.split(at_once), strict=True)
    return torch.cat([categorical(exact(log_probabilities(denoiser, some)), of).to(u.device) for some, of in parts])


def divergence(log_p: Logits, log_q: Logits, mask_id: int) -> PerChoice:
    """KL(p || q) of each row; the mask, which neither predicts, is left out."""
    return (log_p.exp() * difference(log_p, log_q, mask_id)).sum(dim=-1)


def difference(log_p: Logits, log_q: Logits, mask_id: int) -> Logits:
    """log p - log q, 0 for the mask."""
    mask = torch.tensor([mask_id], device=log_p.device)
    return log_p.index_fill(1, mask, 0.0) - log_q.index_fill(1, mask, 0.0)


def kl_backward(log_p: Logits, log_q: Logits, mask_id: int) -> PerChoice:
    """KL(student || teacher)."""
    return divergence(log_q, log_p, mask_id)


def log_mse(log_p: Logits, log_q: Logits, mask_id: int) -> PerChoice:
    """The mean squared difference of log-probabilities, over all symbols."""
    return difference(log_p, log_q, mask_id).square().mean(dim=-1)


def log_tvd(log_p: Logits, log_q: Logits, mask_id: int) -> PerChoice:
    """The sum of absolute differences of log-probabilities: what SDTT's code calls tvd."""
    return difference(log_p, log_q, mask_id).abs().sum(dim=-1)


def log_mse_with_mask(log_p: Logits, log_q: Logits, mask_id: int) -> PerChoice:
    """`log_mse` with the mask's column."""
    return (log_p - log_q).square().mean(dim=-1)


def log_tvd_with_mask(log_p: Logits, log_q: Logits, mask_id: int) -> PerChoice:
    """`log_tvd` with the mask's column."""
    return (log_p - log_q).abs().sum(dim=-1)


DIVERGENCES: dict[str, Callable[[Logits, Logits, int], PerChoice]] = {
    "kl-bwd": kl_backward,
    "kl-fwd": divergence,
    "mse": log_mse,
    "tvd": log_tvd,
    "mse-with-mask": log_mse_with_mask,
    "tvd-with-mask": log_tvd_with_mask,
}
"""Of a student q from a teacher p, by SDTT's names; the first is its default."""
