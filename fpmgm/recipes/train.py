"""Training by name, from Python: a recipe with changes becomes a run folder."""

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

from fpmgm.names import check_names, choose
from fpmgm.recipes import RECIPES
from fpmgm.training.config import Training
from fpmgm.training.loop import train as run_training
from fpmgm.training.metrics import read_metrics

UNNAMED = "own"
"""What a run is called whose recipe has no name."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a finished run left."""

    folder: Path
    """The run folder."""
    model: Path
    """The model folder in it, which `load` takes."""
    updates: int
    """Updates that were made, those of earlier calls among them."""
    loss: float
    """Of the last update."""
    validation: float | None
    """The last validation, such as a perplexity; None if its row was lost."""
    validation_error: float | None
    """One standard error of it."""


def train(recipe: str | Training, **changes: Any) -> Trained:
    """Train a recipe to its end, or go on with the run in its folder; changes are fields of `Training`.

    `recipe` is the name of one or a `Training` of your own. A part such as `data` takes another instance, or a mapping
    of the fields in it that differ: train("poetry", updates=200, data={"source": "verse.txt"}, out="runs/verse").
    """
    if recipe == "mine":
        raise ValueError("mine makes its own recipe of a text; use the command fpmgm train mine, or another recipe")
    name = recipe if isinstance(recipe, str) else UNNAMED
    base = choose("recipe", recipe, RECIPES) if isinstance(recipe, str) else recipe
    model = run_training(changed(base, changes), name, base)
    folder = model.parent
    last = read_metrics(folder)[-1]
    return Trained(
        folder=folder,
        model=model,
        updates=last["update"],
        loss=last["loss"],
        validation=last.get("validation"),
        validation_error=last.get("validation_error"),
    )


def changed(config: Any, changes: Mapping[str, Any]) -> Any:
    """A config with other values in some fields, nested ones as mappings; a ValueError for a name that is none."""
    for name, part in changes.items():
        if isinstance(part, Mapping) and not is_dataclass(getattr(config, name, config)):
            raise ValueError(f"{name} is {part}; it has no fields of its own")
    check_names(f"field of {type(config).__name__}", changes, type(config))
    nested = {name: changed(getattr(config, name), part) for name, part in changes.items() if isinstance(part, Mapping)}
    return replace(config, **{**changes, **nested})
