"""Files that survive a kill and a power cut: they are written beside their place, flushed to the disk, then renamed.

Half-written files are called `.NAME.PID`, after the process that writes them. The next one to write there removes those
of dead processes, and nothing else.
"""

import errno
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


def write_text(file: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with whole_file(file) as scratch:
        scratch.write_text(text, encoding="utf-8")


def write_bytes(file: Path, content: bytes) -> None:
    """Write a file of bytes, whole or not at all."""
    with whole_file(file) as scratch:
        scratch.write_bytes(content)


def write_json(file: Path, content: dict[str, Any]) -> None:
    """Write a JSON file, whole or not at all."""
    write_text(file, json.dumps(content, indent=1) + "\n")


def write_tensors(tensors: dict[str, Tensor], file: Path) -> None:
    """Write a safetensors file into a scratch folder; a full disk is an OSError, as it is for any other file.

    Its permissions are those of any other new file. safetensors by itself lets nobody but the owner read it.
    """
    file.touch()
    mode = file.stat().st_mode
    try:
        save_file(tensors, file, metadata={"format": "pt"})
        file.chmod(mode)
    except SafetensorError as error:
        raise OSError(f"cannot write {file}: {error}") from error


def append_line(file: Path, line: str) -> None:
    """Add a line to a file, after cutting off a last line that a kill left unfinished. `flush` makes it durable."""
    with open(file, "ab+") as stream:
        size = stream.seek(0, os.SEEK_END)
        if size:
            stream.seek(size - 1)
            if stream.read(1) != b"\n":
                stream.seek(0)
                stream.truncate(stream.read().rfind(b"\n") + 1)
        stream.write(line.encode() + b"\n")


@contextmanager
def whole_file(file: Path) -> Iterator[Path]:
    """A path beside `file` to write to. It takes the place of `file` at the end, or is removed if there was an error.

    It may also become a folder, if there is none in its place.
    """
    file = Path(os.path.realpath(file))
    make_folder(file.parent)
    remove_leftovers(file.parent, re.escape(file.name))
    scratch = _scratch(file)
    try:
        yield scratch
        _flush_all(scratch)
        os.replace(scratch, file)
        flush(file.parent)
    except BaseException:
        _remove(scratch)
        raise


@contextmanager
def whole_folder(folder: Path, ours: Collection[str] = ()) -> Iterator[Path]:
    """A new folder beside `folder` to write to. It takes the place of `folder` at the end, whole or not at all.

    If `folder` exists, `ours` names the files in it that may go; every other file in it is carried over. Without `ours`
    a folder that exists is left as it is: another process has made the same one in the meantime.
    """
    folder = Path(os.path.realpath(folder))
    make_folder(folder.parent)
    remove_leftovers(folder.parent, re.escape(folder.name))
    scratch = _scratch(folder)
    _remove(scratch)
    scratch.mkdir()
    try:
        yield scratch
        if folder.exists() and not ours:
            _remove(scratch)
        else:
            _carry_over(folder, scratch, ours)
            _flush_all(scratch)
            _swap(scratch, folder)
    except BaseException:
        _put_back(_old(scratch), folder)
        _remove(scratch)
        raise


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, so that they survive a power cut."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        flush(folder.parent)


def flush(path: Path) -> None:
    """Have the system write a file or the names in a folder to the disk, now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some network file systems cannot flush a folder
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path, name: str, *, is_held: bool = False) -> None:
    """Remove what dead processes left half-written of the files whose names match the pattern `name`.

    `is_held` says that this process alone may write to the folder, so that nobody else can be at work there. A folder
    that a kill caught between the two renames of a swap is put back.
    """
    for path in list(folder.glob(".*")) if folder.is_dir() else ():
        found = re.fullmatch(rf"\.({name})\.(\d{{1,10}})(\.old)?", path.name)
        if found and (is_held or not _is_alive(int(found[2]))):
            if found[3]:
                _put_back(path, folder / found[1])
            _remove(path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _scratch(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def _old(scratch: Path) -> Path:
    return scratch.with_name(f"{scratch.name}.old")


def _swap(scratch: Path, folder: Path) -> None:
    """Put a folder in the place of another. A kill between the two renames leaves both, and `_put_back` mends it."""
    if folder.exists():
        os.replace(folder, _old(scratch))
    os.replace(scratch, folder)
    flush(folder.parent)
    _remove(_old(scratch))


def _put_back(old: Path, folder: Path) -> None:
    if old.exists() and not folder.exists():
        os.replace(old, folder)


def _carry_over(folder: Path, scratch: Path, ours: Collection[str]) -> None:
    """Give what others put into a folder a second name in the new one."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name in ours:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, scratch / path.name, symlinks=True, copy_function=_link)
        else:
            _link(str(path), str(scratch / path.name))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # a file system without links
        shutil.copy2(source, target, follow_symlinks=False)


def _flush_all(scratch: Path) -> None:
    for path in scratch.rglob("*") if scratch.is_dir() else ():
        if not path.is_symlink() and (path.is_file() or path.is_dir()):
            flush(path)
    flush(scratch)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
