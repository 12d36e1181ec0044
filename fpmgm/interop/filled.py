"""Rows of tokens with masks in them are filled in by the sampler, or by a causal model from left to right."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fpmgm.budget import shares_given, spending_of
from fpmgm.denoiser import Denoiser
from fpmgm.draws import Draw
from fpmgm.generation import Sampling, rules_of, with_saved_settings
from fpmgm.randomness import Streams
from fpmgm.sampling import even_times, left_to_right, sample


def fill_in(
    denoiser: Denoiser,
    starts: Sequence[Sequence[int]],
    sampling: Sampling,
    saved: Mapping[str, Any] | None = None,
) -> list[list[int]]:
    """Each start with its masks filled in; the starts may differ in length, and row i draws from (seed, i).

    `saved` is what the model's generation_config.json says of settings that are left open.
    """
    if sampling.batch_size < 1:
        raise ValueError(f"batch_size is {sampling.batch_size}; it must be at least 1")
    decided = with_saved_settings(saved or {}, sampling)
    rows = [list(start) for start in starts]
    alike: dict[tuple[int, int], list[int]] = {}  # of one length and, where the plan depends on it, with as much given
    for index, row in enumerate(rows):
        num_masks = row.count(denoiser.mask_id) if decided.budget_in == "positions" else 0
        alike.setdefault((len(row), num_masks), []).append(index)
    for indices in alike.values():
        for first in range(0, len(indices), sampling.batch_size):
            batch = indices[first : first + sampling.batch_size]
            for index, row in zip(batch, _filled(denoiser, [rows[i] for i in batch], batch, decided), strict=True):
                rows[index] = row
    return rows


def _filled(
    denoiser: Denoiser, rows: Sequence[Sequence[int]], indices: Sequence[int], sampling: Sampling
) -> list[list[int]]:
    """Rows that have one plan; `indices` are those of their random streams."""
    z = torch.tensor(rows, dtype=torch.long, device=next(denoiser.parameters()).device)
    rng = Streams.of(sampling.seed, indices)
    if denoiser.is_causal:
        temperature = 1.0 if sampling.temperature is None else sampling.temperature
        draw = Draw(temperature=temperature, top_k=sampling.top_k, top_p=sampling.top_p, nucleus=sampling.nucleus)
        return left_to_right(denoiser, z, draw=draw, rng=rng).z.tolist()
    spending = spending_of(sampling, denoiser.cost, shares_given(rows, denoiser.mask_id))
    sampled = sample(
        denoiser,
        z,
        times=even_times(spending.num_steps),
        iterations=spending.iterations,
        rng=rng,
        **rules_of(sampling, denoiser.cost),
    )
    return sampled.z.tolist()
