"""Cells of a sweep: a model and how it samples, alone, by the preset or by the grid."""

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fpmgm.budget import ALLOCATIONS, Cost
from fpmgm.checkpoint import find_folder, read_config
from fpmgm.generation import Sampling
from fpmgm.names import choose


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A model and how it samples: one row of the results."""

    model: str
    sampling: Sampling
    knob: str = ""
    """What is turned until the entropy is `entropy`: temperature or top_p; empty: nothing."""
    entropy: float = 0.0
    search_from: float = 1.0
    """Where the knob is turned from. A row is known by the entropy that was asked for, not by this."""
    identity: str = ""
    """What the model is known by instead of its name and weights: a hash of all that it is trained with. The row of a
    cell with an identity is found whether the model is there or not."""


def budget_cells(models: Sequence[str], base: Sampling, budgets: Sequence[int]) -> Iterator[Cell]:
    """Every model at every budget."""
    yield from _grid(models, base, {"budget": budgets})


def steps_cells(models: Sequence[str], base: Sampling, budgets: Sequence[int]) -> Iterator[Cell]:
    """Steps x iterations: each budget as few steps of many iterations, or many of few."""
    for model, budget in product(models, budgets):
        cost = cost_of(model)
        iterations = (1, 2, 3, 4, 6, 8, 12) if cost.fp else (0,)
        for steps in dict.fromkeys(budget // cost.step(num) for num in iterations):
            if steps:
                yield Cell(model=model, sampling=replace(base, budget=budget, steps=steps, allocation="fixed"))


def allocation_cells(models: Sequence[str], base: Sampling, budgets: Sequence[int]) -> Iterator[Cell]:
    """Allocations x reuse."""
    axes = {"budget": budgets, "allocation": tuple(ALLOCATIONS), "reuse": ("none", "full", "three-state")}
    yield from _grid([model for model in models if cost_of(model).fp], base, axes)


def reuse_cells(models: Sequence[str], base: Sampling, budgets: Sequence[int]) -> Iterator[Cell]:
    """Reuse coefficients: what is kept at masked positions, and at changed ones."""
    masked = ((0.0, 0.0), (0.5, 0.5), (0.5, 0.75), (0.75, 0.9), (0.9, 1.0), (1.0, 1.0))
    changed = ((0.0, 0.0), (0.2, 0.2), (0.5, 0.5), (1.0, 1.0))
    axes = {"budget": budgets, "reuse": ("three-state",), "reuse_masked": masked, "reuse_changed": changed}
    yield from _grid([model for model in models if cost_of(model).fp], base, axes)


def steps_iterations_cells(models: Sequence[str], base: Sampling, budgets: Sequence[int]) -> Iterator[Cell]:
    """Every number of steps with every number of iterations, whatever it costs up to the largest budget."""
    for model in models:
        cost = cost_of(model)
        for steps, num in product((4, 8, 16, 32, 64, 128, 256), (1, 2, 4, 6, 8, 12) if cost.fp else ()):
            spent = steps * cost.step(num)
            if spent <= max(budgets):
                yield Cell(model=model, sampling=replace(base, budget=spent, steps=steps, iterations=num))


Shares = tuple[tuple[float, float], ...]
"""What is kept of the last solution, if nothing and if all is visible."""
GAMMAS_MASKED: tuple[Shares, Shares] = (
    tuple(product((0.6, 0.75, 0.85), (0.9, 0.95))),
    tuple((0.0, high) for high in (0.1, 0.2, 0.3)),
)
GAMMAS_CHANGED: tuple[Shares, Shares] = (
    ((0.75, 0.9),),
    (*((share, share) for share in (0.0, 0.1, 0.2, 0.25, 0.3)), (0.0, 0.1), (0.0, 0.2), (0.0, 0.3)),
)
"""The grids of the paper's two tables: at masked positions, and at changed ones."""


def masked_gamma_cells(models: Sequence[str], base: Sampling, budgets: Sequence[int]) -> Iterator[Cell]:
    """The paper's first table of coefficients: what is kept at masked positions, by what is kept at changed ones."""
    yield from _gammas(models, base, budgets, *GAMMAS_MASKED)


def changed_gamma_cells(models: Sequence[str], base: Sampling, budgets: Sequence[int]) -> Iterator[Cell]:
    """The paper's second table of coefficients: what is kept at changed positions."""
    yield from _gammas(models, base, budgets, *GAMMAS_CHANGED)


def _gammas(
    models: Sequence[str],
    base: Sampling,
    budgets: Sequence[int],
    masked: Sequence[tuple[float, float]],
    changed: Sequence[tuple[float, float]],
) -> Iterator[Cell]:
    """As the paper sweeps them: with the allocation `fixed`."""
    axes = {"budget": budgets, "allocation": ("fixed",), "reuse": ("three-state",)}
    axes |= {"reuse_masked": masked, "reuse_changed": changed}
    yield from _grid([model for model in models if cost_of(model).fp], base, axes)


def nucleus_cells(models: Sequence[str], base: Sampling, budgets: Sequence[int]) -> Iterator[Cell]:
    """The nucleus, off and on, in both readings of top-p."""
    yield from _grid(models, base, {"budget": budgets})
    yield from _grid(models, base, {"budget": budgets, "top_p": (0.98, 0.95, 0.9), "nucleus": ("inclusive", "strict")})


def solver_cells(models: Sequence[str], base: Sampling, budgets: Sequence[int]) -> Iterator[Cell]:
    """Solvers x tolerances."""
    axes = {"budget": budgets, "solver": ("picard", "anderson"), "tolerance": (None, 0.3, 0.1, 0.03, 0.01)}
    yield from _grid([model for model in models if cost_of(model).fp], base, axes)


RESTING: tuple[dict[str, Any], ...] = (
    {"solve": "all"},
    {"solve": "changed-and-masked"},
    {"solve": "changed-and-masked", "whole_every": 2},
    {"solve": "changed-and-masked", "whole_first": False},
    {"solve": "both", "position_tolerance": 0.1},
)
"""The rules of which positions rest, all positions first."""


def position_cells(models: Sequence[str], base: Sampling, budgets: Sequence[int]) -> Iterator[Cell]:
    """Where the solver iterates: the rules of which positions rest."""
    for model, budget, rule in product([model for model in models if cost_of(model).fp], budgets, RESTING):
        yield Cell(model=model, sampling=replace(base, budget=budget, **rule))


PRESETS: dict[str, Callable[[Sequence[str], Sampling, Sequence[int]], Iterator[Cell]]] = {
    "budgets": budget_cells,
    "steps": steps_cells,
    "allocations": allocation_cells,
    "reuse": reuse_cells,
    "steps-iterations": steps_iterations_cells,
    "gamma-masked": masked_gamma_cells,
    "gamma-changed": changed_gamma_cells,
    "nucleus": nucleus_cells,
    "solver": solver_cells,
    "positions": position_cells,
}


def grid_cells(
    models: Sequence[str], base: Sampling, budgets: Sequence[int], axes: dict[str, Sequence[Any]]
) -> Iterator[Cell]:
    """Any sampling settings, each value of one with each of the others."""
    yield from _grid(models, base, {"budget": budgets, **axes})


def axes_of(texts: Sequence[str]) -> dict[str, Sequence[Any]]:
    """Sampling settings and their values, written as on the command line.

    >>> axes_of(["temperature=0.8,1", "reuse=none,full", "tolerance=None,0.1", "reuse_masked=(0.5,0.5),(0.75,0.9)"])[
    ...     "reuse_masked"
    ... ]
    [(0.5, 0.5), (0.75, 0.9)]
    """
    hints = get_type_hints(Sampling)
    axes: dict[str, Sequence[Any]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        name = name.replace("-", "_")
        choose("sampling setting", name, hints)
        if name == "budget" or not values:
            raise ValueError(f"vary is {text!r}; write SETTING=VALUE,VALUE, and budgets with --budgets")
        try:
            axes[name] = list(ast.literal_eval(f"[{values}]"))
        except (ValueError, SyntaxError):
            axes[name] = values.split(",")
        try:
            axes[name] = [_typed(value, hints[name]) for value in axes[name]]
        except TypeError as error:
            raise ValueError(f"vary is {text!r}; {error} is no value of {name}") from error
    return axes


def _typed(value: Any, hint: Any) -> Any:
    """A value as a setting has it, a whole number as a float where it must be; a TypeError if it does not fit."""
    if isinstance(hint, UnionType):
        wanted = [each for each in get_args(hint) if each is not NoneType]
        return None if value is None else _typed(value, wanted[0])
    if get_origin(hint) is tuple and isinstance(value, tuple) and len(value) == len(get_args(hint)):
        return tuple(map(_typed, value, get_args(hint)))
    if get_origin(hint) is Literal:
        hint = str  # an unknown name is refused where cells are checked, with the nearest one
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise TypeError(repr(value))
    return value


def preset_by_name(name: str) -> Callable[[Sequence[str], Sampling, Sequence[int]], Iterator[Cell]]:
    """The preset of that name, such as `budgets`, `steps` or `reuse`."""
    return choose("preset", name, PRESETS)


def _grid(models: Sequence[str], base: Sampling, axes: dict[str, Sequence[Any]]) -> Iterator[Cell]:
    for model in models:
        for values in product(*axes.values()):
            yield Cell(model=model, sampling=replace(base, **dict(zip(axes, values, strict=True))))


def cost_of(model: str) -> Cost:
    """The blocks of a model, by name."""
    return read_config(find_folder(model)).cost
