"""How rows of results are laid out: the columns of their tables, and their plots."""

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fpmgm.evaluation.evaluator import Metric
from fpmgm.evaluation.intervals import Interval
from fpmgm.evaluation.plots import heat_map, quality_against_cost
from fpmgm.evaluation.rows import Row
from fpmgm.evaluation.tables import Column, latex, markdown, metric, model_column
from fpmgm.files import write_text
from fpmgm.generation import Sampling
from fpmgm.names import short_names

JUDGED = "generative perplexity"
MEASURED = (
    metric("perplexity_per_sample", JUDGED, best="lowest"),
    metric("perplexity_per_token", "per token"),
    metric("entropy", "entropy", digits=2),
    metric("distinct_2", "distinct pairs", digits=3, rank=4),
    metric("repetition_4", "repetition", digits=3),
    metric("set_distinct_4", "distinct 4-grams of all", digits=3, rank=5),
    metric("overlap_4", "shared 4-grams", digits=3, rank=5),
    metric("shared_openings", "shared openings", digits=3, rank=5),
    metric("mauve", "MAUVE", digits=3, best="highest"),
)
OF_IMAGES = (
    metric("accuracy", "label accuracy", digits=3, best="highest"),
    metric("frechet", "Fréchet distance", digits=2, best="lowest"),
    metric("classifier_score", "Inception Score of the classifier", digits=2, best="highest", rank=6),
    metric("density", "density", digits=3, rank=5),
    metric("coverage", "coverage", digits=3, best="highest", rank=4),
    metric("entropy", "entropy", digits=2, rank=4),
    metric("fid", "FID", digits=2, best="lowest"),
    metric("kid", "KID", digits=4, best="lowest"),
    metric("precision", "precision", digits=3, best="highest", rank=4),
    metric("recall", "recall", digits=3, best="highest", rank=4),
)
MATCHED = (
    Column(title="setting", value=lambda row: _matched_setting(row)),
    Column(title="met", rank=5, value=lambda row: "yes" if row.matched.is_met else "no"),
)
TEXTS_HAVE = "distinct_2"
"""A metric that is measured of all texts, and of nothing else."""
SHOWN = (MEASURED[0], *MEASURED[2:4], MEASURED[-1])
"""What fits on a terminal; the files have all."""
COSTS = (
    Column(title="block evaluations", value=lambda row: row.block_evals),
    Column(title="steps", rank=2, value=lambda row: row.sampling.steps),
    Column(title="10^9 multiply-adds", rank=3, value=lambda row: row.multiply_adds * 1e-9, digits=2),
    Column(title="seconds", rank=1, value=lambda row: row.seconds, digits=2),
)
HEAT_MAPS: dict[str, tuple[str, ...]] = {
    "steps": ("budget", "steps"),
    "allocations": ("allocation", "reuse"),
    "reuse": ("reuse_masked", "reuse_changed"),
    "steps-iterations": ("steps", "iterations"),
    "gamma-masked": ("reuse_masked", "reuse_changed"),
    "gamma-changed": ("reuse_masked", "reuse_changed"),
    "nucleus": ("top_p", "nucleus"),
    "solver": ("tolerance", "solver"),
}
"""The two settings that each preset's heat maps span; there is a map for each model and, if need be, each budget."""


class Reference(NamedTuple):
    """Metrics of real data, named as a model is in tables."""

    model: str
    metrics: dict[str, Interval]


def measured_columns(rows: Sequence[Row] | Sequence[Reference], *, is_short: bool = False) -> tuple[Column, ...]:
    """The columns of what was measured: those of texts, or those of images that have a value in some row."""
    names = {name for row in rows for name in row.metrics}
    if TEXTS_HAVE in names:
        return _with_convention(SHOWN if is_short else MEASURED, rows)
    return tuple(column for column in OF_IMAGES if any(column.value(row) is not None for row in rows))


def _with_convention(columns: Sequence[Column], rows: Sequence[Any]) -> tuple[Column, ...]:
    """The columns of texts, with the convention of the judge in the head, or beside each row if rows differ in it."""
    used = {row.protocol.convention for row in rows if isinstance(row, Row)} - {""}
    if len(used) > 1:
        return (*columns, Column(title="convention", value=lambda row: row.protocol.convention))
    return tuple(
        replace(column, title=f"{column.title} ({min(used)})") if used and column.title == JUDGED else column
        for column in columns
    )


def title_of(rows: Sequence[Row]) -> str:
    """What a table of rows says above itself."""
    protocol = rows[0].protocol
    read, judge = {row.protocol.judged_by for row in rows}, protocol.judge or "none"
    if "ids" in read:
        judge += " (by ids)" if len(read) == 1 else " (some rows by ids, the others through text)"
    return f"{protocol.num_samples} samples a row, judge: {judge}; 95 % intervals over samples"


def write_tables(file: Path, tables: Sequence[tuple[Sequence[Any], Sequence[Column]]]) -> list[Path]:
    """Tables of rows, a column of models first, one after the other as file.md and file.tex."""
    files = [file.with_suffix(".md"), file.with_suffix(".tex")]
    for path, table in zip(files, (markdown, latex), strict=True):
        write_text(path, "\n".join(table(rows, (model_column(rows), *columns)) for rows, columns in tables if rows))
    return files


def varied(rows: Sequence[Row]) -> tuple[Column, ...]:
    """A column for every sampling setting that differs between rows; steps have one anyway."""
    names = [
        field.name
        for field in fields(Sampling)
        if field.name != "steps" and len({json.dumps(getattr(row.sampling, field.name)) for row in rows}) > 1
    ]
    return tuple(Column(title=name, value=partial(_setting, name)) for name in names)


def draw_rows(preset: str, rows: Sequence[Row], folder: Path, primary: Metric, axes: Sequence[str] = ()) -> list[Path]:
    """The plots of a preset or of a grid with those axes: heat maps if there are two, or quality against cost."""
    spans = HEAT_MAPS.get(preset, tuple(axes))
    names = short_names(row.model for row in rows)
    if len(spans) != 2:
        lines = [replace(row, model=_line(names[row.model], row, axes)) for row in rows]
        return quality_against_cost(lines, primary.name, primary.title, folder / preset)
    across, down = spans
    by_map: dict[str, list[Row]] = {}
    for row in rows:
        budget = "" if across in ("budget", "steps") else f"-{row.budget}"
        by_map.setdefault(f"{preset}-{names[row.model].replace('/', '-')}{budget}", []).append(row)
    files: list[Path] = []
    for target, own in by_map.items():
        titles = (across.replace("_", " "), down.replace("_", " "), primary.title)
        settings = partial(_setting, across), partial(_setting, down)
        files += heat_map(own, *settings, primary.name, titles, folder / target)
    return files


def _line(model: str, row: Row, axes: Sequence[str]) -> str:
    """What a line of a plot is called: the model and whatever varies within it."""
    return ", ".join([model, *(f"{axis} {_setting(axis, row)}" for axis in axes)])


def _matched_setting(row: Row) -> str:
    if row.matched is None:
        return ""
    return f"{row.matched.knob} {getattr(row.sampling, row.matched.knob):.3g}"


def _setting(name: str, row: Row) -> Any:
    value = getattr(row.sampling, name)
    if value is None:
        return "off"
    return " to ".join(map(str, value)) if isinstance(value, list | tuple) else value
