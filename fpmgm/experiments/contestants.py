"""Contestants: base models, and stages that are trained from one, as lines of a table."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fpmgm.checkpoint import weights_of
from fpmgm.experiments.identity import identity_of
from fpmgm.names import slug
from fpmgm.recipes import RECIPES
from fpmgm.training.card import NUM_SAMPLES
from fpmgm.training.config import Training
from fpmgm.training.folder import MODEL
from fpmgm.training.loop import train


class Made(NamedTuple):
    """A model of a contestant, whether it is trained already or not."""

    model: str
    identity: str
    """Of the run that makes it; empty if it is a model that is there."""

    @property
    def about(self) -> dict[str, str]:
        """What tells the model from others in a file of results."""
        return {"run": self.identity} if self.identity else {"weights": weights_of(self.model)}


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A line of the table: a bundled base model, or a stage that is trained from one."""

    name: str
    recipe: str
    is_base: bool = False
    """Whether it is the model that the recipe's runs start from."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of the recipe that differ."""
    start: "Contestant | None" = None
    """Whose first run it starts from, instead of the recipe's model. A base model is one that this run kept on its
    way."""
    num_seeds: int = 1
    is_headline: bool = False
    """Whether it has, with its usual reuse, more samples a cell."""
    card_samples: int = NUM_SAMPLES
    """Samples in the model cards; with fewer than usual, cards measure nothing."""

    def folders(self, runs: Path) -> Iterator[tuple[int, Path]]:
        """(seed, run folder) of every run there is to make."""
        for seed in range(0 if self.is_base else self.num_seeds):
            yield seed, runs / f"{slug(self.name)}-{seed}"

    @property
    def base_model(self) -> str:
        """What a base model is read from: the start of its recipe, or another that `changes` names."""
        return str(self.changes.get("init", RECIPES[self.recipe].init))

    def models(self, runs: Path) -> dict[str, Callable[[], str]]:
        """What makes the models of this line, or goes on making them, by the names of their runs."""
        recipe = RECIPES[self.recipe]
        if self.is_base:
            return {self.name: partial(str, self.base_model)}
        return {
            folder.name: partial(_trained, self.config(seed, folder), self.recipe, recipe, self.card_samples)
            for seed, folder in self.folders(runs)
        }

    def made(self, runs: Path) -> list[Made]:
        """The models by seed, each with what it is known by."""
        if self.is_base:
            model = self.base_model
            return [Made(model, f"{self.start.identity(0)}/{Path(model).name}" if self.start else "")]
        return [Made(str(folder / MODEL), self.identity(seed)) for seed, folder in self.folders(runs)]

    def identity(self, seed: int) -> str:
        """What the run of a seed is known by, before it is trained."""
        return identity_of(self.config(seed, Path()), self.start.identity(0) if self.start else "")

    def config(self, seed: int, folder: Path) -> Training:
        """What is trained with a seed, in that run folder."""
        init: dict[str, Any] = {}
        if self.start:
            _, first = next(self.start.folders(folder.parent))
            init = {"init": str(first / MODEL)}
        return replace(RECIPES[self.recipe], seed=seed, out=str(folder), **self.changes, **init)


def _trained(config: Training, name: str, recipe: Training, card_samples: int) -> str:
    """The model folder of a run, which may be made by a worker that knows none of this process's recipes."""
    return str(train(config, name, recipe, card_samples=card_samples))
