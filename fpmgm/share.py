"""Sharing work among processes: the same command, started once a core or GPU, does what no other is doing."""

import fcntl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from fpmgm.names import slug

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
