"""`reproduce frontier`: every stage on both base models of stories, compared at equal entropy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fpmgm.cluster import HERE, Workers
from fpmgm.devices import DtypeName
from fpmgm.evaluation.frontier_asked import Frontiers
from fpmgm.evaluation.frontier_page import PAGE
from fpmgm.evaluation.frontiers import run_frontiers
from fpmgm.evaluation.sweep import announce
from fpmgm.experiments.contestants import Contestant
from fpmgm.files import write_text
from fpmgm.post_training.consistency import Consistency
from fpmgm.recipes import RECIPES
from fpmgm.recipes.stories import AS_SAMPLED
from fpmgm.training.watch import Watch
from fpmgm.transitions import TransitionName

SEEDS = (0, 1, 2)
BUDGETS = (24, 48, 96)
FAR_BUDGETS, FAR = (12, 192), "far"
"""The ends of the range, on a page of their own."""
PAPER: TransitionName = "ancestral"
"""How tokens are revealed on these pages, whatever a model has among its own settings: as in the paper."""
HALTON: TransitionName = "halton"
"""How base models and headline lines reveal them too, on a page of its own."""
SECOND_BUDGETS, SECOND = (24, 96), "second-judge"
SECOND_SAMPLES = 32
"""Samples of each seed that a second judge reads; it may be a hundred times as large as the models."""
TEMPERATURES = (0.8, 0.95, 1.1)
FROM_START_BUDGETS, FROM_START = (24, 96), "from-start"
FROM_START_SAMPLES = 43
"""Samples of each seed of the lines that are trained from the start."""
FINDINGS = "findings.md"
"""What people say of the page; it is put in front of the tables."""


def _l_cons(name: str, recipe: str, **settings: Any) -> Contestant:
    base = RECIPES[recipe].objective
    assert isinstance(base, Consistency)
    return Contestant(name=name, recipe=recipe, changes={"objective": replace(base, **settings)})


UNWATCHED = {"watch": Watch()}
"""Matching to its last update, as the other stages. The recipe is watched by its frontier."""

LINES = (
    Contestant(name="MDLM", recipe="stories-mdlm-match", is_base=True),
    Contestant(name="MDLM + L_CONS", recipe="stories-mdlm-cons"),
    Contestant(name="MDLM + SDTT", recipe="stories-sdtt"),
    Contestant(
        name="MDLM + matching", recipe="stories-mdlm-match", changes=UNWATCHED, num_seeds=len(SEEDS), is_headline=True
    ),
    Contestant(name="FP-MDLM", recipe="stories-match", is_base=True),
    Contestant(name="FP-MDLM, no loss", recipe="stories-cofre", changes={"objective": AS_SAMPLED}),
    Contestant(name="FP-MDLM + L_CONS", recipe="stories-cofre"),
    _l_cons("FP-MDLM + L_CONS, kl-bwd", "stories-cofre", distance="kl-bwd"),
    Contestant(name="FP-MDLM + SDTT", recipe="stories-fp-sdtt"),
    Contestant(
        name="FP-MDLM + matching", recipe="stories-match", changes=UNWATCHED, num_seeds=len(SEEDS), is_headline=True
    ),
)
"""The base models, and each with every stage. `no loss` has the updates of L_CONS without its loss."""

BRIEF: dict[str, Any] = {"updates": 1200, "data": RECIPES["stories-cofre"].data}
"""A base model with 15 % of the updates; its learning rate too has fallen to 0 at the last one."""
LINES_FROM_START = (
    Contestant(name="FP-MDLM, brief", recipe="stories-fp", changes=BRIEF),
    Contestant(
        name="FP-MDLM, brief, L_CONS from the start",
        recipe="stories-fp",
        changes={**BRIEF, "objective": RECIPES["stories-cofre"].objective},
    ),
)
"""Fresh networks, with L_CONS at every update and without it."""


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Which lines are compared, and how."""

    folder: Path
    runs: Path
    lines: tuple[Contestant, ...] = LINES
    lines_from_start: tuple[Contestant, ...] = LINES_FROM_START
    budgets: tuple[int, ...] = BUDGETS
    far_budgets: tuple[int, ...] = FAR_BUDGETS
    temperatures: tuple[float, ...] = TEMPERATURES
    seeds: tuple[int, ...] = SEEDS
    num_samples: int = 86
    """Samples of each seed at each point."""
    judge: str = "stories-source"
    second_judge: str = ""
    """Who also judges the base models and the headline lines, in Halton order, on a page of its own."""
    convention: Any = "paper"
    device: str = "auto"
    compute: DtypeName = "float32"
    workers: Workers = HERE
    """Who trains. Measuring asks for its workers by `num_workers`."""
    num_workers: int = 1
    ray: str = ""

    def run(self) -> Path:
        """Train what is missing, measure it, and write the pages; returns the first page."""
        made = self._models(self.lines)
        page = self._compare(made, self.folder, self.judge, self.budgets)
        self._compare(made, self.folder / FAR, self.judge, self.far_budgets)
        headline = {line.name: made[line.name] for line in self.lines if line.is_headline or line.is_base}
        self._compare(headline, self.folder / HALTON, self.judge, sorted((*self.budgets, *self.far_budgets)), HALTON)
        if self.second_judge:
            asked = replace(self, num_samples=min(self.num_samples, SECOND_SAMPLES))
            asked._compare(headline, self.folder / SECOND, self.second_judge, SECOND_BUDGETS, HALTON)
        asked = replace(self, num_samples=min(self.num_samples, FROM_START_SAMPLES))
        asked._compare(self._models(self.lines_from_start), self.folder / FROM_START, self.judge, FROM_START_BUDGETS)
        put_findings(page)
        return page

    def _models(self, lines: Sequence[Contestant]) -> dict[str, list[str]]:
        """The models of every line; runs that are not finished are made or gone on with."""
        runs = {line.name: line.models(self.runs) for line in lines}
        made = self.workers.run({run: make for own in runs.values() for run, make in own.items()}, "runs")
        return {name: [made[run] for run in own] for name, own in runs.items()}

    def _compare(
        self,
        made: dict[str, list[str]],
        folder: Path,
        judge: str,
        budgets: Sequence[int],
        transition: TransitionName = PAPER,
    ) -> Path:
        asked = Frontiers(
            models=tuple(f"{name}={','.join(models)}" for name, models in made.items()),
            budgets=tuple(budgets),
            temperatures=self.temperatures,
            transitions=(transition,),
            seeds=self.seeds,
            num_samples=self.num_samples,
            judge=judge,
            convention=self.convention,
            device=self.device,
            compute=self.compute,
            out=str(folder),
            workers=self.num_workers,
            ray=self.ray,
        )
        run_frontiers(asked, on_cell=announce)
        return folder / PAGE


def put_findings(page: Path) -> None:
    """Put what people say of a page in front of its tables."""
    findings = page.parent / FINDINGS
    if findings.is_file():
        title, _, rest = page.read_text(encoding="utf-8").partition("\n")
        write_text(page, f"{title}\n\n{findings.read_text(encoding='utf-8').strip()}\n\n## How it was made\n{rest}")
