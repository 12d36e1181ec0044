"""Locks of files and folders: one process makes a cached thing, one process trains in a run folder."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from fpmgm.files import make_folder

LOCK = ".lock"


@contextmanager
def claim(file: Path, *, is_waiting: bool = True) -> Iterator[bool]:
    """Whether this process alone holds the file while the block runs. A process that dies releases it."""
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
