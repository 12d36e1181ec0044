"""Sharing work among processes: the same command, started once a core or GPU, does what no other is doing."""

import fcntl
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from fpmgm.files import make_folder
from fpmgm.names import slug

LOCK = ".lock"

Result = TypeVar("Result")


@contextmanager
def claim(file: Path, *, is_waiting: bool = True) -> Iterator[bool]:
    """Whether this process alone holds the file while the block runs; whoever dies lets go of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | (0 if is_waiting else fcntl.LOCK_NB))
            is_held = True
        except BlockingIOError:
            is_held = False
        yield is_held


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Hold a folder for this process alone while the block runs; a ValueError says who else holds it.

    The lock is the system's, so a killed process releases it. A folder that was made for the lock alone is removed.
    """
    is_new = not folder.exists()
    make_folder(folder)
    file = folder / LOCK
    with open(file, "a+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            holder = stream.read(200).strip() or "another process"
            raise ValueError(f"{folder} is in use by {holder}; wait until it ends, or give another --out") from None
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {socket.gethostname()} since {datetime.now():%Y-%m-%d %H:%M:%S}\n")
        stream.flush()
        try:
            yield
        finally:
            stream.truncate(0)
            if is_new and os.listdir(folder) == [LOCK]:
                file.unlink()
                folder.rmdir()


def share(work: Mapping[str, Callable[[], Result]], claims: Path) -> dict[str, Result]:
    """Do first what no other process is at, then, when they are done, ask for what they did; results in order.

    Every process calls all of the work: what was done before must return at once what it found.
    """
    found: dict[str, Result] = {}
    for is_waiting in (False, True):
        for name in [name for name in work if name not in found]:
            with claim(claims / slug(name), is_waiting=is_waiting) as is_held:
                if is_held:
                    found[name] = work[name]()
    return {name: found[name] for name in work}
