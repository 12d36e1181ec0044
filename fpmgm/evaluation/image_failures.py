"""Failure modes of samples of images, counted with what a classifier of the data sees in them."""

from dataclasses import dataclass

import numpy as np

from fpmgm.evaluation.frechet import Vectors
from fpmgm.evaluation.image_judges import Classes, Look
from fpmgm.evaluation.neighbours import Radii, radii

UNSURE = 0.5
"""A classifier is unsure of an image if no class has this probability."""
NEAREST = 0.01
"""So large a share of real images has another one at most as far as near-duplicates are."""


@dataclass(frozen=True, kw_only=True)
class Failures:
    """How many of a set of images have a failure; one may have several."""

    num: int
    wrong: int
    """Another class is more probable than the one that was asked for."""
    unsure: int
    """No class has a probability of one half."""
    doubles: int
    """Another image of the set is nearer than all but the nearest pairs of real images."""
    any: int


def failures(look: Look, labels: Classes, reach: float) -> Failures:
    """The counts; `reach` is how near a near-duplicate lies."""
    assert look.probabilities is not None
    found = np.stack([look.classes != labels, look.probabilities.max(axis=1) < UNSURE, nearest(look.features) <= reach])
    wrong, unsure, doubles = found.sum(axis=1).tolist()
    return Failures(num=len(labels), wrong=wrong, unsure=unsure, doubles=doubles, any=int(found.any(axis=0).sum()))


def near(real: Vectors) -> float:
    """How near the nearest real images lie: the share `NEAREST` of them has another one no farther than this.

    Take as many as there are samples: the more images, the nearer is the nearest.
    """
    return float(np.quantile(nearest(real), NEAREST))


def nearest(features: Vectors) -> Radii:
    """The distance of each image to its nearest other one."""
    return radii(features, 1)
