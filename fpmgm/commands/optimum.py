"""The command analyse MODEL optimum."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fpmgm.commands import open_console
from fpmgm.evaluation.tables import terminal_table
from fpmgm.experiments.optimum import COLUMNS, Optimum, measure_optimum, write_optimum


@dataclass(frozen=True, kw_only=True)
class OptimumCommand(Optimum):
    """Sample what a model would say had a stage of consistency reached its optimum: is there something to gain?

    Tokens are drawn from the mean of what the model says on several cleaner inputs that it makes itself, and compared
    with the model as it is, at temperature 1 and at the temperature where its entropy is the same. What the passes on
    cleaner inputs cost is not counted in the budget.
    """

    model: Annotated[str, tyro.conf.Positional]
    """A bundled model, a model folder, or a hub id owner/name."""
    analysis: Annotated[str, tyro.conf.Positional] = "optimum"


def run_optimum(command: OptimumCommand) -> None:
    """Measure, print the table, and write it with its rows if a folder is given."""
    rows = measure_optimum(command)
    console = open_console()
    console.print(terminal_table(rows, COLUMNS, console.width))
    if command.out:
        files = write_optimum(rows, Path(command.out))
        console.print(f"wrote {', '.join(map(str, files))}", soft_wrap=True)
