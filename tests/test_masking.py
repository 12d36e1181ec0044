import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fpmgm.masking import (
    SCHEDULES,
    cleaner_times,
    corrupt,
    linear,
    log_linear,
    mask_schedule_by_name,
    nested_pair,
    stratified_times,
    subs,
)
from fpmgm.randomness import generator

MASK = 9
TIMES = torch.linspace(1e-3, 1, 1000, dtype=torch.float64)


@pytest.mark.parametrize("name", SCHEDULES)
def test_alpha_falls_from_one_to_zero(name: str) -> None:
    schedule = mask_schedule_by_name(name)
    alpha = schedule.alpha(torch.linspace(0, 1, 1001, dtype=torch.float64))
    assert alpha[0] == 1
    at_the_end = {"exponential": math.exp(-5), "log-linear": 1e-3}.get(name, 0.0)  # two never mask everything
    assert abs(alpha[-1] - at_the_end) < 1e-12
    assert (alpha.diff() < 0).all()


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_weight_is_positive_and_equals_the_slope_over_the_masked_share(name: str, dtype: torch.dtype) -> None:
    schedule = mask_schedule_by_name(name)
    t = TIMES.to(dtype)
    assert (schedule.weight(t) > 0).all()
    inner = TIMES[:-1].clone().requires_grad_()
    (slope,) = torch.autograd.grad(schedule.alpha(inner).sum(), inner)
    expected = -slope / (1 - schedule.alpha(inner.detach()))
    torch.testing.assert_close(schedule.weight(t[:-1]).double(), expected, rtol=1e-3, atol=0)


def test_mdlm_log_linear_weight_is_one_over_t() -> None:
    eps = 1e-3
    t = TIMES.clone().requires_grad_()
    sigma = -torch.log1p(-(1 - eps) * t)
    (slope,) = torch.autograd.grad(sigma.sum(), t)
    factor = slope / torch.expm1(sigma.detach())
    torch.testing.assert_close(factor, 1 / TIMES)
    torch.testing.assert_close(linear.weight(TIMES), 1 / TIMES)
    torch.testing.assert_close(log_linear.weight(TIMES), factor)
    torch.testing.assert_close(log_linear.masked(TIMES), 1 - torch.exp(-sigma.detach()))


@given(t=st.floats(0.01, 1), share=st.floats(0, 0.99))
def test_sampling_reveals_alike_with_both_linear_schedules(t: float, share: float) -> None:
    assert log_linear.reveal(t, t * share) == pytest.approx(linear.reveal(t, t * share), abs=1e-9)


def test_maskgit_cosine_masks_the_cosine_of_what_is_done() -> None:
    done = torch.linspace(0, 1, 11, dtype=torch.float64)
    masked = mask_schedule_by_name("cosine").masked(1 - done)
    torch.testing.assert_close(masked, torch.cos(math.pi / 2 * done))


def test_arccos_masks_the_arc_cosine_of_what_is_done() -> None:
    done = torch.linspace(0, 1, 11, dtype=torch.float64)
    masked = mask_schedule_by_name("arccos").masked(1 - done)
    torch.testing.assert_close(masked, torch.acos(done) / (math.pi / 2))


@given(t=st.floats(0.01, 1), share=st.floats(0, 0.99))
def test_linear_reveals_with_probability_t_minus_s_over_t(t: float, share: float) -> None:
    s = t * share
    assert linear.reveal(t, s) == pytest.approx((t - s) / t, abs=1e-9)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_last_step_reveals_everything(name: str) -> None:
    assert mask_schedule_by_name(name).reveal(0.3, 0.0) == 1


@pytest.mark.parametrize("num", [1, 7, 64])
def test_every_stratum_holds_exactly_one_time(num: int) -> None:
    eps = 1e-3
    t = stratified_times(num, rng=generator(num), eps=eps).double()
    stratum = ((t - eps) / (1 - eps) * num - 1e-4).floor()
    assert sorted(stratum.tolist()) == list(range(num))
    assert (t > eps).all()
    assert (t <= 1).all()


def test_stratified_times_are_uniform_within_their_strata() -> None:
    t = torch.stack([stratified_times(4, rng=generator(i), eps=0.0) for i in range(4000)])
    assert (t.diff(dim=1) < 0).all()  # latest first
    within = (t * 4) % 1
    assert (within.T.corrcoef() - torch.eye(4)).abs().max() < 0.06  # each stratum draws its own
    assert within.mean(0) == pytest.approx([0.5] * 4, abs=0.02)
    assert within.std(0) == pytest.approx([math.sqrt(1 / 12)] * 4, abs=0.02)


def test_tokens_are_masked_with_probability_t_and_else_kept() -> None:
    x = torch.randint(0, 9, (4, 20_000), generator=generator(0))
    t = torch.tensor([0.1, 0.5, 0.9, 1.0])
    z = corrupt(x, t, mask_id=MASK, rng=generator(1))
    assert (z == MASK).float().mean(1) == pytest.approx(t.tolist(), abs=0.015)
    assert ((z == MASK) | (z == x)).all()


@given(seed=st.integers(0, 10_000), gap_max=st.floats(0.05, 1.0))
def test_the_cleaner_mask_is_a_strict_part_of_the_noisier(seed: int, gap_max: float) -> None:
    rng = generator(seed)
    x = torch.randint(0, 9, (16, 6), generator=rng)
    t = stratified_times(16, rng=rng)
    noisier, cleaner = nested_pair(x, t, cleaner_times(t, rng=rng, gap_max=gap_max), mask_id=MASK, rng=rng)
    in_noisier, in_cleaner = noisier == MASK, cleaner == MASK
    assert not (in_cleaner & ~in_noisier).any()
    has_masks = in_noisier.any(dim=1)
    assert (in_cleaner.sum(1) < in_noisier.sum(1))[has_masks].all()
    assert torch.equal(noisier[~in_noisier], x[~in_noisier])
    assert torch.equal(cleaner[~in_cleaner], x[~in_cleaner])


def test_gaps_are_uniform_in_their_range_one_for_each_sequence_and_stop_at_zero() -> None:
    t = torch.ones(4000)
    gaps = t - cleaner_times(t, rng=generator(0), gap_min=0.1, gap_max=0.3)
    assert gaps.min() >= 0.1 - 1e-6
    assert gaps.max() <= 0.3 + 1e-6
    assert gaps.mean().item() == pytest.approx(0.2, abs=0.005)
    assert gaps.std().item() == pytest.approx(0.2 / math.sqrt(12), rel=0.05)
    assert (cleaner_times(torch.full((50,), 0.05), rng=generator(0)) == 0).all()


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_nested_pair_masks_the_shares_of_its_schedule_by_shared_uniform_numbers(name: str) -> None:
    schedule = mask_schedule_by_name(name)
    x = torch.zeros(2, 20_000, dtype=torch.long)
    t_noisier, t_cleaner = torch.tensor([0.9, 0.5]), torch.tensor([0.6, 0.5])
    noisier, cleaner = nested_pair(x, t_noisier, t_cleaner, mask_id=MASK, rng=generator(4), schedule=schedule)
    for z, t in ((noisier, t_noisier), (cleaner, t_cleaner)):
        assert (z == MASK).float().mean(1).tolist() == pytest.approx(schedule.masked(t).tolist(), abs=0.015)
    u = torch.rand(x.shape, generator=generator(4))
    assert torch.equal(noisier == MASK, u < schedule.masked(t_noisier)[:, None])
    shown = ((noisier == MASK) & (cleaner != MASK))[1].nonzero()  # equal times: one position is shown
    assert shown.item() == u[1].masked_fill(noisier[1] != MASK, -1).argmax()  # the one a falling time shows next


def test_equal_times_still_nest_strictly_by_one_position() -> None:
    x = torch.zeros(50, 8, dtype=torch.long)
    t = torch.full((50,), 0.5)
    noisier, cleaner = nested_pair(x, t, t, mask_id=MASK, rng=generator(0))
    counts = (noisier == MASK).sum(1)
    assert torch.equal((cleaner == MASK).sum(1), (counts - 1).clamp_min(0))


def test_a_pair_whose_times_are_swapped_is_refused() -> None:
    x = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="t_cleaner is above t_noisier"):
        nested_pair(x, torch.tensor([0.2]), torch.tensor([0.4]), mask_id=MASK, rng=generator(0))


def test_subs_never_predicts_the_mask_and_copies_visible_tokens() -> None:
    rng = generator(0)
    logits = torch.randn(2, 3, 10, generator=rng)
    before = logits.clone()
    z = torch.tensor([[1, MASK, 3], [MASK, MASK, 0]])
    p = subs(logits, z, mask_id=MASK).exp()
    assert (p[z == MASK][:, MASK] == 0).all()
    torch.testing.assert_close(p.sum(-1), torch.ones(2, 3))
    assert torch.equal(p[z != MASK], torch.nn.functional.one_hot(z[z != MASK], 10).float())
    expected = logits[z == MASK][:, :MASK].softmax(-1)
    torch.testing.assert_close(p[z == MASK][:, :MASK], expected)
    assert torch.equal(logits, before)


def test_a_misspelt_schedule_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="unknown mask schedule 'cosin'; did you mean 'cosine'"):
        mask_schedule_by_name("cosin")


def test_gaps_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match=r"gaps are 0\.4 to 0\.1"):
        cleaner_times(torch.ones(2), rng=generator(0), gap_min=0.4, gap_max=0.1)
