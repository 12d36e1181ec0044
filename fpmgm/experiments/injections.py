"""Does a cheaper injection learn as well as the paper's? All of them, on the recipe `stories-fp` cut short."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fpmgm.experiments.contestants import Contestant
from fpmgm.experiments.variants import Comparison, variant
from fpmgm.injection import INJECTIONS
from fpmgm.recipes import RECIPES

RECIPE = "stories-fp"
SHORT, NUM_SEEDS = 400, 3
"""Updates and seeds of every injection: at most 20 minutes of one core for a run."""
LONG = 2000
PAIR = ("mlp", "diagonal")
"""The paper's and the one that shrinks by construction: one run each of LONG updates."""


def of_kind(kind: str, recipe: str, *, updates: int, num_seeds: int) -> Contestant:
    """The recipe with such an injection. `diagonal` starts as it is published, the others as (h + u)/2."""
    model: Any = RECIPES[recipe].model
    changed = replace(model, injection=kind, injection_start="random" if kind == "diagonal" else "mean")
    name = f"{kind}, {updates} updates" if num_seeds == 1 else kind
    return variant(name, recipe, updates=updates, num_seeds=num_seeds, model=changed)


@dataclass(frozen=True, kw_only=True)
class Injections:
    """The comparison with several seeds, and the pair that is trained longer."""

    folder: Path
    runs: Path
    recipe: str = RECIPE
    short: int = SHORT
    long: int = LONG
    num_seeds: int = NUM_SEEDS

    def run(self, **settings: Any) -> tuple[str, dict[str, Any]]:
        """Both parts, as Markdown and as JSON can hold it; settings are fields of `Comparison`."""
        kinds = [of_kind(kind, self.recipe, updates=self.short, num_seeds=self.num_seeds) for kind in INJECTIONS]
        pair = [of_kind(kind, self.recipe, updates=self.long, num_seeds=1) for kind in PAIR]
        many = Comparison(
            title=f"{self.num_seeds} seeds of {self.short:,} updates",
            folder=self.folder,
            runs=self.runs,
            variants=tuple(kinds),
            **settings,
        )
        longer = replace(
            many,
            title=f"One pair of {self.long:,} updates",
            within="long",
            variants=tuple(pair),
            budgets=(*many.budgets, 4 * max(many.budgets)),
        )
        many.workers.run({**many.work(), **longer.work()}, "runs")  # all of them before anything is measured
        (first, rows), (second, more) = many.report(), longer.report()
        return f"{first}\n{second}", {"short": rows, "long": more}
