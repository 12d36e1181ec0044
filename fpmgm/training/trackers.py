"""Where metrics go besides metrics.jsonl: TensorBoard, and wandb if asked."""

import secrets
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fpmgm.files import make_folder, write_text
from fpmgm.names import choose

EVENTS = "events.out.tfevents."
Log = Callable[[Mapping[str, int | float], int], Any]


def start_tracking(names: Sequence[str], folder: Path, settings: dict[str, Any], done: int) -> list[Log]:
    """A function for each tracker that takes the metrics of an update, for a run that has made `done` updates."""
    return [TRACKERS[name](folder, settings, done) for name in names]


def check_trackers(names: Sequence[str]) -> None:
    """A ValueError for an unknown tracker or a missing package, before any work is done."""
    for name in names:
        choose("tracker", name, TRACKERS)
        if find_spec(name) is None:
            raise ValueError(f"tracker {name} needs its package: pip install {name}, or leave the tracker out")


def _tensorboard(folder: Path, settings: dict[str, Any], done: int) -> Log:
    """Curves in the folder `tensorboard`: one file, which a resumed run goes on writing.

    What a killed run wrote after its last checkpoint is hidden by the record of a new start.
    """
    from tensorboard.compat.proto.event_pb2 import SessionLog
    from torch.utils.tensorboard.summary import scalar, text

    file = _event_file(folder / "tensorboard")
    _append_event(file, done + 1, session_log=SessionLog(status=SessionLog.START))
    lines = [f"    {key}: {value}" for key, value in settings.items()]
    _append_event(file, done, summary=text("settings", "\n".join(lines)))

    def log(row: Mapping[str, int | float], update: int) -> None:
        for key, value in row.items():
            _append_event(file, update, summary=scalar(key, value))

    return log


def _event_file(folder: Path) -> Path:
    """The event file of a run, without a last record that a kill left unfinished; a new one if there is none."""
    make_folder(folder)
    file = max(folder.glob(EVENTS + "*"), default=None)
    if file is None:
        file = folder / f"{EVENTS}{int(time.time()):010d}.{socket.gethostname()}"
        _append_event(file, 0, file_version="brain.Event:2")
        return file
    with open(file, "r+b") as stream:
        stream.truncate(whole_records(stream.read()))
    return file


def whole_records(content: bytes) -> int:
    """How many bytes of an event file are whole records: length, its checksum, data, their checksum."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    def is_sound(start: int, end: int) -> bool:
        data, checksum = content[start + 12 : end - 4], content[end - 4 : end]
        return bool(struct.unpack("<I", checksum)[0] == masked_crc32c(data))

    before, end = 0, 0
    while len(content) - end >= 16:
        length = struct.unpack_from("<Q", content, end)[0]
        if not 0 < length <= len(content) - end - 16:
            break
        before, end = end, end + 16 + length
    return end if end == 0 or is_sound(before, end) else before


def _append_event(file: Path, step: int, **content: Any) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    with open(file, "ab") as stream:
        RecordWriter(stream).write(Event(wall_time=time.time(), step=step, **content).SerializeToString())


def _wandb(folder: Path, settings: dict[str, Any], done: int) -> Log:
    """A run in the project fpmgm; its id is kept in the run folder, so that a resumed run continues the same curves."""
    import wandb

    file = folder / "wandb-id"
    if not file.exists():
        write_text(file, secrets.token_hex(8))
    run = wandb.init(
        project="fpmgm", name=folder.name, id=file.read_text(), resume="allow", dir=str(folder), config=settings
    )
    return lambda row, update: run.log(dict(row), step=update)


TRACKERS: dict[str, Callable[[Path, dict[str, Any], int], Log]] = {"tensorboard": _tensorboard, "wandb": _wandb}
