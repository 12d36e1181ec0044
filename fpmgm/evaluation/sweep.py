"""Sweeps: a grid of models and sampling settings, measured cell by cell into one file of JSON lines.

A row is written when its cell is done; a sweep that is started again skips the rows it finds. Tables and plots read the
file.
"""

import ast
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import torch

from fpmgm.budget import ALLOCATIONS, Cost, plan
from fpmgm.checkpoint import Model, find_folder, load, read_config
from fpmgm.evaluation.cost import multiply_adds
from fpmgm.evaluation.diversity import unigram_entropy
from fpmgm.evaluation.held_out import text_for
from fpmgm.evaluation.judges import Reading, load_judge
from fpmgm.evaluation.matched import is_near, match_entropy
from fpmgm.evaluation.mauve import FEWEST, TextFeatures, mauve_interval, reference_texts
from fpmgm.evaluation.text import measure
from fpmgm.generation import Generated, Sampling, documents, generate, rules_of, with_saved_settings
from fpmgm.names import choose
from fpmgm.provenance import provenance
from fpmgm.sampling import Step
from fpmgm.share import claim

Row = dict[str, Any]

SEARCH = 96
"""At most so many samples has a try in the search for an entropy; what was found is then measured with all."""


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


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What all cells of a sweep share."""

    num_samples: int = 64
    judge: str = ""
    """Who judges the samples: smollm2, a causal model of ours, or one of the hub; empty: nobody."""
    mauve: str = ""
    """The text whose held-out part MAUVE compares the samples with, by the judge's features; empty: no MAUVE."""

    def __post_init__(self) -> None:
        if self.num_samples < 2:
            raise ValueError(f"num_samples is {self.num_samples}; an interval needs at least 2")
        if self.mauve and not self.judge:
            raise ValueError("MAUVE needs a judge's features; give --judge")
        if self.mauve and self.num_samples < FEWEST:
            raise ValueError(f"num_samples is {self.num_samples}; MAUVE needs at least {FEWEST}")


def run_sweep(
    cells: Iterable[Cell], protocol: Protocol, file: Path, *, on_cell: Callable[[Cell, int, int], None] | None = None
) -> list[Row]:
    """Measure every cell that the file does not hold yet; returns the rows of all cells, in their order."""
    cells = list(cells)
    for cell in cells:
        check(cell)
    if protocol.judge:
        _judge(protocol.judge)  # a judge that is none is refused before anything is sampled, and too little text
        for model in {cell.model for cell in cells} if protocol.mauve else ():
            _real_features(protocol.judge, model, protocol.mauve, protocol.num_samples)
    done = {row["key"]: row for row in read_rows(file)}
    for index, cell in enumerate(cells):
        key = key_of(cell, protocol)
        if key in done:
            continue
        if on_cell:
            on_cell(cell, index, len(cells))
        done[key] = append_row(file, {"key": key, **measure_cell(cell, protocol)})
    return [done[key_of(cell, protocol)] for cell in cells]


def check(cell: Cell) -> None:
    """A ValueError if the cell cannot be run, before anything is."""
    sampling = with_saved_settings(_generation(cell.model), cell.sampling)
    cost = _cost(cell.model)
    plan(sampling.budget, cost, num_steps=sampling.steps, allocation=sampling.allocation)
    rules_of(sampling, cost)


def measure_cell(cell: Cell, protocol: Protocol) -> Row:
    """Sample, judge and count: one row."""
    model = _model(cell.model)
    judge = _judge(protocol.judge) if protocol.judge else None
    sampling, matched = cell.sampling, {}
    if cell.knob:
        num = min(SEARCH, protocol.num_samples)
        found = match_entropy(partial(_entropy_at, cell, num), cell.entropy, knob=cell.knob, start=cell.search_from)
        sampling = _turned(cell, found.setting)
    out, spent = _samples(cell.model, sampling, protocol.num_samples)
    readings = judge.read([documents(model, row) for row in out.tokens]) if judge else None
    metrics = measure(torch.tensor(out.tokens), readings, seed=cell.sampling.seed)
    if cell.knob:  # judged by these samples, not by the fewer of the search
        is_met = is_near(metrics["entropy"]["value"], cell.entropy)
        matched = {"matched": {"knob": cell.knob, "entropy": cell.entropy, "is_met": is_met}}
    if protocol.mauve and readings:
        real = _real_features(protocol.judge, cell.model, protocol.mauve, protocol.num_samples)
        metrics["mauve"] = asdict(mauve_interval(_features(readings), real))
    return {
        "model": cell.model,
        "weights": weights_of(cell.model),
        "sampling": {**asdict(sampling), "steps": out.steps, "allocation": out.allocation},
        **matched,
        "iterations": out.iterations,
        "block_evals": out.block_evals,
        "multiply_adds": spent,
        "seconds": out.seconds,
        "metrics": metrics,
        "protocol": {
            "judge": judge.name if judge else "",
            "num_samples": protocol.num_samples,
            "length": model.config.length,
            **provenance(),
        },
    }


def _entropy_at(cell: Cell, num: int, setting: float) -> float:
    """The entropy of a cell's samples with its knob turned to a setting."""
    out, _ = _samples(cell.model, _turned(cell, setting), num)
    return float(unigram_entropy(torch.tensor(out.tokens)).mean())


def _turned(cell: Cell, setting: float) -> Sampling:
    settings: dict[str, Any] = {cell.knob: setting}
    return replace(cell.sampling, **settings)


class MultiplyAdds:
    """An `on_step` that adds up what the steps cost, logits only where they were computed."""

    def __init__(self, model: Model) -> None:
        self.config, self.total = model.config, 0.0

    def __call__(self, step: Step) -> None:
        length = step.z.shape[1]
        for num_iters, num_positions in zip(
            step.solution.num_iters.tolist(), step.positions.sum(1).tolist(), strict=True
        ):
            self.total += multiply_adds(self.config, num_iters=num_iters, num_positions=num_positions, length=length)


def read_rows(file: Path) -> list[Row]:
    """The whole rows of a results file; a last line that a kill cut off is left out."""
    rows = []
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def append_row(file: Path, row: Row) -> Row:
    """Add a row as a whole line, after cutting off what a kill left; returns it as the file has it."""
    line = json.dumps(row)
    with claim(file):
        _cut_torn_line(file)
        with open(file, "a") as stream:
            stream.write(line + "\n")
    whole: Row = json.loads(line)
    return whole


def _cut_torn_line(file: Path) -> None:
    if file.exists():
        whole = file.read_bytes()
        if whole and not whole.endswith(b"\n"):
            with open(file, "r+b") as stream:
                stream.truncate(whole.rfind(b"\n") + 1)


def key_of(cell: Cell, protocol: Protocol) -> str:
    """What a row depends on, as a hash: model, weights, sampling and protocol, not the machine."""
    sampling = with_saved_settings(_generation(cell.model), cell.sampling)
    parts: list[Any] = [
        cell.model,
        weights_of(cell.model),
        asdict(sampling),
        asdict(protocol),
        _judge_weights(protocol.judge),
    ]
    if cell.knob:
        parts.append([cell.knob, cell.entropy])
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


@lru_cache(maxsize=64)
def weights_of(model: str) -> str:
    """What tells the weights of a model from any others."""
    file = find_folder(model) / "model.safetensors"
    if not file.is_file():
        raise ValueError(f"{file.parent} has no model.safetensors")
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]


def _generation(model: str) -> dict[str, Any]:
    """A model's generation_config.json."""
    file = find_folder(model) / "generation_config.json"
    settings: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return settings


def _judge_weights(judge: str) -> str:
    """A judge of ours counts by its weights, any other by its name."""
    try:
        return weights_of(judge) if judge and judge != "smollm2" else judge
    except (ValueError, OSError):
        return judge


_model = lru_cache(maxsize=2)(load)
_judge = lru_cache(maxsize=2)(load_judge)


@lru_cache(maxsize=32)
def _samples(name: str, sampling: Sampling, num: int) -> tuple[Generated, float]:
    """Samples and the multiply-adds of one, kept for a second judge or a search that ends here."""
    model = _model(name)
    spent = MultiplyAdds(model)
    out = generate(model, num_samples=num, on_step=spent, **asdict(sampling))
    return out, spent.total / num


def _features(readings: Sequence[Reading]) -> TextFeatures:
    return np.stack([reading.feature.numpy() for reading in readings])


@lru_cache(maxsize=8)
def _real_features(judge: str, model: str, source: str, num: int) -> TextFeatures:
    """A judge's features of real texts: as many as there are samples, but at least 256 if so many are held out."""
    text = text_for(_model(model), source)
    num = min(max(num, 256), len(text.validation))
    if num < FEWEST:
        raise ValueError(f"{source} has {num} held-out sequences; MAUVE needs at least {FEWEST}")
    return _features(_judge(judge).read(reference_texts(text, num)))


def budget_cells(models: Sequence[str], base: Sampling, budgets: Sequence[int]) -> Iterator[Cell]:
    """Every model at every budget."""
    yield from _grid(models, base, {"budget": budgets})


def steps_cells(models: Sequence[str], base: Sampling, budgets: Sequence[int]) -> Iterator[Cell]:
    """Steps x iterations: each budget as few steps of many iterations, or many of few."""
    for model, budget in product(models, budgets):
        cost = _cost(model)
        iterations = (1, 2, 3, 4, 6, 8, 12) if cost.fp else (0,)
        for steps in dict.fromkeys(budget // cost.step(num) for num in iterations):
            if steps:
                yield Cell(model=model, sampling=replace(base, budget=budget, steps=steps, allocation="fixed"))


def allocation_cells(models: Sequence[str], base: Sampling, budgets: Sequence[int]) -> Iterator[Cell]:
    """Allocations x reuse."""
    axes = {"budget": budgets, "allocation": tuple(ALLOCATIONS), "reuse": ("none", "full", "three-state")}
    yield from _grid([model for model in models if _cost(model).fp], base, axes)


def reuse_cells(models: Sequence[str], base: Sampling, budgets: Sequence[int]) -> Iterator[Cell]:
    """Reuse coefficients: what is kept at masked positions, and at changed ones."""
    masked = ((0.0, 0.0), (0.5, 0.5), (0.5, 0.75), (0.75, 0.9), (0.9, 1.0), (1.0, 1.0))
    changed = ((0.0, 0.0), (0.2, 0.2), (0.5, 0.5), (1.0, 1.0))
    axes = {"budget": budgets, "reuse": ("three-state",), "reuse_masked": masked, "reuse_changed": changed}
    yield from _grid([model for model in models if _cost(model).fp], base, axes)


def nucleus_cells(models: Sequence[str], base: Sampling, budgets: Sequence[int]) -> Iterator[Cell]:
    """The nucleus, off and on, in both readings of top-p."""
    yield from _grid(models, base, {"budget": budgets})
    yield from _grid(models, base, {"budget": budgets, "top_p": (0.98, 0.95, 0.9), "nucleus": ("inclusive", "strict")})


def solver_cells(models: Sequence[str], base: Sampling, budgets: Sequence[int]) -> Iterator[Cell]:
    """Solvers x tolerances."""
    axes = {"budget": budgets, "solver": ("picard", "anderson"), "tolerance": (None, 0.3, 0.1, 0.03, 0.01)}
    yield from _grid([model for model in models if _cost(model).fp], base, axes)


PRESETS: dict[str, Callable[[Sequence[str], Sampling, Sequence[int]], Iterator[Cell]]] = {
    "budgets": budget_cells,
    "steps": steps_cells,
    "allocations": allocation_cells,
    "reuse": reuse_cells,
    "nucleus": nucleus_cells,
    "solver": solver_cells,
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
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise TypeError(repr(value))
    return value


def preset_by_name(name: str) -> Callable[[Sequence[str], Sampling, Sequence[int]], Iterator[Cell]]:
    """The grid of that name: `budgets`, `steps`, `allocations`, `reuse`, `nucleus` or `solver`."""
    return choose("preset", name, PRESETS)


def _grid(models: Sequence[str], base: Sampling, axes: dict[str, Sequence[Any]]) -> Iterator[Cell]:
    for model in models:
        for values in product(*axes.values()):
            yield Cell(model=model, sampling=replace(base, **dict(zip(axes, values, strict=True))))


def _cost(model: str) -> Cost:
    config = read_config(find_folder(model))
    return Cost(config.num_pre, config.num_fp, config.num_post)
