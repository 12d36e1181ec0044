"""The frontier of a run as it goes on: its best model is kept, and the run ends when it has not got better for long.

The validation perplexity does not tell when a stage for few steps is at its best: it rises from the first update on.
"""

import copy
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fpmgm.checkpoint import Model
from fpmgm.devices import DtypeName, dtype_named
from fpmgm.draws import Draw
from fpmgm.evaluation.evaluator import evaluator_for
from fpmgm.evaluation.frontier import Frontier, compare
from fpmgm.evaluation.frontiers import sampled_frontier
from fpmgm.evaluation.judges import judge_named
from fpmgm.evaluation.rows import read_lines
from fpmgm.files import append_line, flush, write_text
from fpmgm.int8 import in_precision
from fpmgm.schema import MAX_SAMPLES, require

MEASURED = "watched.jsonl"
FOLDER = "watched"


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Measure the frontier of a run beside that of its start, on seeds of their own."""

    every: int = 0
    """Updates between measurements. With 0, there are none, and the model of the last update is kept."""
    budgets: tuple[int, ...] = (24, 96)
    """The budgets to sample at, in block evaluations."""
    temperatures: tuple[float, ...] = (0.8, 0.9, 1.0, 1.1)
    """The temperatures to sample at."""
    num_samples: int = 64
    """Samples at each budget and temperature."""
    judge: str = ""
    """Who judges the samples, as in `evaluate`."""
    compute: DtypeName = "float32"
    """The precision that the network is sampled in. bfloat16 is faster on processors that have it."""
    seed: int = 1000
    """The seed of these samples. Results are measured with other seeds."""
    patience: int = 3
    """The run ends after so many measurements that are no better than the best."""

    def __post_init__(self) -> None:
        require("watch.every", self.every, 0)
        dtype_named(self.compute)
        require("watch.patience", self.patience, 1)
        require("watch.num_samples", self.num_samples, 2, MAX_SAMPLES)
        require("watch.seed", self.seed, 0)
        for temperature in self.temperatures:
            Draw(temperature=temperature)
        if len(set(self.temperatures)) < len(self.temperatures):
            raise ValueError(f"watch.temperatures are {self.temperatures}; give each of them once")
        if self.every and not self.judge:
            raise ValueError("watch.every is set, and there is no watch.judge to measure a frontier with; name one")
        if self.every and (not self.budgets or len(self.temperatures) < 2):
            raise ValueError(
                "a frontier needs a budget and two temperatures; give watch.budgets and watch.temperatures"
            )


class Watched:
    """What was measured of a run; each measurement is a line of a file, and samples' numbers lie beside it."""

    def __init__(self, watch: Watch, folder: Path) -> None:
        self.watch, self.folder = watch, folder

    def is_due(self, update: int) -> bool:
        return bool(self.watch.every) and update % self.watch.every == 0

    def keep(self, done: int) -> None:
        """Drop what was measured after `done` updates, from which the run goes on."""
        kept = [row for row in self._rows() if row["update"] <= done]
        if self._file.exists():
            write_text(self._file, "".join(json.dumps(row) + "\n" for row in kept))

    def measure(self, model: Model, update: int) -> float:
        """The log of the ratio of generative perplexities to the start's at equal entropy, mean over budgets.

        A frontier that shares no entropy with the start's has nan.
        """
        frontiers = self._sampled(model)
        self._write(update, frontiers)
        ratios: list[float | None] = [1.0] * len(frontiers)
        if update:
            pairs = zip(frontiers, self._read(0), strict=True)
            ratios = [compare(ours, theirs, num_resamples=100).ratio for ours, theirs in pairs]
        score = float(np.mean([math.nan if ratio is None else math.log(ratio) for ratio in ratios]))
        budgets = map(str, self.watch.budgets)
        row = {
            "update": update,
            "score": None if math.isnan(score) else score,
            "ratios": dict(zip(budgets, ratios, strict=True)),
        }
        append_line(self._file, json.dumps(row))
        flush(self._file)
        return score

    def best(self) -> int | None:
        """The update whose frontier is the lowest; None if nothing was measured."""
        scores = {row["update"]: row["score"] for row in self._rows() if row["score"] is not None}
        return min(scores, key=lambda update: scores[update]) if scores else None

    def is_over(self) -> bool:
        """Whether the last measurements, as many as the patience, were no better than the best."""
        best, updates = self.best(), [row["update"] for row in self._rows()]
        return best is not None and sum(update > best for update in updates) >= self.watch.patience

    @property
    def _file(self) -> Path:
        return self.folder / MEASURED

    def _rows(self) -> list[dict[str, Any]]:
        return read_lines(self._file) if self.watch.every else []

    def _sampled(self, model: Model) -> list[Frontier]:
        watch = self.watch
        evaluator = evaluator_for("text", judge=judge_named(watch.judge), device=str(model.device))
        if watch.compute != "float32":
            copied = in_precision(copy.deepcopy(model.denoiser), model.device, watch.compute)
            model = replace(model, denoiser=copied)
        settings: dict[str, Any] = {"temperatures": watch.temperatures, "num_samples": watch.num_samples}
        return [sampled_frontier(model, evaluator, budget=b, seed=watch.seed, **settings) for b in watch.budgets]

    def _write(self, update: int, frontiers: list[Frontier]) -> None:
        (self.folder / FOLDER).mkdir(exist_ok=True)
        arrays = {f"{name}-{f.budget}": getattr(f, name) for f in frontiers for name in ("nats", "entropy")}
        np.savez(self.folder / FOLDER / f"update-{update:08d}.npz", **arrays)

    def _read(self, update: int) -> list[Frontier]:
        found = np.load(self.folder / FOLDER / f"update-{update:08d}.npz")
        return [Frontier(budget=b, nats=found[f"nats-{b}"], entropy=found[f"entropy-{b}"]) for b in self.watch.budgets]
