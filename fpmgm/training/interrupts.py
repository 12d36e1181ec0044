"""Ctrl-C and SIGTERM while a run is under way: the update at hand is finished and a checkpoint written first."""

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from accelerate import Accelerator

from fpmgm.training.folder import any_process

ONE_PRESS = 0.5
"""Signals within so many seconds count as one: a launcher of several processes repeats the terminal's Ctrl-C."""


class Interrupts:
    """While the block runs, `signal` is the first signal that came, or 0; a second Ctrl-C ends the process at once.

    A signal that was ignored before, as Ctrl-C is in a background job, stays ignored. Outside of Python's main thread
    nothing is changed.
    """

    def __init__(self) -> None:
        self.signal, self._when = 0, 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.signal:
            self.signal, self._when = number, time.monotonic()
            with suppress(OSError):  # nobody may be listening any more
                os.write(2, b"\nfinishing this update and writing a checkpoint; Ctrl-C again ends at once\n")
        elif number == signal.SIGINT and time.monotonic() - self._when > ONE_PRESS:
            raise SystemExit(128 + number)


def agreed(accelerator: Accelerator, number: int) -> int:
    """The signal that any process of a run got, or 0."""
    if not any_process(accelerator, number != 0):
        return 0
    is_term = any_process(accelerator, number == signal.SIGTERM)
    return int(signal.SIGTERM if is_term else signal.SIGINT)


def leave(number: int, where: str, command: str, is_main: bool) -> None:
    """Say, in the main process, what ended a run and how to go on; end with the code of the signal."""
    if is_main:
        what = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
        print(f"ended by {what} {where}, with a checkpoint; to go on: {command}", file=sys.stderr)
    raise SystemExit(128 + number)
