"""How many threads torch uses in a command: one for small work, all for large work, or what OMP_NUM_THREADS says.

The threads of an operation wait for each other, and on a machine with busy neighbours the wait is longer than the work.
"""

import os

import torch

from fpmgm.backbones import NetworkConfig

SMALL = 1e10
"""Multiply-adds of one pass over a batch, up to which one thread is used: at most about a second on one core. Measured
in docs/log.md, 2026-11-17."""
ALL = torch.get_num_threads()
"""What torch, or whoever has set it before this is imported, thinks best for large work."""
USUAL_ITERS = 4


def use_threads(config: NetworkConfig, num_sequences: int) -> None:
    """Set the number of torch's threads for passes over so many sequences, unless OMP_NUM_THREADS is set."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads_for(config, num_sequences))


def threads_for(config: NetworkConfig, num_sequences: int) -> int:
    """1 if a pass of the sampler over so many sequences is small, else all."""
    num_iters = USUAL_ITERS if config.cost.fp else 0
    work = num_sequences * config.multiply_adds(num_iters=num_iters, num_positions=config.vocabulary.length // 4)
    return 1 if work <= SMALL else ALL
