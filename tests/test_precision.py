"""Draws in float32, as public code has them: right with few steps, too cold with many."""

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

from fpmgm.draws import Draw, race
from fpmgm.generation import Sampling, rules_of
from fpmgm.randomness import Streams
from fpmgm.sampling import even_times, sample
from fpmgm.transitions import Ancestral, RacedAncestral
from fpmgm.types import Places, State
from tests.given import LENGTH, MASK, enumerate_ancestral, given_plain, table_of


def test_with_few_steps_a_race_draws_what_the_ancestral_rule_does() -> None:
    denoiser, times, num = given_plain(), even_times(2), 2000
    out = sample(
        denoiser,
        torch.full((num, LENGTH), MASK),
        times=times,
        iterations=[0, 0],
        transition=RacedAncestral(),
        rng=Streams.of(0, range(num)),
    )
    expected = enumerate_ancestral(table_of(denoiser, 0), times)
    seen = dict.fromkeys(expected, 0)
    for row in out.z.tolist():
        seen[tuple(row)] += 1
    common = [state for state, probability in expected.items() if probability * num > 5]
    counts = [seen[state] for state in common]
    rest = 1 - sum(expected[state] for state in common)
    observed = [*counts, num - sum(counts)]
    assert stats.chisquare(observed, [*(expected[state] * num for state in common), rest * num]).pvalue > 1e-3


def test_a_token_that_weighs_little_against_the_mask_wins_in_float64_and_never_in_float32() -> None:
    """A thousand steps and a token of probability 1e-5: its weight against the mask is 1e-8."""
    weights = torch.tensor([[1.0, 1e-8]], dtype=torch.float64)
    luckiest = {torch.float32: 1 - 2.0**-24, torch.float64: 1 - 2.0**-53}
    won = {}
    for dtype, u in luckiest.items():
        drawn = torch.tensor([[0.5, u]], dtype=dtype)  # an ordinary number for the mask
        won[dtype] = race(weights.to(dtype), drawn).item()
    assert won == {torch.float32: 0, torch.float64: 1}


@pytest.mark.parametrize("weight", [2e-8, 2e-7])
def test_a_float32_race_draws_rare_tokens_less_often_by_the_factor_that_the_docs_have(weight: float) -> None:
    """All uniform numbers of float32 with which the token may win, against the mask's numbers spread evenly."""
    lucky = 1 - torch.arange(1, 81) * 2.0**-24
    of_mask = (torch.arange(2000) + 0.5) / 2000
    u = torch.stack([of_mask.repeat(len(lucky)), lucky.repeat_interleave(len(of_mask))], dim=1)
    wins = race(torch.tensor([1.0, weight]).expand_as(u), u).sum().item()
    a = 1 / (weight * 2**24)
    assert wins / len(of_mask) * 2**-24 / weight == pytest.approx(a / math.expm1(a), rel=0.02)


def test_a_sample_drawn_in_float32_does_not_depend_on_its_batch() -> None:
    state = State(
        z=torch.full((3, 5), 7),
        mask_id=7,
        is_given=torch.zeros(3, 5, dtype=torch.bool),
        confidence=torch.zeros(3, 5, dtype=torch.float64),
    )
    logits = torch.randn(3, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits[..., 7] = -torch.inf
    rule = RacedAncestral()

    def written(rows: list[int]) -> list[list[int]]:
        own = replace(state, z=state.z[rows], is_given=state.is_given[rows], confidence=state.confidence[rows])
        rng = Streams.of(0, rows)
        places = Places.of(rule.positions(own, 1.0, 0.5, rng=rng))
        return rule.write(own, logits[rows].flatten(0, 1), places, 1.0, 0.5, rng=rng).z.tolist()

    assert written([0, 1, 2])[1:] == written([1, 2])


def test_the_precision_is_a_setting_of_the_ancestral_rule_alone() -> None:
    cost = given_plain().cost
    how = Sampling(precision="float32", transition="ancestral")
    assert rules_of(how, cost)["transition"] == RacedAncestral(draw=Draw())
    assert rules_of(Sampling(transition="ancestral"), cost)["transition"] == Ancestral(draw=Draw())
    with pytest.raises(ValueError, match="precision is float32, and transition confidence does not use it"):
        rules_of(replace(how, transition="confidence"), cost)
