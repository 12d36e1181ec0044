"""Validation perplexity: the bound that MDLM reports, with its Monte-Carlo error; exact for a causal model."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fpmgm.denoiser import Denoiser
from fpmgm.masking import MaskSchedule, linear, masked_below, stratified_times
from fpmgm.objectives import next_token_nll, token_nll
from fpmgm.randomness import generator
from fpmgm.types import PerSequence, Tokens


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """exp of the mean negative log-likelihood per token, and the standard error of that mean carried over."""

    value: float
    error: float
    nats_per_token: float
    num_sequences: int


@torch.no_grad()
def perplexity(
    denoiser: Denoiser,
    x: Tokens,
    *,
    num_iters: int = 6,
    batch_size: int = 32,
    seed: int = 0,
    schedule: MaskSchedule = linear,
) -> Perplexity:
    """Of the sequences x, one stratified time each; `num_iters` solver iterations, none for a plain stack."""
    was_training = denoiser.training
    denoiser.eval()
    try:
        if denoiser.is_causal:
            nats = torch.cat([next_token_nll(denoiser, part).mean(dim=1) for part in x.split(batch_size)])
        else:
            nats = torch.cat(list(_bounds(denoiser, x, num_iters, batch_size, seed, schedule)))
    finally:
        denoiser.train(was_training)
    mean = float(nats.double().mean())
    error = float(nats.double().std()) / math.sqrt(len(nats)) if len(nats) > 1 else math.nan
    value = math.exp(mean) if mean < 700 else math.inf
    return Perplexity(value=value, error=value * error, nats_per_token=mean, num_sequences=len(nats))


def _bounds(
    denoiser: Denoiser, x: Tokens, num_iters: int, batch_size: int, seed: int, schedule: MaskSchedule
) -> Iterator[PerSequence]:
    rng = generator(seed)
    t = stratified_times(len(x), rng=rng)[torch.randperm(len(x), generator=rng)].to(x.device)
    u = torch.rand(x.shape, generator=rng).to(x.device)
    for rows in torch.arange(len(x)).split(batch_size):
        z = masked_below(x[rows], u[rows], t[rows], mask_id=denoiser.mask_id, schedule=schedule)
        is_masked = z == denoiser.mask_id
        features = denoiser(z, t[rows], is_masked, num_grad=num_iters if denoiser.cost.fp else 0).features
        nll = token_nll(denoiser, features, x[rows][is_masked])
        by_position = torch.zeros(z.shape, device=x.device).masked_scatter(is_masked, nll)
        yield schedule.weight(t[rows]) * by_position.sum(dim=1) / x.shape[1]
