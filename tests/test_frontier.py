"""Frontiers: what two of them say at equal entropy, on made-up samples with a known answer."""

from collections.abc import Sequence

import numpy as np
import pytest

from fpmgm.evaluation.frontier import NARROWEST, Frontier, Pair, compare

SLOPE = 3.5
"""Log perplexity per nat of entropy, as the paper's models have it."""
SETTINGS = (4.0, 4.1, 4.2, 4.3)
"""The mean entropies of a made-up model, by setting."""


def made_up(
    rng: np.random.Generator,
    *,
    gain: float = 1.0,
    entropies: Sequence[float] = SETTINGS,
    common: np.ndarray | None = None,
    num: int = 64,
    noise: float = 0.05,
) -> Frontier:
    """Samples whose perplexity at any entropy is `gain` times a known one; `common` is what pairs share."""
    common = np.zeros(num) if common is None else common
    nats, found = [], []
    for entropy in entropies:
        own = rng.normal(size=num) * noise
        found.append(entropy + 0.1 * rng.normal(size=num))
        nats.append(np.log(gain) + SLOPE * (entropy - 4) + common + own)
    return Frontier.of(nats, found, budget=24)


def exact(points: Sequence[tuple[float, float]], num: int = 8) -> Frontier:
    """A frontier of equal samples: these points of entropy and log perplexity, exactly."""
    return Frontier.of([[nats] * num for _, nats in points], [[entropy] * num for entropy, _ in points])


def test_models_whose_perplexities_differ_by_a_factor_have_that_ratio_at_equal_entropy() -> None:
    line = [(entropy, SLOPE * entropy) for entropy in SETTINGS]
    shifted = [(entropy + 0.05, SLOPE * (entropy + 0.05) + np.log(0.6)) for entropy in SETTINGS]
    found = compare(exact(shifted), exact(line))
    assert found.ratio == pytest.approx(0.6)
    assert (found.low, found.high) == pytest.approx((0.6, 0.6))
    assert (found.entropy_low, found.entropy_high) == pytest.approx((4.05, 4.3))
    assert found.entropy_difference == pytest.approx(-np.log(0.6) / SLOPE)


def test_a_colder_sampler_of_the_same_model_is_no_gain() -> None:
    line = [(entropy, SLOPE * entropy) for entropy in (4.0, 4.1, 4.2, 4.3, 4.4)]
    found = compare(exact(line[:3]), exact(line[1:]))
    assert found.ratio == pytest.approx(1)
    assert found.entropy_difference == pytest.approx(0)


def test_the_ratio_is_the_geometric_mean_over_the_entropies_that_both_reach() -> None:
    """Flat against a line that rises by 1 over the shared range: the mean of its logarithm is a half."""
    found = compare(exact([(3.9, 0.0), (4.5, 0.001)]), exact([(4.0, 0.0), (4.2, 1.0)]))
    assert found.ratio == pytest.approx(np.exp(-0.5), rel=2e-3)
    bent = compare(exact([(4.0, 0.0), (4.1, 0.0001), (4.2, 1.0)]), exact([(4.0, -1.0), (4.2, -0.9999)]))
    assert bent.ratio == pytest.approx(np.exp(1.25), rel=2e-3)


def test_a_setting_that_another_one_beats_in_both_is_left_out() -> None:
    line = [(4.0, 1.0), (4.2, 2.0), (4.4, 3.0)]
    beaten = [*line, (4.1, 2.9), (4.4, 3.2)]
    assert compare(exact(beaten), exact(line)).ratio == pytest.approx(1)
    assert compare(exact(line), exact(beaten)).entropy_difference == pytest.approx(0)


def test_only_entropies_of_real_text_are_compared_where_both_reach_them() -> None:
    bent = [(4.0, 0.0), (4.2, 1.0), (4.4, 3.0)]
    line = [(4.0, 0.0), (4.2, 1.0), (4.4, 2.0)]
    inside = compare(exact(bent), exact(line), band=(3.5, 4.2))
    assert inside.ratio == pytest.approx(1)
    assert (inside.entropy_high, inside.in_band) == (pytest.approx(4.2), True)
    outside = compare(exact(bent), exact(line), band=(4.6, 5.0))
    assert outside.ratio == pytest.approx(np.exp(0.25), rel=1e-3)
    assert (outside.entropy_high, outside.in_band) == (pytest.approx(4.4), False)
    assert compare(exact(bent), exact(line)).in_band is None


@pytest.mark.parametrize("gap", [0.1, -NARROWEST / 2])
def test_frontiers_that_share_no_entropy_have_no_ratio_and_both_ranges(gap: float) -> None:
    low, high = [(4.0, 1.0), (4.2, 2.0)], [(4.2 + gap, 1.5), (4.5, 3.0)]
    found = compare(exact(low), exact(high))
    assert (found.ratio, found.low, found.high, found.entropy_low) == (None, None, None, None)
    assert (found.entropies, found.against_entropies) == (pytest.approx((4.0, 4.2)), pytest.approx((4.2 + gap, 4.5)))
    assert found.entropy_difference is not None  # the perplexities 1.5 to 2 are shared


def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for trial in range(160):
        common = 0.3 * rng.normal(size=64)
        ours, theirs = made_up(rng, gain=0.8, common=common), made_up(rng, common=common)
        found = compare(ours, theirs, num_resamples=200, seed=trial)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.8 <= found.high
    assert 0.89 <= held / 160 <= 0.99


def width(found: Pair) -> float:
    assert found.low is not None
    assert found.high is not None
    return float(np.log(found.high / found.low))


def test_samples_of_the_same_random_numbers_narrow_the_interval() -> None:
    rng = np.random.default_rng(1)
    common = 0.3 * rng.normal(size=64)
    ours, theirs = made_up(rng, gain=0.8, common=common), made_up(rng, common=common)
    others = Frontier(nats=theirs.nats[..., ::-1], entropy=theirs.entropy[..., ::-1], budget=24)
    paired, unpaired = compare(ours, theirs), compare(ours, others)
    assert paired.ratio == pytest.approx(unpaired.ratio)
    assert width(paired) < 0.6 * width(unpaired)


def of_seeds(parts: Sequence[Frontier], *, has_runs: bool = False) -> Frontier:
    """Several seeds as one frontier."""
    nats, entropy = (np.concatenate([getattr(each, name) for each in parts]) for name in ("nats", "entropy"))
    return Frontier(nats=nats, entropy=entropy, budget=24, has_runs=has_runs)


def test_seeds_are_pooled_and_each_has_its_ratio() -> None:
    rng = np.random.default_rng(2)
    ours = of_seeds([made_up(rng, gain=gain, noise=0.01) for gain in (0.5, 0.7)])
    found = compare(ours, of_seeds([made_up(rng, noise=0.01) for _ in range(2)]))
    assert found.by_seed == (pytest.approx(0.5, rel=0.1), pytest.approx(0.7, rel=0.1))
    assert found.ratio == pytest.approx(np.sqrt(0.35), rel=0.05)
    assert found.num_samples == 128


def test_models_of_other_training_seeds_widen_the_interval_by_what_they_differ() -> None:
    rng = np.random.default_rng(3)
    parts = [made_up(rng, gain=gain, noise=0.01) for gain in (0.5, 0.6, 0.7)]
    theirs = of_seeds([made_up(rng, noise=0.01) for _ in range(3)])
    of_runs, of_samples = compare(of_seeds(parts, has_runs=True), theirs), compare(of_seeds(parts), theirs)
    assert of_runs.ratio == of_samples.ratio
    assert width(of_runs) > 1.2 * width(of_samples)


def test_a_sample_that_the_judge_did_not_score_counts_for_its_entropy_alone() -> None:
    points = [(4.0, 1.0), (4.2, 2.0)]
    full = exact(points)
    nats = full.nats.copy()
    nats[0, 0, 0] = np.nan
    assert compare(Frontier(nats=nats, entropy=full.entropy), full).ratio == pytest.approx(1)
    nats[0, 0] = np.nan
    with pytest.raises(ValueError, match="has no sample with a token to judge"):
        Frontier(nats=nats, entropy=full.entropy)


def test_frontiers_that_cannot_be_paired_are_refused() -> None:
    points = [(4.0, 1.0), (4.2, 2.0)]
    with pytest.raises(ValueError, match="1 x 8 and 1 x 9 samples"):
        compare(exact(points), exact(points, num=9))
    with pytest.raises(ValueError, match="needs 2 settings and 2 samples, and has 1 and 8"):
        exact(points[:1])
    other = Frontier.of([[1.0, 1.0]] * 2, [[4.0, 4.0]] * 2, budget=48)
    with pytest.raises(ValueError, match="budgets are 0 and 48"):
        compare(exact(points, num=2), other)
