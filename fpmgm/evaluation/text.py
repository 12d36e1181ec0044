"""What is measured of sampled texts: each metric with a bootstrap interval over the samples."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from fpmgm.evaluation.diversity import distinct_counts, repetition, unigram_entropy
from fpmgm.evaluation.intervals import Interval, Means, Statistics, bootstrap
from fpmgm.evaluation.judges import Reading
from fpmgm.types import Tokens

Statistic = Callable[[Means], Statistics]


def _first(means: Means) -> Statistics:
    return means[:, 0]


def _exp_first(means: Means) -> Statistics:
    return np.exp(means[:, 0])


def _exp_ratio(means: Means) -> Statistics:
    return np.exp(means[:, 0] / means[:, 1])


def _ratio(means: Means) -> Statistics:
    return means[:, 0] / means[:, 1]


def measure(tokens: Tokens, readings: Sequence[Reading] | None = None, *, seed: int = 0) -> dict[str, dict[str, float]]:
    """Metrics of samples by name, each with value, low and high (95 %); `readings` are a judge's, of the same samples.

    `perplexity_per_token` averages nats over all tokens of all texts (MDLM), `perplexity_per_sample` over each text
    first (the paper, SDTT); both are exponentials. `distinct_2` is the mean over texts of each text's own share of
    different pairs, so that it does not fall with the number of samples.
    """
    found = {
        "entropy": _interval([unigram_entropy(tokens).numpy()], _first, seed),
        "distinct_2": _interval(_distinct(tokens, 2), _ratio, seed),
        "distinct_3": _interval(_distinct(tokens, 3), _ratio, seed),
        "repetition_4": _interval([repetition(tokens, 4).numpy()], _first, seed),
    }
    if readings is not None:
        nats = [reading.nats for reading in readings if len(reading.nats)]
        if not nats:
            raise ValueError(f"none of {len(readings)} texts has a token to judge")
        sums, counts = [float(n.double().sum()) for n in nats], [float(len(n)) for n in nats]
        means = [total / count for total, count in zip(sums, counts, strict=True)]
        found["perplexity_per_token"] = _interval([sums, counts], _exp_ratio, seed)
        found["perplexity_per_sample"] = _interval([means], _exp_first, seed)
    return {name: asdict(interval) for name, interval in found.items()}


def _distinct(tokens: torch.Tensor, n: int) -> list[Any]:
    different, total = distinct_counts(tokens, n)
    return [different.numpy(), np.full(len(tokens), total)]


def _interval(columns: Sequence[Any], statistic: Statistic, seed: int) -> Interval:
    return bootstrap(np.stack([np.asarray(column, float) for column in columns], axis=1), statistic, seed=seed)
