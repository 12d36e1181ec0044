import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from fpmgm import draws
from fpmgm.draws import Draw, categorical, keep_top_k, keep_top_p, probability
from fpmgm.randomness import Streams, generator


def log(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log()


def draw_many(logits: Tensor, num: int, seed: int = 0) -> Tensor:
    """`num` draws from one row of logits, in that row's own precision."""
    u = torch.rand(num, generator=generator(seed), dtype=logits.dtype)
    return torch.cat([categorical(logits.expand(len(part), -1), part) for part in u.split(100)])


def test_draws_follow_the_probabilities() -> None:
    p = torch.tensor([0.5, 0.2, 0.0, 0.299, 0.001], dtype=torch.float64)
    counts = draw_many(p.log()[None], 40_000).bincount(minlength=5)
    assert counts[2] == 0
    seen = p > 0
    assert stats.chisquare(counts[seen].numpy(), (40_000 * p[seen]).numpy()).pvalue > 1e-3


@given(st.floats(0, 1, exclude_max=True))
def test_a_token_without_probability_is_never_drawn(u: float) -> None:
    logits = torch.tensor([[-math.inf, 0.3, -math.inf, 1.2, -math.inf]], dtype=torch.float64)
    assert categorical(logits, torch.tensor([u], dtype=torch.float64)).item() in (1, 3)


def test_rows_drawn_some_at_a_time_are_those_drawn_together_and_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = generator(0)
    logits, u = torch.randn(23, 12, generator=rng).double(), torch.rand(23, generator=rng)
    together = categorical(logits, u)
    before = logits.clone()
    monkeypatch.setattr(draws, "NUMBERS_AT_ONCE", 60)
    assert torch.equal(categorical(logits, u), together)
    assert torch.cat([categorical(logits[row : row + 1], u[row : row + 1]) for row in range(23)]).equal(together)
    assert torch.equal(logits, before)
    assert len(set(together.tolist())) > 5


def test_a_token_without_probability_is_not_drawn_by_the_largest_uniform_number() -> None:
    largest = torch.tensor([1 - 2**-53], dtype=torch.float64)
    for scale in (0.0, 0.1, 3.0, -7.0):
        logits = torch.tensor([[0.1 + scale, 0.7 + scale, scale, -math.inf]], dtype=torch.float64)
        assert categorical(logits, largest).item() == 2


NUM_TAIL = 50_000
TAIL_MASS = 1e-3


def tail_is_right(dtype: torch.dtype) -> bool:
    """Whether 50,000 rare symbols, 1e-3 together, are drawn as often as they should be, and each of them.

    Uniform numbers are spread over parts of [0, 1) only, so that few draws show what 100 million plain ones would:
    the last 2e-3 for the mass of the tail, and a fiftieth of the tail, with two numbers per symbol, for its evenness.
    """
    p = torch.cat([torch.tensor([1 - TAIL_MASS]), torch.full((NUM_TAIL,), TAIL_MASS / NUM_TAIL)]).double()
    logits = p.log().to(dtype)[None]

    def draw(low: float, high: float, num: int) -> Tensor:
        within = (torch.arange(num) + torch.rand(num, generator=generator(0), dtype=torch.float64)) / num
        u = (low + (high - low) * within).to(dtype).clamp_max(1 - torch.finfo(dtype).eps / 2)
        return torch.cat([categorical(logits.expand(len(part), -1), part) for part in u.split(100)])

    mass = float((draw(1 - 2 * TAIL_MASS, 1, 1000) > 0).double().mean()) * 2 * TAIL_MASS
    num_symbols = NUM_TAIL // 50
    reached = draw(1 - TAIL_MASS / 2, 1 - TAIL_MASS / 2 + TAIL_MASS / 50, 2 * num_symbols).unique()
    return abs(mass - TAIL_MASS) < 0.01 * TAIL_MASS and len(reached) > 0.95 * num_symbols


@pytest.mark.slow
def test_float64_draws_the_tail_as_often_as_it_should_and_float32_does_not() -> None:
    assert tail_is_right(torch.float64)
    assert not tail_is_right(torch.float32)


def test_float64_reaches_events_below_two_to_the_minus_24_and_float32_cannot() -> None:
    rare = 2.0**-30
    p = torch.tensor([[1 - rare, rare]], dtype=torch.float64)
    assert categorical(p.log(), torch.tensor([1 - rare / 2], dtype=torch.float64)).item() == 1
    largest = torch.tensor([1 - 2.0**-24], dtype=torch.float32)
    assert categorical(p.log().float(), largest).item() == 0


def test_streams_give_53_bits() -> None:
    u = Streams.of(0, range(2)).uniform(1000)
    assert u.dtype == torch.float64
    assert (u * 2**24 % 1 != 0).any()


def test_top_k_keeps_the_k_largest() -> None:
    kept = keep_top_k(log(0.1, 0.4, 0.2, 0.3), 2).exp()
    torch.testing.assert_close(kept, torch.tensor([[0.0, 0.4, 0.0, 0.3]], dtype=torch.float64))


@pytest.mark.parametrize(
    ("p", "inclusive", "strict"),
    [
        (0.3, [1], [1]),  # the first token alone crosses p
        (0.6, [1, 3], [1]),
        (0.75, [1, 2, 3], [1, 3]),
        (0.95, [0, 1, 2, 3], [1, 2, 3]),
    ],
)
def test_top_p_keeps_the_crossing_token_in_one_convention_and_not_in_the_other(
    p: float, inclusive: list[int], strict: list[int]
) -> None:
    logits = log(0.1, 0.4, 0.2, 0.3)
    assert keep_top_p(logits, p, "inclusive").isfinite()[0].nonzero()[:, 0].tolist() == inclusive
    assert keep_top_p(logits, p, "strict").isfinite()[0].nonzero()[:, 0].tolist() == strict


def test_temperature_divides_the_logits() -> None:
    logits = log(0.1, 0.4, 0.2, 0.3)
    u = torch.rand(3000, generator=generator(0), dtype=torch.float64)
    hot = Draw(temperature=2.0)(logits.expand(3000, -1), u)
    assert torch.equal(hot, categorical((logits / 2).expand(3000, -1), u))
    assert Draw(temperature=0.0)(logits, u[:1]).item() == 1


def test_top_k_and_top_p_work_on_the_tempered_logits() -> None:
    logits = log(0.1, 0.4, 0.2, 0.3)
    u = torch.rand(500, generator=generator(0), dtype=torch.float64)
    assert set(Draw(temperature=0.5, top_p=0.7)(logits.expand(500, -1), u).tolist()) == {1, 3}
    assert set(Draw(top_k=2, top_p=0.99)(logits.expand(500, -1), u).tolist()) == {1, 3}
    assert set(Draw(top_p=0.6, nucleus="strict")(logits.expand(500, -1), u).tolist()) == {1}


def test_tokens_as_likely_as_the_kth_are_kept_too() -> None:
    assert keep_top_k(log(0.4, 0.4, 0.2), 1).isfinite()[0].tolist() == [True, True, False]


def test_temperature_comes_before_top_k_and_top_k_before_top_p() -> None:
    logits = log(0.1, 0.4, 0.2, 0.3)
    # Tempered, the first token has 0.53; among two, 0.57; before either, 0.4, and a second would be kept.
    for draw in (Draw(temperature=0.5, top_p=0.5), Draw(top_k=2, top_p=0.5)):
        assert draw.filtered(logits).isfinite()[0].nonzero()[:, 0].tolist() == [1]


def test_large_logits_do_not_overflow() -> None:
    u = torch.tensor([0.1, 0.9], dtype=torch.float64)
    assert categorical((log(0.5, 0.5) + 5000).expand(2, -1), u).tolist() == [0, 1]


def test_a_uniform_number_that_rounds_to_one_draws_no_impossible_token() -> None:
    u = torch.tensor([1 - 2**-53], dtype=torch.float64)  # 1 in float32
    assert categorical(torch.tensor([[0.3, 0.2, -math.inf]]), u).item() == 1


def test_probability_is_that_of_the_softmax() -> None:
    logits = torch.randn(4, 7, generator=generator(0), dtype=torch.float64)
    tokens = torch.tensor([0, 3, 6, 2])
    torch.testing.assert_close(probability(logits, tokens), logits.softmax(-1)[range(4), tokens])


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="temperature is -1"):
        Draw(temperature=-1.0)
    with pytest.raises(ValueError, match="top_k is 0"):
        Draw(top_k=0)
    with pytest.raises(ValueError, match=r"top_p is 1\.5"):
        Draw(top_p=1.5)
    with pytest.raises(ValueError, match="top_k and top_p would do nothing"):
        Draw(temperature=0.0, top_k=3)
    with pytest.raises(ValueError, match="nucleus is strict but top_p is not set"):
        Draw(nucleus="strict")
    with pytest.raises(ValueError, match="unknown nucleus 'inclusiv'; did you mean 'inclusive'"):
        Draw(nucleus="inclusiv")  # type: ignore[arg-type]
