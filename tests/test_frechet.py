import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpmgm.evaluation.frechet import (
    Gaussian,
    frechet_difference,
    frechet_distance,
    frechet_interval,
    resamples,
    symmetric_root,
)
from fpmgm.evaluation.inception_score import inception_score, score_interval
from fpmgm.evaluation.kernel import kernel_interval
from fpmgm.evaluation.neighbours import density_and_coverage, precision_and_recall, radii


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def gaussian(seed: int, width: int = 5) -> Gaussian:
    factor = normal(width, width, seed=seed)
    return Gaussian(mean=normal(width, seed=seed + 100), covariance=factor @ factor.T, num=1000)


@pytest.mark.parametrize(("num", "width"), [(400, 16), (20, 64)])
def test_a_set_has_distance_0_to_itself_also_with_fewer_samples_than_dimensions(num: int, width: int) -> None:
    own = Gaussian.of(50 + normal(num, width).astype(np.float32))
    assert frechet_distance(own, own) == pytest.approx(0, abs=1e-9)


@given(st.integers(0, 1000), st.integers(1, 6))
def test_gaussians_with_axes_in_common_have_the_distance_of_the_closed_form(seed: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    means, spreads = rng.standard_normal((2, width)), rng.uniform(0, 3, (2, width))
    one, other = (
        Gaussian(mean=mean, covariance=np.diag(spread**2), num=9) for mean, spread in zip(means, spreads, strict=True)
    )
    expected = ((means[0] - means[1]) ** 2).sum() + ((spreads[0] - spreads[1]) ** 2).sum()
    assert frechet_distance(one, other) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_the_distance_is_that_of_scipys_root_of_the_product(seed: int) -> None:
    from scipy.linalg import sqrtm

    one, other = gaussian(seed), gaussian(seed + 10)
    root = sqrtm(one.covariance @ other.covariance)
    expected = ((one.mean - other.mean) ** 2).sum() + np.trace(one.covariance + other.covariance - 2 * root.real)
    assert frechet_distance(one, other) == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(other, one) == pytest.approx(expected, rel=1e-9)


def test_the_mean_and_covariance_are_numpys() -> None:
    features = normal(30, 4).astype(np.float32)
    found = Gaussian.of(features)
    assert found.num == 30
    np.testing.assert_allclose(found.covariance, np.cov(features.astype(float), rowvar=False))


def test_the_root_of_a_covariance_leaves_out_what_is_rounding_error() -> None:
    factor = normal(3, 40)
    root = symmetric_root(factor.T @ factor)
    np.testing.assert_allclose(root @ root, factor.T @ factor, atol=1e-9)
    assert np.linalg.matrix_rank(root, tol=1e-9) == 3


def test_features_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(ValueError, match="features of 5 and of 6 dimensions cannot be compared"):
        frechet_distance(gaussian(0), gaussian(0, width=6))
    with pytest.raises(ValueError, match="1 feature vectors; a covariance needs at least 2"):
        Gaussian.of(normal(1, 3))


def test_fewer_samples_of_one_distribution_have_a_larger_distance() -> None:
    real = Gaussian.of(normal(4000, 8))
    found = [
        np.mean([frechet_interval(normal(num, 8, seed=s), real, num_resamples=2).value for s in range(1, 6)])
        for num in (50, 200, 800)
    ]
    assert found[0] > 2 * found[1] > 4 * found[2]


def test_the_interval_holds_the_mean_value_of_as_many_samples_nineteen_times_of_twenty() -> None:
    real = Gaussian(mean=np.zeros(4), covariance=np.eye(4), num=10**6)
    draws = [0.3 + 1.2 * normal(80, 4, seed=seed) for seed in range(1, 71)]
    found = [frechet_interval(draw, real, num_resamples=60) for draw in draws]
    mean = np.mean([each.value for each in found])
    share = np.mean([each.low <= mean <= each.high for each in found])
    assert 0.88 <= share <= 0.99


def test_resamples_keep_the_number_of_every_group() -> None:
    groups = np.array([0, 1, 1, 2, 2, 2])
    for rows in resamples(6, 20, groups=groups):
        assert np.bincount(groups[rows]).tolist() == [1, 2, 3]
    assert len({tuple(rows) for rows in resamples(6, 20)}) > 10


def kernel_by_hand(x: np.ndarray, y: np.ndarray) -> float:
    """The unbiased estimate, pair by pair."""

    def k(a: np.ndarray, b: np.ndarray) -> float:
        return float((a @ b / len(a) + 1) ** 3)

    own = [np.mean([k(a, b) for i, a in enumerate(each) for j, b in enumerate(each) if i != j]) for each in (x, y)]
    return float(sum(own) - 2 * np.mean([k(a, b) for a in x for b in y]))


def test_the_kernel_distance_is_the_unbiased_one_of_all_pairs() -> None:
    x, y = normal(7, 3).astype(np.float32), 1 + normal(9, 3, seed=1).astype(np.float32)
    assert kernel_interval(x, y).value == pytest.approx(kernel_by_hand(x.astype(float), y.astype(float)), rel=1e-6)
    with pytest.raises(ValueError, match="1 samples and 9 real ones"):
        kernel_interval(x[:1], y)


def test_the_kernel_distance_of_one_distribution_is_0_on_average_whatever_the_number() -> None:
    for num in (10, 100):
        found = [kernel_interval(normal(num, 4, seed=s), normal(num, 4, seed=s + 5000)).value for s in range(150)]
        assert abs(np.mean(found)) < 3 * np.std(found) / math.sqrt(len(found))


def test_the_kernel_distance_has_the_error_that_draws_of_samples_show() -> None:
    real = normal(500, 4, seed=9)
    found = [kernel_interval(0.7 + normal(60, 4, seed=s), real) for s in range(100)]
    width = np.mean([each.high - each.low for each in found]) / (2 * 1.96)
    assert width == pytest.approx(np.std([each.value for each in found]), rel=0.25)


def test_neighbours_reach_as_far_as_the_kth_of_the_others() -> None:
    points = np.array([[0.0], [1.0], [3.0], [7.0]])
    np.testing.assert_allclose(radii(points, 1), [1, 1, 2, 4], atol=1e-6)
    np.testing.assert_allclose(radii(points, 2), [3, 2, 3, 6], atol=1e-6)
    with pytest.raises(ValueError, match="k is 4; 4 points have 1 to 3 neighbours each"):
        radii(points, 4)


def test_density_and_coverage_of_points_on_a_line_are_those_counted_by_hand() -> None:
    real = np.array([[0.0], [1.0], [3.0], [7.0]])  # balls, k = 1: [-1, 1], [0, 2], [1, 5], [3, 11]
    found = density_and_coverage(np.array([[0.5], [4.0], [20.0]]), real, k=1)
    assert found["density"].value == pytest.approx(4 / 3)  # 2, 2 and 0 balls
    assert found["coverage"].value == pytest.approx(1.0)
    assert density_and_coverage(np.array([[0.5], [0.6], [20.0]]), real, k=1)["coverage"].value == pytest.approx(0.5)


def test_equal_distributions_have_a_density_of_1_and_the_coverage_that_is_expected() -> None:
    found = density_and_coverage(normal(1000, 6), normal(1000, 6, seed=1), k=3)
    assert found["density"].value == pytest.approx(1, abs=0.08)
    assert found["coverage"].value == pytest.approx(1 - 2**-3, abs=0.04)
    assert found["coverage"].low < found["coverage"].value < found["coverage"].high


def test_samples_of_one_mode_are_precise_and_recall_half() -> None:
    real = np.concatenate([normal(200, 2), 50 + normal(200, 2, seed=1)])
    one_mode, beyond = normal(200, 2, seed=2), 500 + normal(200, 2, seed=3)
    found = precision_and_recall(one_mode, real)
    assert found["precision"].value > 0.9
    assert found["recall"].value == pytest.approx(0.47, abs=0.05)
    assert [each.value for each in precision_and_recall(beyond, real).values()] == [0, 0]


def test_the_inception_score_is_the_number_of_classes_if_all_are_sure_and_1_if_none_is() -> None:
    assert inception_score(np.eye(10)[np.arange(50) % 10]) == pytest.approx(10)
    assert inception_score(np.full((50, 10), 0.1)) == pytest.approx(1)
    assert inception_score(np.eye(10)[np.zeros(50, int)]) == pytest.approx(1)


def test_the_inception_score_in_splits_is_the_mean_of_theirs() -> None:
    probabilities = np.eye(4)[[0, 1, 0, 1, 2, 2, 2, 2]]
    assert inception_score(probabilities, splits=2) == pytest.approx((2 + 1) / 2)
    with pytest.raises(ValueError, match="splits is 9; 8 samples make 1 to 8"):
        inception_score(probabilities, splits=9)


def test_the_score_with_its_interval_is_that_of_all_samples() -> None:
    probabilities = np.exp(2 * normal(300, 5))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    found = score_interval(probabilities)
    mean = probabilities.mean(axis=0)
    expected = np.exp((probabilities * np.log(probabilities / mean)).sum(axis=1).mean())
    assert found.value == pytest.approx(expected) == pytest.approx(inception_score(probabilities))
    assert found.low < found.value < found.high


def shifted(seed: int, num: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Two sets with the same random numbers; ours lies 0.5 farther from 0 in each of four dimensions."""
    theirs = normal(num, 4, seed=seed)
    return 0.5 + theirs, theirs


def test_a_set_is_no_farther_than_itself_whatever_is_resampled() -> None:
    own = normal(60, 4)
    found = frechet_difference(own, own, Gaussian.of(normal(500, 4, seed=9)))
    assert (found.value, found.low, found.high) == (0, 0, 0)


def test_the_difference_of_distances_is_that_of_both_and_has_the_error_that_draws_of_pairs_show() -> None:
    real = Gaussian(mean=np.zeros(4), covariance=np.eye(4), num=1000)
    found = [frechet_difference(*shifted(seed), real, num_resamples=50) for seed in range(40)]
    ours, theirs = (frechet_distance(real, Gaussian.of(each)) for each in shifted(0))
    assert found[0].value == pytest.approx(ours - theirs)
    assert np.mean([each.value for each in found]) == pytest.approx(4 * 0.5**2, abs=0.1)
    width = np.mean([each.high - each.low for each in found]) / (2 * 1.96)
    assert width == pytest.approx(np.std([each.value for each in found]), rel=0.25)
    assert sum(each.low <= 1 <= each.high for each in found) >= 35


def test_what_two_sets_share_of_chance_is_not_in_the_interval_of_their_difference() -> None:
    real = Gaussian(mean=np.zeros(4), covariance=np.eye(4), num=1000)
    theirs = 3 * normal(60, 4)
    near = frechet_difference(theirs + 0.01 * normal(60, 4, seed=1), theirs, real)
    alone = frechet_interval(theirs, real)
    assert near.high - near.low < 0.05 * (alone.high - alone.low)


def test_a_difference_is_resampled_class_by_class() -> None:
    labels = np.arange(60) % 2
    ours, theirs = (np.stack([scale * labels, np.zeros(60)], axis=1).astype(float) for scale in (5.0, 1.0))
    real = Gaussian(mean=np.zeros(2), covariance=np.eye(2), num=1000)
    within, across = (frechet_difference(ours, theirs, real, groups=groups) for groups in (labels, None))
    assert within.low == pytest.approx(within.high)
    assert across.high - across.low > 1


def test_pairs_need_as_many_samples_of_both() -> None:
    with pytest.raises(ValueError, match="there are 60 and 59 samples; pairs need as many of both"):
        frechet_difference(normal(60, 4), normal(59, 4), Gaussian.of(normal(99, 4)))
