"""Fidelity and diversity of samples by nearest neighbours in a space of features.

Around every real point lies a ball that reaches to its k-th nearest real neighbour. Precision is the share of samples
in some ball, density the mean number of balls that hold a sample over k, coverage the share of balls that hold some
sample (Kynkäänniemi et al., 2019; Naeem et al., 2020). Recall is precision with the sets exchanged. All depend on the
number of points: take as many real ones as there are samples. Then two equal distributions have a density of 1, and a
coverage of 1 - 2^-k.
"""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from fpmgm.evaluation.frechet import Groups, Vectors, resamples
from fpmgm.evaluation.intervals import Interval, bootstrap, with_spread

ROWS_AT_ONCE = 512

Radii = Float[np.ndarray, " _"]
Inside = Bool[np.ndarray, "R N"]


def density_and_coverage(
    sampled: Vectors, real: Vectors, *, k: int = 5, groups: Groups | None = None, seed: int = 0
) -> dict[str, Interval]:
    """Both with their intervals over samples; the real ones are taken as given."""
    inside = np.concatenate(list(_inside(real, radii(real, k), sampled)))
    counts = inside.sum(axis=0) / k
    drawn = resamples(len(sampled), 200, groups=groups, seed=seed)
    covered = [float(inside[:, np.unique(rows)].any(axis=1).mean()) for rows in drawn]
    return {
        "density": bootstrap(counts[:, None], lambda means: means[:, 0], seed=seed),
        "coverage": with_spread(float(inside.any(axis=1).mean()), covered),
    }


def precision_and_recall(sampled: Vectors, real: Vectors, *, k: int = 3, seed: int = 0) -> dict[str, Interval]:
    """The interval of precision is over samples, that of recall over real points, which it is a share of."""
    return {
        "precision": _share(_is_in_some(real, sampled, k), seed),
        "recall": _share(_is_in_some(sampled, real, k), seed),
    }


def radii(points: Vectors, k: int) -> Radii:
    """The distance of each point to its k-th nearest neighbour among the others."""
    if not 1 <= k < len(points):
        raise ValueError(f"k is {k}; {len(points)} points have 1 to {len(points) - 1} neighbours each")
    nearest = k + 1  # the first is the point itself
    return torch.cat([found.kthvalue(nearest, dim=1).values for _, found in _distances(points, points)]).numpy()


def _is_in_some(centres: Vectors, points: Vectors, k: int) -> Bool[np.ndarray, " _"]:
    """Which points lie in a ball around some centre."""
    found = np.zeros(len(points), dtype=bool)
    for inside in _inside(centres, radii(centres, k), points):
        found |= inside.any(axis=0)
    return found


def _inside(centres: Vectors, reach: Radii, points: Vectors) -> Iterator[Inside]:
    """Which points lie in the ball of each centre, for some centres at a time."""
    for rows, distances in _distances(centres, points):
        yield (distances <= torch.from_numpy(reach)[rows, None]).numpy()


def _distances(one: Vectors, other: Vectors) -> Iterator[tuple[Int[torch.Tensor, " R"], Float[torch.Tensor, "R N"]]]:
    left, right = (torch.from_numpy(np.ascontiguousarray(each, dtype=np.float64)) for each in (one, other))
    for rows in torch.arange(len(left)).split(ROWS_AT_ONCE):
        yield rows, torch.cdist(left[rows], right, compute_mode="use_mm_for_euclid_dist")


def _share(is_so: Bool[np.ndarray, " _"], seed: int) -> Interval:
    return bootstrap(is_so[:, None].astype(float), lambda means: means[:, 0], seed=seed)
