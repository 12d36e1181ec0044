"""What the paper's measurements need: its grids, its way of timing, a test split, and an interval of MAUVE."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpmgm.budget import Cost, even_plan, plan, spending_of
from fpmgm.checkpoint import find_folder, read_config
from fpmgm.codecs import load_codec
from fpmgm.data import Dataset
from fpmgm.evaluation import mauve
from fpmgm.evaluation.cells import PRESETS, cost_of
from fpmgm.evaluation.held_out import MOST_HELD_OUT, TEST, TEST_SEQUENCES, _test_rows, usual_number
from fpmgm.evaluation.latency import interleave
from fpmgm.generation import Sampling, with_saved_settings

FP = Cost(1, 1, 1)


@given(steps=st.integers(1, 300), num_iters=st.integers(1, 20), spare=st.integers(0, 50), fp=st.integers(1, 3))
def test_iterations_and_steps_that_are_given_are_those_of_the_plan(
    steps: int, num_iters: int, spare: int, fp: int
) -> None:
    cost = Cost(4, fp, 2)
    found = even_plan(steps * cost.step(num_iters) + spare, cost, num_iters, steps)
    assert found.iterations == (num_iters,) * steps
    assert found.spent == steps * cost.step(num_iters)


@pytest.mark.parametrize(
    ("settings", "cost", "message"),
    [
        (
            {"iterations": 4, "steps": 17},
            FP,
            "17 steps of 4 iterations cost 102 block evaluations, and the budget is 96",
        ),
        ({"iterations": 0}, FP, "iterations are 0; at least 1 is needed"),
        ({"iterations": 4}, Cost(12, 0, 0), "a plain stack has no solver; leave them out"),
        ({"iterations": 4, "allocation": "decreasing"}, FP, "allocation is decreasing; leave one of the two out"),
        ({"iterations": 4, "budget_in": "positions"}, FP, "budget_in is positions; leave one of the two out"),
    ],
)
def test_iterations_that_cannot_be_are_refused(settings: dict[str, Any], cost: Cost, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spending_of(Sampling(**settings), cost)


def test_steps_that_a_model_saved_for_a_budget_do_not_count_beside_iterations() -> None:
    saved = {"budgets": {"96": {"steps": 24, "allocation": "cosine"}}}
    settled = with_saved_settings(saved, Sampling(iterations=6))
    assert (settled.steps, settled.allocation) == (None, "fixed")
    assert spending_of(settled, FP).iterations == (6,) * 12
    again = replace(settled, steps=12)  # as rows have it
    assert spending_of(again, FP) == spending_of(settled, FP)


def test_the_papers_largest_budget_is_spent_whole() -> None:
    assert plan(3072, FP).spent == plan(3072, Cost(12, 0, 0)).spent == 3072


def test_a_grid_of_steps_and_iterations_spends_what_each_cell_costs() -> None:
    cells = list(PRESETS["steps-iterations"](["stories-fp", "stories-mdlm"], Sampling(), (24, 768)))
    assert {cell.model for cell in cells} == {"stories-fp"}
    pairs = {(cell.sampling.steps, cell.sampling.iterations) for cell in cells}
    assert len(pairs) == len(cells)
    assert {(4, 12), (128, 4), (256, 1)} <= pairs
    for cell in cells:
        assert spending_of(cell.sampling, cost_of(cell.model)).spent == cell.sampling.budget <= 768


def test_the_grids_of_both_gamma_tables_are_the_papers() -> None:
    budgets = (96, 192, 384, 768)
    masked, changed = (
        [cell.sampling for cell in PRESETS[name](["stories-fp"], Sampling(), budgets)]
        for name in ("gamma-masked", "gamma-changed")
    )
    assert len(masked) == 6 * 3 * 4
    assert len(changed) == 8 * 4
    assert {each.allocation for each in (*masked, *changed)} == {"fixed"}
    assert {each.reuse_masked for each in changed} == {(0.75, 0.9)}
    assert {each.reuse_changed for each in masked} == {(0.0, 0.1), (0.0, 0.2), (0.0, 0.3)}


def test_warm_up_rounds_are_run_and_not_timed() -> None:
    calls: list[str] = []
    found = interleave({name: partial(calls.append, name) for name in "ab"}, 20, warmups=2)
    assert [calls.count(name) for name in "ab"] == [22, 22]
    assert [len(timing.rounds) for timing in found.values()] == [20, 20]
    with pytest.raises(ValueError, match="warmups is 0; at least 1 is needed"):
        interleave({"a": lambda: None}, warmups=0)


def test_the_interval_of_mauve_covers_the_seeds_of_its_clustering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mauve, "mauve_score", lambda *_, seed: seed / 100)
    found = mauve.mauve_interval(np.zeros((8, 2), np.float32), np.zeros((8, 2), np.float32), num_resamples=41)
    assert (found.value, found.low, found.high) == (0.0, pytest.approx(0.01), pytest.approx(0.39))


@pytest.mark.parametrize("num", [513, 1000, 5000])
def test_the_test_split_holds_what_validation_does_not_read(num: int) -> None:
    folder = find_folder("stories-fp")
    codec = load_codec(folder)
    assert codec is not None
    data = Dataset(
        rows=np.arange(6000)[:, None],
        train=np.arange(1000),
        held_out=np.arange(1000, 1000 + num),
        codec=codec,
        vocabulary=read_config(folder).vocabulary,
    )
    validated = set(data.measured(MOST_HELD_OUT).x[:, 0].tolist())
    rest = set(_test_rows(data, "stories").held_out.tolist())
    assert rest == set(data.held_out.tolist()) - validated
    assert usual_number("stories", TEST) == TEST_SEQUENCES == 500
    with pytest.raises(ValueError, match="holds out 512 sequences, all of which validation reads"):
        _test_rows(replace(data, held_out=data.held_out[:512]), "stories")
