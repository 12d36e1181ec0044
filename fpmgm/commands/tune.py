"""The command tune: the paper's staged tuning of a recipe."""

from dataclasses import dataclass

from fpmgm.commands import open_console
from fpmgm.experiments.tune import Tuning, tune


@dataclass(frozen=True, kw_only=True)
class TuneCommand(Tuning):
    """Tune a recipe in stages: blocks, solver iterations, learning rate; or weight, temperature and gap of a stage of
    consistency. A command that was stopped goes on when it is repeated."""


def run_tune(command: TuneCommand) -> None:
    """Tune, and say where the page is."""
    open_console().print(f"wrote {tune(command)}", soft_wrap=True)
