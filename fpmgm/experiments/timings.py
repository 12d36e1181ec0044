"""Times and memory of networks with random weights, measured side by side once, and kept by a report."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from fpmgm.evaluation.latency import in_fresh_process
from fpmgm.experiments.benchmark import Benchmark, benchmark, config_of
from fpmgm.experiments.parts import Reading
from fpmgm.experiments.report import Report
from fpmgm.experiments.workloads import Updater, random_denoiser, update_memory


def timed(report: Report, asked: Benchmark, networks: Sequence[str]) -> list[dict[str, Any]]:
    """Rounds of each network, measured once for these networks."""
    about = about_timing(asked, networks)

    def make() -> list[dict[str, Any]]:
        return [
            {
                "blocks": each.block_evals,
                "seconds": each.seconds.rounds,
                "tokens_per_second": each.tokens_per_second,
                "multiply_adds": each.multiply_adds,
                "peak_bytes": each.peak_bytes,
                "update_seconds": each.update_seconds.rounds if each.update_seconds else (),
            }
            for each in benchmark(asked)
        ]

    found: list[dict[str, Any]] = report.kept(TIMING, about, make)
    return found


TIMING, MEMORY = "timing", "training memory"
"""What these are kept as."""


def about_timing(asked: Benchmark, networks: Sequence[str]) -> dict[str, Any]:
    """What a timing is known by."""
    rounds = {"repeats": asked.repeats, "train": asked.train}
    return {"networks": list(networks), "budget": asked.budget, "batch": asked.batch_size, **rounds}


def round_ratio(where: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], name: str) -> Reading:
    """Of ours to theirs, by round: the median, the least and the most."""
    by_round = [one / other for one, other in zip(ours[name], theirs[name], strict=True)]
    return Reading(where, median(by_round), min(by_round), max(by_round))


def update_memories(
    report: Report, names: Sequence[str], networks: Sequence[str], batch_size: int, counts: tuple[int, int]
) -> list[int]:
    """Peak memory of the largest update of each network, with so many iterations without and with gradients."""
    about = {"networks": list(networks), "batch": batch_size}

    def make() -> list[int]:
        return [in_fresh_process(__name__, "training_memory", name, batch_size, *counts) for name in names]

    found: list[int] = report.kept(MEMORY, about, make)
    return found


def training_memory(name: str, batch_size: int, num_no_grad: int, num_grad: int) -> int:
    """Peak memory of an update over what was there before: to be called in a fresh process."""
    update = Updater(random_denoiser(config_of(name)), batch_size)
    return update_memory(update, num_no_grad, num_grad)["peak"]
