"""Lines of a table compared in pairs: sample i of both has the same random numbers, so much of the chance cancels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fpmgm.evaluation.frontier import RESAMPLES, Counts, means, resampled
from fpmgm.evaluation.intervals import Interval
from fpmgm.evaluation.rows import Row
from fpmgm.evaluation.tables import Column


@dataclass(frozen=True, kw_only=True)
class PairedRatio:
    """Two lines at one budget. Intervals are of 95 %, by a paired bootstrap over samples."""

    model: str
    against: str
    budget: int
    setting: str
    """What was turned until entropies met; empty if both are sampled alike."""
    ratio: Interval
    """Generative perplexity, per sample, of `model` over that of `against`."""
    entropy_difference: Interval
    """Unigram entropy of `model` less that of `against`."""
    num_samples: int


COLUMNS = (
    Column(title="model", value=lambda pair: pair.model),
    Column(title="against", value=lambda pair: pair.against),
    Column(title="blocks", value=lambda pair: pair.budget),
    Column(title="setting", rank=1, value=lambda pair: pair.setting or None),
    Column(title="ratio of perplexities", digits=3, value=lambda pair: pair.ratio),
    Column(title="difference of entropies", digits=3, value=lambda pair: pair.entropy_difference),
)
"""Columns of a table of pairs."""
READING = (
    "The ratio is that of generative perplexities per sample. Below 1, `model` has the lower one. It says that a model "
    "is better only where the difference of entropies is about 0."
)


def paired_ratios(rows: Sequence[Row], against: Sequence[Row]) -> list[PairedRatio]:
    """Every row against the one of `against` with its budget; a ValueError if rows do not keep their samples."""
    theirs = {row.budget: row for row in against}
    return [paired_ratio(row, theirs[row.budget]) for row in rows if row.budget in theirs]


def paired_ratio(ours: Row, theirs: Row) -> PairedRatio:
    """Both ratios, resampled by the same indices of samples, as pairs of frontiers are."""
    for row in (ours, theirs):
        if not row.per_sample.get("nats"):
            raise ValueError(f"the row of {row.model} at {row.budget} does not keep what was measured of each sample")
    if ours.sampling.seed != theirs.sampling.seed:
        raise ValueError(f"seeds are {ours.sampling.seed} and {theirs.sampling.seed}; pairs need the same")
    num = len(ours.per_sample["nats"])
    if num != len(theirs.per_sample["nats"]):
        raise ValueError(f"there are {num} and {len(theirs.per_sample['nats'])} samples; pairs need as many of both")
    counts = np.concatenate([np.ones((1, num), int), resampled(1, num, has_runs=False, seed=0, num=RESAMPLES)])
    matched = ours.matched
    return PairedRatio(
        model=ours.model,
        against=theirs.model,
        budget=ours.budget,
        setting=f"{matched.knob} {getattr(ours.sampling, matched.knob):.3g}" if matched else "",
        ratio=_interval(np.exp(_mean("nats", ours, counts) - _mean("nats", theirs, counts))),
        entropy_difference=_interval(_mean("entropy", ours, counts) - _mean("entropy", theirs, counts)),
        num_samples=num,
    )


def _mean(name: str, row: Row, counts: Counts) -> np.ndarray:
    """The mean over samples, of every resample."""
    return means(np.array(row.per_sample[name], float)[None, None], counts)[:, 0]


def _interval(found: np.ndarray) -> Interval:
    """The first value, and 95 % of the others."""
    low, high = np.quantile(found[1:], [0.025, 0.975])
    return Interval(value=float(found[0]), low=float(low), high=float(high))
