"""The command analyse RUN dynamics."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from fpmgm.commands import open_console
from fpmgm.evaluation.sweep import announce
from fpmgm.experiments.dynamics import Dynamics, measure_dynamics


@dataclass(frozen=True, kw_only=True)
class DynamicsCommand(Dynamics):
    """Sample every snapshot of a run, to see whether it still gets better or only sharper."""

    run: Annotated[str, tyro.conf.Positional]
    """A run folder with snapshots (--snapshot-every)."""
    analysis: Annotated[str, tyro.conf.Positional] = "dynamics"


def run_dynamics(command: DynamicsCommand) -> None:
    """Measure all snapshots, and print what was written."""
    _, files = measure_dynamics(command, on_cell=announce)
    console = open_console()
    for file in files:
        console.print(f"wrote {file}", soft_wrap=True)
