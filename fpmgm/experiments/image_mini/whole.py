"""The whole page: its sections in order, written anew after each of them, and what is left of their cost."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from fpmgm.checkpoint import weights_of
from fpmgm.cluster import AUTO, HERE, OnWorkers, Workers
from fpmgm.devices import OnDevice
from fpmgm.experiments.book import Book, check_only
from fpmgm.experiments.costs import passes_of
from fpmgm.experiments.image_mini import sections
from fpmgm.experiments.image_mini.lines import FP
from fpmgm.experiments.image_mini.page import ImagePage
from fpmgm.experiments.image_mini.tables import claims
from fpmgm.experiments.report import configs_of, is_finished
from fpmgm.recipes import RECIPES
from fpmgm.schema import MAX_SAMPLES, require

NAME = "image-mini"
JUDGE = "fashion-classifier"
SECTIONS = {section.name: section for section in sections.SECTIONS}
LEAST = 6
"""Samples of a cell: the judge looks at the five nearest neighbours."""
BLOCK, PASS = 0.0005, 0.028
"""Seconds of one core: a block of a sample; and a pass of a block in an update of 64 images, one with gradients being
three."""
INCEPTION = 0.17
"""Seconds of Inception for an image."""


@dataclass(frozen=True, kw_only=True)
class ImageMini(OnDevice, OnWorkers):
    """Write one page with a miniature of the paper's tables for images. Started again, it goes on where it was stopped.
    The page is written anew after each section."""

    only: tuple[str, ...] = ()
    """Sections to make; the page keeps the others that were made before. If there are none, all are made, but for
    numbers that came to the page later and are not measured yet: those are measured if their section is named."""
    sections: bool = False
    """List all sections with an estimate of what they cost, and make nothing."""
    num_samples: int = 200
    """Samples for each cell outside of the headline."""
    contest_samples: int = 300
    """Samples for each cell and seed of the headline."""
    inception_samples: int = 500
    """Samples for each cell of FID by Inception. With 0, there are none."""
    judge: str = AUTO
    """Who judges samples: a classifier of ours. With auto, it is fashion-classifier."""
    seed: int = 0
    """Every random number follows from this number."""
    out: str = f"docs/results/{NAME}"
    """The folder of the page."""
    runs: str = "runs/reproduce"
    """The folder of the run folders."""

    def __post_init__(self) -> None:
        self.check_device()
        self.check_workers()
        require("seed", self.seed, 0)
        for name in ("num_samples", "contest_samples"):
            require(name, getattr(self, name), LEAST, MAX_SAMPLES)
        if self.inception_samples:
            require("inception_samples", self.inception_samples, LEAST, MAX_SAMPLES)
        check_only(self.only, SECTIONS)
        if not self.judge:
            raise ValueError("the page compares Fréchet distances of a classifier; give --judge, or leave it out")
        if Path(self.out).is_file():
            raise ValueError(f"out is {self.out}, which is a file; give a folder")
        weights_of(self.page().judge)  # a judge that is not there is refused here

    def page(self, workers: Workers = HERE) -> ImagePage:
        """The page that is asked for."""
        return ImagePage(
            folder=Path(self.out),
            runs=Path(self.runs),
            num_samples=self.contest_samples,
            num_rest=self.num_samples,
            inception_samples=self.inception_samples,
            judge=JUDGE if self.judge == AUTO else self.judge,
            seed=self.seed,
            device=self.device,
            dtype=self.dtype,
            asked=self.only,
            workers=workers,
        )


def reproduce_images(asked: ImageMini) -> Path:
    """Make the sections and write the page."""
    with asked.open_workers(asked.device) as workers:
        return write_whole(asked.page(workers), asked.only)


def write_whole(page: ImagePage, only: Sequence[str] = ()) -> Path:
    """Run all sections, or some, and write the page after each; sections that were made before stay on it."""
    return _book(page).write(only)


def _book(page: ImagePage) -> Book[ImagePage]:
    return Book(
        name=NAME,
        page=page,
        sections=SECTIONS,
        settings={"judge": page.judge, "seed": page.seed},
        heading=lambda _: [*_heading(page), claims(page.folder)],
    )


def _heading(page: ImagePage) -> list[str]:
    data: Any = RECIPES[FP.recipe].data
    rows, columns = data.grid
    return [
        "# image-mini: the paper's image tables in miniature",
        f"    fpmgm reproduce image-mini --num-samples {page.num_rest} --contest-samples {page.num_samples} \\\n"
        f"        --inception-samples {page.inception_samples} --judge {page.judge} --seed {page.seed}",
        f"The data is `{data.name}`, {rows} x {columns} of {data.num_codes} codes, and networks are 128 wide. Halton "
        "order, temperature 1. Guidance of weight w mixes logits as (1 + w) conditional - w unconditional. Budgets are "
        "half of the paper's, since networks are half as deep. Tables of the paper are marked as quoted.",
        f"A cell is the Fréchet distance in the features of `{page.judge}` to held-out images, and below it the label "
        "accuracy by the same classifier. A Fréchet distance falls with the number of images: compare cells of one "
        "table only. Two cells whose intervals overlap are not compared by these: see the differences "
        "[in pairs](#pairs). All rows lie in `rows.jsonl` beside this page, and all else that was measured in "
        "`found.jsonl`, each with its commit and machine; the small print of a section says which these are. What is "
        "not measured yet is measured if its section is named, as in `--only pairs`; `--sections` lists them.",
    ]


class Estimate(NamedTuple):
    """What is left of a section, in minutes of one core."""

    training: float
    sampling: float

    @property
    def minutes(self) -> float:
        return self.training + self.sampling


def estimate(page: ImagePage, name: str, made: set[Path] | None = None) -> Estimate:
    """What a section takes beyond what is there; what came to it later is counted if the page is asked for it.

    Runs of `made` are not counted, and those that the section makes are added to it.
    """
    section, keys = SECTIONS[name], page.row_keys()
    needed = list(section.trained(page)) if name in page.asked else []
    sampling = 60 * section.left(page) if name in page.asked else 0.0
    for table in section.tables(page):
        missing = [job for job in page.jobs(name, table).values() if not page.has_row(job, keys)]
        models = {job.cell.model for job in missing}
        needed += [each for each in table.contestants if models & {own.model for own in page.models(each)}]
        each = INCEPTION if table.has_inception else 0.0
        guided = 2 if table.cfg_weight else 1
        sampling += sum(table.num_samples * (job.cell.sampling.budget * BLOCK * guided + each) for job in missing)
    return Estimate(sum(_seconds(page, needed, set() if made is None else made)) / 60, sampling / 60)


def _seconds(page: ImagePage, contestants: Sequence[Any], made: set[Path]) -> Iterator[float]:
    """Of the runs that are not there, each once, with those that they start from."""
    everyone = [each for one in contestants for each in (one, one.start) if each]
    runs = {folder: config for each in everyone for folder, config in configs_of(each, page.runs)}
    for folder, config in runs.items():
        if folder not in made and not is_finished(folder, config):
            made.add(folder)
            yield config.updates * PASS * passes_of(config) * config.batch_size / 64


def listed(page: ImagePage) -> list[str]:
    """What `--sections` prints: what a run without --only has to do, and what is left of each section by its name."""
    width = max(map(len, SECTIONS))
    lines = []
    total = by_name = 0.0
    made: set[Path] = set()
    for name, section in SECTIONS.items():
        asked = replace(page, asked=(name,))
        plain, whole = (estimate(each, name).minutes for each in (replace(page, asked=()), asked))
        total += plain
        by_name += estimate(asked, name, made).minutes
        told = f" ({section.of_paper})" if section.of_paper else ""
        lines.append(f"{name:<{width}}  {plain:5.0f} min  {whole:5.0f} min by name  {section.title}{told}")
    words = "by name, of one core; a run that several sections need is counted in each of them, and once in this sum"
    return [*lines, f"{'all':<{width}}  {total:5.0f} min  {by_name:5.0f} min {words}"]
