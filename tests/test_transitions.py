import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fpmgm.draws import Draw
from fpmgm.masking import mask_schedule_by_name
from fpmgm.randomness import Streams, generator
from fpmgm.remasking import Remasking, RemaskRule, ReMDMCap, ReMDMConf, ReMDMLoop, ReMDMRescale
from fpmgm.transitions import Ancestral, Confidence, Halton, Transition, halton_order
from fpmgm.types import Places, Positions, State

MASK = 9


def state_of(z: Tensor, *, is_given: Tensor | None = None, confidence: Tensor | None = None) -> State:
    return State(
        z=z,
        mask_id=MASK,
        is_given=torch.zeros_like(z, dtype=torch.bool) if is_given is None else is_given,
        confidence=torch.zeros(z.shape, dtype=torch.float64) if confidence is None else confidence,
    )


def all_masked(batch: int, length: int) -> State:
    return state_of(torch.full((batch, length), MASK))


def step(transition: Transition, state: State, t: float, t_next: float, seed: int = 0) -> State:
    """One step with random logits that never favour the mask."""
    rng = Streams.of(seed, range(len(state.z)))
    positions = transition.positions(state, t, t_next, rng=rng)
    logits = torch.randn(int(positions.sum()), MASK + 1, generator=generator(seed), dtype=torch.float64)
    logits[:, MASK] = -torch.inf
    return transition.write(state, logits, Places.of(positions), t, t_next, rng=rng)


def reveals_at_the_right_rate(transition: Transition, t: float, s: float) -> bool:
    """Whether (t - s) / t of 120,000 masked positions are chosen, one by one: mean and spread."""
    batch, length = 2000, 60
    chosen = transition.positions(all_masked(batch, length), t, s, rng=Streams.of(0, range(batch)))
    p = (t - s) / t
    z_score = (chosen.double().mean() - p) / math.sqrt(p * (1 - p) / (batch * length))
    spread = chosen.sum(1).double().var() / (length * p * (1 - p))
    return bool(abs(z_score) < 4 and 0.85 < spread < 1.15)


class Skewed(Ancestral):
    """Ancestral, 5 % off."""

    def positions(self, state: State, t: float, t_next: float, *, rng: Streams) -> Positions:
        return super().positions(state, t, t - 1.05 * (t - t_next), rng=rng)


@pytest.mark.parametrize(("t", "s"), [(1.0, 0.75), (0.75, 0.5), (0.5, 0.25), (0.6, 0.55)])
def test_ancestral_reveals_with_probability_t_minus_s_over_t_and_5_percent_off_is_seen(t: float, s: float) -> None:
    assert reveals_at_the_right_rate(Ancestral(), t, s)
    if (t - s) / t > 0.2:  # enough reveals to tell
        assert not reveals_at_the_right_rate(Skewed(), t, s)


def test_after_a_step_to_s_an_expected_share_of_one_minus_s_is_visible() -> None:
    state = all_masked(2000, 60)
    for seed, (t, s) in enumerate([(1.0, 0.7), (0.7, 0.2)]):
        state = step(Ancestral(), state, t, s, seed)
        assert (~state.is_masked).double().mean().item() == pytest.approx(1 - s, abs=0.01)


@pytest.mark.parametrize("name", ["cosine", "arccos"])
def test_ancestral_and_confidence_follow_their_mask_schedule(name: str) -> None:
    schedule = mask_schedule_by_name(name)
    t, s = 0.8, 0.5
    masked, masked_next = schedule.masked(torch.tensor([t, s], dtype=torch.float64)).tolist()
    state = all_masked(500, 100)
    chosen = Ancestral(schedule=schedule).positions(state, t, s, rng=Streams.of(0, range(500)))
    assert chosen.double().mean().item() == pytest.approx(1 - masked_next / masked, abs=0.01)
    after = step(Confidence(schedule=schedule), all_masked(1, 100), t, s)
    assert int(after.is_masked.sum()) == math.ceil(100 * masked_next / masked)


@pytest.mark.parametrize("score", ["top-probability", "margin", "entropy", "drawn-probability"])
def test_confidence_reveals_the_surest_positions(score: str) -> None:
    p = torch.tensor([[0.5, 0.5, 0.0], [0.98, 0.01, 0.01], [0.4, 0.3, 0.3], [0.9, 0.05, 0.05]], dtype=torch.float64)
    state = state_of(torch.full((1, 4), 3))
    state = replace(state, mask_id=3)
    rule = Confidence(score=score, draw=Draw(temperature=0.0))
    rng = Streams.of(0, range(1))
    logits = torch.cat([p.log(), torch.full((4, 1), -torch.inf)], dim=1)
    after = rule.write(state, logits, Places.of(rule.positions(state, 1.0, 0.5, rng=rng)), 1.0, 0.5, rng=rng)
    assert (~after.is_masked)[0].tolist() == [False, True, False, True]


def test_the_three_scores_disagree_where_they_should() -> None:
    p = torch.tensor(
        [[0.55, 0.45, 0.0, 0.0], [0.50, 0.17, 0.17, 0.16]], dtype=torch.float64
    )  # the first has the higher top and lower entropy, the second the larger margin
    logits = torch.cat([p.log(), torch.full((2, 1), -torch.inf)], dim=1)
    state = replace(state_of(torch.full((1, 2), 4)), mask_id=4)
    revealed = {}
    for score in ("top-probability", "margin", "entropy"):
        rule = Confidence(score=score)
        rng = Streams.of(0, range(1))
        after = rule.write(state, logits, Places.of(rule.positions(state, 1.0, 0.5, rng=rng)), 1.0, 0.5, rng=rng)
        revealed[score] = int((~after.is_masked)[0].nonzero())
    assert revealed == {"top-probability": 0, "margin": 1, "entropy": 0}


@settings(max_examples=30)
@given(length=st.integers(1, 70), num_steps=st.integers(1, 70))
def test_confidence_spreads_reveals_evenly_and_reveals_at_least_one_a_step(length: int, num_steps: int) -> None:
    state = all_masked(1, length)
    counts = []
    for i in range(num_steps):
        before = int(state.is_masked.sum())
        state = step(Confidence(), state, 1 - i / num_steps, 1 - (i + 1) / num_steps)
        counts.append(before - int(state.is_masked.sum()))
    assert sum(counts) == length
    busy = counts[:length]
    assert min(busy) >= 1
    assert max(busy) - min(busy) <= 1


def test_noise_changes_which_positions_confidence_reveals() -> None:
    quiet = step(Confidence(), all_masked(1, 40), 1.0, 0.5)
    noisy = step(Confidence(noise=5.0), all_masked(1, 40), 1.0, 0.5)
    assert int(quiet.is_masked.sum()) == int(noisy.is_masked.sum()) == 20
    assert not torch.equal(quiet.is_masked, noisy.is_masked)


def reveal_once(rule: Confidence, p: Tensor, batch: int, t_next: float) -> State:
    """One step of many equal sequences whose positions have the probabilities p."""
    positions, symbols = p.shape
    state = replace(state_of(torch.full((batch, positions), symbols)), mask_id=symbols)
    rng = Streams.of(0, range(batch))
    logits = torch.cat([p.log(), torch.full((positions, 1), -torch.inf)], dim=1).repeat(batch, 1)
    places = Places.of(rule.positions(state, 1.0, t_next, rng=rng))
    return rule.write(state, logits, places, 1.0, t_next, rng=rng)


def test_confidence_with_gumbel_noise_reveals_as_often_as_its_probabilities_say() -> None:
    """Gumbel noise of size 1 on log p: a position wins with probability p / (sum of p)."""
    p = torch.full((6, 5), 0.2, dtype=torch.float64)
    p[0] = torch.tensor([0.9, 0.025, 0.025, 0.025, 0.025])
    t_next = 5 / 6
    after = reveal_once(Confidence(noise=1 / t_next), p, 4000, t_next)
    assert ((~after.is_masked).sum(1) == 1).all()
    first = (~after.is_masked)[:, 0].double().mean().item()
    assert first == pytest.approx(0.9 / (0.9 + 5 * 0.2), abs=0.03)


def test_confidence_by_the_drawn_token_does_not_reveal_an_unlikely_draw() -> None:
    p = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    after = reveal_once(Confidence(score="drawn-probability"), p, 500, 0.5)
    second = after.z[:, 1][~after.is_masked[:, 1]]
    assert 0 < len(second) < 500
    assert (second == 0).all()


def test_confidence_is_judged_by_probabilities_before_temperature() -> None:
    p = torch.full((2, 12), 0.05, dtype=torch.float64)
    p[0] = torch.tensor([0.5, 0.5] + [1e-12] * 10)
    p[1, 0] = 0.45  # at temperature 0.2 this would be the surer one
    after = reveal_once(Confidence(draw=Draw(temperature=0.2)), p, 1, 0.5)
    assert after.is_masked[0].tolist() == [False, True]


def test_confidence_does_not_depend_on_the_scale_of_the_logits() -> None:
    logits = torch.tensor([[9.0, 8.9, -torch.inf], [1.0, -3.0, -torch.inf]], dtype=torch.float64)
    state = replace(state_of(torch.full((1, 2), 2)), mask_id=2)
    rng = Streams.of(0, range(1))
    after = Confidence().write(state, logits, Places.of(state.is_masked), 1.0, 0.5, rng=rng)
    assert after.is_masked[0].tolist() == [True, False]


def half_visible(batch: int, length: int) -> State:
    z = torch.arange(length).expand(batch, -1) % 8
    return state_of(torch.where(torch.arange(length) % 2 == 0, MASK, z))


@pytest.mark.parametrize(
    ("rule", "t", "s", "sigma"),
    [
        (ReMDMCap(eta=0.1), 0.5, 0.4, 0.1),
        (ReMDMCap(eta=0.9), 0.5, 0.2, 0.4),  # the limit (1 - alpha_s) / alpha_t holds
        (ReMDMRescale(eta=0.25), 0.5, 0.4, 0.25 * 0.8),
        (ReMDMRescale(eta=0.25), 0.9, 0.8, 0.25 * 1.0),  # the limit is at most 1
        (ReMDMLoop(eta=0.1), 0.5, 0.4, 0.1),
        (ReMDMLoop(eta=0.1), 0.8, 0.7, 0.0),  # before the loop
        (ReMDMLoop(eta=0.1), 0.04, 0.02, 0.0),  # after it
    ],
)
def test_remasking_masks_again_and_reveals_with_remdms_probabilities(
    rule: RemaskRule, t: float, s: float, sigma: float
) -> None:
    batch, length = 2000, 40
    before = half_visible(batch, length)
    after = step(Remasking(rule=rule), before, t, s)
    masked_again = (after.is_masked & ~before.is_masked).sum() / (~before.is_masked).sum()
    revealed = (~after.is_masked & before.is_masked).sum() / before.is_masked.sum()
    alpha_t, alpha_s = rule.alphas(t, s)
    assert masked_again.item() == pytest.approx(sigma, abs=0.01)
    assert revealed.item() == pytest.approx((alpha_s - (1 - sigma) * alpha_t) / (1 - alpha_t), abs=0.01)
    stayed = ~before.is_masked & ~after.is_masked
    assert torch.equal(after.z[stayed], before.z[stayed])


@pytest.mark.parametrize("rule", [ReMDMCap(eta=0.2), ReMDMRescale(eta=0.3)])
def test_remasking_keeps_the_share_of_visible_tokens(rule: RemaskRule) -> None:
    state = all_masked(1000, 50)
    for seed, (t, s) in enumerate([(1.0, 0.8), (0.8, 0.6), (0.6, 0.3)]):
        state = step(Remasking(rule=rule), state, t, s, seed)
        assert (~state.is_masked).double().mean().item() == pytest.approx(1 - s, abs=0.01)


def test_the_loop_holds_alpha_between_its_two_times() -> None:
    loop = ReMDMLoop(t_on=0.6, t_off=0.1, alpha_on=0.9)
    steps = [(1.0, 0.8), (0.8, 0.6), (0.6, 0.3), (0.3, 0.1), (0.1, 0.05), (0.05, 0.0)]
    assert [loop.alphas(*step)[0] for step in steps] == pytest.approx([0.0, 0.45, 0.9, 0.9, 0.9, 0.95])
    assert [loop.alphas(*step)[1] for step in steps] == pytest.approx([0.45, 0.9, 0.9, 0.9, 0.95, 1.0])


def test_a_step_that_crosses_the_times_of_the_loop_keeps_the_part_in_which_it_begins() -> None:
    loop = ReMDMLoop(t_on=0.6, t_off=0.1, alpha_on=0.8)
    assert loop.alphas(0.7, 0.55) == pytest.approx((0.6, 0.9))  # 0.8 / 0.4 for every unit of time
    assert loop.alphas(0.65, 0.4)[1] == 1.0  # the line would pass 1
    assert loop.alphas(0.15, 0.05) == pytest.approx((0.8, 0.8))
    assert loop.alphas(0.15, 0.0) == pytest.approx((0.8, 1.0))  # the last step leaves no mask


def test_the_loop_is_on_at_t_on_and_off_at_t_off() -> None:
    loop = ReMDMLoop(eta=0.1, t_on=0.5, t_off=0.25)
    state = half_visible(1, 4)
    assert [float(loop.sigma(state, t, 1.0).max()) for t in (0.51, 0.5, 0.26, 0.25)] == [0.0, 0.1, 0.1, 0.0]


def test_conf_shares_the_limit_by_how_unsure_a_token_was_when_written() -> None:
    z = torch.tensor([[1, 2, 3, MASK]])
    is_given = torch.tensor([[False, False, True, False]])
    confidence = torch.tensor([[0.9, 0.1, 0.0, 0.0]], dtype=torch.float64)
    sigma = ReMDMConf().sigma(state_of(z, is_given=is_given, confidence=confidence), 0.5, 0.8)
    weights = [math.exp(-0.9), math.exp(-0.1)]
    assert sigma[0].tolist() == pytest.approx([0.8 * w / sum(weights) for w in weights] + [0, 0])


@pytest.mark.parametrize("draw", [Draw(), Draw(top_p=0.6, nucleus="strict"), Draw(temperature=0.0)])
def test_conf_remembers_the_probability_each_token_was_drawn_with(draw: Draw) -> None:
    state = all_masked(3, 5)
    rule = Remasking(rule=ReMDMConf(), draw=draw)
    rng = Streams.of(0, range(3))
    positions = rule.positions(state, 1.0, 0.4, rng=rng)
    logits = torch.randn(int(positions.sum()), MASK + 1, generator=generator(0), dtype=torch.float64)
    logits[:, MASK] = -torch.inf
    after = rule.write(state, logits, Places.of(positions), 1.0, 0.4, rng=rng)
    expected = draw.filtered(logits).softmax(-1).gather(1, after.z[positions][:, None])[:, 0]
    torch.testing.assert_close(after.confidence[positions], expected)
    assert (after.confidence[~positions] == 0).all()


EVERY_TRANSITION = [
    Ancestral(),
    Confidence(),
    Confidence(score="margin", noise=1.0),
    Confidence(score="entropy"),
    Remasking(rule=ReMDMCap(eta=0.5)),
    Remasking(rule=ReMDMRescale(eta=0.9)),
    Remasking(rule=ReMDMConf()),
    Remasking(rule=ReMDMLoop(eta=0.3)),
    Halton(height=3, width=4),
]


@pytest.mark.parametrize("transition", EVERY_TRANSITION)
def test_no_mask_survives_the_last_step_and_given_tokens_stay(transition: Transition) -> None:
    given_z = torch.full((20, 12), MASK)
    given_z[:, 3] = 7
    given_z[:10, 8] = 2
    is_given = given_z != MASK
    state = state_of(given_z, is_given=is_given)
    for i in range(6):
        state = step(transition, state, 1 - i / 6, 1 - (i + 1) / 6, seed=i)
        assert torch.equal(state.z[is_given], given_z[is_given])
    assert not state.is_masked.any()


def test_halton_order_is_the_published_one() -> None:
    first = [divmod(cell, 16) for cell in halton_order(16, 16)[:8]]
    assert first == [(8, 5), (4, 10), (12, 1), (2, 7), (10, 12), (6, 3), (14, 8), (1, 14)]
    for size in (16, 24, 32):
        assert sorted(halton_order(size, size)) == list(range(size * size))


def test_halton_order_is_scipys() -> None:
    from scipy.stats import qmc

    points = qmc.Halton(d=2, scramble=False).random(800)[1:]
    cells = [(int(16 * x), int(16 * y)) for x, y in points]
    assert list(dict.fromkeys(cells)) == [divmod(cell, 16) for cell in halton_order(16, 16)]


@pytest.mark.parametrize(
    ("num_steps", "counts"),
    [
        (2, [85, 171]),
        (4, [41, 44, 53, 118]),
        (8, [20, 21, 21, 23, 25, 28, 35, 83]),
        (32, [5, 5, 5, 5, 5, 5, 5, 6]),
    ],
)
def test_halton_reveals_the_published_number_of_cells_per_step(num_steps: int, counts: list[int]) -> None:
    state = all_masked(1, 256)
    revealed = []
    for i in range(num_steps):
        before = int(state.is_masked.sum())
        state = step(Halton(height=16, width=16), state, 1 - i / num_steps, 1 - (i + 1) / num_steps)
        revealed.append(before - int(state.is_masked.sum()))
    assert revealed[: len(counts)] == counts
    if num_steps == 32:
        assert revealed[-3:] == [14, 17, 41]


@pytest.mark.parametrize("size", [4, 7, 16])
def test_halton_counts_are_those_of_the_published_formula_at_any_number_of_steps(size: int) -> None:
    num_cells, halton = size * size, Halton(height=size, width=size)
    for num_steps in (1, 2, 3, 5, 6, 7, 8, 10, 12, 16, 24, 31, 32, 48, num_cells):
        visible, counts = 0, []
        for i in range(num_steps):
            visible = max(visible + 1, halton.num_visible(1 - (i + 1) / num_steps, num_cells))  # at least one cell more
            counts.append(min(visible, num_cells))
        share = [1 - math.acos((i + 1) / num_steps) / (math.pi / 2) for i in range(num_steps)]
        published = [max(i + 1, int(num_cells * each)) for i, each in enumerate(share)]
        assert counts == [min(each, num_cells) for each in published], num_steps


def test_halton_reveals_one_cell_a_step_where_there_are_as_many_steps_as_cells() -> None:
    state = all_masked(1, 16)
    for i in range(16):
        state = step(Halton(height=4, width=4), state, 1 - i / 16, 1 - (i + 1) / 16)
        assert int(state.is_masked.sum()) <= 15 - i


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown confidence score 'margins'; did you mean 'margin'"):
        Confidence(score="margins")
    with pytest.raises(ValueError, match=r"noise is -1\.0"):
        Confidence(noise=-1.0)
    with pytest.raises(ValueError, match=r"eta is 1\.5; it must lie between 0 and 1"):
        ReMDMCap(eta=1.5)
    with pytest.raises(ValueError, match=r"t_on 0\.1, t_off 0\.5"):
        ReMDMLoop(t_on=0.1, t_off=0.5)
    with pytest.raises(ValueError, match="3 x 4 cells cannot fill 5 positions; it takes 12"):
        Halton(height=3, width=4).positions(all_masked(1, 5), 1.0, 0.5, rng=Streams.of(0, range(1)))
