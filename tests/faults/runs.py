"""A tiny run in a process of its own, forked after the imports, and what its folder holds in the end."""

import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fpmgm.__main__ import main

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.faults.preload", __name__])

VERSE = "".join(f"line {i} of a poem about the {word}\n" for i in range(300) for word in ("sea", "sky", "old oak"))
SETTINGS = {
    "data.tokenizer": "bpe-300",
    "data.length": "16",
    "model.width": "16",
    "model.num-heads": "2",
    "model.cond-width": "8",
    "optim.warmup": "2",
    "optim.decay": "cosine",
    "optim.ema": "0.9",
    "batch-size": "4",
    "validation-sequences": "8",
    "checkpoint-every": "2",
    "validate-every": "4",
    "updates": "8",
}
Prepare = tuple[Callable[..., None], tuple[Any, ...]]
"""What a process does before it trains, such as to arrange for its end."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a process ended, and what it printed."""

    code: int
    said: str


def arguments(folder: Path, **changes: str) -> list[str]:
    """The command line of the run in a folder; its text and its cache lie beside it."""
    settings = {**SETTINGS, **{name.replace("_", "-"): value for name, value in changes.items()}}
    options = [word for name, value in settings.items() for word in (f"--{name}", *([value] if value else []))]
    return ["train", "poetry", "--out", str(folder), "--data.source", "verse.txt", *options]


def start(folder: Path, prepare: Prepare | None = None, /, **changes: str) -> Any:
    """The process of a run that has just been started."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    text = folder.parent / "verse.txt"
    if not text.exists() or text.read_text() != VERSE:  # a power cut may have taken it
        text.write_text(VERSE)
    return start_command(arguments(folder, **changes), folder.parent, prepare)


def start_command(words: list[str], place: Path, prepare: Prepare | None = None) -> Any:
    """The process of a command that has just been started, with its cache and what it prints in `place`."""
    process = FORKS.Process(target=_child, args=(words, place, prepare))
    process.start()
    return process


def end(process: Any, place: Path) -> Ended:
    """Wait for the end of a process."""
    process.join(120)
    assert process.exitcode is not None, "the process hangs"
    printed = place / f"printed-{process.pid}"
    said = printed.read_text() if printed.exists() else ""
    printed.unlink(missing_ok=True)
    return Ended(code=process.exitcode, said=said)


def run(folder: Path, prepare: Prepare | None = None, /, **changes: str) -> Ended:
    """A run to its end."""
    return end(start(folder, prepare, **changes), folder.parent)


def _child(words: list[str], place: Path, prepare: Prepare | None) -> None:
    printed = os.open(place / f"printed-{os.getpid()}", os.O_WRONLY | os.O_CREAT)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    os.environ["FPMGM_CACHE"] = str(place / "cache")
    os.chdir(place)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where tests run in the background
    torch.set_num_threads(1)
    if prepare:
        prepare[0](*prepare[1])
    sys.exit(main(words))


def losses(folder: Path) -> list[float]:
    """The losses of a run, which are numbers of the seed alone."""
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def outcome(folder: Path) -> tuple[list[float], list[bytes]]:
    """Losses and weights of a finished run: those of its model, and of its last state."""
    weights = [folder / "model" / "model.safetensors", *sorted(folder.glob("state/update-*/state.safetensors"))]
    return losses(folder), [file.read_bytes() for file in weights]


def wait_for_rows(folder: Path, num: int) -> None:
    """Wait until a run has made so many updates."""
    deadline = time.monotonic() + 60
    file = folder / "metrics.jsonl"
    while not file.exists() or file.read_bytes().count(b"\n") < num:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def copy_of(place: Path, target: Path) -> Path:
    """A copy of a place with a run in it; returns the run's folder."""
    shutil.copytree(place, target)
    for printed in target.glob("printed-*"):
        with suppress(OSError):
            printed.unlink()
    return target / "run"
