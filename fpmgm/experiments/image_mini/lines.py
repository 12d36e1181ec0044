"""The paper's image tables in miniature: networks and stages are trained, sampled at every budget and judged.

A line of a table is a network with one kind of reuse. Headline lines have three seeds: of sampling for networks that
are trained once, of training and sampling for the stage that the paper calls CoFRe.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fpmgm.checkpoint import load
from fpmgm.cluster import HERE, Workers
from fpmgm.evaluation.cells import Cell
from fpmgm.evaluation.images import ImageEvaluator
from fpmgm.evaluation.plots import quality_against_cost
from fpmgm.evaluation.rows import Row
from fpmgm.evaluation.sweep import Job, Protocol, announce, run_jobs
from fpmgm.experiments.contestants import Contestant
from fpmgm.experiments.image_pages import claims, costs_table, grids, inception_table, real_table, results_table
from fpmgm.files import write_text
from fpmgm.generation import Sampling
from fpmgm.post_training.consistency import Consistency
from fpmgm.provenance import provenance
from fpmgm.recipes import RECIPES
from fpmgm.recipes.images import BASE, MINI
from fpmgm.reuse import ReuseName

SHORT = 300
"""Updates of runs that compare shapes, and of those with a consistency loss from the start."""
HEADLINE_SEEDS = 3
FEW = 2
"""Samples in the cards of runs that are made for a table only."""
BUDGETS = (12, 24, 48, 96, 192)
"""Half of the paper's 48, 96, 192 and 384, since the networks are half as deep, and 12: one step of 12 blocks."""
ABLATION_BUDGETS = (12, 24, 96)
INCEPTION_BUDGET = 96
MOST_FOR_SEEDS = 96
"""Beyond this budget the first seed alone is measured."""
REUSES: tuple[ReuseName, ...] = ("none", "full", "three-state")
WEIGHTS = {"mse": 30.0, "cosine": 2.3, "projected-cosine": 2.8, "kl": 0.15}
"""Of the consistency losses: each is then about 4 % of the cross entropy at the start of a stage."""

DEEP = Contestant(name="MaskGIT, 12 blocks", recipe="fashion-maskgit", is_headline=True)
SHALLOW = Contestant(name="MaskGIT, 6 blocks", recipe="fashion-maskgit-6")
FP = Contestant(name="FP-MaskGIT 2/2", recipe="fashion-fp", is_headline=True)
COFRE = Contestant(name="FP-MaskGIT 2/2 + L_CONS", recipe="fashion", num_seeds=HEADLINE_SEEDS, is_headline=True)

USUAL: dict[str, ReuseName] = {DEEP.name: "none", FP.name: "three-state", COFRE.name: "three-state"}
"""How headline lines are sampled."""


def _shape(num: int) -> Contestant:
    model = replace(MINI, num_pre=num, num_post=num)
    changes = {"model": model, "updates": SHORT}
    return Contestant(name=f"FP-MaskGIT {num}/{num}, short", recipe="fashion-fp", changes=changes, card_samples=FEW)


def _objective(distance: Any, teacher: str) -> Consistency:
    return Consistency(base=BASE, weight=WEIGHTS[distance], distance=distance, teacher=teacher)


def _stage(distance: str, teacher: str) -> Contestant:
    name = f"{distance}, {'EMA teacher' if teacher == 'ema' else 'no EMA'}"
    changes = {"objective": _objective(distance, teacher)}
    return Contestant(name=name, recipe="fashion", changes=changes, card_samples=FEW)


def _from_start(distance: str, teacher: str) -> Contestant:
    name = f"from the start: {distance}, {'EMA teacher' if teacher == 'ema' else 'no EMA'}"
    changes = {"objective": _objective(distance, teacher), "updates": SHORT}
    return Contestant(name=name, recipe="fashion-from-start", changes=changes, card_samples=FEW)


SHAPES = tuple(_shape(num) for num in (1, 2, 3, 4))
CONTROL = Contestant(name="no L_CONS, as many updates", recipe="fashion-control", card_samples=FEW)
STAGES = tuple(
    _stage(distance, teacher)
    for distance in ("kl", "projected-cosine", "mse", "cosine")
    for teacher in ("self", "ema")
    if (distance, teacher) != ("mse", "self")  # that is COFRE
)
FROM_START = tuple(_from_start(distance, teacher) for distance in ("mse", "cosine") for teacher in ("self", "ema"))


class Line(NamedTuple):
    """A line of a table."""

    name: str
    reuse: ReuseName
    models: tuple[str, ...]
    """By seed; of a network that is trained once, the same one for every seed of sampling."""


class Table(NamedTuple):
    """A table of the paper, and the lines that it has here."""

    name: str
    title: str
    budgets: tuple[int, ...]
    num_samples: int
    cfg_weight: float
    lines: tuple[Line, ...]


@dataclass(frozen=True, kw_only=True)
class ImageMini:
    """Where the report lies and how it is measured."""

    folder: Path
    runs: Path
    num_samples: int = 300
    """Samples a cell and seed of the main table."""
    num_rest: int = 200
    """Samples a cell of the ablations."""
    inception_samples: int = 500
    """Samples a cell of FID by Inception; 0: it is left out."""
    judge: str = "fashion-classifier"
    cfg_weight: float = 0.5
    """Of the main table; the ablations are sampled without guidance, which takes half the time."""
    seed: int = 0
    device: str = "auto"
    dtype: str = "float32"
    workers: Workers = HERE
    """Who trains and measures."""

    def run(self) -> Path:
        """Train what is missing, measure what is missing, and write the report; returns its file."""
        models = self.models()
        tables = self.tables(models)
        found = self._measured(
            {
                f"{table.name}, {line.name}, {line.reuse}, {index}": self._jobs(table, line, index)
                for table in tables
                for line in table.lines
                for index in range(len(line.models))
            }
        )
        inception = self._measured(
            {f"inception, {line.name}": self._inception(line) for line in tables[0].lines if _is_fid(line)}
        )
        return self._write(models, tables, found, inception)

    def models(self) -> dict[str, list[str]]:
        """The models of every contestant, by its name; stages start from the fixed point of the miniature."""
        first = self._trained((DEEP, SHALLOW, FP, *SHAPES, *FROM_START))
        start = first[FP.name][0]
        stages = [replace(each, changes={**each.changes, "init": start}) for each in (COFRE, CONTROL, *STAGES)]
        return {**first, **self._trained(stages)}

    def _trained(self, contestants: Sequence[Contestant]) -> dict[str, list[str]]:
        runs = {each.name: each.models(self.runs) for each in contestants}
        made = self.workers.run({run: make for own in runs.values() for run, make in own.items()}, "runs")
        return {name: [made[run] for run in own] for name, own in runs.items()}

    def tables(self, models: dict[str, list[str]]) -> tuple[Table, ...]:
        """All tables, each with its lines."""

        def line(one: Contestant, reuse: ReuseName) -> Line:
            """Headline lines have all seeds with their usual reuse, and the first with another."""
            own = models[one.name]
            is_usual = one.is_headline and reuse == USUAL.get(one.name)
            return Line(one.name, reuse, tuple((own * HEADLINE_SEEDS)[:HEADLINE_SEEDS] if is_usual else own[:1]))

        plain = (line(each, "none") for each in (DEEP, SHALLOW))
        main = (*plain, *(line(each, reuse) for each in (FP, COFRE) for reuse in REUSES))
        losses = [
            Line(each.name, reuse, tuple(models[each.name][:1]))
            for each in (CONTROL, *STAGES, COFRE, *FROM_START)
            for reuse in REUSES[::2]
        ]
        shapes = [Line(each.name, "three-state", tuple(models[each.name])) for each in SHAPES]
        return (
            Table(
                "main", "Networks, reuse and L_CONS at equal budgets", BUDGETS, self.num_samples, self.cfg_weight, main
            ),
            Table("shapes", "Blocks before and after the fixed point", BUDGETS, self.num_rest, 0.0, tuple(shapes)),
            Table("losses", "Kinds of consistency loss", ABLATION_BUDGETS, self.num_rest, 0.0, tuple(losses)),
        )

    def sampling(
        self, budget: int, reuse: Literal["auto", ReuseName], seed: int, cfg_weight: float | None = None
    ) -> Sampling:
        weight = self.cfg_weight if cfg_weight is None else cfg_weight
        return Sampling(budget=budget, reuse=reuse, seed=self.seed + seed, cfg_weight=weight, batch_size=100)

    def _jobs(self, table: Table, line: Line, index: int) -> list[Job]:
        """One seed of a line at every budget."""
        budgets = table.budgets if index == 0 else [each for each in table.budgets if each <= MOST_FOR_SEEDS]
        settings = [self.sampling(budget, line.reuse, index, table.cfg_weight) for budget in budgets]
        protocol = self._protocol(table.num_samples, ImageEvaluator(judge=self.judge, device=self.device))
        return [Job(Cell(model=line.models[index], sampling=sampling), protocol) for sampling in settings]

    def _inception(self, line: Line) -> list[Job]:
        """FID and its like of a headline line, one seed, at one budget."""
        if not self.inception_samples:
            return []
        cell = Cell(model=line.models[0], sampling=self.sampling(INCEPTION_BUDGET, line.reuse, 0))
        evaluator = ImageEvaluator(judge=self.judge, inception=True, device=self.device)
        return [Job(cell, self._protocol(self.inception_samples, evaluator))]

    def _protocol(self, num_samples: int, evaluator: ImageEvaluator) -> Protocol:
        return Protocol(num_samples=num_samples, evaluator=evaluator, device=self.device, dtype=self.dtype)

    def _measured(self, jobs: Mapping[str, list[Job]]) -> dict[str, list[Row]]:
        """The rows of all jobs, by the same names."""
        every = [job for own in jobs.values() for job in own]
        rows = iter(run_jobs(every, self.folder / "rows.jsonl", on_cell=announce, workers=self.workers))
        return {name: list(islice(rows, len(own))) for name, own in jobs.items()}

    def _write(
        self,
        models: dict[str, list[str]],
        tables: Sequence[Table],
        found: dict[str, list[Row]],
        inception: dict[str, list[Row]],
    ) -> Path:
        evaluator = ImageEvaluator(judge=self.judge, device=self.device)
        parts = [self._heading(), claims(self.folder)]
        for table in tables:
            lines: dict[tuple[str, str], list[list[Row]]] = {
                (line.name, line.reuse): [
                    found[f"{table.name}, {line.name}, {line.reuse}, {index}"] for index in range(len(line.models))
                ]
                for line in table.lines
            }
            parts.append(
                f"## {table.title}\n\n{results_table(lines, table.budgets, table.num_samples, table.cfg_weight)}"
            )
            if table.name == "main":
                shown = list(_pictured(lines))
                quality_against_cost(shown, "frechet", "Fréchet distance", self.folder / "main")
                parts.append("![Fréchet distance against cost, first seed](main.png)")
        parts.append(real_table(load(models[FP.name][0]), evaluator, self.num_samples))
        if inception and self.inception_samples:
            parts.append(inception_table(inception, self.inception_samples))
        parts.append(costs_table({name: self.runs / f"{Path(own[0]).parent.name}" for name, own in models.items()}))
        pictured = {name: models[name][0] for name in (DEEP.name, FP.name, COFRE.name)}
        parts.append(grids(pictured, self.folder, partial(self.sampling, reuse="auto", seed=0)))
        write_text(self.folder / "README.md", "\n\n".join(parts) + "\n")
        return self.folder / "README.md"

    def _heading(self) -> str:
        made = provenance()
        data = RECIPES[FP.recipe].data.name
        return f"""# image-mini: the paper's image tables in miniature

    fpmgm reproduce image-mini --num-samples {self.num_rest} --contest-samples {self.num_samples} \\
        --inception-samples {self.inception_samples} --judge {self.judge} --seed {self.seed}

{data}, 7 x 7 of 256 codes, networks 128 wide. Commit {made["commit"]}, {made["hardware"]}. Halton order, temperature 1.
Guidance of weight w mixes logits as (1 + w) conditional - w unconditional. A cell is the Fréchet distance in
the features of `{self.judge}` to held-out images, and below it the label accuracy by the same classifier. A Fréchet
distance falls with the number of images: compare cells of one table only."""


def _is_fid(line: Line) -> bool:
    """Lines that Inception looks at: the usual reuse of the headline."""
    return USUAL.get(line.name) == line.reuse


def _pictured(lines: dict[tuple[str, str], list[list[Row]]]) -> Iterator[Row]:
    """The first seed of every line, named by model and reuse."""
    for (name, reuse), by_seed in lines.items():
        for row in by_seed[0]:
            shown = name.replace(" 2/2", "")  # a slash would be taken for that of a path
            yield replace(row, model=shown if reuse == "none" else f"{shown}, {reuse}")
