"""Variants of one recipe, trained with the same seeds and compared at equal updates and at equal time.

Learning rates stay constant after the warm-up, so that every point of a run is as good a place to compare as its end.
Updates run in bfloat16, as they do on GPUs; a CPU that multiplies it takes 0.7 of the time of float32.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from fpmgm.cluster import HERE, Workers
from fpmgm.evaluation.frontier_asked import Frontiers
from fpmgm.evaluation.frontier_found import Found
from fpmgm.evaluation.frontier_page import PAIRS
from fpmgm.evaluation.frontiers import run_frontiers
from fpmgm.evaluation.plots import lines_by_update
from fpmgm.evaluation.sweep import announce
from fpmgm.evaluation.tables import Column, markdown
from fpmgm.experiments.contestants import Contestant
from fpmgm.experiments.update_times import update_seconds
from fpmgm.files import write_json
from fpmgm.recipes import RECIPES
from fpmgm.schema import parse_object, read_text
from fpmgm.training.folder import MODEL, SNAPSHOTS
from fpmgm.training.metrics import read_metrics
from fpmgm.transitions import TransitionName

EVERY = 50
"""Updates between validations, and between models that are kept."""
ORDER: TransitionName = "ancestral"
"""How models are sampled, whatever the model that they start from has among its own settings."""
TIMED = "equal-time"
EQUAL = {"equal updates": "equal-updates", "equal time": TIMED}
"""What variants are compared at, and the folders of these frontiers."""


def variant(name: str, recipe: str, *, updates: int, num_seeds: int, **changes: Any) -> Contestant:
    """A recipe cut to few updates: its warm-up is shortened, its learning rate stays, its average forgets sooner."""
    base = RECIPES[recipe]
    optim = replace(base.optim, warmup=min(base.optim.warmup, updates // 16), decay="constant", ema=0.99)
    cut: dict[str, Any] = {
        "optim": optim,
        "updates": updates,
        "mixed_precision": "auto",
        "validate_every": min(EVERY, updates),
        "snapshot_every": min(EVERY, updates),
        "validation_sequences": min(128, base.validation_sequences),
    }
    return Contestant(name=name, recipe=recipe, changes={**cut, **changes}, num_seeds=num_seeds, card_samples=1)


class Line(NamedTuple):
    """What a variant reached."""

    name: str
    time: float
    """Of an update, over that of the first variant."""
    updates: int
    """That it makes in the time in which the fastest makes all of its own."""
    at_updates: list[float]
    """Validations at equal updates, by seed."""
    at_time: list[float]
    """Validations at equal time, by seed."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Variants with one number of updates and of seeds. Times are set against those of the first."""

    title: str
    folder: Path
    """The folder of the report."""
    within: str = ""
    """The folder in it that holds what is measured here; empty: itself."""
    runs: Path
    """The folder of the run folders."""
    variants: tuple[Contestant, ...]
    budgets: tuple[int, ...] = (24,)
    temperatures: tuple[float, ...] = (0.8, 1.0)
    num_samples: int = 64
    """Samples of a seed at each point of a frontier."""
    judge: str = "stories-source"
    seed: int = 0
    """Of the samples of the first seed of training."""
    convention: Any = "paper"
    device: str = "auto"
    workers: Workers = HERE
    """Who trains. Measuring asks for its workers by `num_workers`."""
    num_workers: int = 1
    ray: str = ""

    def work(self) -> dict[str, Callable[[], str]]:
        """What makes the models, by the names of their runs."""
        return {run: make for each in self.variants for run, make in each.models(self.runs).items()}

    def report(self) -> tuple[str, dict[str, Any]]:
        """Train, measure and draw; the Markdown of the comparison, and the same as JSON can hold it."""
        self.workers.run(self.work(), "runs")
        lines = self.lines()
        parts = [f"## {self.title}", _words(lines, self._num_updates), markdown(lines, COLUMNS), self._draw()]
        found: dict[str, Any] = {"validation": [line._asdict() for line in lines]}
        for words, folder in EQUAL.items():
            update = {line.name: line.updates if folder == TIMED else self._num_updates for line in lines}
            compared = self._frontier(update, folder)
            found[folder] = compared.as_json()["pairs"]
            parts += [f"### Frontiers at {words}", markdown(compared.shown, PAIRS)]
            parts.append(f"[All points]({self._place(folder)}/README.md)")
        return "\n\n".join(parts) + "\n", found

    @property
    def _num_updates(self) -> int:
        return int(self.variants[0].changes["updates"])

    def lines(self) -> list[Line]:
        """What each variant reached, by its metrics."""
        times = self._times()
        fastest = min(times.values())
        found = []
        for each in self.variants:
            curves = [_curve(folder) for _, folder in each.folders(self.runs)]
            updates = round(self._num_updates * fastest / times[each.name])
            ends, then = ([_at(curve, update) for curve in curves] for update in (self._num_updates, updates))
            found.append(Line(each.name, times[each.name], updates, ends, then))
        return found

    def _times(self) -> dict[str, float]:
        """Seconds of an update over those of the first variant, measured once."""
        file = self.folder / self._place("times.json")
        if not file.exists():
            configs = {each.name: each.config(0, self.runs) for each in self.variants}
            write_json(file, update_seconds(configs))
        seconds = parse_object(read_text(file), str(file))
        return {each.name: seconds[each.name] / seconds[self.variants[0].name] for each in self.variants}

    def _draw(self) -> str:
        series = {
            each.name: [
                (update, mean(_at(_curve(folder), update) for _, folder in each.folders(self.runs)))
                for update, _ in _curve(next(each.folders(self.runs))[1])
            ]
            for each in self.variants
        }
        lines_by_update(series, "validation, mean of seeds", self.folder / self._place("validation"))
        return f"![Validation by update, mean of seeds]({self._place('validation.png')})"

    def _place(self, name: str) -> str:
        """Where something lies in the folder of the report."""
        return f"{self.within}/{name}" if self.within else name

    def _frontier(self, update: Mapping[str, int], folder: str) -> Found:
        """The frontiers of all variants, each after its own number of updates."""
        models = {
            each.name: ",".join(self._model(run, update[each.name]) for _, run in each.folders(self.runs))
            for each in self.variants
        }
        asked = Frontiers(
            models=tuple(f"{name}={paths}" for name, paths in models.items()),
            budgets=self.budgets,
            temperatures=self.temperatures,
            transitions=(ORDER,),
            seeds=tuple(self.seed + index for index in range(self.variants[0].num_seeds)),
            num_samples=self.num_samples,
            judge=self.judge,
            convention=self.convention,
            device=self.device,
            out=str(self.folder / self._place(folder)),
            workers=self.num_workers,
            ray=self.ray,
        )
        return run_frontiers(asked, on_cell=announce)

    def _model(self, folder: Path, update: int) -> str:
        """The model of a run nearest to an update: one that was kept on the way, or that of the end."""
        every = min(EVERY, self._num_updates)
        nearest = max(1, round(update / every)) * every
        if nearest >= self._num_updates:
            return str(folder / MODEL)
        return str(folder / SNAPSHOTS / f"update-{nearest:08d}")


def _curve(folder: Path) -> list[tuple[int, float]]:
    """(update, validation) of a run."""
    return [(row["update"], row["validation"]) for row in read_metrics(folder) if "validation" in row]


def _at(curve: Sequence[tuple[int, float]], update: int) -> float:
    """The validation after an update, by straight lines between those that were measured."""
    updates, values = zip(*curve, strict=True)
    return float(np.interp(update, updates, values))


def _by_seed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


COLUMNS = (
    Column(title="variant", value=lambda line: line.name),
    Column(title="time", value=lambda line: line.time, digits=2),
    Column(title="equal updates, by seed", value=lambda line: _by_seed(line.at_updates)),
    Column(title="mean", value=lambda line: mean(line.at_updates), best="lowest"),
    Column(title="updates at equal time", value=lambda line: line.updates, digits=0),
    Column(title="equal time, by seed", value=lambda line: _by_seed(line.at_time)),
    Column(title="mean there", value=lambda line: mean(line.at_time), best="lowest"),
)


def _words(lines: Sequence[Line], num_updates: int) -> str:
    return (
        f"Validation perplexities of runs of {num_updates:,} updates. Times are those of updates that were timed in "
        f"turns, over those of {lines[0].name}. At equal time, each variant has made as many updates as fit into the "
        "time in which the fastest makes all of its own; between validations the perplexity is read from a straight "
        f"line, and frontiers are of the nearest multiple of {EVERY} updates."
    )
