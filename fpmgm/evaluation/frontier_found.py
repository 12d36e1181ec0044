"""What frontiers show: points, pairs, and real text beside them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from fpmgm.checkpoint import Model, load
from fpmgm.evaluation.evaluator import Evaluator
from fpmgm.evaluation.frontier import NARROWEST, Frontier, Pair, compare
from fpmgm.evaluation.frontier_asked import Frontiers
from fpmgm.evaluation.held_out import measured_data, own_name
from fpmgm.evaluation.intervals import Interval
from fpmgm.evaluation.rows import Row, append, as_json, read_lines

BAND = (0.05, 0.95)
"""Entropies of real text: between these quantiles of its sequences."""


@dataclass(frozen=True, kw_only=True)
class RealText:
    """Text that people, or a source, have written, measured as samples are."""

    words: str
    """What it is."""
    num_sequences: int
    metrics: dict[str, Interval]
    band: tuple[float, float]
    """The unigram entropies that 5 % of its sequences, and that 95 % of them, lie below."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of a frontier, all its seeds together."""

    model: str
    budget: int
    knob: str
    setting: float
    metrics: dict[str, Interval]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What frontiers showed."""

    asked: Frontiers = field(repr=False)
    pairs: tuple[Pair, ...]
    """Each frontier against each other one at each budget, from both sides: first those of the models in the order that
    they were given in, then the others."""
    points: tuple[Point, ...]
    rows: tuple[Row, ...]
    """By model, budget, seed and setting."""
    real: RealText | None
    files: tuple[Path, ...] = ()

    @property
    def shown(self) -> tuple[Pair, ...]:
        """Each pair once."""
        return self.pairs[: len(self.pairs) // 2]

    @property
    def judge(self) -> str:
        """Who judged, and what of the samples."""
        protocol = self.rows[0].protocol
        return f"{protocol.judge} (reads {protocol.judged_by})" if protocol.judged_by else protocol.judge

    def as_json(self) -> dict[str, Any]:
        """The same as JSON can hold it; what was measured of each sample stays in the file of rows."""
        return {
            "pairs": [_rounded(asdict(pair)) for pair in self.pairs],
            "judge": self.rows[0].protocol.judge,
            "judged_by": self.rows[0].protocol.judged_by,
            "convention": self.rows[0].protocol.convention,
            "dtype": self.asked.dtype,
            "compute": self.asked.compute,
            "num_samples": self.asked.num_samples,
            "seeds": list(self.asked.seeds),
            "real": None if self.real is None else asdict(self.real),
            "points": [asdict(point) for point in self.points],
            "rows": [as_json(replace(row, per_sample={})) for row in self.rows],
            "files": [str(file) for file in self.files],
        }


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    """Numbers without their last digits, in which the order of sums shows."""

    def short(value: Any) -> Any:
        if isinstance(value, tuple):
            return [short(each) for each in value]
        return float(f"{value:.9g}") if isinstance(value, float) else value

    return {name: short(value) for name, value in values.items()}


def real_text(asked: Frontiers, name: str, evaluator: Evaluator, file: Path) -> RealText:
    """Real text in a model's symbols, as many sequences as a point has samples; measured once."""
    model = load(name, device=asked.device)
    key = _real_key(asked, model, evaluator)
    for line in read_lines(file):
        if line.get("key") == key:
            return _real_of(line)
    data, words = measured_data(model, asked.data, asked.split)
    tokens = data.measured(asked.num_samples).x
    entropies = [each for each in evaluator.per_sample(model, tokens)["entropy"] if each is not None]
    low, high = np.quantile(entropies, BAND)
    found = RealText(
        words=words,
        num_sequences=len(tokens),
        metrics=evaluator.measure(model, tokens, seed=0),
        band=(float(low), float(high)),
    )
    append(file, {"key": key, **asdict(found)})
    return found


def _real_key(asked: Frontiers, model: Model, evaluator: Evaluator) -> str:
    config: Any = model.data
    own = None if config is None else asdict(config)
    codec = "" if model.codec is None else json.dumps({name: str(text) for name, text in model.codec.files.items()})
    parts = [own_name(model, asked.data), asked.split, own, codec, model.config.vocabulary.length, asked.num_samples]
    text = json.dumps([parts, evaluator.key()], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _real_of(line: Mapping[str, Any]) -> RealText:
    metrics = {name: Interval(**values) for name, values in line["metrics"].items()}
    low, high = line["band"]
    return RealText(words=line["words"], num_sequences=line["num_sequences"], metrics=metrics, band=(low, high))


def compared(asked: Frontiers, rows: Sequence[Row], real: RealText | None) -> Found:
    """Every pair of frontiers at every budget."""
    lines = _by_line(asked, rows)
    found = [
        compare(ours, theirs, band=real.band if real else None)
        for budget in asked.budgets
        for ours, theirs in combinations((lines[line.name, budget] for line in asked.lines), 2)
    ]
    return Found(
        asked=asked,
        pairs=(*found, *(pair.turned() for pair in found)),
        points=tuple(_points(asked, rows)),
        rows=tuple(rows),
        real=real,
    )


def check_meeting(found: Found) -> None:
    """A ValueError with both ranges if there are pairs, and no two frontiers share any entropy."""
    if found.pairs and all(pair.ratio is None for pair in found.pairs):
        raise ValueError(
            f"no two frontiers share {NARROWEST} nats of entropy or more: {apart(found.pairs[0])}; give more "
            "--temperatures"
        )


def apart(pair: Pair) -> str:
    """The entropies of two frontiers, in words."""
    (low, high), (other_low, other_high) = pair.entropies, pair.against_entropies
    return (
        f"at {pair.budget} blocks {pair.model} has {low:.2f} to {high:.2f} and {pair.against} {other_low:.2f} to "
        f"{other_high:.2f}"
    )


def _by_line(asked: Frontiers, rows: Sequence[Row]) -> dict[tuple[str, int], Frontier]:
    """The frontier of each line at each budget, from rows in the order of the cells."""
    shape = (len(asked.lines), len(asked.budgets), len(asked.seeds), len(asked.settings), -1)
    nats, entropy = (
        np.array([row.per_sample[name] for row in rows], float).reshape(shape) for name in ("nats", "entropy")
    )
    return {
        (line.name, budget): Frontier(
            model=line.name, budget=budget, nats=nats[i, j], entropy=entropy[i, j], has_runs=len(line.models) > 1
        )
        for i, line in enumerate(asked.lines)
        for j, budget in enumerate(asked.budgets)
    }


def _points(asked: Frontiers, rows: Sequence[Row]) -> list[Point]:
    num_seeds, num_settings = len(asked.seeds), len(asked.settings)
    found = []
    for index, (line, budget) in enumerate((line, budget) for line in asked.lines for budget in asked.budgets):
        own = rows[index * num_seeds * num_settings : (index + 1) * num_seeds * num_settings]
        for place, setting in enumerate(asked.settings):
            metrics = [row.metrics for row in own[place::num_settings]]
            found.append(
                Point(
                    model=line.name,
                    budget=budget,
                    knob=asked.knob,
                    setting=setting,
                    metrics={name: _pooled(name, [each[name] for each in metrics]) for name in _common(metrics)},
                )
            )
    return found


def _pooled(name: str, seeds: Sequence[Interval]) -> Interval:
    """The mean of seeds, perplexities as logarithms; what they are off adds up as that of independent samples does."""
    if len(seeds) == 1:
        return seeds[0]
    parts = np.array([[each.low, each.value, each.high] for each in seeds])
    is_log = name.startswith("perplexity")
    low, value, high = (np.log(parts) if is_log else parts).T
    mean = value.mean()
    below, above = (np.sqrt(np.square(end - value).sum()) / len(seeds) for end in (low, high))
    ends = (mean, mean - below, mean + above)
    value, low, high = map(float, np.exp(ends) if is_log else ends)
    return Interval(value=value, low=low, high=high)


def _common(metrics: Sequence[Mapping[str, Interval]]) -> list[str]:
    """The metrics that all seeds of a point have; rows of an earlier version may lack some."""
    return [name for name in metrics[0] if all(name in each for each in metrics)]
