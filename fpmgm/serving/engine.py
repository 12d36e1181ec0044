"""The engine: a bounded queue of requests, and one thread that samples those together that can share a run."""

import math
import threading
import time
import traceback
from collections.abc import Callable, Sequence

import torch

from fpmgm.evaluation.threads import use_threads
from fpmgm.generation import rules_of
from fpmgm.randomness import Streams, generator
from fpmgm.sampling import Sampled, Step, even_times, sample
from fpmgm.serving.exact import Trials
from fpmgm.serving.jobs import Finished, Job, Kind, Progress, Row
from fpmgm.serving.limits import Pace
from fpmgm.serving.meter import Meter
from fpmgm.serving.refusals import RefusedError

CLOSING = "the server is ending; ask again when it is back"


class UnwantedError(Exception):
    """Nobody waits for a run any more, or the server has no time left for it."""


class Engine:
    """Takes jobs from any thread and answers them from its own."""

    def __init__(self, pace: Pace, meter: Meter) -> None:
        self.pace, self.meter, self.trials = pace, meter, Trials()
        self._changed = threading.Condition()
        self._jobs: list[Job] = []  # in the order of their arrival, those that are not over
        self._is_closing = self._is_aborting = False
        self._thread = threading.Thread(target=self._work, name="fpmgm-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive() and not self._is_closing

    @property
    def num_waiting(self) -> int:
        return sum(job.is_waiting for job in list(self._jobs))

    @property
    def num_running(self) -> int:
        return sum(job.is_running for job in list(self._jobs))

    def submit(self, job: Job) -> None:
        """Put a job into the queue; a RefusedError if it is full or the server is ending."""
        with self._changed:
            if not self.is_open:
                raise RefusedError(503, CLOSING)
            if self.num_waiting >= self.pace.queue:
                seconds = self._seconds_to_wait()
                raise RefusedError(
                    429,
                    f"{self.pace.queue} requests are waiting, and no more are taken; try again in {seconds} seconds",
                    code="queue_full",
                    headers={"Retry-After": str(seconds)},
                )
            self._jobs.append(job)
            self._changed.notify_all()

    def drop(self, job: Job) -> None:
        """Forget a job; if it is not over, nobody waits for it any more and its place is free."""
        with self._changed:
            job.is_over = True
            if job in self._jobs:
                self._jobs.remove(job)
            self._changed.notify_all()

    def close(self) -> None:
        """Take no more jobs, and refuse those that wait; what runs goes on."""
        with self._changed:
            self._is_closing = True
            for job in [job for job in self._jobs if not job.is_running]:
                job.fail(RefusedError(503, CLOSING))
            self._changed.notify_all()

    def hurry(self) -> None:
        """Give up what runs, after its present step."""
        self._is_aborting = True

    def stop(self, grace: float) -> None:
        """Close, wait so long for what runs, then refuse it."""
        self.close()
        if self._thread.is_alive():
            self._thread.join(grace)
        self.hurry()
        with self._changed:
            for job in self._jobs:
                job.fail(RefusedError(503, CLOSING))
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _seconds_to_wait(self) -> int:
        """About how long it takes until a place is free: one run, as long as runs have taken so far."""
        return max(1, math.ceil(self.meter.mean_run_seconds))

    def _work(self) -> None:
        while batch := self._next():
            try:
                self._run(batch)
            except UnwantedError:
                self.meter.count_cancelled()
            except Exception as error:  # the engine must outlive what goes wrong in a run
                traceback.print_exc()
                for row in batch:
                    row.job.fail(RefusedError(500, f"the run failed: {type(error).__name__}: {error}"))

    def _next(self) -> list[Row]:
        """The rows of the next run; none when the server ends."""
        with self._changed:
            rows: list[Row] = []
            while not rows and not (self._is_closing and not self.num_waiting):
                self._changed.wait_for(lambda: self._is_closing or self.num_waiting)
                if self.pace.gather and not self._is_closing:
                    self._changed.wait_for(lambda: self._is_closing or self._is_full(), self.pace.gather)
                rows = self._matching()
            for row in rows:
                row.job.num_taken += 1
                if row.job.begun is None:
                    row.job.begun = time.monotonic()
                    self.meter.count_wait(row.job.begun - row.job.arrived)
            return rows

    def _is_full(self) -> bool:
        return len(self._matching()) >= self.pace.batch_size

    def _matching(self) -> list[Row]:
        """The first row that waits, and all that can share its run, in the order of arrival."""
        self._jobs = [job for job in self._jobs if not job.is_over]
        waiting = [job for job in self._jobs if job.is_waiting]
        found: list[Row] = []
        for job in waiting:
            for index in range(job.num_taken, len(job.asked.starts)):
                row = Row(job, index)
                if len(found) == self.pace.batch_size or (found and row.kind != found[0].kind):
                    break  # rows of a job are taken in order
                found.append(row)
        return found

    def _run(self, batch: Sequence[Row]) -> None:
        """Sample the rows together if that gives each the bits that it has alone, else one by one."""
        kind = batch[0].kind
        use_threads(kind.served.model.config, self.pace.batch_size)  # always the same number, so that rounding is too
        denoiser, how = kind.served.denoiser, kind.sampling
        z = torch.tensor([row.tokens for row in batch], device=kind.served.model.device)
        solver = rules_of(how, denoiser.cost)["solver"]
        has_tolerance = how.tolerance is not None
        is_exact = self.trials.holds(denoiser, z, solver, name=how.solver, has_tolerance=has_tolerance)
        for group in [list(batch)] if is_exact else [[row] for row in batch]:
            self._check_wanted(group)
            begin = time.monotonic()
            sampled = sample_rows(kind, group, on_step=lambda step, group=group: self._watch(group, step))  # type: ignore[misc]
            self.meter.count_run(len(group), time.monotonic() - begin, int(sampled.block_evals.sum()))
            for row, tokens, spent in zip(group, sampled.z.tolist(), sampled.block_evals.tolist(), strict=True):
                row.job.finish(row.number, Finished(tokens, spent))

    def _check_wanted(self, rows: Sequence[Row]) -> None:
        if self._is_aborting or all(row.job.is_over for row in rows):
            raise UnwantedError

    def _watch(self, rows: Sequence[Row], step: Step) -> None:
        """Tell the jobs that stream what their rows look like, and end a run that nobody waits for."""
        self._check_wanted(rows)
        if not any(row.job.asked.request.stream for row in rows):
            return
        for row, tokens in zip(rows, step.z_next.tolist(), strict=True):
            if row.job.asked.request.stream and not row.job.is_over:
                row.job.tell(Progress(row.number, step.index + 1, row.job.asked.spending.num_steps, tokens))


def sample_rows(kind: Kind, rows: Sequence[Row], *, on_step: Callable[[Step], None] | None = None) -> Sampled:
    """Sample rows that may be of different jobs: each has the random numbers of its own job's seed."""
    served = kind.served
    spending = rows[0].job.asked.spending
    streams = Streams([generator(row.job.asked.sampling.seed, row.number) for row in rows])
    return sample(
        served.denoiser,
        torch.tensor([row.tokens for row in rows], device=served.model.device),
        times=even_times(spending.num_steps),
        iterations=spending.iterations,
        rng=streams,
        on_step=on_step,
        **rules_of(kind.sampling, served.denoiser.cost),
    )
