"""Benchmarks: latency, throughput, memory and time per update of any models, side by side in one run."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from fpmgm.backbones import NetworkConfig
from fpmgm.budget import plan
from fpmgm.checkpoint import DEFAULT, find_folder, read_config
from fpmgm.denoiser import Denoiser
from fpmgm.devices import OnDevice, device_named, wait_for
from fpmgm.evaluation.latency import Timing, in_fresh_process, interleave, peak_bytes
from fpmgm.evaluation.tables import Column
from fpmgm.experiments.workloads import draw, expected_multiply_adds, random_denoiser, two_updates
from fpmgm.int8 import in_precision
from fpmgm.names import short_names
from fpmgm.recipes import RECIPES
from fpmgm.schema import MAX_BUDGET, MAX_LENGTH, require

MAX_BATCH = 1 << 16
MAX_REPEATS = 10_000


@dataclass(frozen=True, kw_only=True)
class Benchmark(OnDevice):
    """Time sampling and training of models or recipes, in one run: ratios count, seconds are this machine's."""

    names: tuple[str, ...] = (DEFAULT,)
    """Recipes (with random weights), bundled models, model folders, or hub ids."""
    budget: int = 96
    """Block evaluations for each sequence."""
    batch_size: int = 4
    """Sequences in a pass."""
    length: int = 0
    """Tokens of a sequence. With 0, it is each network's own length."""
    repeats: int = 20
    """How often each network is timed. They take turns. The paper times 20 batches."""
    warmups: int = 2
    """Batches before these that are not timed. The paper has 2."""
    train: bool = False
    """Also time an update of the weights."""

    def __post_init__(self) -> None:
        self.check_device()
        require("budget", self.budget, 1, MAX_BUDGET)
        require("batch_size", self.batch_size, 1, MAX_BATCH)
        require("length", self.length, 0, MAX_LENGTH)
        require("repeats", self.repeats, 1, MAX_REPEATS)
        require("warmups", self.warmups, 1, MAX_REPEATS)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What a network costs; ratios are to the first one that was timed with it."""

    name: str
    block_evals: int
    steps: int
    multiply_adds: float
    seconds: Timing
    tokens_per_second: float
    ratio: float
    peak_bytes: int
    update_seconds: Timing | None = None
    update_ratio: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The same as JSON can hold it, without what was not timed."""
        found = {**asdict(self), "seconds": self.seconds.summary}
        if self.update_seconds:
            found["update_seconds"] = self.update_seconds.summary
        return {name: value for name, value in found.items() if value is not None}


def _spread(timing: Timing | None) -> str | None:
    return f"{timing.median:.2f} ({min(timing.rounds):.2f}-{max(timing.rounds):.2f})" if timing else None


COLUMNS = (
    Column(title="model", value=lambda row: row.name),
    Column(title="block evaluations", rank=2, value=lambda row: row.block_evals),
    Column(title="steps", rank=1, value=lambda row: row.steps),
    Column(title="10^9 multiply-adds", rank=3, value=lambda row: row.multiply_adds * 1e-9, digits=2),
    Column(title="seconds", value=lambda row: _spread(row.seconds)),
    Column(title="tokens/s", value=lambda row: row.tokens_per_second, digits=0),
    Column(title="ratio", value=lambda row: row.ratio, digits=2),
    Column(title="peak MB", value=lambda row: row.peak_bytes / 1e6, digits=0),
    Column(title="update seconds", value=lambda row: _spread(row.update_seconds)),
    Column(title="update ratio", value=lambda row: row.update_ratio, digits=2),
)


def benchmark(asked: Benchmark) -> list[Timed]:
    """What each network costs; ratios are to the first."""
    configs = {name: config_of(name, asked.length) for name in asked.names}
    for config in configs.values():
        plan(asked.budget, config.cost)  # an infeasible budget is refused before anything is built
    device = device_named(asked.device)
    denoisers = {name: in_precision(random_denoiser(config), device, asked.dtype) for name, config in configs.items()}
    samplers = {
        name: partial(_finished, draw, each, asked.batch_size, asked.budget) for name, each in denoisers.items()
    }
    timings = interleave(samplers, asked.repeats, warmups=asked.warmups)
    updates: dict[str, Timing] = {}
    if asked.train:
        pairs = {
            name: partial(_finished, lambda _, update: update(), each, two_updates(each, asked.batch_size))
            for name, each in denoisers.items()
        }
        timed = interleave(pairs, asked.repeats, warmups=asked.warmups)
        updates = {name: timing.over(2) for name, timing in timed.items()}
    rows = []
    names = short_names(asked.names)
    for name, config in configs.items():
        spending = plan(asked.budget, denoisers[name].cost)
        settings = (name, asked.length, asked.batch_size, asked.budget, asked.device, asked.dtype)
        peak = in_fresh_process(__name__, "sampling_memory", *settings)
        row = Timed(
            name=names[name],
            block_evals=spending.spent,
            steps=spending.num_steps,
            multiply_adds=expected_multiply_adds(config, spending.iterations),
            seconds=timings[name],
            tokens_per_second=asked.batch_size * config.vocabulary.length / timings[name].median,
            ratio=timings[name].against(timings[asked.names[0]]),
            peak_bytes=peak,
            update_seconds=updates.get(name),
            update_ratio=updates[name].against(updates[asked.names[0]]) if updates else None,
        )
        rows.append(row)
    return rows


def config_of(name: str, length: int = 0) -> NetworkConfig:
    """The network of a recipe or a model, at another length if one is given."""
    config = RECIPES[name].network if name in RECIPES else read_config(find_folder(name))
    if config.is_causal:
        raise ValueError(f"{name} is causal; sampling is timed of masked models")
    return config.for_timing(length or config.vocabulary.length)


def sampling_memory(name: str, length: int, batch_size: int, budget: int, device: str, dtype: str) -> int:
    """Peak memory of sampling over the network itself: to be called in a fresh process. Of a GPU, its own memory."""
    place = device_named(device)
    denoiser = in_precision(random_denoiser(config_of(name, length)), place, dtype)
    if place.type != "cuda":
        return peak_bytes(partial(draw, denoiser, batch_size, budget))
    before = torch.cuda.memory_allocated(place)
    torch.cuda.reset_peak_memory_stats(place)
    draw(denoiser, batch_size, budget)
    return torch.cuda.max_memory_allocated(place) - before


def _finished(call: Callable[..., object], denoiser: Denoiser, *given: Any) -> None:
    """Do it, and wait until the device has done it."""
    call(denoiser, *given)
    wait_for(next(denoiser.parameters()).device)
