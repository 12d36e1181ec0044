"""How long updates of several configurations take: timed in turns, so that what slows the machine hits all of them.

Seconds that runs note of their own updates do not compare if other work ran beside some of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fpmgm.evaluation.latency import interleave
from fpmgm.experiments.workloads import Updater
from fpmgm.gradients import IterationCounts
from fpmgm.training.config import Training
from fpmgm.training.sharding import mixed_precision

REPEATS = 5
NUM_DRAWS = 2


def update_seconds(configs: Mapping[str, Training], repeats: int = REPEATS) -> dict[str, float]:
    """Seconds of an update of each, on one thread, with its own network, objective and optimiser.

    An update that starts warm with some probability takes the mean of both kinds.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        contestants = {
            f"{name} {share}": _updates(config, share) for name, config in configs.items() for share in _shares(config)
        }
        timings = interleave(contestants, repeats)
    finally:
        torch.set_num_threads(num_threads)
    found = {}
    for name, config in configs.items():
        warm = getattr(config.objective, "warm_start", 0.0)
        cold, *rest = (timings[f"{name} {share}"].median / NUM_DRAWS for share in _shares(config))
        found[name] = cold + warm * (rest[0] - cold) if rest else cold
    return found


def _shares(config: Training) -> tuple[float, ...]:
    """Of warm starts, that are timed."""
    return (0.0, 1.0) if getattr(config.objective, "warm_start", 0.0) else (0.0,)


def _updates(config: Training, warm_start: float) -> Callable[[], None]:
    objective: Any = config.objective
    objective = replace(objective, warm_start=warm_start)
    updater = Updater(config.network.build(), config.batch_size, objective, config.optim)
    return partial(_run, updater, mean_draws(objective.iterations), is_bf16=mixed_precision(config) == "bf16")


def mean_draws(counts: IterationCounts) -> list[tuple[int, int]]:
    """Two draws of iterations without and with gradients, whose mean is that of all.

    >>> mean_draws(IterationCounts(no_grad_min=0, no_grad_max=4, grad_min=3, grad_max=6))
    [(2, 4), (2, 5)]
    """
    without, with_grad = counts.no_grad_min + counts.no_grad_max, counts.grad_min + counts.grad_max
    return [(without // 2, with_grad // 2), (without - without // 2, with_grad - with_grad // 2)]


def _run(updater: Updater, draws: list[tuple[int, int]], *, is_bf16: bool) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
        for num_no_grad, num_grad in draws:
            updater(num_no_grad, num_grad)
