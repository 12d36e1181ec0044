"""Reproductions: reports that train, measure and write, and go on where they were stopped."""

from dataclasses import dataclass
from pathlib import Path

from fpmgm.cluster import OnWorkers, Workers
from fpmgm.devices import OnDevice
from fpmgm.evaluation.evaluator import ConventionName
from fpmgm.experiments.image_mini import ImageMini
from fpmgm.experiments.variant_pages import VARIANTS, story_judge, write_variants
from fpmgm.names import choose
from fpmgm.provenance import provenance

IMAGES = "image-mini"
ELSEWHERE = ("text-mini", "frontier", "owt", "imagenette")
"""Reports with settings of their own."""
OF_IMAGES = ("dtype", "num_samples", "inception_samples")
"""Settings that only the report on images uses."""


@dataclass(frozen=True, kw_only=True)
class Reproduction(OnDevice, OnWorkers):
    """Fill the tables of a report; started again, it goes on where it was stopped. With --workers 2, two processes of
    one thread each train and measure at once."""

    report: str = IMAGES
    """image-mini has the tables of images. injections asks whether a cheaper injection is as good as the paper's.
    warm-starts asks whether training should start its solver as the sampler does."""
    out: str = ""
    """The folder of the report. If it is empty, it is docs/results/ and the name of the report."""
    num_samples: int = 128
    """For image-mini: samples for each cell outside of its headline."""
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
    inception_samples: int = 500
    """For image-mini: samples for each of the three cells of FID by Inception. With 0, there are none."""

    def __post_init__(self) -> None:
        self.check_device()
        self.check_workers()
        choose("report", self.report, dict.fromkeys([IMAGES, *VARIANTS, *ELSEWHERE]))
        if self.report in ELSEWHERE:
            raise ValueError(f"{self.report} has settings of its own; write fpmgm reproduce {self.report} first of all")
        if self.report == IMAGES and self.convention != "paper":
            raise ValueError(f"convention is {self.convention}, and {IMAGES} has no texts; leave --convention out")
        if self.report in VARIANTS:
            unused = [name for name in OF_IMAGES if getattr(self, name) != getattr(Reproduction, name)]
            if unused:
                given = f"{unused[0]} is {getattr(self, unused[0])}"
                raise ValueError(
                    f"{given}, and {self.report} does not use it; leave it out (samples: --contest-samples)"
                )


def reproduce(asked: Reproduction) -> Path:
    """Train, measure and write what was asked for; returns the file of the report."""
    with asked.open_workers(asked.device) as workers:
        if asked.report in VARIANTS:
            return write_variants(asked, _heading(asked, story_judge(asked.judge)), workers)
        return _images(asked, workers)


def _images(asked: Reproduction, workers: Workers) -> Path:
    """The report on images; the settings that are at what suits text have what suits images."""
    sizes = {"num_rest": asked.num_samples, "num_samples": asked.contest_samples}
    usual = {"num_rest": Reproduction.num_samples, "num_samples": Reproduction.contest_samples}
    return ImageMini(
        folder=Path(asked.out or f"docs/results/{IMAGES}"),
        runs=Path(asked.runs),
        judge="fashion-classifier" if asked.judge == "auto" else asked.judge,
        inception_samples=asked.inception_samples,
        seed=asked.seed,
        device=asked.device,
        dtype=asked.dtype,
        workers=workers,
        **{name: size for name, size in sizes.items() if size != usual[name]},
    ).run()


def _heading(asked: Reproduction, judge: str) -> str:
    made = provenance()
    return f"""# {asked.report}, in miniature

    fpmgm reproduce {asked.report} --contest-samples {asked.contest_samples} --convention {asked.convention} \\
        --seed {asked.seed}

Commit {made["commit"]}, {made["hardware"]}. Judge: {judge or "none"}, convention: {asked.convention}.
Intervals are 95 %, by bootstrap over samples.
"""
