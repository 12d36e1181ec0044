"""Sampling one step at a time, when it is asked for: so a page can show every step, and stop between two of them."""

import time
from collections.abc import Iterator
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import Any

from fpmgm.checkpoint import Model
from fpmgm.evaluation.threads import use_threads
from fpmgm.generation import Generated, generate
from fpmgm.sampling import Step


class _StopError(Exception):
    """Raised inside the sampling loop to leave it."""


class Steps:
    """The denoising steps of one call of `generate`, as an iterator that can be closed before its end.

    The sampling loop runs in a thread of its own and waits between steps: it computes only while `next` is waiting for
    it. `seconds` is the time that it has computed so far.
    """

    def __init__(self, model: Model, **settings: Any) -> None:
        self.model, self.settings = model, settings
        self.result: Generated | None = None
        self.seconds = 0.0
        self._go, self._out = Semaphore(0), SimpleQueue[Step | BaseException | None]()
        self._is_closed = Event()
        self._thread: Thread | None = None

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        if self._is_closed.is_set():
            raise StopIteration
        if self._thread is None:
            self._thread = Thread(target=self._run, name="fpmgm-steps", daemon=True)
            self._thread.start()
        begin = time.perf_counter()
        self._go.release()
        found = self._out.get()
        self.seconds += time.perf_counter() - begin
        if isinstance(found, Step):
            return found
        self.close()
        if isinstance(found, BaseException):
            raise found
        raise StopIteration

    def close(self) -> None:
        """End the run after the step it is in; nothing happens if it is over."""
        self._is_closed.set()
        self._go.release()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        self._go.acquire()
        try:
            use_threads(self.model.config, self.settings.get("num_samples", 1))
            self.result = generate(self.model, on_step=self._on_step, **self.settings)
            self._out.put(None)
        except _StopError:
            self._out.put(None)
        except BaseException as error:  # whoever waits for the next step is told
            self._out.put(error)

    def _on_step(self, step: Step) -> None:
        self._out.put(step)
        self._go.acquire()
        if self._is_closed.is_set():
            raise _StopError
