"""Kills at a chosen moment: the process ends at its Nth call that changes a file of the run."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.truncate", "open"}


def kill_at(folder: Path, number: int, record: Path) -> None:
    """End by SIGKILL at the call of that number; a number below 0 only counts them, in the file `record`."""
    count = [0]

    def on_call() -> None:
        if count[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        count[0] += 1
        if number < 0:
            record.write_text(str(count[0]))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in CHANGES or not arguments or not isinstance(arguments[0], str | Path):
            return
        is_written = event != "open" or arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if is_written and str(arguments[0]).startswith(str(folder)):
            on_call()

    def fsync(descriptor: int) -> None:
        on_call()
        flush(descriptor)

    flush = os.fsync
    os.fsync = fsync  # type: ignore[assignment]
    sys.addaudithook(hook)


def kill_at_update(last: int) -> None:
    """End by SIGKILL at the start of an update, counted from 0."""
    from fpmgm.training import loop

    original = loop.Run.update

    def dies(self: loop.Run, update: int) -> dict[str, float]:
        if update == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, update)

    loop.Run.update = dies  # type: ignore[method-assign]


def stop_first() -> None:
    """Wait for a tracer to attach."""
    os.kill(os.getpid(), signal.SIGSTOP)


def slow_updates(seconds: float) -> None:
    """Let every update take longer, so that something can happen meanwhile."""
    from fpmgm.training import loop

    original = loop.Run.update

    def slow(self: loop.Run, update: int) -> dict[str, float]:
        time.sleep(seconds)
        return original(self, update)

    loop.Run.update = slow  # type: ignore[method-assign]
