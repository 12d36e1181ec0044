"""Time and memory, measured so that they can be compared: in one run, interleaved, medians with their spread."""

import json
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpmgm.progress import tracked


@dataclass(frozen=True)
class Timing:
    """Seconds of one thing, round by round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def summary(self) -> dict[str, float]:
        return {"median": self.median, "low": min(self.rounds), "high": max(self.rounds)}

    def over(self, number: int) -> "Timing":
        """Of one, where `number` were timed together."""
        return Timing(tuple(seconds / number for seconds in self.rounds))

    def against(self, other: "Timing") -> float:
        """The median over rounds of the ratio to the other in that round: what slows a whole round cancels."""
        return statistics.median(mine / its for mine, its in zip(self.rounds, other.rounds, strict=True))

    def __str__(self) -> str:
        return f"{self.median:.2f} s ({min(self.rounds):.2f} to {max(self.rounds):.2f})"


def interleave(
    contestants: Mapping[str, Callable[[], object]], repeats: int = 5, *, warmups: int = 1
) -> dict[str, Timing]:
    """Time each contestant in turn, again and again, after rounds to warm up: whatever slows the machine hits all.

    A contestant must wait for its device before it returns. Then the device is idle when the next one's clock starts.
    Every round begins with the next contestant, so that none always follows the same one.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; at least 1 is needed")
    if warmups < 1:
        raise ValueError(f"warmups is {warmups}; at least 1 is needed")
    if not contestants:
        raise ValueError("nobody to time; give at least one contestant")
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for repeat in tracked(range(warmups + repeats), "timing rounds"):
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            begin = time.perf_counter()
            contestants[name]()
            if repeat >= warmups:
                seconds[name].append(time.perf_counter() - begin)
    return {name: Timing(tuple(found)) for name, found in seconds.items()}


def resident_bytes() -> int:
    """What this process holds in memory now (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak_bytes(run: Callable[[], object]) -> int:
    """The largest resident size while it runs, over that before it; sampled every millisecond.

    Memory that was freed earlier and is used again does not show: measure in a fresh process.
    """
    before, highest = resident_bytes(), [0]
    is_done = threading.Event()

    def watch() -> None:
        while not is_done.is_set():
            highest[0] = max(highest[0], resident_bytes())
            time.sleep(0.001)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        kept = run()  # not freed before the last look; a short run may leave the watcher no turn
        highest[0] = max(highest[0], resident_bytes())
        del kept
    finally:
        is_done.set()
        watcher.join()
    return max(0, highest[0] - before)


def in_fresh_process(module: str, function: str, *arguments: Any) -> Any:
    """What a function of a module returns for JSON arguments, called in a process of its own."""
    code = (
        "import importlib, json, sys; "
        f"print(json.dumps(getattr(importlib.import_module({module!r}), {function!r})(*json.loads(sys.argv[1]))))"
    )
    command = [sys.executable, "-c", code, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
        )
    return json.loads(done.stdout.splitlines()[-1])
