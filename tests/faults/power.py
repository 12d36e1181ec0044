"""Power cuts without a power switch: a record of what was flushed to the disk, and the folder that a cut would leave.

Only `os.fsync` is watched: what was flushed, as it was then, is all that a system promises to keep. Of the rest it may
keep anything: the names of files without their content (a journal of names, as ext4 has), parts of what was appended,
or nothing.
"""

import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fpmgm.training import loop

CUT = 77
"""The exit code of a process whose power was cut."""


class Disk:
    """What the disk surely holds of a folder, by inode."""

    def __init__(self, root: Path) -> None:
        self.root, self.contents, self.names = root, dict[int, bytes](), dict[int, dict[str, int]]()
        self.kept: list[int] = []
        self.fsync = os.fsync
        for folder, _, files in os.walk(root):
            self.note(folder)
            for file in files:
                self.note(os.path.join(folder, file))

    def watch(self) -> None:
        """Take note of everything that is flushed from now on."""

        def fsync(descriptor: int) -> None:
            self.fsync(descriptor)
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if Path(path).is_relative_to(self.root) and os.path.exists(path):
                self.note(path)

        os.fsync = fsync  # type: ignore[assignment]

    def note(self, path: str) -> None:
        """Keep what a file or a folder holds now. It stays open, so that its inode is not given to another."""
        self.kept.append(os.open(path, os.O_RDONLY))
        inode = os.stat(path).st_ino
        if os.path.isdir(path):
            self.names[inode] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self.contents[inode] = Path(path).read_bytes()

    def leave(self, target: Path, rng: random.Random) -> None:
        """Write what a power cut at this moment leaves into a new folder."""
        now = {os.stat(self.root).st_ino: self.root}
        now |= {os.lstat(path).st_ino: path for path in self.root.rglob("*")}
        is_journaled = rng.random() < 0.6
        self._leave(os.stat(self.root).st_ino, target, now, rng, is_journaled)

    def _leave(self, inode: int, target: Path, now: dict[int, Path], rng: random.Random, is_journaled: bool) -> None:
        path = now.get(inode)
        if inode in self.names or (path and stat.S_ISDIR(os.lstat(path).st_mode)):
            names = self.names.get(inode, {})
            if path and (is_journaled or inode not in self.names):
                names = {entry.name: entry.inode() for entry in os.scandir(path)} if is_journaled else {}
            target.mkdir()
            for name, below in names.items():
                self._leave(below, target / name, now, rng, is_journaled)
        else:
            target.write_bytes(self._content(inode, path, rng))

    def _content(self, inode: int, path: Path | None, rng: random.Random) -> bytes:
        flushed = self.contents.get(inode, b"")
        written = path.read_bytes() if path else flushed
        if not written.startswith(flushed) or rng.random() < 0.6:
            return flushed
        return written[: rng.randint(len(flushed), len(written))]


def cut_at(root: Path, target: Path, event: int, seed: int, checkpoints: Path) -> None:
    """Cut the power at an event of this process: before a flush or a rename, or after an update of the weights.

    Finished checkpoints are noted in a file elsewhere: they must not be lost.
    """
    disk = Disk(root)
    disk.watch()
    left = [event]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                disk.leave(target, random.Random(seed))
                os._exit(CUT)
            return function(*arguments, **options)

        return call

    def noted(folder: Path, state: Any, update: int, **about: Any) -> None:
        save_state(folder, state, update, **about)
        checkpoints.write_text(str(update))

    save_state = loop.save_state
    loop.save_state = noted
    os.fsync, os.replace = counted(os.fsync), counted(os.replace)
    loop.Run.update = counted(loop.Run.update)  # type: ignore[method-assign]
