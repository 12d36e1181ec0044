"""The command frontier: models compared at equal entropy."""

import json
import sys
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console

from fpmgm.checkpoint import DEFAULT
from fpmgm.commands import open_console
from fpmgm.evaluation.cells import Cell
from fpmgm.evaluation.frontier_asked import Frontiers
from fpmgm.evaluation.frontier_found import Found
from fpmgm.evaluation.frontier_page import PAIRS, READING, about_real, how_measured, point_columns
from fpmgm.evaluation.frontiers import run_frontiers
from fpmgm.evaluation.tables import terminal_table


@dataclass(frozen=True, kw_only=True)
class FrontierCommand(Frontiers):
    """Compare models at equal entropy: sweep the temperature, and read generative perplexities where entropies meet."""

    models: Annotated[tuple[str, ...], tyro.conf.Positional] = (DEFAULT,)
    """Bundled models, model folders, or hub ids owner/name. NAME=MODEL,MODEL,... is one frontier of several training
    runs, one for each of the seeds."""
    out: str = "results/frontier"
    """The folder for rows, page, plot and JSON. If the command was stopped, the same call goes on. If it is empty,
    nothing is kept."""
    json: bool = False
    """Print one JSON object."""


def run_frontier(command: FrontierCommand) -> None:
    """Print what was found."""
    found = run_frontiers(command, on_cell=announce_point)
    if command.json:
        print(json.dumps(found.as_json()))
        return
    console = open_console()
    print_frontiers(console, found)
    console.print(terminal_table(found.points, point_columns(found.points), console.width))
    for file in found.files:
        console.print(f"wrote {file}", soft_wrap=True)


def announce_point(cell: Cell, index: int, total: int) -> None:
    """Say on standard error which point is being measured: an `on_cell`."""
    how = cell.sampling
    setting = f"temperature {how.temperature}" if how.top_p is None else f"top-p {how.top_p}"
    print(f"cell {index + 1} of {total}: {cell.model} at {how.budget}, {setting}, seed {how.seed}", file=sys.stderr)


def print_frontiers(console: Console, found: Found) -> None:
    """The pairs, and what a reader must know of them."""
    console.print(how_measured(found))
    if found.real:
        console.print(about_real(found.real))
    if found.pairs:
        console.print(terminal_table(found.shown, PAIRS, console.width, title="at equal entropy", caption=READING))
