"""Tables for files and terminals."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fpmgm.evaluation import layout, plots
from fpmgm.evaluation.evaluator import Metric
from fpmgm.evaluation.intervals import Interval
from fpmgm.evaluation.latency import Timing
from fpmgm.evaluation.plots import quality_against_cost
from fpmgm.evaluation.rows import Match, Measured, Row
from fpmgm.evaluation.tables import Column, markdown, model_column, shown, terminal_table
from fpmgm.experiments import benchmark, optimum
from fpmgm.generation import Sampling
from fpmgm.names import short_names

METRICS = ("perplexity_per_sample", "perplexity_per_token", "entropy", "distinct_2", "repetition_4", "mauve")


def sampled_row() -> Row:
    """A row with every metric and long numbers."""
    return Row(
        key="0" * 24,
        model="runs/a/model",
        weights="0" * 16,
        sampling=Sampling(steps=32, budget=192, temperature=0.987, reuse="three-state"),
        block_evals=192,
        multiply_adds=12.3e9,
        seconds=123.45,
        metrics={name: Interval(value=1234.567, low=1100.123, high=1300.987) for name in METRICS},
        protocol=Measured(judge="", num_samples=4, length=24),
        matched=Match(knob="temperature", entropy=4.0, is_met=True),
    )


SAMPLED = sampled_row()
TIMED = benchmark.Timed(
    name="stories-mdlm",
    block_evals=96,
    steps=16,
    multiply_adds=12.3e9,
    seconds=Timing((11.11, 12.34, 13.33)),
    tokens_per_second=12345.6,
    ratio=1.0,
    peak_bytes=123_000_000,
    update_seconds=Timing((11.11, 12.34, 13.33)),
    update_ratio=1.0,
)
OPTIMUM = optimum.Drawn(
    model="runs/a/model",
    budget=192,
    drawn_from="the model, entropy nearly matched",
    temperature=0.987,
    gap=0.3,
    num_inputs=8,
    length=24,
    seed=0,
    judge="",
    num_samples=4,
    metrics=SAMPLED.metrics,
)
ROWS = [SAMPLED, replace(SAMPLED, model="runs/b/model", sampling=replace(SAMPLED.sampling, reuse="none"))]


def printed(rows: list[Any], columns: tuple[Column, ...], width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(terminal_table(rows, columns, width, title="a title of some words " * 5))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (ROWS, (model_column(ROWS), *layout.COSTS, *layout.SHOWN)),
        (ROWS, (model_column(ROWS), *layout.COSTS[:2], *layout.MATCHED, *layout.SHOWN)),
        (ROWS, (model_column(ROWS), *layout.varied(ROWS), *layout.COSTS, *layout.SHOWN)),
        ([TIMED], benchmark.COLUMNS),
        ([OPTIMUM], optimum.COLUMNS),
    ],
    ids=["evaluate", "matched", "sweep", "benchmark", "optimum"],
)
def test_a_table_fits_the_terminal_and_cuts_no_word(rows: list[Any], columns: tuple[Column, ...], width: int) -> None:
    text = printed(rows, columns, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    words = set(text.replace("│", " ").replace("┃", " ").split())
    left_out = " ".join(text.split("Not shown at this width:")[1].split()) if "Not shown" in text else ""
    for column in columns:
        if column.title in left_out:
            continue
        assert set(column.title.split()) <= words
        for row in rows:
            assert set(shown(column.value(row), column.digits).split()) <= words
    if width == 200:
        assert not left_out


def test_columns_of_the_highest_rank_are_left_out_first() -> None:
    columns = tuple(
        Column(title=name * 12, value=lambda row: "x" * 12, rank=rank) for name, rank in (("a", 0), ("b", 2), ("c", 1))
    )
    assert "Not shown at this width: bbbbbbbbbbbb." in " ".join(printed([{}], columns, 35).split())


def test_two_models_of_one_folder_name_are_told_apart_in_every_table() -> None:
    table = markdown(ROWS, (model_column(ROWS),))
    assert "| a/model |" in table
    assert "| b/model |" in table
    assert "a/model" in printed(ROWS, (model_column(ROWS), *layout.COSTS), 80)


def test_a_place_is_named_by_the_shortest_end_that_tells_it_from_the_others() -> None:
    places = ["runs/a/x/model", "runs/b/x/model", "stories-fp", "model", "other/name"]
    assert list(short_names(places).values()) == ["a/x/model", "b/x/model", "stories-fp", "model", "name"]
    assert short_names(["runs/a/model", "runs/a/model"]) == {"runs/a/model": "model"}
    assert short_names(["model", "runs/model"]) == {"model": "model", "runs/model": "runs/model"}


def test_maps_and_lines_of_two_models_of_one_folder_name_do_not_become_one(tmp_path: Path) -> None:
    primary = Metric(name="perplexity_per_sample", title="generative perplexity", best="lowest")
    files = layout.draw_rows("nucleus", ROWS, tmp_path, primary)
    assert {file.stem for file in files} == {"nucleus-a-model-192", "nucleus-b-model-192"}
    assert layout._line("a/model", ROWS[0], ("reuse",)) == "a/model, reuse three-state"


def test_a_wide_cell_is_broken_between_words_before_a_column_is_left_out() -> None:
    columns = (Column(title="a", value=lambda row: "several words of text"), Column(title="b", value=lambda row: 1))
    assert "Not shown" not in printed([{}], tuple(replace(column, rank=1) for column in columns), 20)


def test_the_axes_of_a_plot_are_named_by_what_they_cost(tmp_path: Path) -> None:
    rows = [replace(SAMPLED, model=model, block_evals=num) for model in ("first", "second") for num in (12, 24)]
    drawn = {file.suffix: file for file in quality_against_cost(rows, "entropy", "entropy", tmp_path / "plot")}
    text = drawn[".svg"].read_text()
    assert all(words in text for words in ("block evaluations", "multiply-adds", "seconds"))


def test_the_numbers_of_a_heat_map_rise_and_other_settings_stay_as_they_came() -> None:
    assert plots._in_order([8, 6, 1, 16, 6]) == [1, 6, 8, 16]
    assert plots._in_order(["none", "full", "none"]) == ["none", "full"]
    assert plots._in_order([None, 0.1]) == [None, 0.1]
