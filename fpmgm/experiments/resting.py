"""Does training in which visible positions rest after the first iteration learn as well as training that iterates
everywhere? Both from fresh weights, with the same seeds."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from fpmgm.evaluation.side_by_side import VALIDATION_ITERS, Validated, evaluate
from fpmgm.evaluation.tables import Column, markdown
from fpmgm.experiments.contestants import Contestant
from fpmgm.experiments.variants import Comparison, variant
from fpmgm.recipes import RECIPES
from fpmgm.training.folder import MODEL

RECIPE = "stories-fp"
SHORT, NUM_SEEDS = 1200, 3
"""Updates and seeds of both."""
BUDGETS = (24, 96)


class Finished(NamedTuple):
    """The models of a variant after all updates."""

    name: str
    validated: list[Validated]
    """By seed."""


@dataclass(frozen=True, kw_only=True)
class Resting:
    """The comparison of training, and the validation of both by one solver."""

    folder: Path
    runs: Path
    recipe: str = RECIPE
    data: Any = RECIPES["stories-cofre"].data
    """What both read, instead of the recipe's data."""
    updates: int = SHORT
    num_seeds: int = NUM_SEEDS
    budgets: tuple[int, ...] = BUDGETS

    @property
    def variants(self) -> tuple[Contestant, ...]:
        """The recipe as it is, and with positions at rest."""
        objective: Any = RECIPES[self.recipe].objective
        size: dict[str, Any] = {"updates": self.updates, "num_seeds": self.num_seeds, "data": self.data}
        everywhere = variant("everywhere", self.recipe, **size)
        return everywhere, variant("resting", self.recipe, **size, objective=replace(objective, rest=True))

    def run(self, **settings: Any) -> tuple[str, dict[str, Any]]:
        """Both parts, as Markdown and as JSON can hold it; settings are fields of `Comparison`."""
        compared = Comparison(
            title=f"{self.num_seeds} seeds of {self.updates:,} updates",
            folder=self.folder,
            runs=self.runs,
            variants=self.variants,
            budgets=self.budgets,
            **settings,
        )
        text, found = compared.report()
        lines = self.finished(device=compared.device, workers=compared.num_workers, ray=compared.ray)
        rows = [{"name": line.name, "validated": [asdict(each) for each in line.validated]} for line in lines]
        return f"{_words(lines)}\n\n{markdown(lines, COLUMNS)}\n{text}", {**found, "finished": rows}

    def finished(self, **settings: Any) -> list[Finished]:
        """What `fpmgm evaluate` validates of every model, whose solver iterates everywhere; settings are its own."""
        models = {each.name: [str(run / MODEL) for _, run in each.folders(self.runs)] for each in self.variants}
        evaluated = evaluate([model for own in models.values() for model in own], budgets=(), judge="", **settings)
        found = {each.model: each for each in evaluated.validation}
        return [Finished(name, [found[model] for model in own]) for name, own in models.items()]


COLUMNS = (
    Column(title="training", value=lambda line: line.name),
    Column(
        title="by seed",
        value=lambda line: ", ".join(f"{each.value:.1f} ± {each.error:.1f}" for each in line.validated),
    ),
    Column(title="mean", value=lambda line: mean(each.value for each in line.validated), best="lowest"),
)


def _words(lines: list[Finished]) -> str:
    return (
        "## Finished models, iterating everywhere\n\nValidation in a run of `resting` lets visible positions rest too, "
        "so the validation perplexities of runs, further below, are of two kinds and do not compare. These do. The "
        f"solver makes {VALIDATION_ITERS} iterations everywhere, on {lines[0].validated[0].measured_on}, with the same "
        "masks for all models. ± is one standard error over sequences. All models read the same ones, so it is not the "
        "error of a difference."
    )
