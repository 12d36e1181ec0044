import numpy as np
import pytest

from fpmgm.evaluation.image_failures import Failures, failures, near
from fpmgm.evaluation.image_judges import Look


def look(features: list[float], probabilities: list[list[float]]) -> Look:
    return Look(features=np.array(features)[:, None], probabilities=np.array(probabilities))


def test_an_image_may_have_several_failures_and_counts_once_among_all() -> None:
    sure, other, unsure = [0.9, 0.1, 0.0], [0.1, 0.9, 0.0], [0.4, 0.35, 0.25]
    seen = look([0.0, 10.0, 20.0, 20.1, 40.0], [sure, other, unsure, other, sure])
    found = failures(seen, np.array([0, 0, 0, 0, 0]), reach=0.5)
    assert found == Failures(num=5, wrong=2, unsure=1, doubles=2, any=3)


def test_one_percent_of_real_images_is_as_near_to_another_as_near_duplicates_are() -> None:
    real = np.cumsum(np.arange(1.0, 202.0))[:, None]  # each is farther from the one before than the last
    reach = near(real)
    probabilities = np.tile([1.0, 0.0], (201, 1))
    found = failures(Look(features=real, probabilities=probabilities), np.zeros(201, int), reach)
    assert found.doubles / 201 == pytest.approx(0.01, abs=0.006)
    assert (found.wrong, found.unsure) == (0, 0)
