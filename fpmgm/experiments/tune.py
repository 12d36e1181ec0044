"""The paper's staged tuning: one thing at a time, the best of each stage kept, and ranges widened at their ends.

A base recipe has three stages: blocks before and after the fixed point, solver iterations, and learning rate, each by
validation. A stage of consistency has the weight, the temperature (of KL) and the gap, each by the quality of samples.
"""

import hashlib
import json
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fpmgm.cluster import OnWorkers, Workers
from fpmgm.devices import device_named
from fpmgm.evaluation.cells import Cell
from fpmgm.evaluation.chosen import chosen_evaluator
from fpmgm.evaluation.rows import append, read_lines
from fpmgm.evaluation.sweep import Protocol, run_sweep
from fpmgm.evaluation.tables import Column, markdown
from fpmgm.experiments.costs import base_of
from fpmgm.files import write_json, write_text
from fpmgm.generation import Sampling
from fpmgm.gradients import IterationCounts
from fpmgm.names import choose, slug
from fpmgm.post_training.consistency import Consistency
from fpmgm.provenance import provenance
from fpmgm.recipes import RECIPES
from fpmgm.schema import require
from fpmgm.training.config import Training
from fpmgm.training.folder import settings_of
from fpmgm.training.loop import train
from fpmgm.training.metrics import read_metrics

RESULTS, SAMPLES, PAGE, CHOSEN = "tune.jsonl", "samples.jsonl", "README.md", "chosen.json"
BY_MACHINE = ("out", "device", "trackers", "micro_batch_size")
"""Settings that change no result."""
COUNTS = ((0, 2, 1, 3), (0, 3, 2, 4), (0, 4, 3, 6), (0, 6, 4, 8), (0, 8, 6, 12))
"""Iterations without and with gradients, from fewest to most: those of the paper's table, and two beyond."""
MOST_BLOCKS = 8
AT_END = " It still lies at an end of its range after {} rounds of widening, so a better value may lie beyond."


@dataclass(frozen=True, kw_only=True)
class Tuning(OnWorkers):
    """Tune a recipe in stages. Started again, it goes on where it was stopped. Workers share the tries of a stage."""

    recipe: str
    training: Training
    """The recipe with its changes: what every try starts from."""
    updates: int = 0
    """Updates of a try. With 0, they are the recipe's. The paper cuts full runs to a tenth."""
    out: str = ""
    """The folder of the results and the page. If it is empty, it is results/tune/ and the recipe's name."""
    runs: str = "runs/tune"
    """The folder of the run folders."""
    widen: int = 3
    """How often the range of a stage is widened at most, while its best value lies at an end."""
    budget: int = 96
    """For stages of consistency: block evaluations of a sample."""
    num_samples: int = 128
    """For stages of consistency: samples of a try."""
    judge: str = "auto"
    """For stages of consistency: who judges samples, as in `evaluate`."""
    device: str = "auto"
    """Where samples are drawn: cpu, cuda, cuda:1 or mps. With auto, it is chosen."""
    seed: int = 0
    """The seed of training and of samples."""

    def __post_init__(self) -> None:
        choose("recipe", self.recipe, RECIPES)
        device_named(self.device)
        self.check_workers()
        for name, least in (("updates", 0), ("widen", 0), ("budget", 1), ("seed", 0)):
            require(name, getattr(self, name), least)
        if not axes_of(self.training):
            raise ValueError(
                f"{self.recipe} has no fixed point and no consistency, which the protocol tunes; give one that has, "
                "such as owt"
            )
        Protocol(num_samples=self.num_samples)

    @property
    def folder(self) -> Path:
        """Where results are."""
        return Path(self.out or f"results/tune/{self.recipe}")


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What a stage varies: values in order, and how to go on beyond both ends."""

    name: str
    values: tuple[Any, ...]
    apply: Callable[[Training, Any], Training]
    below: Callable[[Any], Any]
    """The next value below; None if there is none."""
    above: Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Try:
    """What a value of a stage gave."""

    key: str
    stage: str
    value: str
    score: float | None
    """The lower the better; None if the loss went bad and the run ended."""
    error: float
    """One standard error of a validation, or half the 95 % interval of samples."""
    validation: float | None
    updates: int
    seconds: float
    """Of all updates."""


class Best(NamedTuple):
    """What a stage found."""

    value: Any
    tries: list[Try]
    """Of all values, in their order."""
    is_at_end: bool
    """Whether better values may lie beyond the range, which was not widened further."""


def axes_of(config: Training) -> tuple[Axis, ...]:
    """The stages of a recipe, in the paper's order."""
    objective = config.objective
    if isinstance(objective, Consistency):
        kl = (_numbers("temperature", objective.temperature, 1.5),) if objective.distance in ("kl", "kl-bwd") else ()
        return (_numbers("weight", objective.weight, 10**0.5), *kl, _gaps(objective))
    if not config.network.cost.fp:
        return ()
    return (_blocks(config), _counts(config), _rates(config))


def _blocks(config: Training) -> Axis:
    """As many blocks before the fixed point as after it."""

    def apply(config: Training, num: int) -> Training:
        model: Any = config.model  # of any kind that has a fixed point
        return replace(config, model=replace(model, num_pre=num, num_post=num))

    own = config.network.cost.pre
    return Axis(
        name="blocks before and after",
        values=tuple(sorted({1, 2, own})),
        apply=apply,
        below=lambda num: num - 1 if num > 1 else None,
        above=lambda num: num + 1 if num < MOST_BLOCKS else None,
    )


def _counts(config: Training) -> Axis:
    own = asdict(base_of(config).iterations)
    known = sorted({*COUNTS, tuple(own.values())}, key=lambda counts: (sum(counts), counts))

    def apply(config: Training, counts: tuple[int, int, int, int]) -> Training:
        settings = IterationCounts(**dict(zip(own, counts, strict=True)))
        return replace(config, objective=replace(base_of(config), iterations=settings))

    def beside(counts: tuple[int, ...], step: int) -> tuple[int, ...] | None:
        place = known.index(counts) + step
        return known[place] if 0 <= place < len(known) else None

    place = known.index(tuple(own.values()))
    return Axis(
        name="iterations without and with gradients",
        values=tuple(known[max(place - 1, 0) : place + 2]),
        apply=apply,
        below=lambda counts: beside(counts, -1),
        above=lambda counts: beside(counts, 1),
    )


def _rates(config: Training) -> Axis:
    own = config.optim.lr

    def apply(config: Training, rate: float) -> Training:
        return replace(config, optim=replace(config.optim, lr=rate))

    return Axis(
        name="learning rate",
        values=(own / 2, own, own * 2),
        apply=apply,
        below=lambda rate: rate / 2,
        above=lambda rate: rate * 2,
    )


def _numbers(name: str, own: float, factor: float) -> Axis:
    """A number of the consistency, on a logarithmic grid."""

    def apply(config: Training, value: float) -> Training:
        objective: Any = config.objective
        return replace(config, objective=replace(objective, **{name: value}))

    return Axis(
        name=name,
        values=(_short(own / factor), own, _short(own * factor)),
        apply=apply,
        below=lambda value: _short(value / factor),
        above=lambda value: _short(value * factor),
    )


def _gaps(objective: Consistency) -> Axis:
    low, high = objective.gap_min, objective.gap_max

    def apply(config: Training, value: float) -> Training:
        own: Any = config.objective
        return replace(config, objective=replace(own, gap_max=value))

    return Axis(
        name=f"largest gap, from {low:g} on",
        values=tuple(sorted({max(low, _short(high / 2)), high, min(1.0, _short(high * 2))})),
        apply=apply,
        below=lambda value: _short(value / 2) if value / 2 >= low else None,
        above=lambda value: _short(value * 2) if value * 2 <= 1 else None,
    )


def _short(value: float) -> float:
    """Without digits that nobody would type."""
    return float(f"{value:.3g}")


def tune(asked: Tuning) -> Path:
    """Run every stage, each from the best of those before it; returns the page."""
    config = replace(asked.training, seed=asked.seed, updates=asked.updates or asked.training.updates)
    tries: list[Try] = []
    chosen: dict[str, str] = {}
    with asked.open_workers(asked.device) as workers:
        for axis in axes_of(config):
            best = _best(axis, config, asked, workers)
            config = axis.apply(config, best.value)
            tries += best.tries
            chosen[axis.name] = f"{_told(best.value)}.{AT_END.format(asked.widen) if best.is_at_end else ''}"
            _write(asked, tries, chosen, config)
    return asked.folder / PAGE


def _best(axis: Axis, config: Training, asked: Tuning, workers: Workers) -> Best:
    """The best value of a stage and all that were tried; the range is widened while the best is at an end."""
    values = list(axis.values)
    for widened in range(asked.widen + 1):
        found = _tried(axis, values, config, asked, workers)
        place = min(range(len(values)), key=lambda index: _rank(found[index]))
        below = axis.below(values[0]) if place == 0 else None
        above = axis.above(values[-1]) if place == len(values) - 1 else None
        is_at_end = below is not None or above is not None
        if widened == asked.widen or not is_at_end:
            break
        values = [*([below] if below is not None else []), *values, *([above] if above is not None else [])]
    return Best(values[place], found, is_at_end)


def _rank(found: Try) -> float:
    return float("inf") if found.score is None else found.score


def _tried(axis: Axis, values: Sequence[Any], config: Training, asked: Tuning, workers: Workers) -> list[Try]:
    """The tries of a stage, from the file of results if they are there; workers share the others."""
    file = asked.folder / RESULTS
    known = {line.get("key"): line for line in read_lines(file)}
    found = {
        key: Try(**{name: line[name] for name in Try.__dataclass_fields__} | {"stage": axis.name})
        for key, line in known.items()
    }
    keys = [_key(axis.apply(config, value), asked) for value in values]
    work = {
        f"{axis.name} {_told(value)}": partial(_try, axis.name, _told(value), axis.apply(config, value), asked, key)
        for key, value in zip(keys, values, strict=True)
        if key not in found
    }

    def keep(_: str, done: Try) -> None:
        found[done.key] = done
        append(file, {**asdict(done), **provenance()})

    workers.run(work, "tries", on_turn=lambda name: print(name, file=sys.stderr), on_done=keep)
    return [found[key] for key in keys]


def _try(stage: str, value: str, config: Training, asked: Tuning, key: str) -> Try:
    """Train and measure in a folder of its own; a worker may do it."""
    run = Path(asked.runs) / asked.recipe / f"{slug(stage)}-{slug(value)}-{key[:8]}"
    return _measured(replace(config, out=str(run)), asked, key=key, stage=stage, value=value)


def _key(config: Training, asked: Tuning) -> str:
    """What a try depends on, as a hash."""
    settings = {name: value for name, value in settings_of(config).items() if name not in BY_MACHINE}
    judged = [asked.budget, asked.num_samples, asked.judge] if isinstance(config.objective, Consistency) else []
    return hashlib.sha256(json.dumps([settings, judged], sort_keys=True, default=str).encode()).hexdigest()[:24]


def _measured(config: Training, asked: Tuning, *, key: str, stage: str, value: str) -> Try:
    """Train, or go on training, and measure."""
    run = Path(config.out)
    try:
        model = train(config, asked.recipe, RECIPES[asked.recipe], card_samples=1)
    except FloatingPointError:  # the loss went bad, as it does at too high a rate
        rows = read_metrics(run)
        return Try(key=key, stage=stage, value=value, score=None, error=0.0, validation=None, **_spent(rows))
    rows = read_metrics(run)
    validation = float(rows[-1]["validation"])
    score, error = validation, float(rows[-1]["validation_error"])
    if isinstance(config.objective, Consistency):
        score, error = _of_samples(str(model), asked)
    return Try(key=key, stage=stage, value=value, score=score, error=error, validation=validation, **_spent(rows))


def _spent(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"updates": len(rows), "seconds": round(sum(row["seconds"] for row in rows), 1)}


def _of_samples(model: str, asked: Tuning) -> tuple[float, float]:
    """The primary metric of samples, as a number that is the lower the better, and half its interval."""
    evaluator = chosen_evaluator([model], judge=asked.judge, device=asked.device)
    protocol = Protocol(num_samples=asked.num_samples, evaluator=evaluator, device=asked.device)
    cell = Cell(model=model, sampling=Sampling(budget=asked.budget, seed=asked.seed))
    [row] = run_sweep([cell], protocol, asked.folder / SAMPLES)
    found = row.metrics[evaluator.primary.name]
    sign = 1 if evaluator.primary.best == "lowest" else -1
    return sign * found.value, (found.high - found.low) / 2


def _told(value: Any) -> str:
    """A value as the page has it."""
    if isinstance(value, tuple):
        return f"U({value[0]},{value[1]}) U({value[2]},{value[3]})"
    return f"{value:g}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _command(asked: Tuning, config: Training) -> str:
    """What makes the page again, with all that differs from the recipe."""
    usual = settings_of(RECIPES[asked.recipe])
    words = [f"fpmgm tune {asked.recipe} --updates {config.updates} --widen {asked.widen} --seed {asked.seed}"]
    if isinstance(config.objective, Consistency):
        words.append(f"--budget {asked.budget} --num-samples {asked.num_samples} --judge {asked.judge}")
    words += [
        f"--training.{name.replace('_', '-')} {value}"
        for name, value in settings_of(asked.training).items()
        if name not in (*BY_MACHINE, "updates", "seed") and usual.get(name) != value
    ]
    return " ".join(words)


def _write(asked: Tuning, tries: Sequence[Try], chosen: dict[str, str], config: Training) -> None:
    """The page, and the settings of what was chosen."""
    by_samples = isinstance(config.objective, Consistency)
    score = f"samples at {asked.budget} blocks" if by_samples else "validation"
    columns = (
        Column(title="value", value=lambda each: each.value),
        Column(title=score, digits=3, value=lambda each: "the loss went bad" if each.score is None else each.score),
        Column(title="give or take", digits=3, value=lambda each: each.error),
        Column(title="validation", digits=2, value=lambda each: each.validation),
        Column(title="seconds", digits=0, value=lambda each: each.seconds),
    )
    made = provenance()
    parts = [
        f"# Tuning {asked.recipe}",
        "    " + " \\\n        ".join(textwrap.wrap(_command(asked, config), 100, break_on_hyphens=False)),
        f"Commit {made['commit']}, {made['hardware']}. Each stage starts from the best of those before it, and the "
        f"lowest score is kept. A range whose best value lies at an end was widened, at most {_times(asked.widen)}. "
        "There is one seed, so differences within the errors are chance. The settings that were kept lie in "
        "`chosen.json` beside this page, and all tries in `tune.jsonl`.",
    ]
    for name, value in chosen.items():
        own = [each for each in tries if each.stage == name]
        parts.append(f"## {name.capitalize()}\n\nKept: {value}\n\n{markdown(own, columns)}")
    write_text(asked.folder / PAGE, "\n\n".join(parts) + "\n")
    write_json(asked.folder / CHOSEN, settings_of(replace(config, out="")))
