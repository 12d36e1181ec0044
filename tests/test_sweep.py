"""Sweeps: resume, presets, what a row says."""

import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import fpmgm
from fpmgm.__main__ import main
from fpmgm.backbones.dit import as_mdlm
from fpmgm.checkpoint import Model, load
from fpmgm.evaluation import sweep
from fpmgm.evaluation.cells import PRESETS, Cell
from fpmgm.evaluation.intervals import Interval
from fpmgm.evaluation.judges import BUNDLED_JUDGE
from fpmgm.evaluation.plots import line_style
from fpmgm.evaluation.rows import Row, as_json, read_lines, read_rows, row_of
from fpmgm.evaluation.sweep import Protocol, run_sweep
from fpmgm.evaluation.tables import Column, latex, markdown, metric
from fpmgm.evaluation.text import TextEvaluator
from fpmgm.generation import Sampling, generate
from tests.conftest import Build

PROTOCOL = Protocol(num_samples=2)


@pytest.fixture(autouse=True)
def no_known_models() -> None:
    """Forget the models of other tests, which may have had the same names."""
    for known in (sweep.weights_of, sweep._loaded, sweep._samples):
        known.cache_clear()


@pytest.fixture
def folder(text_model: Model, tmp_path: Path) -> str:
    text_model.save(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture
def plain(text_model: Model, small_model: Build, tmp_path: Path) -> str:
    changes: dict[str, Any] = {"num_pre": 3, "num_fp": 0, "num_post": 0}
    config = replace(as_mdlm(text_model.config), **changes)
    denoiser = small_model(vocab_size=config.vocab_size, mask_id=config.mask_id, length=config.length, **changes)
    replace(text_model, denoiser=denoiser, config=config).save(tmp_path / "plain")
    return str(tmp_path / "plain")


def without_time(rows: list[Row]) -> list[Row]:
    return [replace(row, seconds=0.0) for row in rows]


@pytest.mark.parametrize("torn", [False, True])
def test_a_sweep_killed_in_any_cell_loses_that_cell_alone(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    cells = [Cell(model=folder, sampling=Sampling(budget=budget)) for budget in (6, 9, 12, 15)]
    whole = run_sweep(cells, PROTOCOL, tmp_path / "whole.jsonl")
    measured: list[int] = []
    original = sweep.measure_cell

    def dies_at_third(cell: Cell, protocol: Protocol) -> Row:
        measured.append(cell.sampling.budget)
        if measured == [6, 9, 12]:
            raise KeyboardInterrupt
        return original(cell, protocol)

    monkeypatch.setattr(sweep, "measure_cell", dies_at_third)
    file = tmp_path / "killed.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run_sweep(cells, PROTOCOL, file)
    if torn:  # killed in the middle of a line
        with open(file, "a") as stream:
            stream.write('{"key": "half')
    rows = run_sweep(cells, PROTOCOL, file)
    assert measured == [6, 9, 12, 12, 15]
    assert without_time(rows) == without_time(whole)
    assert without_time(read_rows(file)) == without_time(whole)


def test_a_row_is_measured_again_when_weights_settings_or_protocol_change(
    folder: str, tmp_path: Path, small_model: Build
) -> None:
    cell = Cell(model=folder, sampling=Sampling(budget=6))
    keys = {sweep.key_of(cell, PROTOCOL), sweep.key_of(cell, replace(PROTOCOL, num_samples=3))}
    keys.add(sweep.key_of(replace(cell, sampling=Sampling(budget=6, seed=1)), PROTOCOL))
    changed = load(folder)
    next(changed.denoiser.parameters()).data.add_(1)
    changed.save(tmp_path / "model")
    sweep.weights_of.cache_clear()
    keys.add(sweep.key_of(cell, PROTOCOL))
    assert len(keys) == 4


def test_the_multiply_adds_of_a_row_are_those_of_its_steps(folder: str, tmp_path: Path) -> None:
    (row,) = run_sweep([Cell(model=folder, sampling=Sampling(budget=15))], PROTOCOL, tmp_path / "r.jsonl")
    model, total = load(folder), 0
    positions: list[list[int]] = []
    iterations: list[int] = []

    def note(step: Any) -> None:
        positions.append(step.places.counts)
        iterations.append(int(step.solution.num_iters[0]))

    generate(model, num_samples=2, budget=15, on_step=note)
    for own, num_iters in zip(positions, iterations, strict=True):
        total += sum(model.config.multiply_adds(num_iters=num_iters, num_positions=num) for num in own)
    assert row.multiply_adds == pytest.approx(total / 2)
    assert row.sampling.steps == len(iterations)


def test_every_preset_makes_feasible_cells_and_skips_plain_stacks_where_there_is_nothing_to_vary(
    folder: str, plain: str
) -> None:
    for name, cells_of in PRESETS.items():
        cells = list(cells_of([folder, plain], Sampling(), (24,)))
        for cell in cells:
            sweep.check(cell)
        models = {cell.model for cell in cells}
        assert models == ({folder, plain} if name in ("budgets", "steps", "nucleus") else {folder}), name
        assert len({sweep.key_of(cell, PROTOCOL) for cell in cells}) == len(cells), name
    steps = [cell.sampling.steps for cell in PRESETS["steps"]([folder, plain], Sampling(), (24,))]
    assert steps == [8, 6, 4, 3, 2, 1, 8]  # 24 over 3, 4, 5 or 6, 8, 10, 14; the plain stack has 3 blocks


def test_a_sweep_of_positions_compares_every_rule_with_all_positions_sample_by_sample(
    folder: str, tmp_path: Path, text_model: Model
) -> None:
    found = fpmgm.sweep(
        "positions", folder, budgets=(24,), num_samples=3, judge=BUNDLED_JUDGE, out=str(tmp_path / "out")
    )
    lines = (tmp_path / "out" / "positions-pairs.md").read_text().splitlines()
    assert [row.sampling.solve for row in found.rows] == ["all", *["changed-and-masked"] * 3, "both"]
    assert [row.sampling.whole_every for row in found.rows] == [1, 1, 2, 1, 1]
    assert "whole_every" in lines[0]
    assert (
        len([line for line in lines if line.startswith("|")]) == 2 + 4
    )  # all positions are what others are set against
    first, rested = found.rows[0], found.rows[2]
    rested_nats, first_nats = ([nats or 0.0 for nats in row.per_sample["nats"]] for row in (rested, first))
    ratio = math.exp(sum(rested_nats) / 3 - sum(first_nats) / 3)
    assert f"| {rested.multiply_adds / first.multiply_adds:.2f} | {ratio:.3f} [" in lines[3]


def test_an_infeasible_cell_is_refused_before_any_is_measured(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "measure_cell", lambda *_: pytest.fail("something was measured"))
    cells = [Cell(model=folder, sampling=Sampling(budget=budget)) for budget in (12, 2)]
    with pytest.raises(ValueError, match="smallest feasible budget is 3"):
        run_sweep(cells, PROTOCOL, tmp_path / "r.jsonl")


def test_the_sweep_command_saves_the_best_allocation_and_sampling_then_uses_it(
    folder: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text_model: Model,
    small_model: Build,
) -> None:
    causal: dict[str, Any] = {"num_pre": 2, "num_fp": 0, "num_post": 0, "is_causal": True}
    config = replace(as_mdlm(text_model.config), **causal)
    sizes = {"vocab_size": config.vocab_size, "mask_id": config.mask_id, "length": config.length}
    replace(text_model, denoiser=small_model(**sizes, **causal), config=config).save(tmp_path / "judge")
    command = ["sweep", "steps", folder, "--budgets", "12", "--num-samples", "2", "--out", str(tmp_path / "out")]
    command += ["--judge", str(tmp_path / "judge"), "--save"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    rows = read_rows(tmp_path / "out" / "steps.jsonl")
    best = min(rows, key=lambda row: row.metrics["perplexity_per_sample"].value)
    saved = load(folder)
    assert saved.generation["budgets"]["12"] == {"steps": best.sampling.steps, "allocation": "fixed"}
    assert generate(saved, budget=12).steps == best.sampling.steps
    assert generate(saved, budget=12, steps=1).steps == 1
    assert "generation_config.json" in printed
    for name in ("steps.md", "steps.tex", "steps-model.png", "steps-model.svg"):
        assert (tmp_path / "out" / name).stat().st_size > 0


def test_a_grid_takes_any_sampling_settings_each_value_with_each(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["sweep", "grid", folder, "--budgets", "12", "--num-samples", "2", "--judge", ""]
    out = tmp_path / "out"
    axes = ["temperature=0.5,1", "reuse-masked=(0.5,0.5),(0.75,0.9)"]
    assert main([*command, "--vary", *axes, "--out", str(out)]) == 0
    found = [(row.sampling.temperature, row.sampling.reuse_masked) for row in read_rows(out / "grid.jsonl")]
    assert found == [(0.5, (0.5, 0.5)), (0.5, (0.75, 0.9)), (1, (0.5, 0.5)), (1, (0.75, 0.9))]
    assert (out / "grid-model-12.png").stat().st_size > 0  # two axes: a heat map
    assert main([*command, "--vary", "solver=picard,anderson", "--out", str(tmp_path / "one")]) == 0
    assert (tmp_path / "one" / "grid.png").stat().st_size > 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["grid"], "vary is for preset grid, which needs it"),
        (["budgets", "--vary", "seed=0,1"], "vary is for preset grid"),
        (["grid", "--vary", "temprature=1"], "did you mean 'temperature'"),
        (["grid", "--vary", "temperature=hot"], "'hot' is no value of temperature"),
        (["grid", "--vary", "reuse_masked=(0.5,)"], "is no value of reuse_masked"),
        (["grid", "--vary", "top_k=True"], "True is no value of top_k"),
        (["grid", "--vary", "budget=24"], "budgets with --budgets"),
        (["grid", "--vary", "seed"], "write SETTING=VALUE,VALUE"),
    ],
)
def test_wrong_axes_of_a_grid_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_name_that_is_none_in_any_cell_of_a_grid_is_refused_before_any_is_measured(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep, "measure_cell", lambda *_: pytest.fail("measured"))
    for axis in ("reuse=none,ful", "solver=picard,anders", "transition=ancestral,confidenze"):
        command = ["sweep", "grid", folder, "--vary", axis, "--budgets", "12", "--judge", "", "--out", str(tmp_path)]
        assert main(command) == 2
        assert "did you mean" in capsys.readouterr().err


def test_wrong_sweeps_are_refused(plain: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments, message in (
        (["stepz"], "unknown preset 'stepz'; did you mean 'steps'?"),
        (["nucleus", "--save"], "save is for the presets steps and allocations"),
        (["solver", plain], "is for models with a fixed point"),
        (["steps", plain, "--num-samples", "1"], "an interval needs at least 2"),
        (["steps", plain, "--judge", "", "--save"], "save needs a judge"),
    ):
        assert main(["sweep", *arguments, "--out", str(tmp_path / "out")]) == 2
        assert message in capsys.readouterr().err


@dataclass
class Shown:
    model: str
    metrics: dict[str, Interval]
    n: int


ROWS = [
    Shown("a_b", {"p": Interval(value=12.0, low=11.0, high=13.0)}, 1),
    Shown("c", {"p": Interval(value=9.0, low=8.5, high=9.5)}, 2),
    Shown("d", {}, 3),
]
COLUMNS = (
    Column(title="model", value=lambda row: row.model),
    metric("p", "perplexity", best="lowest"),
    Column(title="n_all", value=lambda row: row.n, best="highest"),
)


def test_a_markdown_table_marks_the_best_cell_of_each_column() -> None:
    assert markdown(ROWS, COLUMNS).splitlines() == [
        "| model | perplexity | n_all |",
        "| --- | --- | --- |",
        "| a_b | 12.0 [11.0, 13.0] | 1 |",
        "| c | **9.0 [8.5, 9.5]** | 2 |",
        "| d |  | **3** |",
    ]


def test_a_latex_table_escapes_its_text_and_marks_the_best() -> None:
    table = latex(ROWS, COLUMNS)
    assert r"a\_b & 12.0 [11.0, 13.0] & 1 \\" in table
    assert r"c & \textbf{9.0 [8.5, 9.5]} & 2 \\" in table
    assert r"n\_all" in table
    assert table.count(r"\\") == 4


def test_rows_are_plain_json(folder: str, tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    run_sweep([Cell(model=folder, sampling=Sampling(budget=6))], PROTOCOL, file)
    (row,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert {
        "key",
        "model",
        "weights",
        "sampling",
        "iterations",
        "block_evals",
        "multiply_adds",
        "seconds",
        "metrics",
        "protocol",
    } == set(row)
    assert {"judge", "num_samples", "length", "commit", "hardware"} <= set(row["protocol"])
    assert (row["iterations"], row["sampling"]["steps"]) == ([4], 1)


def test_no_two_lines_of_a_plot_look_alike() -> None:
    assert len({tuple(line_style(index).values()) for index in range(12)}) == 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: 3, "line 1 must hold a JSON object, and it holds 3; remove that line"),
        (lambda row: {**row, "sampling": None}, "no row of a sweep: sampling is None; it must be an object; remove it"),
        (lambda row: {**row, "key": 7}, "key is 7; it must be a text"),
        (lambda row: {**row, "metrics": {"entropy": {"value": 1.0}}}, "metrics.entropy has no low"),
        (lambda row: {**row, "metrics": {}}, "metrics.entropy is None; it must be an object"),
        (
            lambda row: {**row, "sampling": {**row["sampling"], "budget": "9"}},
            "sampling: budget is '9'; it must be a whole",
        ),
        (lambda row: {**row, "seconds": "long"}, "seconds is 'long'; it must be a finite number"),
    ],
)
def test_a_row_that_is_none_is_refused_with_its_line_and_nothing_is_measured(
    folder: str, tmp_path: Path, change: Any, message: str
) -> None:
    file = tmp_path / "rows.jsonl"
    cells = [Cell(model=folder, sampling=Sampling(budget=6))]
    [row] = run_sweep(cells, PROTOCOL, file)
    file.write_text(json.dumps(change(as_json(row))) + "\n")
    before = file.read_bytes()
    with pytest.raises(ValueError, match=re.escape(message)):
        run_sweep(cells, PROTOCOL, file)
    assert file.read_bytes() == before


def test_a_line_in_the_middle_that_is_no_json_is_refused_and_a_torn_last_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": NaN}\n{"b": 2}\n{"c')
    assert [list(line) for line in read_lines(file)] == [["a"], ["b"]]
    file.write_text('{"a": 1}\n{"b\n{"c": 3}\n')
    with pytest.raises(
        ValueError, match=r"line 2 is not JSON: .*; remove that line and what it held is measured again"
    ):
        read_lines(file)


def test_a_row_that_was_written_is_read_as_it_was(folder: str, tmp_path: Path) -> None:
    cells = [Cell(model=folder, sampling=Sampling(budget=6)), Cell(model=folder, sampling=Sampling(budget=6, seed=1))]
    turned = replace(cells[0], knob="temperature", entropy=2.0)
    rows = run_sweep([*cells, turned], PROTOCOL, tmp_path / "r.jsonl")
    assert read_rows(tmp_path / "r.jsonl") == rows
    assert [row_of(as_json(row)) for row in rows] == rows
    assert [row.matched is None for row in rows] == [True, True, False]
    assert (rows[0].protocol.device, rows[0].protocol.dtype) == ("cpu", "float32")


class ScoringFirstEnds(TextEvaluator):
    """The convention `paper` of before 2026-11-19."""

    def key(self) -> tuple[dict[str, Any], str]:
        settings, weights = super().key()
        return {name: value for name, value in settings.items() if name != "ends"}, weights


def test_committed_results_can_be_read_and_their_cells_are_known() -> None:
    results = Path(__file__).parents[1] / "docs" / "results"
    files = [
        file
        for file in sorted(results.rglob("*.jsonl"))
        if file.name not in ("validation.jsonl", "real.jsonl", "found.jsonl", "tune.jsonl")
    ]
    found = {file: read_rows(file) for file in files}
    assert sum(map(len, found.values())) > 300
    protocol = Protocol(num_samples=64, evaluator=ScoringFirstEnds(judge=BUNDLED_JUDGE))
    for row in found[results / "evaluate" / "samples.jsonl"]:
        cell = Cell(model=row.model, sampling=Sampling(budget=row.budget))
        now = replace(protocol, evaluator=TextEvaluator(judge=BUNDLED_JUDGE))
        assert row.key in (sweep.key_of(cell, protocol), sweep.key_of(cell, now))
        assert sweep.key_of(cell, replace(protocol, dtype="bfloat16")) != row.key
        noisy = Sampling(budget=row.budget, transition="confidence", confidence_noise=0.5)
        keys = {
            sweep.key_of(replace(cell, sampling=each), protocol) for each in (noisy, replace(noisy, schedule="cosine"))
        }
        assert len({*keys, row.key}) == 3


def test_sweep_measures_a_preset_or_given_cells_and_writes_only_where_it_is_told(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    settings: dict[str, Any] = {"num_samples": 2, "judge": ""}
    found = fpmgm.sweep("budgets", folder, budgets=(6, 9), **settings)
    assert [row.budget for row in found.rows] == [6, 9]
    assert found.files == found.saved == ()
    cells = [Cell(model=folder, sampling=Sampling(budget=budget)) for budget in (9, 6)]
    given = fpmgm.sweep(cells, out=str(tmp_path / "out"), **settings)
    assert [row.key for row in given.rows] == [row.key for row in found.rows[::-1]]
    assert {file.name for file in given.files} == {"cells.jsonl", "cells.md", "cells.tex", "cells.png", "cells.svg"}
    assert all(file.is_file() for file in given.files)
    assert not list((tmp_path / "here").iterdir())
    monkeypatch.setattr(sweep, "measure_cell", lambda *_: pytest.fail("measured again"))
    assert fpmgm.sweep(cells, out=str(tmp_path / "out"), **settings) == given
    for wrong, message in (
        ({"bugdets": (6,)}, "unknown setting 'bugdets'; did you mean 'budgets'"),
        ({"vary": ("seed=0,1",)}, "vary is for preset grid"),
    ):
        with pytest.raises(ValueError, match=message):
            fpmgm.sweep("budgets", folder, **wrong)
    with pytest.raises(ValueError, match="seed cannot be set beside cells, which have their own"):
        fpmgm.sweep(cells, seed=3)
