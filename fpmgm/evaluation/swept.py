"""A whole sweep as one call: cells are chosen, measured and laid out, and the best of them saved."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from fpmgm.checkpoint import DEFAULT, find_folder, read_generation
from fpmgm.cluster import OnWorkers
from fpmgm.devices import OnDevice
from fpmgm.evaluation.cells import Cell, axes_of, grid_cells, preset_by_name
from fpmgm.evaluation.chosen import chosen_evaluator
from fpmgm.evaluation.evaluator import ConventionName, Metric
from fpmgm.evaluation.layout import COSTS, draw_rows, measured_columns, varied, write_tables
from fpmgm.evaluation.paired import PairedRatio, paired_ratio
from fpmgm.evaluation.rows import Row
from fpmgm.evaluation.sweep import Protocol, run_sweep
from fpmgm.evaluation.tables import Column, markdown
from fpmgm.files import write_json, write_text
from fpmgm.generation import Sampling
from fpmgm.names import check_names

GRID, CELLS = "grid", "cells"
"""Sweeps that have no preset: a grid of whatever varies, and cells that were given."""
IN_PAIRS = ("positions",)
"""Presets whose rows are also compared with the first one of their model and budget, sample by sample."""


@dataclass(frozen=True, kw_only=True)
class Sweep(OnDevice, OnWorkers):
    """Which grid of sampling settings is measured."""

    preset: str
    """What is varied: budgets, steps (by iterations, at equal budgets), steps-iterations (both, up to the largest
    budget), allocations (by reuse), reuse (its coefficients), gamma-masked and gamma-changed (the coefficients of the
    paper's two tables), nucleus, solver (by tolerance), positions (where the solver iterates), or grid (what `vary`
    says)."""
    models: tuple[str, ...] = (DEFAULT,)
    """Bundled models, model folders, or hub ids owner/name."""
    budgets: tuple[int, ...] = (24, 96)
    """The budgets to sample at, in block evaluations."""
    vary: tuple[str, ...] = ()
    """The axes of `grid`: any sampling settings, such as temperature=0.8,1 reuse=none,full."""
    num_samples: int = 128
    """Samples of each cell."""
    judge: str = "auto"
    """Who judges samples. Text is judged by smollm2, a causal model of ours or one of the hub; images are judged by a
    classifier of ours. With auto, the bundled judge does it. If it is empty, samples are not judged."""
    convention: ConventionName = "paper"
    """Which tokens of a text the judge scores. paper: an end-of-text stands before the text, and every token is scored.
    published: as in the code of MDLM, ReMDM and Duo, without the first token and later ends."""
    seed: int = 0
    """Every random number follows from this number."""
    out: str = ""
    """The folder for PRESET.jsonl and its tables and plots. If the sweep was stopped, the same call goes on. If it is
    empty, nothing is written."""
    save: bool = False
    """Write the best steps and allocation of each budget into the model's generation_config.json."""

    def __post_init__(self) -> None:
        self.check_device()
        self.check_workers()
        if self.preset not in (GRID, CELLS):
            preset_by_name(self.preset)
        if (self.preset == GRID) != bool(self.vary):
            raise ValueError(f"vary is for preset {GRID}, which needs it, as in --vary temperature=0.8,1")
        axes_of(self.vary)
        if self.save and self.preset not in ("steps", "allocations"):
            raise ValueError(f"save is for the presets steps and allocations, and preset is {self.preset}")
        if self.save and not self.judge:
            raise ValueError("save needs a judge to know what is best; give --judge")

    @property
    def axes(self) -> Mapping[str, Sequence[Any]]:
        """The settings of a grid, with their values."""
        return axes_of(self.vary)

    def cells(self) -> list[Cell]:
        """What there is to measure."""
        base = Sampling(seed=self.seed)
        if self.preset == GRID:
            return list(grid_cells(self.models, base, self.budgets, dict(self.axes)))
        cells = list(preset_by_name(self.preset)(self.models, base, self.budgets))
        if not cells:
            raise ValueError(f"preset {self.preset} is for models with a fixed point, and none is among those given")
        return cells


@dataclass(frozen=True, kw_only=True)
class Swept:
    """What a sweep measured, and what it wrote."""

    rows: tuple[Row, ...]
    """One for each cell, in their order."""
    files: tuple[Path, ...] = ()
    """Rows, tables and plots."""
    saved: tuple[Path, ...] = ()
    """The generation_config.json files that now hold the best settings."""


def sweep(
    what: str | Iterable[Cell] = "budgets",
    models: str | Sequence[str] = (),
    *,
    on_cell: Callable[[Cell, int, int], None] | None = None,
    **settings: Any,
) -> Swept:
    """Measure the cells of a preset, or those that are given; settings are the other fields of `Sweep`.

    Cells that are given name their own models, budgets and seeds. `on_cell` is called with each cell that is about to
    be measured, or that a worker has measured.
    """
    check_names("setting", settings, Sweep)
    names = (models,) if isinstance(models, str) else tuple(models)
    if isinstance(what, str):
        asked = Sweep(preset=what, models=names or (DEFAULT,), **settings)
        return measure(asked, asked.cells(), on_cell=on_cell)
    if own := [name for name in ("budgets", "seed") if name in settings] + ["models"] * bool(names):
        raise ValueError(f"{' and '.join(own)} cannot be set beside cells, which have their own")
    return measure(Sweep(preset=CELLS, **settings), list(what), on_cell=on_cell)


def measure(asked: Sweep, cells: Sequence[Cell], *, on_cell: Callable[[Cell, int, int], None] | None = None) -> Swept:
    """Measure cells as a sweep asks for; write its tables and plots, and save the best, if it asks for that."""
    models = list(dict.fromkeys(cell.model for cell in cells))
    evaluator = chosen_evaluator(models, judge=asked.judge, device=asked.device, convention=asked.convention)
    protocol = Protocol(
        num_samples=asked.num_samples,
        evaluator=evaluator,
        device=asked.device,
        dtype=asked.dtype,
        keeps_samples=asked.preset in IN_PAIRS and bool(asked.judge),
    )
    with TemporaryDirectory() as scratch, asked.open_workers(asked.device) as workers:
        folder = Path(asked.out or scratch)
        rows = run_sweep(cells, protocol, folder / f"{asked.preset}.jsonl", on_cell=on_cell, workers=workers)
    files: list[Path] = []
    if asked.out and rows:
        files = [folder / f"{asked.preset}.jsonl"]
        files += write_tables(folder / asked.preset, [(rows, (*varied(rows), *COSTS, *measured_columns(rows)))])
        if asked.preset not in IN_PAIRS:  # rules with names as long as theirs have tables only
            files += draw_rows(asked.preset, rows, folder, evaluator.primary, tuple(asked.axes))
        elif protocol.keeps_samples:
            files.append(_write_pairs(folder / f"{asked.preset}-pairs.md", rows))
    saved = [save_best(model, rows, evaluator.primary) for model in asked.models] if asked.save else []
    return Swept(rows=tuple(rows), files=tuple(files), saved=tuple(saved))


class _Pair(NamedTuple):
    row: Row
    first: Row
    """The first row of its model and budget."""
    found: PairedRatio


def _write_pairs(file: Path, rows: Sequence[Row]) -> Path:
    """A table of all rows against the first of their model and budget."""
    first: dict[tuple[str, int], Row] = {}
    pairs = []
    for row in rows:
        other = first.setdefault((row.model, row.budget), row)
        if other is not row:
            pairs.append(_Pair(row, other, paired_ratio(row, other)))
    settings = [replace(column, value=partial(_of_row, column.value)) for column in varied(rows)]
    write_text(file, markdown(pairs, (*settings, *PAIR_COLUMNS)) + f"\n{READING}\n")
    return file


def _of_row(value: Callable[[Row], Any], pair: _Pair) -> Any:
    return value(pair.row)


PAIR_COLUMNS = (
    Column(title="multiply-adds", digits=2, value=lambda pair: pair.row.multiply_adds / pair.first.multiply_adds),
    Column(title="generative perplexity", digits=3, value=lambda pair: pair.found.ratio),
    Column(title="difference of entropies", digits=3, value=lambda pair: pair.found.entropy_difference),
)
READING = (
    "Multiply-adds and generative perplexities per sample are divided by those of the first rule at the same budget. "
    "Intervals are 95 %, by a paired bootstrap: all rules have the same random numbers."
)


def save_best(model: str, rows: Sequence[Row], primary: Metric) -> Path:
    """Write, for each budget, the steps and allocation of the best row of a model."""
    file = find_folder(model) / "generation_config.json"
    settings = read_generation(file.parent)
    best: dict[str, Row] = {}
    for row in (row for row in rows if row.model == model):
        known = best.get(str(row.budget))
        value = row.metrics[primary.name].value
        if known is None or primary.is_worse(known.metrics[primary.name].value, value):
            best[str(row.budget)] = row
    chosen = {
        budget: {"steps": row.sampling.steps, "allocation": row.sampling.allocation} for budget, row in best.items()
    }
    settings["budgets"] = {**settings.get("budgets", {}), **chosen}
    write_json(file, settings)
    return file
