"""Frontiers as one call: models are swept over temperatures, compared in pairs, and set beside real text."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from fpmgm.checkpoint import DEFAULT, Model
from fpmgm.evaluation.cells import Cell
from fpmgm.evaluation.chosen import chosen_evaluator
from fpmgm.evaluation.evaluator import Evaluator
from fpmgm.evaluation.frontier import Frontier
from fpmgm.evaluation.frontier_asked import TEMPERATURES, Frontiers, check_alike
from fpmgm.evaluation.frontier_found import Found, check_meeting, compared, real_text
from fpmgm.evaluation.frontier_page import write_page
from fpmgm.evaluation.rows import Row, append_row, read_rows
from fpmgm.evaluation.sweep import Protocol, key_of, prepare, run_sweep
from fpmgm.generation import generate
from fpmgm.names import check_names
from fpmgm.progress import tracked

ROWS, REAL = "frontier.jsonl", "real.jsonl"
"""Files in which a frontier keeps what it measured."""


def frontier(
    models: str | Sequence[str] = DEFAULT,
    *,
    on_cell: Callable[[Cell, int, int], None] | None = None,
    **settings: Any,
) -> Found:
    """Compare models at equal entropy; settings are the fields of `Frontiers`.

    `on_cell` is called with each cell that is about to be sampled.
    """
    check_names("setting", settings, Frontiers)
    names = (models,) if isinstance(models, str) else tuple(models)
    return run_frontiers(Frontiers(models=names, **settings), on_cell=on_cell)


def run_frontiers(
    asked: Frontiers,
    *,
    on_cell: Callable[[Cell, int, int], None] | None = None,
    known: Sequence[tuple[Cell, Row]] = (),
    must_meet: bool = True,
) -> Found:
    """Measure what is missing, compare every pair, and write the page if there is a folder for it.

    `known` are cells that were measured elsewhere: a point of the same samples is not measured again. With `must_meet`,
    it is a ValueError if no two frontiers share any entropy.
    """
    models = [model for line in asked.lines for model in line.models]
    check_alike(models)
    evaluator = chosen_evaluator(models, judge=asked.judge, device=asked.device, convention=asked.convention)
    protocol = Protocol(
        num_samples=asked.num_samples,
        evaluator=evaluator,
        device=asked.device,
        dtype=asked.compute,
        keeps_samples=True,
    )
    cells = asked.cells()
    with TemporaryDirectory() as scratch, asked.open_workers(asked.device) as workers:
        prepare(cells, protocol)  # what is wrong with settings or judge is said before anything is sampled
        folder = Path(asked.out or scratch)
        real = real_text(asked, models[0], evaluator, folder / REAL) if asked.data else None
        _take_over(known, cells, protocol, folder / ROWS)
        rows = run_sweep(cells, protocol, folder / ROWS, on_cell=on_cell, workers=workers)
    found = compared(asked, rows, real)
    if must_meet:
        check_meeting(found)
    return replace(found, files=tuple(write_page(found, Path(asked.out)))) if asked.out else found


def _take_over(known: Sequence[tuple[Cell, Row]], cells: Sequence[Cell], protocol: Protocol, file: Path) -> None:
    """Add the rows that are wanted and were measured elsewhere to a file, unless it has them."""
    wanted = {key_of(cell, protocol) for cell in cells} - {row.key for row in read_rows(file)}
    for cell, row in known:
        key = key_of(cell, protocol)
        if key in wanted and row.per_sample:
            append_row(file, replace(row, key=key))


def sampled_frontier(
    model: Model,
    evaluator: Evaluator,
    *,
    budget: int,
    temperatures: Sequence[float] = TEMPERATURES,
    num_samples: int = 64,
    seed: int = 0,
    **settings: Any,
) -> Frontier:
    """The frontier of a model in memory, such as one in training; settings are fields of `Sampling`.

    Nothing is kept. Two of them with the same seed and number of samples are a pair for `compare`.
    """
    found = []
    for temperature in tracked(temperatures, "sampling a frontier"):
        out = generate(model, num_samples=num_samples, budget=budget, temperature=temperature, seed=seed, **settings)
        found.append(evaluator.per_sample(model, torch.tensor(out.tokens)))
    nats, entropy = ([np.array(each[name], float) for each in found] for name in ("nats", "entropy"))
    return Frontier.of(nats, entropy, budget=budget)
