"""The commands that measure: evaluate (some models side by side) and sweep (a grid of settings)."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console

from fpmgm.checkpoint import DEFAULT
from fpmgm.commands import open_console
from fpmgm.commands.evaluate_tasks import TaskOptions, run_evaluate_tasks
from fpmgm.commands.frontier import print_frontiers
from fpmgm.evaluation.layout import COSTS, MATCHED, measured_columns, title_of, varied
from fpmgm.evaluation.paired import COLUMNS as PAIRED
from fpmgm.evaluation.paired import READING
from fpmgm.evaluation.rows import Row
from fpmgm.evaluation.side_by_side import VALIDATION_ITERS, Validated, references_of, run_evaluation
from fpmgm.evaluation.sweep import announce
from fpmgm.evaluation.swept import Sweep, measure
from fpmgm.evaluation.tables import Column, model_column, terminal_table
from fpmgm.names import short_names

GENERATIVE = "perplexity_per_sample"
ONE_TEMPERATURE = (
    "These rows have one temperature each, and colder samples of any model have a lower generative perplexity. "
    "Models are not compared at equal entropy here"
)


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand(TaskOptions):
    """Measure models side by side: how well each knows held-out data, and samples at some budgets; or benchmark tasks.

    With --tasks, models answer the questions of benchmarks, and nothing else is measured.
    """

    models: Annotated[tuple[str, ...], tyro.conf.Positional] = (DEFAULT,)
    """Bundled models, model folders, or hub ids owner/name."""
    json: bool = False
    """Print one JSON object."""


def run_evaluate(command: EvaluateCommand) -> None:
    """Print what was measured."""
    if command.tasks:
        run_evaluate_tasks(command)
        return
    found = run_evaluation(command, on_model=_announce_model, on_cell=announce)
    if command.json:
        print(json.dumps(found.as_json()))
        return
    console = open_console()
    if found.frontier:
        print_frontiers(console, found.frontier)
    for each in found.validation:
        _print_validation(console, each)
    columns = measured_columns(found.samples, is_short=True)
    print_rows(console, found.samples, (*COSTS, *columns))
    if len(command.models) > 1 and found.frontier is None and found.samples and GENERATIVE in found.samples[0].metrics:
        console.print(f"{ONE_TEMPERATURE}: {found.why_apart or '--no-frontier was given'}.")
    if found.matched:
        console.print(f"At the entropy of {short_names(command.models)[command.models[0]]}, by {command.match}:")
        print_rows(console, found.matched, (*COSTS[:2], *MATCHED, *columns))
    if found.paired:
        title = f"in pairs, {found.paired[0].num_samples} samples each"
        console.print(terminal_table(found.paired, PAIRED, console.width, title=title, caption=READING))
    if references := references_of(found):
        shown = (Column(title="for comparison", value=lambda row: row.model), *measured_columns(references))
        console.print(terminal_table(references, shown, console.width))
    for file in found.files:
        console.print(f"wrote {file}", soft_wrap=True)


def _announce_model(model: str, measured_on: str) -> None:
    print(f"measuring {model} on {measured_on}", file=sys.stderr)


def _print_validation(console: Console, found: Validated) -> None:
    digits = 3 if found.nats_per_token is None else 2  # cross entropies differ less than perplexities
    console.print(
        f"{found.model}: {found.metric} {found.value:.{digits}f} ± {found.error:.{digits}f} on {found.measured_on}",
        soft_wrap=True,
    )
    if found.by_iterations:
        others = ", ".join(f"{value:.{digits}f} with {num}" for num, value in found.by_iterations.items())
        console.print(f"    with {VALIDATION_ITERS} solver iterations; {others}")
    for name, floor in found.ngram.items():
        console.print(f"    5-gram, {name.replace('_', ' ')}, on the same tokens: {floor:.2f}")


def print_rows(console: Console, rows: Sequence[Row], columns: Sequence[Column]) -> None:
    """A table on the terminal, a row for each model and setting."""
    if rows:
        console.print(terminal_table(rows, (model_column(rows), *columns), console.width, title=title_of(rows)))


@dataclass(frozen=True, kw_only=True)
class SweepCommand(Sweep):
    """Measure a grid of sampling settings. A sweep that was stopped goes on with the same command."""

    preset: Annotated[str, tyro.conf.Positional]
    """What is varied: budgets, steps (by iterations, at equal budgets), steps-iterations (both, up to the largest
    budget), allocations (by reuse), reuse (its coefficients), gamma-masked and gamma-changed (the coefficients of the
    paper's two tables), nucleus, solver (by tolerance), positions (where the solver iterates), or grid (what --vary
    says)."""
    models: Annotated[tuple[str, ...], tyro.conf.Positional] = (DEFAULT,)
    """Bundled models, model folders, or hub ids owner/name."""
    out: str = "results"
    """The folder for PRESET.jsonl and its tables and plots."""


def run_sweep_command(command: SweepCommand) -> None:
    """Measure the grid, print its table and what was written."""
    found = measure(command, command.cells(), on_cell=announce)
    console = open_console()
    print_rows(console, found.rows, (*varied(found.rows), *COSTS, *measured_columns(found.rows, is_short=True)))
    for file in (*found.files, *found.saved):
        console.print(f"wrote {file}", soft_wrap=True)
