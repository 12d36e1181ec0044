"""Reproductions: reports that train, measure and write, and go on where they were stopped."""

from dataclasses import dataclass
from pathlib import Path

from fpmgm.cluster import OnWorkers
from fpmgm.devices import OnDevice
from fpmgm.evaluation.evaluator import ConventionName
from fpmgm.experiments.variant_pages import VARIANTS, story_judge, write_variants
from fpmgm.names import choose
from fpmgm.provenance import provenance

ELSEWHERE = ("text-mini", "image-mini", "frontier", "owt", "imagenette")
"""Reports with settings of their own."""


@dataclass(frozen=True, kw_only=True)
class Reproduction(OnDevice, OnWorkers):
    """Fill the tables of a report; started again, it goes on where it was stopped. With --workers 2, two processes of
    one thread each train and measure at once."""

    report: str = "injections"
    """injections asks whether a cheaper injection is as good as the paper's. warm-starts asks whether training should
    start its solver as the sampler does. resting asks whether training learns as well if visible positions rest after
    the first iteration."""
    out: str = ""
    """The folder of the report. If it is empty, it is docs/results/ and the name of the report."""
    judge: str = "auto"
    """Who judges samples: smollm2, a causal model of ours or one of the hub. With auto, the bundled judge does it. If
    it is empty, samples are not judged."""
    convention: ConventionName = "paper"
    """Which tokens of a text the judges score: as the paper has it, or as the public code of MDLM (published)."""
    seed: int = 0
    """Every random number follows from this number."""
    runs: str = "runs/reproduce"
    """The folder of the run folders."""
    contest_samples: int = 86
    """Samples for each cell and seed of headline lines. Three seeds of training make 258 of them."""

    def __post_init__(self) -> None:
        self.check_device()
        self.check_workers()
        choose("report", self.report, dict.fromkeys([*VARIANTS, *ELSEWHERE]))
        if self.report in ELSEWHERE:
            raise ValueError(f"{self.report} has settings of its own; write fpmgm reproduce {self.report} first of all")
        if self.dtype != Reproduction.dtype:
            raise ValueError(f"dtype is {self.dtype}, and {self.report} does not use it; leave it out")


def reproduce(asked: Reproduction) -> Path:
    """Train, measure and write what was asked for; returns the file of the report."""
    with asked.open_workers(asked.device) as workers:
        return write_variants(asked, _heading(asked, story_judge(asked.judge)), workers)


def _heading(asked: Reproduction, judge: str) -> str:
    made = provenance()
    return f"""# {asked.report}, in miniature

    fpmgm reproduce {asked.report} --contest-samples {asked.contest_samples} --convention {asked.convention} \\
        --seed {asked.seed}

Commit {made["commit"]}, {made["hardware"]}. Judge: {judge or "none"}, convention: {asked.convention}.
Intervals are 95 %, by bootstrap over samples.
"""
