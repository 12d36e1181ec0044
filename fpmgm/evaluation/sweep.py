"""Sweeps: a grid of models and sampling settings, measured cell by cell into one file of JSON lines.

A row is written when its cell is done; a sweep that is started again skips the rows it finds. Tables and plots read the
file. Cells may be measured by several workers; this process alone writes.
"""

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fpmgm.budget import spending_of
from fpmgm.checkpoint import Model, find_folder, load, read_config, read_generation, read_settings, weights_of
from fpmgm.cluster import HERE, Workers
from fpmgm.codecs import load_codec
from fpmgm.evaluation.cells import Cell, cost_of
from fpmgm.evaluation.evaluator import Evaluator, evaluator_for
from fpmgm.evaluation.matched import is_near, match_entropy
from fpmgm.evaluation.rows import Match, Measured, Row, append_row, read_rows
from fpmgm.evaluation.threads import use_threads
from fpmgm.generation import Generated, Sampling, generate, rules_of, with_saved_settings
from fpmgm.progress import StepProgress
from fpmgm.provenance import provenance
from fpmgm.sampling import Step
from fpmgm.schema import MAX_SAMPLES, require

SINCE = {"grid", "confidence_noise", "schedule", "halton_roll", "cfg_weight", "guidance", "guidance_begin", "precision"}
SINCE |= {"eta", "t_on", "t_off", "alpha_on", "solve", "position_tolerance", "whole_first", "budget_in"}
SINCE |= {"iterations", "whole_every"}
"""Settings of sampling that rows of before 2026-11-17 do not have; at their defaults, they change no row."""
SEARCH = 96
"""At most so many samples has a try in the search for an entropy; what was found is then measured with all."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What all cells of a sweep share."""

    num_samples: int = 64
    evaluator: Evaluator = field(default_factory=lambda: evaluator_for("text"))
    """What measures the samples."""
    device: str = "auto"
    dtype: str = "float32"
    keeps_samples: bool = False
    """Whether rows hold what was measured of each sample, as paired comparisons need it."""

    def __post_init__(self) -> None:
        if self.num_samples < 2:
            raise ValueError(f"num_samples is {self.num_samples}; an interval needs at least 2")
        require("num_samples", self.num_samples, 2, MAX_SAMPLES)
        self.evaluator.check(self.num_samples)


class Job(NamedTuple):
    """A cell, and how it is measured."""

    cell: Cell
    protocol: Protocol


def run_sweep(
    cells: Iterable[Cell],
    protocol: Protocol,
    file: Path,
    *,
    on_cell: Callable[[Cell, int, int], None] | None = None,
    workers: Workers = HERE,
) -> list[Row]:
    """Measure every cell that the file does not hold yet; returns the rows of all cells, in their order."""
    return run_jobs([Job(cell, protocol) for cell in cells], file, on_cell=on_cell, workers=workers)


def run_jobs(
    jobs: Sequence[Job],
    file: Path,
    *,
    on_cell: Callable[[Cell, int, int], None] | None = None,
    workers: Workers = HERE,
) -> list[Row]:
    """Measure every cell, as its job says, that the file does not hold yet; returns the rows of all, in their order.

    Jobs that read the same samples are one piece of work. `on_cell` is called with each cell that is about to be
    measured here, or that another process has measured.
    """
    done = {row.key: row for row in read_rows(file)}
    keys = [key_of(*job) for job in jobs]
    missing = {
        key: (index, job)
        for index, (key, job) in enumerate(zip(keys, jobs, strict=True))
        if key not in done or (job.protocol.keeps_samples and not done[key].per_sample)
    }
    for protocol in _distinct(job.protocol for _, job in missing.values()):
        prepare([job.cell for _, job in missing.values() if job.protocol == protocol], protocol)
    pieces: dict[tuple[Any, ...], list[tuple[int, Job]]] = {}
    for index, job in missing.values():
        pieces.setdefault((job.cell, *_sampled(job.protocol)), []).append((index, job))
    named = {_named(*own[0]): own for own in pieces.values()}

    def turn(name: str) -> None:
        if on_cell:
            index, job = named[name][0]
            on_cell(job.cell, index, len(jobs))

    def keep(_: str, rows: list[Row]) -> None:
        for row in rows:
            done[row.key] = append_row(file, row)

    work = {name: partial(_measure_all, [job for _, job in own]) for name, own in named.items()}
    workers.run(work, "cells", on_turn=turn, on_done=keep)
    return [done[key] for key in keys]


def _measure_all(jobs: Sequence[Job]) -> list[Row]:
    return [measure_cell(*job) for job in jobs]


def _named(index: int, job: Job) -> str:
    return f"{index + 1}: {job.cell.model} at {job.cell.sampling.budget}"


def _sampled(protocol: Protocol) -> tuple[int, str, str]:
    """What samples depend on besides their cell."""
    return protocol.num_samples, protocol.device, protocol.dtype


def _distinct(protocols: Iterable[Protocol]) -> list[Protocol]:
    found: list[Protocol] = []
    for protocol in protocols:
        if protocol not in found:
            found.append(protocol)
    return found


def announce(cell: Cell, index: int, total: int) -> None:
    """Say on standard error which cell is being measured, or was by another process: an `on_cell`."""
    how = cell.sampling
    setting = "" if how.temperature is None else f", temperature {how.temperature}"
    print(f"cell {index + 1} of {total}: {cell.model} at {how.budget}{setting}", file=sys.stderr)


def prepare(cells: Sequence[Cell], protocol: Protocol) -> None:
    """Refuse settings, a judge or a text that cannot be used before anything is sampled; choose the threads."""
    for cell in cells:
        check(cell)
    if cells:
        largest = max((read_config(find_folder(cell.model)) for cell in cells), key=lambda config: config.width)
        use_threads(largest, min(protocol.num_samples, cells[0].sampling.batch_size))
    for model in dict.fromkeys(cell.model for cell in cells):
        protocol.evaluator.prepare(_model(model, protocol), protocol.num_samples)


def check(cell: Cell) -> None:
    """A ValueError if the cell cannot be run, before anything is."""
    sampling = _settled(cell)
    cost = cost_of(cell.model)
    spending_of(sampling, cost)
    rules_of(sampling, cost)


def measure_cell(cell: Cell, protocol: Protocol) -> Row:
    """Sample, judge and count: one row."""
    model, evaluator = _model(cell.model, protocol), protocol.evaluator
    sampling, matched = cell.sampling, None
    if cell.knob:
        tries = partial(_diversity_at, cell, protocol)
        found = match_entropy(tries, cell.entropy, knob=cell.knob, start=cell.search_from)
        sampling = _turned(cell, found.setting)
    out, spent = _samples(cell.model, sampling, protocol.num_samples, protocol.device, protocol.dtype)
    tokens = torch.tensor(out.tokens)
    metrics = evaluator.measure(model, tokens, seed=cell.sampling.seed, labels=out.labels)
    if cell.knob:  # judged by these samples, not by the fewer of the search
        is_met = is_near(evaluator.diversity(tokens), cell.entropy)
        matched = Match(knob=cell.knob, entropy=cell.entropy, is_met=is_met)
    return Row(
        key=key_of(cell, protocol),
        model=cell.model,
        weights=weights_of(cell.model),
        sampling=out.sampling,
        matched=matched,
        iterations=out.iterations,
        block_evals=out.block_evals,
        multiply_adds=spent,
        seconds=out.seconds,
        metrics=metrics,
        per_sample=evaluator.per_sample(model, tokens) if protocol.keeps_samples else {},
        protocol=Measured(
            judge=evaluator.judged_by(),
            judged_by=evaluator.judged_through(model),
            convention=evaluator.convention if evaluator.judged_by() else "",
            num_samples=protocol.num_samples,
            length=model.config.vocabulary.length,
            device=str(model.device),
            dtype=protocol.dtype,
            provenance=dict(provenance()),
        ),
    )


def _diversity_at(cell: Cell, protocol: Protocol, setting: float) -> float:
    """The diversity of a cell's samples with its knob turned to a setting."""
    num = min(SEARCH, protocol.num_samples)
    out, _ = _samples(cell.model, _turned(cell, setting), num, protocol.device, protocol.dtype)
    return protocol.evaluator.diversity(torch.tensor(out.tokens))


def _turned(cell: Cell, setting: float) -> Sampling:
    settings: dict[str, Any] = {cell.knob: setting}
    return replace(cell.sampling, **settings)


class MultiplyAdds:
    """An `on_step` that adds up what the steps cost, logits and iterations only where they were computed.

    Keys and values of a position that comes to rest are not counted.
    """

    def __init__(self, model: Model) -> None:
        self.config, self.total = model.config, 0.0

    def __call__(self, step: Step) -> None:
        length = step.z.shape[1]
        cost, solution = partial(self.config.multiply_adds, length=length), step.solution
        for num_iters, num_positions in zip(solution.num_iters.tolist(), step.places.counts, strict=True):
            self.total += cost(num_iters=num_iters, num_positions=num_positions)
        if solution.updates is not None:  # the last block of the fixed point ran at some positions only
            rested = solution.row_evals - int(solution.updates.sum()) / solution.h.shape[1]
            iteration = cost(num_iters=2, num_positions=0) - cost(num_iters=1, num_positions=0)
            self.total -= rested * iteration / self.config.cost.fp


def key_of(cell: Cell, protocol: Protocol) -> str:
    """What a row depends on, as a hash: model, weights, sampling and how it is measured, not the machine.

    Weights, the settings that a model saves and its first symbol follow from its identity, if the cell tells one.
    """
    settings, judge = protocol.evaluator.key()
    measured = {"num_samples": protocol.num_samples, **settings}
    if protocol.dtype != Protocol.dtype:  # rows of before there was a choice are still known
        measured["dtype"] = protocol.dtype
    if cell.identity:
        by_rule = with_saved_settings({}, cell.sampling)
        parts: list[Any] = ["run", cell.identity, _told(by_rule), measured, judge]
    else:
        if _is_begun(cell.model):  # rows of before the first symbol was given are measured again
            measured["begun"] = True
        parts = [cell.model, weights_of(cell.model), _told(_settled(cell)), measured, judge]
    if cell.knob:
        parts.append([cell.knob, cell.entropy])
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def _told(sampling: Sampling) -> dict[str, Any]:
    """The settings of sampling without those that are younger than old rows, where they have their defaults."""
    found = asdict(sampling)
    return {name: value for name, value in found.items() if name not in SINCE or value != getattr(Sampling, name)}


def _settled(cell: Cell) -> Sampling:
    """The settings of a cell with all that they leave open decided."""
    return with_saved_settings(read_generation(find_folder(cell.model)), cell.sampling, _grid(cell.model))


@lru_cache(maxsize=64)
def _grid(model: str) -> tuple[int, int] | None:
    """The rows and columns that a model fills, if it fills a grid."""
    codec = load_codec(find_folder(model))
    return codec.grid if codec else None


@lru_cache(maxsize=64)
def _is_begun(model: str) -> bool:
    """Whether a model is given the first symbol of its samples."""
    _, data = read_settings(find_folder(model))
    return data is not None and data.is_begun


_loaded = lru_cache(maxsize=2)(load)


def _model(name: str, protocol: Protocol) -> Model:
    return _loaded(name, device=protocol.device, dtype=protocol.dtype)


@lru_cache(maxsize=32)
def _samples(name: str, sampling: Sampling, num: int, device: str, dtype: str) -> tuple[Generated, float]:
    """Samples and the multiply-adds of one, kept for a second judge or a search that ends here."""
    model = _loaded(name, device=device, dtype=dtype)
    spent = MultiplyAdds(model)
    with StepProgress(f"sampling {name}", math.ceil(num / sampling.batch_size)) as shown:

        def on_step(step: Step) -> None:
            spent(step)
            shown(step)

        out = generate(model, num_samples=num, on_step=on_step, **asdict(sampling))
    return out, spent.total / num
