"""The commands `reproduce text-mini` and `reproduce frontier`: the pages on text."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fpmgm.cluster import OnWorkers
from fpmgm.commands import open_console
from fpmgm.devices import DtypeName, check_pair, device_named
from fpmgm.experiments.stages import Stages
from fpmgm.experiments.text_mini.whole import TextMini, listed, reproduce_text


@dataclass(frozen=True, kw_only=True)
class TextMiniCommand(TextMini):
    """Write one page with a miniature of every table and figure of the paper for text. Started again, it goes on where
    it was stopped. The page is written anew after each section."""

    report: Annotated[Literal["text-mini"], tyro.conf.Positional] = "text-mini"
    """The page on text. Other reports have settings of their own, as in `fpmgm reproduce image-mini --help`."""


def run_text_mini(command: TextMiniCommand) -> None:
    """Make the page and say where it is, or list its sections."""
    console = open_console()
    lines = listed(command.page()) if command.sections else [f"wrote {reproduce_text(command)}"]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


@dataclass(frozen=True, kw_only=True)
class StagesCommand(OnWorkers):
    """Train every stage on both base models of stories, and L_CONS from the start; compare them at equal entropy."""

    report: Annotated[Literal["frontier"], tyro.conf.Positional] = "frontier"
    """The page of frontiers."""
    num_samples: int = 86
    """Samples of each of three seeds at each point."""
    judge: str = "stories-source"
    """Who judges samples: stories-source, smollm2, a causal model of ours or one of the hub."""
    second_judge: str = ""
    """Who also judges the base models and the headline lines, in Halton order, at the budgets 24 and 96. If it is
    empty, there is no second judge."""
    convention: Literal["paper", "published"] = "paper"
    """Which tokens of a text the judges score: as the paper has it, or as the public code of MDLM (published)."""
    device: str = "auto"
    """Where networks run: cpu, cuda, cuda:1 or mps."""
    compute: DtypeName = "float32"
    """The precision that networks are sampled in. bfloat16 is faster on processors that have it."""
    out: str = "docs/results/frontier"
    """The folder of the page."""
    runs: str = "runs/reproduce"
    """The folder of the run folders."""

    def __post_init__(self) -> None:
        check_pair(device_named(self.device), self.compute)
        self.check_workers()
        if not self.judge:
            raise ValueError("a frontier is made of generative perplexities; give --judge, or leave it out")


def run_stages(command: StagesCommand) -> None:
    """Make the page and say where it is."""
    with command.open_workers(command.device) as workers:
        file = Stages(
            folder=Path(command.out),
            runs=Path(command.runs),
            num_samples=command.num_samples,
            judge=command.judge,
            second_judge=command.second_judge,
            convention=command.convention,
            device=command.device,
            compute=command.compute,
            workers=workers,
            num_workers=command.workers,
            ray=command.ray,
        ).run()
    open_console().print(f"wrote {file}", soft_wrap=True)
