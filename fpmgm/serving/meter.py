"""The meter: what the server has done, in the text form that Prometheus reads."""

import threading
from bisect import bisect_left
from collections import Counter

SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""The upper ends of the histograms' buckets."""


class Histogram:
    """How many seconds something took, by buckets."""

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.sum += seconds

    def lines(self, name: str) -> list[str]:
        found, total = [], 0
        for end, count in zip((*map(str, SECONDS), "+Inf"), self.counts, strict=True):
            total += count
            found.append(f'{name}_bucket{{le="{end}"}} {total}')
        return [*found, f"{name}_sum {self.sum:.6f}", f"{name}_count {total}"]


class Meter:
    """Counts that only grow, and histograms. Any thread may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._outcomes: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()
        self._run, self._wait, self._answer = Histogram(), Histogram(), Histogram()

    def count_request(self, route: str, status: int) -> None:
        """A request was answered with this status."""
        with self._lock:
            self._requests[route, status] += 1

    def count_outcome(self, outcome: str, seconds: float, num_given: int = 0, num_written: int = 0) -> None:
        """A completion ended so: whole, timeout, disconnected, refused."""
        with self._lock:
            self._outcomes[outcome] += 1
            if outcome == "whole":
                self._answer.add(seconds)
                self._totals["prompt_tokens"] += num_given
                self._totals["completion_tokens"] += num_written

    def count_run(self, num_rows: int, seconds: float, block_evals: int) -> None:
        """A sampling run of so many rows has finished."""
        with self._lock:
            self._totals["runs"] += 1
            self._totals["texts"] += num_rows
            self._totals["block_evals"] += block_evals
            self._run.add(seconds)

    def count_cancelled(self) -> None:
        """A run ended early because nobody waited for it."""
        with self._lock:
            self._totals["cancelled_runs"] += 1

    def count_wait(self, seconds: float) -> None:
        """A request has waited so long for its first run."""
        with self._lock:
            self._wait.add(seconds)

    def total(self, name: str) -> int:
        """One of the totals: runs, texts, block_evals, cancelled_runs, prompt_tokens, completion_tokens."""
        return self._totals[name]

    @property
    def mean_run_seconds(self) -> float:
        with self._lock:
            return self._run.sum / max(1, self._totals["runs"])

    def text(self, *, waiting: int, running: int) -> str:
        """All of it, with what is in the server at the moment."""
        with self._lock:
            lines: list[str] = []
            _head(lines, "fpmgm_http_requests_total", "counter", "HTTP requests by route and status.")
            for (route, status), count in sorted(self._requests.items()):
                lines.append(f'fpmgm_http_requests_total{{route="{route}",status="{status}"}} {count}')
            _head(lines, "fpmgm_completions_total", "counter", "Completions by how they ended.")
            for outcome, count in sorted(self._outcomes.items()):
                lines.append(f'fpmgm_completions_total{{outcome="{outcome}"}} {count}')
            for name, about in TOTALS.items():
                _head(lines, f"fpmgm_{name}_total", "counter", about)
                lines.append(f"fpmgm_{name}_total {self._totals[name]}")
            for name, value in (("waiting", waiting), ("running", running)):
                _head(lines, f"fpmgm_requests_{name}", "gauge", f"Completion requests that are {name}.")
                lines.append(f"fpmgm_requests_{name} {value}")
            for name, histogram in (("run", self._run), ("wait", self._wait), ("answer", self._answer)):
                _head(lines, f"fpmgm_{name}_seconds", "histogram", HISTOGRAMS[name])
                lines += histogram.lines(f"fpmgm_{name}_seconds")
        return "\n".join(lines) + "\n"


TOTALS = {
    "runs": "Sampling runs that finished.",
    "texts": "Texts that finished runs have written.",
    "cancelled_runs": "Sampling runs that ended early because nobody waited for them.",
    "block_evals": "Block evaluations of finished runs, summed over texts.",
    "prompt_tokens": "Tokens of prompts and suffixes of answered completions.",
    "completion_tokens": "Tokens that answered completions have written.",
}
HISTOGRAMS = {
    "run": "Seconds of a sampling run.",
    "wait": "Seconds between the arrival of a completion request and its first run.",
    "answer": "Seconds between the arrival of a completion request and its whole answer.",
}


def _head(lines: list[str], name: str, kind: str, about: str) -> None:
    lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
