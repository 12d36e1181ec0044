"""Ratios between two lines of a table, with paired intervals."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fpmgm.__main__ import main
from fpmgm.evaluation.intervals import Interval
from fpmgm.evaluation.paired import paired_ratio, paired_ratios
from fpmgm.evaluation.rows import Match, Measured, Row
from fpmgm.generation import Sampling
from tests.test_evaluation import save_fresh


def row(model: str, nats: list[Any], budget: int = 96, **changes: Any) -> Row:
    return Row(
        key="",
        model=model,
        weights="",
        sampling=Sampling(budget=budget, temperature=0.9),
        block_evals=budget,
        multiply_adds=1.0,
        seconds=1.0,
        metrics={"entropy": Interval(value=4.0, low=4.0, high=4.0)},
        protocol=Measured(judge="judge", num_samples=len(nats), length=8),
        per_sample={"nats": tuple(nats), "entropy": tuple(4.0 for _ in nats)},
        **changes,
    )


def test_a_constant_factor_between_samples_has_an_interval_of_no_width_however_much_samples_differ() -> None:
    nats = np.random.default_rng(0).normal(5, 1, 64)
    ours, theirs = row("ours", list(nats - 0.5)), row("theirs", list(nats))
    found = paired_ratio(ours, theirs)
    assert (found.ratio.value, found.ratio.low, found.ratio.high) == pytest.approx((np.exp(-0.5),) * 3)
    assert found.entropy_difference == Interval(value=0.0, low=0.0, high=0.0)
    shuffled = paired_ratio(ours, row("theirs", list(nats[::-1])))
    assert shuffled.ratio.value == pytest.approx(np.exp(-0.5))
    assert shuffled.ratio.high - shuffled.ratio.low > 0.2


def test_the_interval_of_independent_differences_is_that_of_theory() -> None:
    rng = np.random.default_rng(1)
    shared, apart = rng.normal(5, 3, 400), rng.normal(0.1, 0.2, 400)
    found = paired_ratio(row("ours", list(shared + apart)), row("theirs", list(shared)))
    error = 1.96 * apart.std() / 20
    assert np.log([found.ratio.low, found.ratio.high]) == pytest.approx(
        [apart.mean() - error, apart.mean() + error], abs=0.003
    )


def test_rows_are_paired_by_budget_and_what_cannot_be_paired_is_refused() -> None:
    match = Match(knob="temperature", entropy=4.0, is_met=True)
    ours = [row("ours", [1.0, 2.0], 96), row("ours", [1.0, None], 48, matched=match), row("ours", [1.0, 2.0], 24)]
    theirs = [row("theirs", [1.0, 2.0], budget) for budget in (48, 96)]
    found = paired_ratios(ours, theirs)
    assert [(pair.budget, pair.setting) for pair in found] == [(96, ""), (48, "temperature 0.9")]
    assert found[1].ratio.value == pytest.approx(np.exp(1.0 - 1.5))  # a sample without tokens is left out
    for wrong, message in (
        (replace(theirs[1], per_sample={}), "does not keep what was measured of each sample"),
        (row("theirs", [1.0, 2.0, 3.0]), "there are 2 and 3 samples"),
        (replace(theirs[1], sampling=Sampling(budget=96, seed=1)), "seeds are 0 and 1; pairs need the same"),
    ):
        with pytest.raises(ValueError, match=message):
            paired_ratio(ours[0], wrong)


def test_evaluate_prints_ratios_against_one_of_the_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, is_causal in (("one", False), ("two", False), ("judge", True)):
        save_fresh(tmp_path / name, is_causal=is_causal)
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    command = ["evaluate", one, two, "--judge", str(tmp_path / "judge"), "--budgets", "4", "--num-samples", "3"]
    command += ["--data", "", "--against", one]
    assert main([*command, "--json"]) == 0
    [pair] = json.loads(capsys.readouterr().out)["paired"]
    assert (pair["model"], pair["against"], pair["num_samples"]) == (two, one, 3)
    assert pair["ratio"] == {"value": 1.0, "low": 1.0, "high": 1.0}  # both have the same weights
    assert main([*command[:-1], "three"]) == 2
    assert "against is 'three'; give one of at least two models" in capsys.readouterr().err
