"""The metrics of a run: a row of numbers for each update in metrics.jsonl, which may be short, torn or gone."""

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

from fpmgm.files import write_text
from fpmgm.schema import read_json

METRICS = "metrics.jsonl"
START = "start.json"
Row = dict[str, Any]


def read_metrics(folder: Path) -> list[Row]:
    """The rows of a run's metrics.jsonl, in the order of updates. Lines that hold no row are left out."""
    return _read(folder / METRICS)[0]


def keep_metrics(folder: Path, done: int, last: Row | None) -> str:
    """Drop the rows after update `done`, and put back that of `done`, which the state knows too.

    Returns what there is to say about rows that are missing. A file with lines that cannot be read is kept beside.
    """
    file = folder / METRICS
    rows, num_bad = _read(file)
    kept = {row["update"]: row for row in rows if 1 <= row["update"] <= done}
    if last:
        kept.setdefault(done, last)
    text = "".join(json.dumps(kept[update]) + "\n" for update in sorted(kept))
    copy = keep_copy(file) if num_bad else None
    if not file.exists() or file.read_bytes() != text.encode():
        write_text(file, text)
    if len(kept) == done:
        return ""
    beside = f" (what was there is kept as {copy.name})" if copy else ""
    return f"{file} lacks {done - len(kept)} of {done} updates{beside}; the run goes on from its state without them"


def is_row(row: Any) -> bool:
    """Whether something read from a file is the row of an update."""
    if not isinstance(row, dict) or not all(_is_number(value) for value in row.values()):
        return False
    has_error = "validation" not in row or "validation_error" in row
    return type(row.get("update")) is int and "loss" in row and has_error


def write_start(folder: Path, measured: Row) -> None:
    """Keep the validation perplexity of the start."""
    write_text(folder / START, json.dumps(measured, indent=1) + "\n")


def read_start(folder: Path) -> float | None:
    """The validation perplexity of the start, or None if it was not measured."""
    file = folder / START
    if not file.exists():
        return None
    value: Any = read_json(file).get("validation")
    if not (_is_number(value) and value > 0 and math.isfinite(value)):
        raise ValueError(f"{file} holds no validation perplexity but {str(value)[:40]!r}; delete it")
    return float(value)


def keep_copy(file: Path) -> Path:
    """Give a damaged file a second name beside it, before it is replaced."""
    names = [f"{file.name}.damaged", *(f"{file.name}.damaged-{number}" for number in range(2, 1000))]
    copy = next(path for path in map(file.with_name, names) if not path.exists())
    try:
        os.link(file, copy)
    except OSError:  # a file system without links
        shutil.copyfile(file, copy)
    return copy


def _read(file: Path) -> tuple[list[Row], int]:
    """The rows of a file, one for each update, and the number of other lines; a last line may be unfinished."""
    lines = file.read_bytes().split(b"\n") if file.exists() else [b""]
    rows = [_parse(line) for line in lines]
    num_bad = sum(row is None for row in rows[:-1])
    found = {row["update"]: row for row in rows if row is not None}
    return [found[update] for update in sorted(found)], num_bad


def _parse(line: bytes) -> Row | None:
    try:
        row = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    return row if is_row(row) else None


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 1 << 63)
