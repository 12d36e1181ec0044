"""The commands that measure: evaluate (some models side by side) and sweep (a grid of settings)."""

import json
import sys
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from fpmgm.checkpoint import DEFAULT, find_folder, load
from fpmgm.commands import open_console
from fpmgm.evaluation.held_out import held_out_sequences, text_for
from fpmgm.evaluation.judges import judge_named
from fpmgm.evaluation.likelihood import perplexity
from fpmgm.evaluation.matched import RANGES
from fpmgm.evaluation.ngram import floors
from fpmgm.evaluation.plots import heat_map, quality_against_cost
from fpmgm.evaluation.sweep import (
    Cell,
    Protocol,
    Row,
    axes_of,
    budget_cells,
    grid_cells,
    preset_by_name,
    run_sweep,
)
from fpmgm.evaluation.tables import Column, latex, markdown, metric, shown
from fpmgm.generation import Sampling
from fpmgm.names import choose

VALIDATION_ITERS = 6
OTHER_ITERS = (2, 12)
"""Solver iterations that validation perplexity is also reported at."""
GRID = "grid"
"""The sweep that has no preset."""

MEASURED = (
    metric("perplexity_per_sample", "generative perplexity", best="lowest"),
    metric("perplexity_per_token", "per token"),
    metric("entropy", "entropy", digits=2),
    metric("distinct_2", "distinct pairs", digits=3),
    metric("repetition_4", "repetition", digits=3),
    metric("mauve", "MAUVE", digits=3, best="highest"),
)
MATCHED = (
    Column(title="setting", value=lambda row: _matched_setting(row)),
    Column(title="met", value=lambda row: "yes" if row["matched"]["is_met"] else "no"),
)
SHOWN = (MEASURED[0], *MEASURED[2:4], MEASURED[5])
"""What fits on a terminal; the files have all."""
COSTS = (
    Column(title="block evaluations", value=lambda row: row["block_evals"]),
    Column(title="steps", value=lambda row: row["sampling"]["steps"]),
    Column(title="10^9 multiply-adds", value=lambda row: row["multiply_adds"] * 1e-9, digits=2),
    Column(title="seconds", value=lambda row: row["seconds"], digits=2),
)
MODEL = Column(title="model", value=lambda row: Path(row["model"]).name)


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand:
    """Measure models side by side: validation perplexity, and samples at some budgets."""

    models: Annotated[tuple[str, ...], tyro.conf.Positional] = (DEFAULT,)
    """Bundled models, model folders, or hub ids owner/name."""
    budgets: tuple[int, ...] = (24, 48, 96, 192)
    """Budgets to sample at, in block evaluations."""
    num_samples: int = 64
    judge: str = "auto"
    """Who judges samples: smollm2, a causal model of ours or of the hub; auto: the bundled judge; empty: nobody."""
    data: str = "poetry"
    """The text that validation perplexity is measured on, held out as in training; empty: it is not measured."""
    validation_sequences: int = 512
    ngram: bool = False
    """Also the perplexity of 5-gram models of the training text on the same held-out tokens: a floor."""
    mauve: bool = False
    """Also MAUVE against held-out text of `data`, by the judge's features."""
    match: str = ""
    """temperature or top_p: also all models but the first with this turned until their entropy is the first one's."""
    seed: int = 0
    out: str = ""
    """A folder for rows, tables and plots; the same command goes on with a folder it was stopped in. Empty: none."""
    json: bool = False
    """Print one JSON object."""

    def __post_init__(self) -> None:
        if self.match:
            choose("knob", self.match, RANGES)
            if len(self.models) < 2:
                raise ValueError("match compares the entropy of several models; give at least two")
        if self.mauve and not self.data:
            raise ValueError("MAUVE compares with held-out text; give --data")


def run_evaluate(command: EvaluateCommand) -> None:
    """Print what was measured."""
    found = evaluate(command)
    if command.json:
        print(json.dumps(found))
        return
    console = open_console()
    for row in found["validation"]:
        value, error = row["value"], row["error"]
        console.print(f"{row['model']}: validation perplexity {value:.2f} ± {error:.2f} on {command.data}")
        if row["by_iterations"]:
            others = ", ".join(f"{found:.2f} with {num}" for num, found in row["by_iterations"].items())
            console.print(f"    with {VALIDATION_ITERS} solver iterations; {others}")
        for name, floor in row["ngram"].items():
            console.print(f"    5-gram, {name.replace('_', ' ')}, on the same tokens: {floor:.2f}")
    print_rows(console, found["samples"], (MODEL, *COSTS, *SHOWN))
    if found["matched"]:
        console.print(f"At the entropy of {Path(command.models[0]).name}, by {command.match}:")
        print_rows(console, found["matched"], (MODEL, *COSTS[:2], *MATCHED, *SHOWN))
    for file in found["files"]:
        console.print(f"wrote {file}", soft_wrap=True)


def evaluate(command: EvaluateCommand) -> dict[str, Any]:
    """All that `fpmgm evaluate` measures."""
    judge = judge_named(command.judge)
    protocol = Protocol(num_samples=command.num_samples, judge=judge, mauve=command.data if command.mauve else "")
    for model in command.models:
        find_folder(model)
    base = Sampling(seed=command.seed)
    with TemporaryDirectory() as scratch:
        folder = Path(command.out or scratch)
        cells = list(budget_cells(command.models, base, command.budgets))
        rows = run_sweep(cells, protocol, folder / "samples.jsonl", on_cell=announce)
        validation = [_validation(model, command) for model in command.models] if command.data else []
        matched = run_sweep(_matched_cells(command, cells, rows), protocol, folder / "samples.jsonl", on_cell=announce)
        found: dict[str, Any] = {"validation": validation, "samples": rows, "matched": matched, "files": []}
        if command.out:
            found["files"] = [str(file) for file in _write(folder, found, judge)]
    return found


def _write(folder: Path, found: dict[str, Any], judge: str) -> list[Path]:
    columns = (MODEL, *COSTS, *MEASURED)
    folder.mkdir(parents=True, exist_ok=True)
    tables = [(found["samples"], columns), (found["matched"], (MODEL, *COSTS, *MATCHED, *MEASURED))]
    for name, table in (("table.md", markdown), ("table.tex", latex)):
        (folder / name).write_text("\n".join(table(rows, columns) for rows, columns in tables if rows))
    (folder / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    files = [folder / name for name in ("samples.jsonl", "results.json", "table.md", "table.tex")]
    if found["samples"]:
        files += quality_against_cost(found["samples"], *_quality_shown(judge), folder / "quality")
    return files


def announce(cell: Cell, index: int, total: int) -> None:
    """Say which cell is being measured."""
    print(f"cell {index + 1} of {total}: {cell.model} at {cell.sampling.budget}", file=sys.stderr)


def _validation(name: str, command: EvaluateCommand) -> dict[str, Any]:
    model = load(name)
    text = text_for(model, command.data)
    x = held_out_sequences(text, command.validation_sequences)
    size = model.config.vocab_size
    others = OTHER_ITERS if model.config.num_fp else ()
    return {
        "model": name,
        **asdict(perplexity(model.denoiser, x, num_iters=VALIDATION_ITERS)),
        "by_iterations": {num: perplexity(model.denoiser, x, num_iters=num).value for num in others},
        "ngram": floors(text.rows[text.train], x.numpy(), vocab_size=size) if command.ngram else {},
        "num_training_sequences": len(text.train),
    }


def _matched_cells(command: EvaluateCommand, cells: list[Cell], rows: list[Row]) -> list[Cell]:
    """The cells of all models but the first, each to be turned to the first one's entropy at its budget."""
    if not command.match:
        return []
    first = {row["sampling"]["budget"]: row for row in rows if row["model"] == command.models[0]}
    return [
        replace(cell, knob=command.match, entropy=first[cell.sampling.budget]["metrics"]["entropy"]["value"])
        for cell in cells
        if cell.model != command.models[0]
    ]


def _matched_setting(row: Row) -> str:
    knob = row["matched"]["knob"]
    return f"{knob} {row['sampling'][knob]:.3g}"


def print_rows(console: Console, rows: list[Row], columns: tuple[Column, ...]) -> None:
    """A table on the terminal; columns that nobody measured are left out."""
    columns = tuple(column for column in columns if any(column.value(row) is not None for row in rows))
    table = Table(title=_title(rows))
    for column in columns:
        table.add_column(column.title, justify="left" if column is MODEL else "right")
    for row in rows:
        table.add_row(*(shown(column.value(row), column.digits) for column in columns))
    if rows:
        console.print(table)


def _title(rows: list[Row]) -> str:
    if not rows:
        return ""
    protocol = rows[0]["protocol"]
    return f"{protocol['num_samples']} samples a row, judge: {protocol['judge'] or 'none'}; 95 % intervals over samples"


@dataclass(frozen=True, kw_only=True)
class SweepCommand:
    """Measure a grid of sampling settings; started again, a sweep goes on where it was stopped."""

    preset: Annotated[str, tyro.conf.Positional]
    """budgets, steps (x iterations), allocations (x reuse), reuse (coefficients), nucleus, solver (x tolerance), or
    grid: whatever --vary says."""
    models: Annotated[tuple[str, ...], tyro.conf.Positional] = (DEFAULT,)
    """Bundled models, model folders, or hub ids owner/name."""
    budgets: tuple[int, ...] = (24, 96)
    vary: tuple[str, ...] = ()
    """The axes of `grid`: any sampling settings, as in temperature=0.8,1 reuse=none,full."""
    num_samples: int = 128
    judge: str = "auto"
    """Who judges samples: smollm2, a causal model of ours or of the hub; auto: the bundled judge; empty: nobody."""
    seed: int = 0
    out: str = "results"
    """The folder for PRESET.jsonl and its tables and plots."""
    save: bool = False
    """Write the best steps and allocation of each budget into the model's generation_config.json."""

    def __post_init__(self) -> None:
        if self.preset != GRID:
            preset_by_name(self.preset)
        if (self.preset == GRID) != bool(self.vary):
            raise ValueError(f"vary is for preset {GRID}, which needs it, as in --vary temperature=0.8,1")
        axes_of(self.vary)
        if self.save and self.preset not in ("steps", "allocations"):
            raise ValueError(f"save is for the presets steps and allocations, and preset is {self.preset}")


def run_sweep_command(command: SweepCommand) -> None:
    """Measure the grid, print its table, write tables and a heat map."""
    judge = judge_named(command.judge)
    if command.save and not judge:
        raise ValueError("save needs a judge to know what is best; give --judge")
    folder = Path(command.out)
    axes = axes_of(command.vary)
    of_preset = partial(grid_cells, axes=axes) if axes else preset_by_name(command.preset)
    cells = list(of_preset(command.models, Sampling(seed=command.seed), command.budgets))
    if not cells:
        raise ValueError(f"preset {command.preset} is for models with a fixed point, and none is among those given")
    protocol = Protocol(num_samples=command.num_samples, judge=judge)
    rows = run_sweep(cells, protocol, folder / f"{command.preset}.jsonl", on_cell=announce)
    columns = (MODEL, *varied(rows), *COSTS, *MEASURED)
    console = open_console()
    print_rows(console, rows, (MODEL, *varied(rows), *COSTS, *SHOWN))
    (folder / f"{command.preset}.md").write_text(markdown(rows, columns))
    (folder / f"{command.preset}.tex").write_text(latex(rows, columns))
    for file in draw_rows(command.preset, rows, folder, judge, tuple(axes)):
        console.print(f"wrote {file}", soft_wrap=True)
    if command.save:
        for model in command.models:
            saved = save_best(model, [row for row in rows if row["model"] == model])
            console.print(f"wrote {saved}", soft_wrap=True)


def varied(rows: list[Row]) -> tuple[Column, ...]:
    """A column for every sampling setting that differs between rows; steps have one anyway."""
    names = [
        name
        for name in rows[0]["sampling"]
        if name != "steps" and len({json.dumps(row["sampling"][name]) for row in rows}) > 1
    ]
    return tuple(Column(title=name, value=partial(_setting, name)) for name in names)


def _setting(name: str, row: Row) -> Any:
    return _plain(row["sampling"][name])


def _plain(value: Any) -> Any:
    if value is None:
        return "off"
    return " to ".join(map(str, value)) if isinstance(value, list | tuple) else value


HEAT_MAPS: dict[str, tuple[str, ...]] = {
    "steps": ("budget", "steps"),
    "allocations": ("allocation", "reuse"),
    "reuse": ("reuse_masked", "reuse_changed"),
    "nucleus": ("top_p", "nucleus"),
    "solver": ("tolerance", "solver"),
}
"""The two settings that each preset's heat maps span; there is a map for each model and, if need be, each budget."""


def draw_rows(preset: str, rows: list[Row], folder: Path, judge: str, axes: tuple[str, ...] = ()) -> list[Path]:
    """The plots of a preset or of a grid with those axes: heat maps if there are two, or quality against cost."""
    spans = HEAT_MAPS.get(preset, axes)
    if len(spans) != 2:
        lines = [{**row, "model": _line(row, axes)} for row in rows]
        return quality_against_cost(lines, *_quality_shown(judge), folder / preset)
    across, down = spans
    name, title = _quality_shown(judge)
    by_map: dict[str, list[Row]] = {}
    for row in rows:
        budget = "" if across == "budget" else f"-{row['sampling']['budget']}"
        by_map.setdefault(f"{preset}-{Path(row['model']).name}{budget}", []).append(row)
    files: list[Path] = []
    for target, own in by_map.items():
        titles = (across.replace("_", " "), down.replace("_", " "), title)
        files += heat_map(own, partial(_setting, across), partial(_setting, down), name, titles, folder / target)
    return files


def _line(row: Row, axes: tuple[str, ...]) -> str:
    """What a line of a plot is called: the model and whatever varies within it."""
    return ", ".join([Path(row["model"]).name, *(f"{axis} {_setting(axis, row)}" for axis in axes)])


def _quality_shown(judge: str) -> tuple[str, str]:
    return ("perplexity_per_sample", "generative perplexity") if judge else ("entropy", "unigram entropy")


def save_best(model: str, rows: list[Row]) -> Path:
    """Write, for each budget, the steps and allocation of the lowest generative perplexity."""
    file = find_folder(model) / "generation_config.json"
    settings = json.loads(file.read_text()) if file.is_file() else {}
    best: dict[str, Row] = {}
    for row in rows:
        budget = str(row["sampling"]["budget"])
        if budget not in best or _quality(row) < _quality(best[budget]):
            best[budget] = row
    chosen = {
        budget: {"steps": row["sampling"]["steps"], "allocation": row["sampling"]["allocation"]}
        for budget, row in best.items()
    }
    settings["budgets"] = {**settings.get("budgets", {}), **chosen}
    file.write_text(json.dumps(settings, indent=1) + "\n")
    return file


def _quality(row: Row) -> float:
    return float(row["metrics"]["perplexity_per_sample"]["value"])
