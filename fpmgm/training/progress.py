"""Progress of long work: a bar with rate and time left on a terminal, plain lines in a pipe."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


class Progress:
    """Call `step` after each unit of work; lines in a pipe come at most every `seconds`."""

    def __init__(self, what: str, total: int, done: int = 0, *, is_shown: bool = True, seconds: float = 30.0) -> None:
        self.what, self.total, self.done, self.seconds = what, total, done, seconds
        self.console = Console(file=sys.stderr, highlight=False, quiet=not is_shown)
        self.start, self.first, self.last_line = time.perf_counter(), done, 0.0
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self.bar = Bar(*columns, console=self.console, disable=not self.console.is_terminal)
        self.task = self.bar.add_task(what, total=total, completed=done, rate="", note="")

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def step(self, note: str = "") -> None:
        """One unit of work is done."""
        self.done += 1
        elapsed = time.perf_counter() - self.start
        rate = (self.done - self.first) / max(elapsed, 1e-9)
        self.bar.update(self.task, completed=self.done, rate=f"{rate:.2f}/s", note=note)
        is_due = elapsed - self.last_line >= self.seconds or self.done in (self.first + 1, self.total)
        if not self.console.is_terminal and is_due:
            self.last_line = elapsed
            left = (self.total - self.done) / rate
            self.console.print(f"{self.what} {self.done}/{self.total} {rate:.2f}/s, {left:.0f} s left, {note}")
