"""How well a model knows held-out data: the perplexity that MDLM reports, or MaskGIT's masked cross entropy."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fpmgm.denoiser import Denoiser, evaluating
from fpmgm.masking import MaskSchedule, arccos, linear, masked_below, stratified_times
from fpmgm.objectives import next_token_nll, token_nll
from fpmgm.progress import tracked
from fpmgm.randomness import generator
from fpmgm.types import Batch, PerSequence, Tokens


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """exp of the mean negative log-likelihood per token, and the standard error of that mean carried over.

    It is a bound, with a Monte-Carlo error; exact for a causal model.
    """

    value: float
    error: float
    nats_per_token: float
    num_sequences: int


@torch.no_grad()
def perplexity(
    denoiser: Denoiser,
    batch: Tokens | Batch,
    *,
    num_iters: int = 6,
    batch_size: int = 32,
    seed: int = 0,
    schedule: MaskSchedule = linear,
    rest: bool = False,
) -> Perplexity:
    """Of the sequences of a batch, one stratified time each; `num_iters` solver iterations, none for a plain stack.

    With `rest` it is the bound of a network whose visible positions rest after the first iteration.
    """
    batch = Batch.of(batch)
    x, counts = batch.x, batch.is_real
    with evaluating(denoiser):
        if denoiser.is_causal:
            parts = tracked(x.split(batch_size), "validating")
            nats = torch.cat([next_token_nll(denoiser, part) for part in parts])
        else:
            solving = _solving(denoiser, num_iters, rest)
            nats = torch.cat(list(_bounds(denoiser, batch, solving, batch_size, seed, schedule)))
    counts = counts[:, x.shape[1] - nats.shape[1] :]  # a causal model says nothing of the first token
    mean, error = _ratio((nats * counts).double().sum(dim=1), counts.double().sum(dim=1))
    value = math.exp(mean) if mean < 700 else math.inf
    return Perplexity(value=value, error=value * error, nats_per_token=mean, num_sequences=len(x))


def _bounds(
    denoiser: Denoiser,
    batch: Batch,
    solving: dict[str, Any],
    batch_size: int,
    seed: int,
    schedule: MaskSchedule,
) -> Iterator[Float[Tensor, "B L"]]:
    """What each token adds to the bound."""
    x, counts, rng = batch.x, batch.is_real, generator(seed)
    t = stratified_times(len(x), rng=rng)[torch.randperm(len(x), generator=rng)].to(x.device)
    u = batch.sparing(torch.rand(x.shape, generator=rng).to(x.device))
    for rows in tracked(torch.arange(len(x)).split(batch_size), "validating"):
        z = masked_below(x[rows], u[rows], t[rows], mask_id=denoiser.mask_id, schedule=schedule)
        asked = (z == denoiser.mask_id) & counts[rows]
        features = denoiser(z, t[rows], asked, **solving).features
        nll = token_nll(denoiser, features, x[rows][asked])
        by_position = torch.zeros(z.shape, device=x.device).masked_scatter(asked, nll)
        yield schedule.weight(t[rows])[:, None] * by_position


@dataclass(frozen=True, kw_only=True)
class MaskedCrossEntropy:
    """The mean over masked tokens of -log p, and its standard error over sequences and masks."""

    value: float
    error: float
    num_sequences: int


@torch.no_grad()
def masked_cross_entropy(
    denoiser: Denoiser, batch: Batch, *, num_iters: int = 6, batch_size: int = 64, seed: int = 0, rest: bool = False
) -> MaskedCrossEntropy:
    """What MaskGIT minimises, on held-out data: arccos masks, always the same ones, and the classes told."""
    solving = _solving(denoiser, num_iters, rest)
    x, counts, label = batch.x, batch.is_real, batch.label
    rng = generator(seed)
    t = stratified_times(len(x), rng=rng)[torch.randperm(len(x), generator=rng)].to(x.device)
    u = batch.sparing(torch.rand(x.shape, generator=rng).to(x.device))
    sums, totals = [], []
    with evaluating(denoiser):
        for rows in tracked(torch.arange(len(x)).split(batch_size), "validating"):
            z = masked_below(x[rows], u[rows], t[rows], mask_id=denoiser.mask_id, schedule=arccos)
            asked = (z == denoiser.mask_id) & counts[rows]
            told = None if label is None else label[rows]
            features = denoiser(z, t[rows], asked, label=told, **solving).features
            nll = token_nll(denoiser, features, x[rows][asked])
            sums.append(torch.zeros(z.shape, device=x.device).masked_scatter(asked, nll).double().sum(dim=1))
            totals.append(asked.double().sum(dim=1))
    value, error = _ratio(torch.cat(sums), torch.cat(totals))
    return MaskedCrossEntropy(value=value, error=error, num_sequences=len(x))


def _solving(denoiser: Denoiser, num_iters: int, rest: bool) -> dict[str, Any]:
    """How a pass solves: not at all in a plain stack."""
    return {"num_grad": num_iters, "rest": rest} if denoiser.cost.fp else {}


def _ratio(sums: PerSequence, totals: PerSequence) -> tuple[float, float]:
    """A mean over tokens of all sequences, from what each sums and counts, and its standard error."""
    mean = float(sums.sum() / totals.sum())
    spread = (sums - mean * totals) / totals.mean()
    return mean, float(spread.std()) / math.sqrt(len(sums)) if len(sums) > 1 else math.nan
