import numpy as np
import pytest

from fpmgm.evaluation.intervals import Interval, bootstrap


def ratio(means: np.ndarray) -> np.ndarray:
    return np.exp(means[:, 0] / means[:, 1])


def test_the_interval_of_a_ratio_covers_the_truth_as_often_as_it_says() -> None:
    """Texts of different lengths with nats around 3 a token: the perplexity per token is exp(3)."""
    rng = np.random.default_rng(1)
    covered = []
    for trial in range(400):
        lengths = rng.integers(20, 200, size=100).astype(float)
        nats = lengths * (3 + rng.exponential(0.5, size=100) - 0.5)
        interval = bootstrap(np.stack([nats, lengths], axis=1), ratio, level=0.9, num_resamples=500, seed=trial)
        covered.append(interval.low <= np.exp(3) <= interval.high)
    assert 0.85 < np.mean(covered) < 0.94


def test_the_value_is_the_statistic_of_all_samples_and_more_samples_narrow_the_interval() -> None:
    rng = np.random.default_rng(0)
    widths = []
    for num in (50, 5000):
        columns = rng.normal(size=(num, 1))
        interval = bootstrap(columns, lambda means: means[:, 0])
        assert interval.value == pytest.approx(columns.mean())
        assert interval.low < interval.value < interval.high
        widths.append(interval.high - interval.low)
    assert widths[0] / widths[1] == pytest.approx(10, rel=0.35)


def test_an_interval_prints_its_bounds_and_wrong_requests_are_refused() -> None:
    assert f"{Interval(value=1.234, low=1.0, high=2.0):.2f}" == "1.23 [1.00, 2.00]"
    with pytest.raises(ValueError, match=r"level is 95.0; it must lie between 0 and 1"):
        bootstrap(np.zeros((2, 1)), lambda means: means[:, 0], level=95.0)
    with pytest.raises(ValueError, match="no samples"):
        bootstrap(np.zeros((0, 1)), lambda means: means[:, 0])
