"""The scores of continuations, proved by a model whose likelihoods are enumerated."""

import pytest
import torch

from fpmgm.denoiser import Denoiser
from fpmgm.evaluation.harness_scoring import Item, Scoring, ScoringName, are_greedy, draw_masks, scores
from fpmgm.evaluation.tasks import proportion
from tests.joint import MASK, JointBackbone, joint_denoiser

ITEMS = [Item((0, 2), (1, 3)), Item((0,), (3, 3, 2)), Item((0, 1, 1), (2,)), Item((0,), (1, 2, 3, 1))]
MANY = 20_000


@pytest.mark.parametrize(("name", "tolerance"), [("smdm", 0.2), ("llada", 0.05)])
def test_a_sum_over_the_continuation_is_its_exact_likelihood_in_the_mean(name: ScoringName, tolerance: float) -> None:
    denoiser, exact = joint_denoiser()
    found = scores(denoiser, ITEMS, Scoring(name=name, draws=MANY))
    for item, score in zip(ITEMS, found, strict=True):
        assert score == pytest.approx(exact.log_p(item.tokens) - exact.log_p(item.prefix), abs=tolerance)


def test_the_mean_over_all_tokens_is_the_exact_likelihood_of_all_in_the_mean() -> None:
    denoiser, exact = joint_denoiser()
    items = [Item((0, 2), (1,), (0,)), Item((0,), (3, 2), (0,))]
    found = scores(denoiser, items, Scoring(name="duo", draws=MANY))
    for item, score in zip(items, found, strict=True):
        assert score == pytest.approx(exact.log_p(item.tokens) / 4, abs=0.03)


def test_a_causal_model_is_scored_exactly_and_its_greedy_continuation_is_known() -> None:
    denoiser, exact = joint_denoiser(is_causal=True)
    scoring = Scoring()
    for item, score in zip(ITEMS, scores(denoiser, ITEMS, scoring), strict=True):
        assert score == pytest.approx(exact.log_p(item.tokens) - exact.log_p(item.prefix), abs=1e-5)
    first = surest(exact, (0, 2, MASK), 2)[1]
    second = surest(exact, (0, 2, first, MASK), 3)[1]
    assert greedy_pairs(denoiser, (0, 2), scoring) == [(first, second)]


def test_a_single_token_needs_no_draws_if_their_number_is_drawn() -> None:
    denoiser, exact = joint_denoiser()
    [score] = scores(denoiser, [ITEMS[2]], Scoring(name="llada", draws=1))
    assert score == pytest.approx(exact.log_p(ITEMS[2].tokens) - exact.log_p(ITEMS[2].prefix), abs=1e-5)


def surest(exact: JointBackbone, z: tuple[int, ...], place: int) -> tuple[float, int]:
    """The most probable token of a place, and its log-probability."""
    return max((exact.log_p((*z[:place], token, *z[place + 1 :])), token) for token in range(MASK))


def test_at_once_takes_every_token_from_one_pass_and_in_turn_the_surest_comes_first() -> None:
    denoiser, exact = joint_denoiser()
    differing = 0
    for prefix in [(0,), (0, 1), (0, 2), (0, 3), (1,), (2,), (3,)]:
        z, place = (*prefix, MASK, MASK), len(prefix)
        first, second = surest(exact, z, place), surest(exact, z, place + 1)
        if first >= second:
            in_turn = (first[1], surest(exact, (*prefix, first[1], MASK), place + 1)[1])
        else:
            in_turn = (surest(exact, (*prefix, MASK, second[1]), place)[1], second[1])
        at_once = (first[1], second[1])
        differing += at_once != in_turn
        for name, expected in (("duo", at_once), ("llada", in_turn), ("smdm", in_turn)):
            scoring = Scoring(name=name)  # type: ignore[arg-type]
            assert greedy_pairs(denoiser, prefix, scoring) == [expected]
    assert differing


def greedy_pairs(denoiser: Denoiser, prefix: tuple[int, ...], scoring: Scoring) -> list[tuple[int, ...]]:
    """The pairs of tokens that the model would write after a prefix."""
    pairs = [Item(prefix, (first, second)) for first in range(MASK) for second in range(MASK)]
    return [pair.target for pair, is_so in zip(pairs, are_greedy(denoiser, pairs, scoring), strict=True) if is_so]


def test_a_score_depends_neither_on_the_batch_nor_on_the_other_items() -> None:
    denoiser, _ = joint_denoiser()
    scoring = Scoring(name="duo", draws=16)
    together = scores(denoiser, ITEMS, scoring)
    alone = [scores(denoiser, [item], Scoring(name="duo", draws=16, batch_size=3))[0] for item in ITEMS]
    assert together == pytest.approx(alone, abs=1e-9)
    assert scores(denoiser, ITEMS, Scoring(name="duo", draws=16, seed=1)) != pytest.approx(together, abs=1e-3)


def test_conventions_mask_what_they_say() -> None:
    item = Item((0, 1, 2), (3, 1, 2, 3), (0,))
    everywhere = draw_masks(item, Scoring(name="duo", draws=400))
    assert everywhere.is_masked.float().mean(dim=0) == pytest.approx(torch.full((8,), 0.5), abs=0.1)
    sparing = draw_masks(item, Scoring(name="duo", draws=400, num_given=1))
    assert not sparing.is_masked[:, 0].any()
    assert torch.equal(sparing.is_masked[:, 1:], everywhere.is_masked[:, 1:])
    torch.testing.assert_close(sparing.weights, everywhere.weights * 8 / 7)
    for name in ("smdm", "llada"):
        drawn = draw_masks(item, Scoring(name=name, draws=400, num_given=1))
        assert not drawn.is_masked[:, :3].any()
        assert not drawn.is_masked[:, 7:].any()
    counts = draw_masks(item, Scoring(name="llada", draws=8)).is_masked.sum(dim=1)
    assert sorted(counts.tolist()) == [1, 1, 2, 2, 3, 3, 4, 4]


def test_choices_of_one_question_share_the_masks_of_the_question() -> None:
    scoring = Scoring(name="duo", draws=8)
    first, second = (draw_masks(Item((0, 1, 2), target, (0,)), scoring) for target in ((3,), (1, 2)))
    assert torch.equal(first.is_masked[:, :3], second.is_masked[:, :3])
    other = draw_masks(Item((0, 2, 2), (3,), (0,)), scoring)
    assert not torch.equal(first.is_masked, other.is_masked)


def test_intervals_of_proportions_stay_within_0_and_1() -> None:
    for share in (0, 1, 50, 99, 100):
        found = proportion([1.0] * share + [0.0] * (100 - share))
        assert 0 <= found.low <= found.value <= found.high <= 1
