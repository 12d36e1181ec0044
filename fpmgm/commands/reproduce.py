"""The commands `reproduce image-mini`, `reproduce injections`, `reproduce warm-starts` and `reproduce resting`."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from fpmgm.commands import open_console
from fpmgm.experiments.image_mini.whole import ImageMini, listed, reproduce_images
from fpmgm.experiments.reproduce import Reproduction, reproduce


@dataclass(frozen=True, kw_only=True)
class ReproduceCommand(Reproduction):
    """Fill the tables of a report; started again, it goes on where it was stopped. With --workers 2, two processes of
    one thread each train and measure at once."""

    report: Annotated[str, tyro.conf.Positional] = Reproduction.report
    """injections asks whether a cheaper injection is as good as the paper's. warm-starts asks whether training should
    start its solver as the sampler does. resting asks whether training learns as well if visible positions rest after
    the first iteration."""


def run_reproduce(command: ReproduceCommand) -> None:
    """Fill the tables and say where they are."""
    file = reproduce(command)
    open_console().print(f"wrote {file}", soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class ImageMiniCommand(ImageMini):
    """Write one page with a miniature of the paper's tables for images. Started again, it goes on where it was stopped.
    The page is written anew after each section."""

    report: Annotated[Literal["image-mini"], tyro.conf.Positional] = "image-mini"
    """The page on images. Other reports have settings of their own, as in `fpmgm reproduce text-mini --help`."""


def run_image_mini(command: ImageMiniCommand) -> None:
    """Make the page and say where it is, or list its sections."""
    lines = listed(command.page()) if command.sections else [f"wrote {reproduce_images(command)}"]
    open_console().print("\n".join(lines), soft_wrap=True)
