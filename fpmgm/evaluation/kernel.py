"""The kernel distance between two sets of features (KID, with Inception's): unbiased, unlike the Fréchet distance.

It is the squared maximum mean discrepancy with the kernel (x y / D + 1)^3 (Bińkowski et al., 2018). The field averages
it over random subsets to save time. Here all pairs are taken: that estimates the same number, with less noise.
"""

import numpy as np
from jaxtyping import Float

from fpmgm.evaluation.frechet import Vectors
from fpmgm.evaluation.intervals import NORMAL, Interval

ROWS_AT_ONCE = 1024

Sums = Float[np.ndarray, " _"]


def kernel_interval(sampled: Vectors, real: Vectors) -> Interval:
    """The distance, and 1.96 standard errors over the samples to either side; the real set is taken as given.

    It may be negative: its mean over draws is the distance, which is 0 between equal distributions.
    """
    num, num_real = len(sampled), len(real)
    if min(num, num_real) < 2:
        raise ValueError(f"{num} samples and {num_real} real ones; a kernel distance needs at least 2 of each")
    within = _kernel_sums(sampled, sampled) - _kernel(sampled, sampled)
    across = _kernel_sums(sampled, real)
    among_real = (_kernel_sums(real, real) - _kernel(real, real)).sum() / (num_real * (num_real - 1))
    value = float(within.sum() / (num * (num - 1)) + among_real - 2 * across.mean() / num_real)
    share = 2 * (within / (num - 1) - across / num_real)  # what each sample adds, to first order
    error = float(share.std(ddof=1)) / num**0.5
    return Interval(value=value, low=value - NORMAL * error, high=value + NORMAL * error)


def _kernel(one: Vectors, other: Vectors) -> Sums:
    """Row by row."""
    products = np.einsum("nd,nd->n", one, other, dtype=np.float64)
    return np.asarray((products / one.shape[1] + 1) ** 3)


def _kernel_sums(one: Vectors, other: Vectors) -> Sums:
    """Of each row of one, the sum over all rows of the other."""
    other = other.astype(np.float64)
    parts = [one[first : first + ROWS_AT_ONCE].astype(np.float64) for first in range(0, len(one), ROWS_AT_ONCE)]
    return np.concatenate([((part @ other.T / one.shape[1] + 1) ** 3).sum(axis=1) for part in parts])
