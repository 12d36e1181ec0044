"""The whole page: its sections in order, written anew after each of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fpmgm.checkpoint import find_folder
from fpmgm.cluster import AUTO, HERE, OnWorkers, Workers
from fpmgm.devices import DtypeName, check_pair, device_named
from fpmgm.evaluation.evaluator import ConventionName
from fpmgm.evaluation.frontier_page import READING, about_real
from fpmgm.evaluation.judges import STORIES_SOURCE
from fpmgm.experiments.book import Book, check_only
from fpmgm.experiments.parts import Part
from fpmgm.experiments.text_mini import costs, headline, inside, others, sweeps, trainings
from fpmgm.experiments.text_mini.claims import RULE, claims_table
from fpmgm.experiments.text_mini.estimate import Estimate, estimates
from fpmgm.experiments.text_mini.page import REAL, Page
from fpmgm.experiments.text_mini.section import Section
from fpmgm.recipes import RECIPES
from fpmgm.schema import require

ORDER = (
    "cost",
    "validation",
    "cka",
    "solver",
    "samples",
    "main",
    "components",
    "reuse",
    "adapted",
    "mdlm-stages",
    "lagged",
    "latency",
    "other-methods",
    "nucleus",
    "plain",
    "dynamics",
    "initialised",
    "steps-iterations",
    "l-cons-choices",
    "duration",
    "mauve",
    "downstream",
    "allocations",
    "coefficients",
    "losses",
    "shapes",
)
"""Cheapest and most telling first."""
_BY_NAME = {
    section.name: section
    for module in (costs, headline, inside, others, sweeps, trainings)
    for section in module.SECTIONS
}
SECTIONS: dict[str, Section] = {name: _BY_NAME[name] for name in ORDER}
BASES = ("stories-match", "stories-mdlm-match")
"""Recipes that start from the base models."""
CORES, HOURS = 2, 6
"""What the whole page may take beyond base models and stages."""


@dataclass(frozen=True, kw_only=True)
class TextMini(OnWorkers):
    """Write one page with a miniature of every table and figure of the paper for text. Started again, it goes on where
    it was stopped. The page is written anew after each section."""

    only: tuple[str, ...] = ()
    """Sections to make; the page keeps the others that were made before. If there are none, all are made."""
    sections: bool = False
    """List all sections with an estimate of what they cost, and make nothing."""
    judge: str = "auto"
    """Who judges samples: stories-source, smollm2, a causal model of ours or one of the hub. With auto, it is the
    source that wrote the stories, whose likelihood is the true one."""
    convention: ConventionName = "paper"
    """Which tokens of a text the judge scores: as the paper has it, or as the public code of MDLM (published)."""
    seed: int = 0
    """Every random number follows from this number."""
    device: str = "auto"
    """Where networks run: cpu, cuda, cuda:1 or mps. With auto, they run on CUDA if that is there, else on MPS, else on
    the CPU."""
    compute: DtypeName = "float32"
    """The precision that networks are sampled in. bfloat16 is faster on processors that have it."""
    out: str = "docs/results/text-mini"
    """The folder of the page."""
    runs: str = "runs/reproduce"
    """The folder of the run folders. Stages are shared with `reproduce frontier`."""

    def __post_init__(self) -> None:
        check_pair(device_named(self.device), self.compute)
        self.check_workers()
        require("seed", self.seed, 0)
        check_only(self.only, SECTIONS)
        if not self.judge:
            raise ValueError("the page compares generative perplexities; give --judge, or leave it out")
        if Path(self.out).is_file():
            raise ValueError(f"out is {self.out}, which is a file; give a folder")
        self.page().evaluator()  # a convention that the judge does not have is refused here

    def page(self, workers: Workers = HERE) -> Page:
        """The page that is asked for."""
        return Page(
            folder=Path(self.out),
            runs=Path(self.runs),
            judge=STORIES_SOURCE if self.judge == AUTO else self.judge,
            convention=self.convention,
            seed=self.seed,
            device=self.device,
            compute=self.compute,
            workers=workers,
        )


def reproduce_text(asked: TextMini) -> Path:
    """Make the sections and write the page; a base model or a judge that is not there is told before anything else."""
    with asked.open_workers(asked.device) as workers:
        for recipe in BASES:
            find_folder(RECIPES[recipe].init)
        asked.page().evaluator().judged_by()
        return write_whole(asked.page(workers), asked.only)


def write_whole(page: Page, only: Sequence[str] = ()) -> Path:
    """Run all sections, or some, and write the page after each; sections that were made before stay on it."""
    return _book(page).write(only)


def read_parts(page: Page) -> dict[str, Part]:
    """The sections that were made before with the same judge, convention and seed."""
    return _book(page).parts()


def _book(page: Page) -> Book[Page]:
    return Book(
        name="text-mini",
        page=page,
        sections=SECTIONS,
        settings={"judge": page.judge, "convention": page.convention, "seed": page.seed},
        heading=lambda parts: [*_heading(page), "## The paper's claims", RULE, claims_table(parts)],
    )


def _heading(page: Page) -> list[str]:
    return [
        "# text-mini: the paper's text experiments in miniature",
        f"    fpmgm reproduce text-mini --judge {page.judge} --convention {page.convention} --seed {page.seed}",
        "The corpus is `stories`: sequences of 256 tokens and 4,096 symbols, networks 192 wide, MDLM of 12 blocks and "
        "FP-MDLM of 1/1/1. The paper has OpenWebText, 1,024 tokens and networks 768 wide, and another injection, more "
        "solver iterations in training and another optimiser: base models are those of the recipes `stories-fp` and "
        "`stories-mdlm`, with 8,000 updates each. The stages have 300, and L_CONS never reached the paper's rule that "
        "ends it. The adaptation has 1,000 and takes layers 1/2/12. Our budgets are a quarter of the paper's, so that "
        "a step reveals as many tokens. That is four times as large a share of a sequence. Tables of the paper are "
        "marked as quoted.",
        f"The judge is {page.judge}, by the convention `{page.convention}`. A cell is the generative perplexity with "
        "its 95 % interval over samples, and the entropy in brackets. All rows lie in `rows.jsonl` beside this page, "
        "and all else that was measured in `found.jsonl`, each with its commit and machine. The small print "
        "of a section says in which precision its numbers were measured, with which commits and on which machines.",
        f"Beside every comparison stands the frontier. {READING.partition(' The difference is')[0]} Between its "
        "temperatures a frontier is a line.",
        *([about_real(page.real)] if (page.folder / REAL).is_file() else []),
        "Bold is the lowest mean of a column. It need not differ from the others by more than chance.",
    ]


def listed(page: Page) -> list[str]:
    """What `--sections` prints: every section with an estimate of what is left of its cost, and the sum."""
    found: list[Estimate] = list(estimates(page, SECTIONS, read_parts(page)))
    width = max(map(len, SECTIONS))
    lines = [
        f"{each.section.name:<{width}}  {each.minutes:6.0f} min  {each.cost_class:<13}  {each.section.title} "
        f"({each.section.of_paper})"
        for each in found
    ]
    total = sum(each.minutes for each in found) / 60
    lines.append(
        f"{'all':<{width}}  {60 * total:6.0f} min of one core: {total / CORES:.1f} hours of {CORES} cores; at most "
        f"{HOURS} are allowed. Base models and the stages of `reproduce frontier` are not counted."
    )
    sizes = {size for each in found for size in each.corpora if size}
    for size in sorted(sizes):
        names = ", ".join(each.section.name for each in found if size in each.corpora)
        lines.append(f"{'corpus':<{width}}  {size:,} tokens, read by {names}. To make it is not counted.")
    return lines
