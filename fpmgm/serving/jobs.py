"""Jobs: requests on their way through the engine, and what the engine tells them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from fpmgm.generation import Sampling
from fpmgm.serving.asked import Asked
from fpmgm.serving.models import Served
from fpmgm.serving.refusals import RefusedError


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What all rows of a sampling run have in common."""

    served: Served
    length: int
    sampling: Sampling
    """Without the seed, which each row has of its own."""


class Finished(NamedTuple):
    """A finished row."""

    tokens: list[int]
    block_evals: int


class Progress(NamedTuple):
    """A row after a denoising step."""

    number: int  # which text of the request it is
    step: int
    steps: int
    tokens: list[int]


class Whole(NamedTuple):
    """All rows of a job are finished."""

    rows: list[Finished]
    seconds: float
    """From the start of the first run to the end of the last one."""


Event = Progress | Whole | RefusedError


class Job:
    """A request in the engine, which calls `tell` with every event. The last one is `Whole` or a `RefusedError`."""

    def __init__(self, asked: Asked, tell: Callable[[Event], None]) -> None:
        self.asked, self.tell = asked, tell
        self.arrived = time.monotonic()
        self.begun: float | None = None  # when its first row went into a run
        self.num_taken = 0  # rows that went into a run
        self.is_over = False  # it was answered, or nobody waits for it any more
        self._finished: dict[int, Finished] = {}
        shared = replace(asked.sampling, seed=0)
        self.kinds = [Kind(served=asked.served, length=len(s.tokens), sampling=shared) for s in asked.starts]

    @property
    def is_waiting(self) -> bool:
        """Whether rows of it have not gone into a run yet."""
        return not self.is_over and self.num_taken < len(self.asked.starts)

    @property
    def is_running(self) -> bool:
        """Whether rows of it are in a run, or in one that has finished."""
        return not self.is_over and self.num_taken > 0

    def finish(self, index: int, row: Finished) -> None:
        """Keep a finished row; with the last one the job is whole."""
        self._finished[index] = row
        if not self.is_over and len(self._finished) == len(self.asked.starts):
            self.is_over = True
            assert self.begun is not None
            self.tell(Whole([row for _, row in sorted(self._finished.items())], time.monotonic() - self.begun))

    def fail(self, refusal: RefusedError) -> None:
        """Say that there will be no answer, once."""
        if not self.is_over:
            self.is_over = True
            self.tell(refusal)


class Row(NamedTuple):
    """One row of a job, in a run."""

    job: Job
    number: int  # which text of the request it is

    @property
    def kind(self) -> Kind:
        return self.job.kinds[self.number]

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.job.asked.starts[self.number].tokens
