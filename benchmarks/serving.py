"""What a server holds under load: python benchmarks/serving.py [--model NAME] [--requests 32] [--seconds 20]

It starts `fpmgm serve` in a process of its own, and sends the same requests twice: one at a time, then several at once.
Each half ends after so many seconds. It prints requests per second, latencies, errors, and how many texts shared a run.
Then every answer is compared with what `generate` writes in this process, alone, with the network that the server has.
The exit code is 1 if one differs or is an error.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from fpmgm.checkpoint import DEFAULT, load
from fpmgm.generation import generate, until_end
from fpmgm.provenance import provenance
from fpmgm.serving.exact import RowByRow

PROMPTS = ("The old sea", "My love", "When the night", "O the", "There was a", "She said")
Request = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Answered:
    """A request, what came back (empty if it was an error), and how long it took."""

    request: Request
    text: str
    error: str
    seconds: float


def requests_of(model: str, num: int, budget: int) -> list[Request]:
    """Requests with prompts in turn and a seed each."""
    return [
        {"model": model, "prompt": PROMPTS[i % len(PROMPTS)], "seed": i, "fpmgm": {"budget": budget}}
        for i in range(num)
    ]


@contextmanager
def server(model: str) -> Iterator[str]:
    """The address of a server that has started."""
    command = [sys.executable, "-m", "fpmgm", "serve", "--models", model, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if "http://" not in line:
            raise SystemExit(f"the server did not start: {line}")
        yield "http://" + line.split("http://")[1].split("/v1")[0]
    finally:
        process.terminate()
        process.wait()


def post(url: str, request: Request) -> Answered:
    """One request, one answer."""
    sent = urllib.request.Request(
        f"{url}/v1/completions", data=json.dumps(request).encode(), headers={"Content-Type": "application/json"}
    )
    begin, text, error = time.perf_counter(), "", ""
    try:
        with urllib.request.urlopen(sent, timeout=300) as answer:
            text = json.load(answer)["choices"][0]["text"]
    except (OSError, KeyError, ValueError) as wrong:
        error = repr(wrong)
    return Answered(request=request, text=text, error=error, seconds=time.perf_counter() - begin)


def load_test(url: str, requests: Sequence[Request], at_once: int, seconds: float) -> tuple[list[Answered], float]:
    """The answers to as many requests as fit into the time, so many at once, and the seconds that it took."""
    begin = time.perf_counter()

    def unless_late(request: Request) -> Answered | None:
        return None if time.perf_counter() - begin > seconds else post(url, request)

    with ThreadPoolExecutor(at_once) as pool:
        found = [each for each in pool.map(unless_late, requests) if each is not None]
    return found, time.perf_counter() - begin


def totals(url: str) -> dict[str, float]:
    """The counts of /metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def measure(
    url: str, requests: Sequence[Request], at_once: int, seconds: float
) -> tuple[dict[str, Any], list[Answered]]:
    """One half of the benchmark: what was held, and the answers."""
    before = totals(url)
    answers, took = load_test(url, requests, at_once, seconds)
    after = totals(url)
    runs, texts = (after[name] - before[name] for name in ("fpmgm_runs_total", "fpmgm_texts_total"))
    latencies = sorted(each.seconds for each in answers)
    return {
        "at_once": at_once,
        "requests": len(answers),
        "errors": sum(bool(each.error) for each in answers),
        "requests_per_second": round(len(answers) / took, 3),
        "median_seconds": round(statistics.median(latencies), 3),
        "longest_seconds": round(latencies[-1], 3),
        "texts_per_run": round(texts / max(1.0, runs), 2),
    }, answers


def num_equal(model: str, answers: Sequence[Answered]) -> int:
    """How many answers are what `generate` writes alone, with the network that a server has."""
    found = load(model, device="cpu")
    found = replace(found, denoiser=RowByRow(found.denoiser))
    codec: Any = found.speech
    alone: dict[int, str] = {}
    for each in answers:
        seed = each.request["seed"]
        if seed not in alone:
            prompt, budget = each.request["prompt"], each.request["fpmgm"]["budget"]
            [row] = generate(found, prompts=[prompt], seed=seed, budget=budget).tokens
            given = 1 + len(codec.encode(prompt))
            alone[seed] = codec.show(until_end(row, codec, given)[given:])
    return sum(each.text == alone[each.request["seed"]] for each in answers)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--budget", type=int, default=96)
    parser.add_argument("--seconds", type=float, default=20)
    given = parser.parse_args()
    requests = requests_of(given.model, given.requests, given.budget)
    with server(given.model) as url:
        post(url, {**requests[0], "prompt": ["warm"] * given.at_once})  # the shape of a full batch is tried once
        halves = [measure(url, requests, at_once, given.seconds) for at_once in (1, given.at_once)]
    answers = [each for _, half in halves for each in half if not each.error]
    threads = int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads()))
    found = {"model": given.model, "budget": given.budget, "halves": [half for half, _ in halves]}
    found |= {"answers": len(answers), "equal_to_alone": num_equal(given.model, answers), "threads": threads}
    print(json.dumps({**found, "provenance": provenance()}, indent=1, default=str))
    return 0 if found["equal_to_alone"] == found["answers"] == sum(half["requests"] for half, _ in halves) else 1


if __name__ == "__main__":
    sys.exit(main())
