"""Work on several processes, on this machine or on a cluster: Ray starts them, and gives lost work to another.

A piece of work is a cell of a sweep or a run of training. Results come back to this process, which alone writes the
files that all pieces share.
"""

import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, TypeVar

import torch

from fpmgm.progress import Progress
from fpmgm.schema import require

AUTO = "auto"
RETRIES = 3
"""So often is a piece of work given to another worker if its own is lost."""
PATIENCE = 5
"""Seconds to wait for a cluster to answer."""
MISSING = "several workers need ray, which is not installed; run: pip install 'fpmgm[cluster]'"
ADDRESS = "write the HOST:PORT of the head, as in 10.0.0.1:6379, or auto on a machine of the cluster"
GREETED = 4
"""A frame of settings, by which both sides of HTTP/2 greet."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent to anybody
    "RAY_worker_niceness": "0",  # workers are as nice as the command, which only waits for them
    "RAY_worker_register_timeout_seconds": "600",  # on a busy machine a worker takes minutes to start
    "RAY_memory_monitor_refresh_ms": "0",  # the system says who has too much memory
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""How Ray is started."""
JOINING = {"RAY_NUM_REDIS_GET_RETRIES": "2"}  # who does not answer as a head does is not asked for half a minute
"""How a Ray that runs already is joined, besides."""

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class OnWorkers:
    """Who does the work."""

    workers: int = 1
    """So many processes of this machine work at once, each with one thread, or with OMP_NUM_THREADS if that is set.
    More than one need Ray: pip install 'fpmgm[cluster]'."""
    ray: str = ""
    """The address of a Ray cluster that does the work: HOST:PORT of its head, or auto on one of its machines. If it is
    empty, this machine does the work."""

    def check_workers(self) -> None:
        """A ValueError if there cannot be such workers."""
        require("workers", self.workers, 1, 1024)
        if self.workers > 1 and self.ray:
            raise ValueError(
                f"workers is {self.workers} and ray is {self.ray}; give --workers for this machine, or --ray for a "
                "cluster, which takes as much work at once as it has CPUs"
            )
        if (self.workers > 1 or self.ray) and not find_spec("ray"):
            raise ValueError(MISSING)

    @contextmanager
    def open_workers(self, device: str = AUTO) -> Iterator["Workers"]:
        """The workers, until the block ends; a Ray that is open already is used as it is."""
        if self.workers == 1 and not self.ray:
            yield HERE
            return
        if self.ray:
            _check_address(self.ray)
        os.environ.update(QUIET | (JOINING if self.ray else _secret()))  # Ray reads them when it is imported
        import ray

        if ray.is_initialized():
            yield self._workers(ray, device)
            return
        with TemporaryDirectory(prefix="fpmgm-") as folder:
            try:
                _join(ray, self.ray) if self.ray else _start(ray, self.workers * threads(), folder)
                yield self._workers(ray, device)
            finally:
                ray.shutdown()

    def _workers(self, ray: Any, device: str) -> "Workers":
        gpus = 0.0 if device == "cpu" else ray.cluster_resources().get("GPU", 0.0)
        return Workers(ray=ray, num_gpus=min(1.0, gpus if self.ray else gpus / self.workers))


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Does work: in this process, piece by piece, or by Ray."""

    ray: Any = None
    """The package, once it has a cluster; None: this process."""
    num_gpus: float = 0.0
    """Of each piece of work."""

    def run(
        self,
        work: Mapping[str, Callable[[], Result]],
        what: str,
        *,
        on_turn: Callable[[str], None] | None = None,
        on_done: Callable[[str, Result], None] | None = None,
    ) -> dict[str, Result]:
        """Do all of the work; results in its order.

        `on_turn` is called with the name of each piece, before it is done here or after another process did it. Then
        `on_done` is called with its result. Both are called in this process, as soon as the piece is done.
        """
        found: dict[str, Result] = {}
        results = self._by_ray(work, what) if self.ray else ((name, do) for name, do in work.items())
        for name, result in results:
            if on_turn:
                on_turn(name)
            found[name] = result()
            if on_done:
                on_done(name, found[name])
        return {name: found[name] for name in work}

    def _by_ray(
        self, work: Mapping[str, Callable[[], Result]], what: str
    ) -> Iterator[tuple[str, Callable[[], Result]]]:
        """Names and ways to get at the results, as they are done."""
        options = {"num_cpus": threads(), "num_gpus": self.num_gpus, "max_retries": RETRIES}
        task = self.ray.remote(_do).options(name=what, **options)
        waiting = {task.remote(do, Path.cwd(), _environment()): name for name, do in work.items()}
        try:
            with Progress(what, len(work)) as progress:
                while waiting:
                    [ref], _ = self.ray.wait(list(waiting))
                    name = waiting.pop(ref)
                    result = self._result(ref, name)
                    yield name, lambda result=result: result  # type: ignore[misc]
                    progress.step(name)
        finally:
            for ref in waiting:
                self.ray.cancel(ref, force=True)

    def _result(self, ref: Any, name: str) -> Any:
        """What a piece of work gave; its own error if it failed."""
        try:
            return self.ray.get(ref)
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self.ray.exceptions.RayError as error:
            raise ConnectionError(
                f"{name} was lost with its worker {RETRIES + 1} times ({type(error).__name__}); all other results are "
                "kept, and the same command goes on"
            ) from error


HERE = Workers()
"""This process."""


def threads() -> int:
    """The threads of a worker: 1, or what OMP_NUM_THREADS says."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(first) if first.isdigit() and int(first) else 1


def _environment() -> dict[str, str]:
    """What workers on other machines are told of this process."""
    own = {name: value for name, value in os.environ.items() if name.startswith("FPMGM_")}
    return {**own, "OMP_NUM_THREADS": str(threads())}


def _do(work: Callable[[], Result], folder: Path, environment: Mapping[str, str]) -> Result:
    """One piece of work, done by a worker in the folder that the command was started in."""
    if not folder.is_dir():
        raise ValueError(
            f"worker {socket.gethostname()} has no folder {folder}; machines of a cluster need a common file system"
        )
    os.chdir(folder)
    os.environ.update(environment)
    torch.set_num_threads(threads())
    return work()


def _secret() -> dict[str, str]:
    """What others must know to talk to a Ray of this process; the user's own choice stays."""
    if "RAY_AUTH_MODE" in os.environ:
        return {}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def _start(ray: Any, num_cpus: int, folder: str) -> None:
    """A Ray of this machine, without a page, that goes with this process."""
    ray.init(
        address="local",  # and not that of RAY_ADDRESS
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        object_store_memory=10**8,  # results are small
        _temp_dir=folder,
    )


def _join(ray: Any, address: str) -> None:
    """Join a cluster; a ValueError with Ray's own reason if that is not possible."""
    with TemporaryFile() as warnings:
        try:
            with _errors_to(warnings.fileno()):
                ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            warnings.seek(0)
            said = warnings.read().decode(errors="replace").strip().split("\n")[-1]
            reasons = [str(error).strip().split("\n")[0], said.partition("] ")[2]]
            raise ValueError(
                f"ray is {address}, and there is no cluster to join ({'; '.join(filter(None, reasons))}); {ADDRESS}"
            ) from error


@contextmanager
def _errors_to(file: int) -> Iterator[None]:
    """While the block runs, all that this process writes to its standard error goes to a file, native code's too."""
    sys.stderr.flush()
    own = os.dup(2)
    os.dup2(file, 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


def _check_address(address: str) -> None:
    """A ValueError, within seconds, if no Ray answers there."""
    if address == AUTO:
        return
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit() and 0 < int(port) < 2**16) or "/" in host:
        raise ValueError(f"ray is {address!r}; {ADDRESS}")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE) as connection:
            answer = GREETED if os.environ.get("RAY_USE_TLS") == "1" else _greeted(connection)
    except OSError as error:
        raise ValueError(f"ray is {address}, and nobody answers there ({error}); {ADDRESS}") from error
    if answer != GREETED:
        raise ValueError(f"ray is {address}, and who answers there is no Ray; {ADDRESS}")


def _greeted(connection: socket.socket) -> int:
    """The kind of the first frame of the answer to an HTTP/2 greeting, as Ray's protocol, gRPC, begins."""
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, GREETED, 0, 0, 0, 0, 0]))
    answer = b""
    while len(answer) < 4 and (more := connection.recv(9)):
        answer += more
    return answer[3] if len(answer) > 3 else -1
