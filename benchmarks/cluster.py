"""Times a sweep in one process against two workers of one thread each: OMP_NUM_THREADS=1 python benchmarks/cluster.py

The goal is a ratio of 0.6 or less on two cores that nobody else uses. Starting Ray is timed too, and printed alone.
"""

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from fpmgm.cluster import HERE, OnWorkers, Workers
from fpmgm.evaluation.cells import Cell
from fpmgm.evaluation.sweep import Protocol, run_sweep
from fpmgm.generation import Sampling

TEMPERATURES = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2)


def cells_of(model: str, budgets: list[int]) -> list[Cell]:
    """A cell for each budget and temperature."""
    return [
        Cell(model=model, sampling=Sampling(budget=budget, temperature=temperature))
        for budget in budgets
        for temperature in TEMPERATURES
    ]


def seconds_of(cells: list[Cell], num_samples: int, workers: Workers) -> float:
    """How long a sweep takes that finds nothing done."""
    with TemporaryDirectory() as scratch:
        start = time.perf_counter()
        run_sweep(cells, Protocol(num_samples=num_samples), Path(scratch) / "rows.jsonl", workers=workers)
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="stories-fp")
    parser.add_argument("--budgets", type=int, nargs="+", default=[96, 128, 160, 192])
    parser.add_argument("--num-samples", type=int, default=64)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    cells = cells_of(asked.model, asked.budgets)
    alone = seconds_of(cells, asked.num_samples, HERE)
    start = time.perf_counter()
    with OnWorkers(workers=2).open_workers() as workers:
        opened = time.perf_counter() - start
        shared = seconds_of(cells, asked.num_samples, workers)  # a second time workers would know the samples
    print(f"{len(cells)} cells of {asked.num_samples} samples: one process {alone:.1f} s; Ray opened in {opened:.1f} s")
    print(f"two workers {shared:.1f} s, ratio {shared / alone:.2f}")


if __name__ == "__main__":
    main()
