"""The benchmark command: latency, throughput, memory and time per update of any models, side by side in one run."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.table import Table
from torch import nn

from fpmgm.backbones.dit import MDLMConfig, mdlm
from fpmgm.budget import Cost, plan
from fpmgm.checkpoint import DEFAULT, find_folder, read_config
from fpmgm.commands import open_console
from fpmgm.denoiser import Denoiser
from fpmgm.evaluation.cost import multiply_adds
from fpmgm.evaluation.latency import Timing, in_fresh_process, interleave, peak_bytes
from fpmgm.gradients import IterationCounts
from fpmgm.objectives import MaskedCrossEntropy
from fpmgm.provenance import provenance
from fpmgm.randomness import Streams, generator
from fpmgm.recipes import RECIPES
from fpmgm.reuse import no_reuse, three_state_reuse
from fpmgm.sampling import Sampled, even_times, sample
from fpmgm.training.optim import OptimConfig, adamw, set_learning_rate
from fpmgm.transitions import Ancestral


@dataclass(frozen=True, kw_only=True)
class BenchmarkCommand:
    """Time sampling and training of models or recipes, in one run: ratios count, seconds are this machine's."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = (DEFAULT,)
    """Recipes (with random weights), bundled models, model folders, or hub ids."""
    budget: int = 96
    """Block evaluations per sequence."""
    batch_size: int = 4
    length: int = 0
    """Tokens per sequence; 0: each network's own."""
    repeats: int = 5
    train: bool = False
    """Also time an update of the weights."""
    json: bool = False
    """Print one JSON object."""

    def __post_init__(self) -> None:
        for name in ("budget", "batch_size", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")


def run_benchmark(command: BenchmarkCommand) -> None:
    """Print a row a model."""
    rows = benchmark(command)
    if command.json:
        print(json.dumps({"rows": rows, "provenance": provenance()}))
        return
    table = Table(title=f"budget {command.budget}, batch {command.batch_size}, median of {command.repeats} (range)")
    columns = ("model", "block evaluations", "steps", "10^9 multiply-adds", "seconds", "tokens/s", "ratio", "peak MB")
    for column in (*columns, *(("update s", "ratio") if command.train else ())):
        table.add_column(column, justify="left" if column == "model" else "right")
    for row in rows:
        cells = [
            row["name"],
            str(row["block_evals"]),
            str(row["steps"]),
            f"{row['multiply_adds'] * 1e-9:.2f}",
            _spread(row["seconds"]),
            f"{row['tokens_per_second']:.0f}",
            f"{row['ratio']:.2f}",
            f"{row['peak_bytes'] / 1e6:.0f}",
        ]
        if command.train:
            cells += [_spread(row["update_seconds"]), f"{row['update_ratio']:.2f}"]
        table.add_row(*cells)
    open_console().print(table)


def _spread(timing: dict[str, float]) -> str:
    return f"{timing['median']:.2f} ({timing['low']:.2f}-{timing['high']:.2f})"


def benchmark(command: BenchmarkCommand) -> list[dict[str, Any]]:
    """What each network costs; ratios are to the first."""
    configs = {name: config_of(name, command.length) for name in command.names}
    for config in configs.values():
        cost = Cost(config.num_pre, config.num_fp, config.num_post)
        plan(command.budget, cost)  # an infeasible budget is refused before anything is built
    denoisers = {name: random_denoiser(config) for name, config in configs.items()}
    samplers = {
        name: partial(draw, denoiser, command.batch_size, command.budget) for name, denoiser in denoisers.items()
    }
    timings = interleave(samplers, command.repeats)
    updates: dict[str, Timing] = {}
    if command.train:
        pairs = {name: two_updates(denoiser, command.batch_size) for name, denoiser in denoisers.items()}
        updates = {name: timing.over(2) for name, timing in interleave(pairs, command.repeats).items()}
    rows: list[dict[str, Any]] = []
    for name, config in configs.items():
        spending = plan(command.budget, denoisers[name].cost)
        peak = in_fresh_process(__name__, "sampling_memory", name, command.length, command.batch_size, command.budget)
        row = {
            "name": Path(name).name,
            "block_evals": spending.spent,
            "steps": spending.num_steps,
            "multiply_adds": expected_multiply_adds(config, spending.iterations),
            "seconds": timings[name].summary,
            "tokens_per_second": command.batch_size * config.length / timings[name].median,
            "ratio": timings[name].against(timings[command.names[0]]),
            "peak_bytes": peak,
        }
        if updates:
            row["update_seconds"] = updates[name].summary
            row["update_ratio"] = updates[name].against(updates[command.names[0]])
        rows.append(row)
    return rows


def config_of(name: str, length: int = 0) -> MDLMConfig:
    """The network of a recipe or a model, at another length if one is given."""
    config = RECIPES[name].network if name in RECIPES else read_config(find_folder(name))
    if config.is_causal:
        raise ValueError(f"{name} is causal; sampling is timed of masked models")
    return replace(config, length=length or config.length, dropout=0.0)


def random_denoiser(config: MDLMConfig) -> Denoiser:
    """Weights that are nowhere 0: blocks whose gates are 0 would be a special case."""
    denoiser = mdlm(config).eval()
    rng = generator(0)
    with torch.no_grad():
        for module in denoiser.modules():
            if isinstance(module, nn.Linear) and not module.weight.any():
                module.weight.copy_(0.02 * torch.randn(module.weight.shape, generator=rng))
    return denoiser


def draw(denoiser: Denoiser, batch_size: int, budget: int) -> Sampled:
    """Sample from nothing, as `generate` does by default."""
    spending = plan(budget, denoiser.cost)
    return sample(
        denoiser,
        torch.full((batch_size, denoiser.max_length), denoiser.mask_id),
        times=even_times(spending.num_steps),
        iterations=spending.iterations,
        transition=Ancestral(),
        reuse=three_state_reuse if denoiser.cost.fp else no_reuse,
        rng=Streams.of(0, range(batch_size)),
    )


def sampling_memory(name: str, length: int, batch_size: int, budget: int) -> int:
    """Peak memory of sampling over the network itself: to be called in a fresh process."""
    denoiser = random_denoiser(config_of(name, length))
    return peak_bytes(partial(draw, denoiser, batch_size, budget))


class Updater:
    """One update of the weights after another, on random tokens."""

    def __init__(self, denoiser: Denoiser, batch_size: int) -> None:
        self.denoiser = denoiser.train()
        self.optimiser = adamw(denoiser, OptimConfig(lr=1e-4))
        set_learning_rate(self.optimiser, 1e-4)
        shape = (batch_size, denoiser.max_length)
        self.x = torch.randint(0, denoiser.vocab_size - 1, shape, generator=generator(0))

    def __call__(self, num_no_grad: int, num_grad: int) -> None:
        self.gradients(num_no_grad, num_grad)
        nn.utils.clip_grad_norm_(self.denoiser.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad()

    def gradients(self, num_no_grad: int, num_grad: int) -> None:
        counts = IterationCounts(no_grad_min=num_no_grad, no_grad_max=num_no_grad, grad_min=num_grad, grad_max=num_grad)
        MaskedCrossEntropy(counts=counts)(self.denoiser, self.x, rng=generator(0)).total.backward()


def two_updates(denoiser: Denoiser, batch_size: int) -> Callable[[], None]:
    """Two updates whose mean is the mean draw of U(0,4) and U(3,6): 2 iterations without gradients, 4 and 5 with."""
    update = Updater(denoiser, batch_size)

    def run() -> None:
        update(2, 4)
        update(2, 5)

    return run


def expected_multiply_adds(config: MDLMConfig, iterations: tuple[int, ...]) -> float:
    """Of ancestral sampling from nothing, a sequence: a step reveals 1 / steps of the positions, on average."""
    positions = config.length / len(iterations)
    low, high = int(positions), int(positions) + 1
    total = 0.0
    for num_iters in iterations:
        at_low = multiply_adds(config, num_iters=num_iters, num_positions=low)
        at_high = multiply_adds(config, num_iters=num_iters, num_positions=high)
        total += at_low + (positions - low) * (at_high - at_low)
    return total
