"""Does a network that has seen the sampler's warm starts in training reuse solutions better? A model goes on learning
with and without them, and is sampled with every reuse at high budgets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fpmgm.evaluation.cells import Cell
from fpmgm.evaluation.evaluator import evaluator_for
from fpmgm.evaluation.rows import Row
from fpmgm.evaluation.sweep import Protocol, announce, run_sweep
from fpmgm.evaluation.tables import Column, markdown
from fpmgm.experiments.contestants import Contestant
from fpmgm.experiments.over_seeds import REUSES, TableLine, over_seeds
from fpmgm.experiments.variants import ORDER, Comparison, variant
from fpmgm.generation import Sampling
from fpmgm.recipes import RECIPES
from fpmgm.reuse import ReuseName
from fpmgm.training.folder import MODEL

RECIPE = "stories-fp"
START = "stories-fp"
"""The model that both go on from."""
UPDATES, NUM_SEEDS = 300, 3
RATE = 1 / 3
"""The learning rate, over that of the recipe: the model has learned with a rate that fell to 0."""
SHARE = 0.5
"""Of the updates that start warm."""
BUDGETS = (384,)


@dataclass(frozen=True, kw_only=True)
class WarmStarts:
    """The comparison of training, and samples with every reuse."""

    folder: Path
    runs: Path
    recipe: str = RECIPE
    start: str = START
    """The model that both go on from; empty: fresh weights."""
    updates: int = UPDATES
    num_seeds: int = NUM_SEEDS
    budgets: tuple[int, ...] = BUDGETS

    @property
    def variants(self) -> tuple[Contestant, Contestant]:
        """The recipe as it is, and with warm starts."""
        base = RECIPES[self.recipe]
        objective: Any = base.objective
        cold = variant("cold", self.recipe, updates=self.updates, num_seeds=self.num_seeds)
        optim = replace(cold.changes["optim"], lr=RATE * base.optim.lr)
        stage = {"init": self.start, "optim": optim, "data": RECIPES["stories-cofre"].data}
        cold = replace(cold, changes={**cold.changes, **(stage if self.start else {})})
        warm = {**cold.changes, "objective": replace(objective, warm_start=SHARE)}
        return cold, replace(cold, name="warm", changes=warm)

    def run(self, **settings: Any) -> tuple[str, dict[str, Any]]:
        """Both parts, as Markdown and as JSON can hold it; settings are fields of `Comparison`."""
        compared = Comparison(
            title=f"{self.updates:,} updates from {self.start or 'fresh weights'}, seeds: {self.num_seeds}",
            folder=self.folder,
            runs=self.runs,
            variants=self.variants,
            **settings,
        )
        text, found = compared.report()
        table, rows = self._reuse(compared)
        words = (
            "## Every reuse\n\nGenerative perplexity (entropy) at temperature 1, "
            f"{compared.num_samples} samples of each seed: the mean over seeds and all that their intervals span. A "
            "reuse that collapses shows in the entropy."
        )
        return f"{text}\n{words}\n\n{table}\n", {**found, "reuse": rows}

    def _reuse(self, compared: Comparison) -> tuple[str, list[dict[str, Any]]]:
        """The table of samples by variant, reuse and budget, and its rows."""
        evaluator = evaluator_for("text", judge=compared.judge, device=compared.device, convention=compared.convention)
        protocol = Protocol(num_samples=compared.num_samples, evaluator=evaluator, device=compared.device)
        cells = {
            (each.name, reuse, budget): [
                Cell(
                    model=str(run / MODEL),
                    sampling=Sampling(budget=budget, reuse=reuse, transition=ORDER, seed=compared.seed + index),
                )
                for index, run in each.folders(self.runs)
            ]
            for each in self.variants
            for reuse in REUSES
            for budget in self.budgets
        }
        flat = [cell for own in cells.values() for cell in own]
        file = self.folder / "reuse.jsonl"
        rows = iter(run_sweep(flat, protocol, file, on_cell=announce, workers=compared.workers))
        measured = {key: [next(rows) for _ in own] for key, own in cells.items()}
        return self._table(measured, evaluator.primary.name), [
            {"variant": name, "reuse": reuse, "budget": budget, **_means(own, evaluator.primary.name)}
            for (name, reuse, budget), own in measured.items()
        ]

    def _table(self, measured: Mapping[tuple[str, ReuseName, int], list[Row]], metric: str) -> str:
        lines = [
            TableLine(
                each.name,
                reuse,
                {budget: over_seeds(measured[each.name, reuse, budget], metric) for budget in self.budgets},
            )
            for each in self.variants
            for reuse in REUSES
        ]
        columns = [
            Column(title="training", value=lambda line: line.name),
            Column(title="reuse", value=lambda line: line.reuse),
            *(_of_budget(budget) for budget in self.budgets),
        ]
        return markdown(lines, columns)


def _of_budget(budget: int) -> Column:
    return Column(title=f"{budget} blocks", value=lambda line: line.cells[budget], best="lowest")


def _means(rows: Sequence[Row], metric: str) -> dict[str, Any]:
    names = (metric, "entropy")
    return {name: [row.metrics[name].value for row in rows] for name in names}
