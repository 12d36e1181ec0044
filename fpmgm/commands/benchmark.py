"""The benchmark command."""

import json
from dataclasses import dataclass
from typing import Annotated

import tyro

from fpmgm.checkpoint import DEFAULT
from fpmgm.commands import open_console
from fpmgm.evaluation.tables import terminal_table
from fpmgm.experiments.benchmark import COLUMNS, Benchmark, benchmark
from fpmgm.provenance import provenance


@dataclass(frozen=True, kw_only=True)
class BenchmarkCommand(Benchmark):
    """Time sampling and training of models or recipes, in one run: ratios count, seconds are this machine's."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = (DEFAULT,)
    """Recipes (with random weights), bundled models, model folders, or hub ids."""
    json: bool = False
    """Print one JSON object."""


def run_benchmark(command: BenchmarkCommand) -> None:
    """Print a row a model."""
    rows = benchmark(command)
    if command.json:
        print(json.dumps({"rows": [row.as_json() for row in rows], "provenance": provenance()}))
        return
    console = open_console()
    title = (
        f"budget {command.budget}, batch {command.batch_size}, median of {command.repeats} batches (range) after "
        f"{command.warmups} to warm up"
    )
    console.print(terminal_table(rows, COLUMNS, console.width, title=title))
