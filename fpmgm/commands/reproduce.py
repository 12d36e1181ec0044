"""The reproduce command: the paper's tables and figures in miniature."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from fpmgm.commands import open_console
from fpmgm.experiments.reproduce import IMAGES, Reproduction, reproduce


@dataclass(frozen=True, kw_only=True)
class ReproduceCommand(Reproduction):
    """Fill the tables of a report; started again, it goes on where it was stopped. With --workers 2, two processes of
    one thread each train and measure at once."""

    report: Annotated[str, tyro.conf.Positional] = IMAGES
    """image-mini has the tables of images. injections asks whether a cheaper injection is as good as the paper's.
    warm-starts asks whether training should start its solver as the sampler does."""


def run_reproduce(command: ReproduceCommand) -> None:
    """Fill the tables and say where they are."""
    file = reproduce(command)
    open_console().print(f"wrote {file}", soft_wrap=True)
