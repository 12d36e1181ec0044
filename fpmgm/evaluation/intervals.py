"""Bootstrap intervals over samples: of functions of means, and of statistics of the whole set."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

Columns = Float[np.ndarray, "N K"]
Means = Float[np.ndarray, "R K"]
Statistics = Float[np.ndarray, " R"]
NORMAL = 1.959964
"""Standard errors to either side of a normal value that hold it 95 times of 100."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A measured value and the interval that holds the true one, so often as its level says."""

    value: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


def bootstrap(
    columns: Columns,
    statistic: Callable[[Means], Statistics],
    *,
    level: float = 0.95,
    num_resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """The percentile interval of a statistic of the columns' means, one row a sample.

    >>> f"{bootstrap(np.arange(101.0)[:, None], lambda means: means[:, 0]):.1f}"
    '50.0 [44.7, 55.6]'
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it must lie between 0 and 1, such as 0.95")
    if len(columns) == 0:
        raise ValueError("no samples to take an interval of")
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(len(columns), np.full(len(columns), 1 / len(columns)), size=num_resamples)
    found = statistic(counts @ columns / len(columns))
    tail = (1 - level) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    value = statistic(columns.mean(axis=0, keepdims=True))[0]
    return Interval(value=float(value), low=float(low), high=float(high))


def with_spread(value: float, found: Sequence[float]) -> Interval:
    """A value, and 1.96 standard deviations of what resamples gave to either side (95 %).

    For statistics of a whole set, such as a distance between two sets. A resample repeats some samples and so looks
    less diverse than the samples are. That moves all resamples alike, so their quantiles would lie beside the value,
    and leaves their spread as it is.

    >>> f"{with_spread(2.0, [2.9, 3.0, 3.1]):.1f}"
    '2.0 [1.8, 2.2]'
    """
    error = float(np.std(found, ddof=1))
    return Interval(value=value, low=value - NORMAL * error, high=value + NORMAL * error)


def jackknife(value: float, without: Statistics) -> Interval:
    """A statistic of a whole set with its interval (95 %), from what it is without each of the samples.

    For statistics in which a resample that repeats a sample would see another thing, such as what samples share.

    >>> f"{jackknife(2.0, np.array([1.5, 2.0, 2.5])):.1f}"  # the mean of 3, 2 and 1
    '2.0 [0.9, 3.1]'
    """
    num = len(without)
    error = float(np.sqrt((num - 1) / num * np.square(without - without.mean()).sum()))
    return Interval(value=value, low=value - NORMAL * error, high=value + NORMAL * error)
