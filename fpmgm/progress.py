"""Progress of long work: a bar with rate and time left on a terminal, plain lines in a pipe."""

import sys
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Protocol, TypeVar, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

T = TypeVar("T")
PATIENCE = 3.0
"""Work that takes fewer seconds shows nothing."""


class Progress:
    """Call `step` after each unit of work, or `reach` with how many are done.

    Lines in a pipe come at most every `seconds`. Nothing is shown of work that takes less than `patience` seconds.
    """

    def __init__(
        self,
        what: str,
        total: int = 0,
        done: int = 0,
        *,
        unit: str = "",
        is_shown: bool = True,
        seconds: float = 30.0,
        patience: float = 0.0,
    ) -> None:
        self.what, self.total, self.done, self.unit, self.seconds = what, total, done, unit, seconds
        self.patience = patience
        self.console = Console(file=sys.stderr, highlight=False, quiet=not is_shown)
        self.start, self.first, self.last_line = time.perf_counter(), done, -seconds
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self.bar = Bar(*columns, console=self.console, disable=not self.console.is_terminal)
        self.task = self.bar.add_task(what, total=total or None, completed=done, rate="", note="")

    def __enter__(self) -> "Progress":
        if not self.patience:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def expect(self, total: int) -> None:
        """So many units of work there are in all: for work that knows it only when it has begun."""
        self.total = total
        self.bar.update(self.task, total=total)

    def step(self, note: str = "") -> None:
        """One unit of work is done."""
        self.reach(self.done + 1, note)

    def reach(self, done: int, note: str = "") -> None:
        """So many units of work are done."""
        self.done = done
        elapsed = time.perf_counter() - self.start
        if elapsed < self.patience:
            return
        if self.patience and not self.bar.live.is_started:
            self.bar.start()
        rate = (self.done - self.first) / max(elapsed, 1e-9)
        shown = f"{rate:.2f} {self.unit}/s" if self.unit else f"{rate:.2f}/s"
        self.bar.update(self.task, completed=self.done, rate=shown, note=note)
        is_due = elapsed - self.last_line >= self.seconds or (self.done == self.total and not self.patience)
        if not self.console.is_terminal and is_due:
            self.last_line = elapsed
            of_all = f"/{self.total}" if self.total else ""
            left = f", {(self.total - self.done) / rate:.0f} s left" if self.total and rate else ""
            self.console.print(
                f"{self.what} {self.done}{of_all} {shown}{left}{f', {note}' if note else ''}", soft_wrap=True
            )


@runtime_checkable
class Timed(Protocol):
    """What is told of a denoising step."""

    @property
    def t(self) -> float: ...

    @property
    def t_next(self) -> float: ...


class StepProgress(Progress):
    """An `on_step` that shows how far sampling is, if it takes long. Steps lie evenly between the times 1 and 0."""

    def __init__(self, what: str, num_batches: int) -> None:
        super().__init__(what, unit="steps", patience=PATIENCE)
        self.last_line = 0.0  # a pipe hears of it when it takes really long
        self.num_batches = num_batches

    def __enter__(self) -> "StepProgress":
        super().__enter__()
        return self

    def __call__(self, step: Timed) -> None:
        if not self.total:
            self.expect(self.num_batches * round(1 / (step.t - step.t_next)))
        self.step()


def tracked(items: Sequence[T], what: str) -> Iterator[T]:
    """The items, with a bar for those that are done if they take long; in a pipe a line now and then."""
    with Progress(what, len(items), patience=PATIENCE) as progress:
        progress.last_line = 0.0
        for item in items:
            yield item
            progress.step()
