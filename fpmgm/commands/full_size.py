"""The command reproduce for full-size runs: the plan, what is missing, and the stages."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from fpmgm.commands import open_console
from fpmgm.evaluation.tables import terminal_table
from fpmgm.experiments.full_size import COLUMNS, FullSize, missing, planned, run_stages


@dataclass(frozen=True, kw_only=True)
class FullSizeCommand(FullSize):
    """Reproduce the paper at full size: print the plan with its cost, say what is missing, and run it if nothing is."""

    report: Annotated[str, tyro.conf.Positional]
    """owt or imagenette."""


def run_full_size(command: FullSizeCommand) -> None:
    """Print the plan; run it, unless something is missing or only the plan was asked for."""
    console = open_console()
    lines = planned(command)
    hours = sum(line.hours for line in lines if line.hours is not None and not line.is_done)
    console.print(terminal_table(lines, COLUMNS, console.width, title=f"{command.report} on {command.used}"))
    console.print(
        f"At least {hours:,.0f} hours in all. Stages without hours are not counted, nor is what a judge costs. If no "
        "efficiency is given, it is that of the paper's run of MDLM by our count of operations."
    )
    for line in lines:
        console.print(f"{line.name}: {line.command}", soft_wrap=True, highlight=False)
    found = list(missing(command, lines))
    for each in found:
        console.print(f"missing: {each}", soft_wrap=True)
    if command.dry_run:
        return
    if found:
        raise OSError(f"{command.report} cannot be run here, because {len(found)} things are missing (above)")
    run_stages(command)
