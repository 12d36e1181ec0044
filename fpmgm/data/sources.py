"""Where text comes from: an asset by name, a file, a folder, or a data set of the hub, read piece by piece.

A piece is about a quarter of a megabyte and says whether its document ends with it; nothing larger is ever held.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fpmgm.data.assets import ASSETS, fetch

PIECE_BYTES = 1 << 18
SUFFIXES = (".txt", ".jsonl", ".parquet")


class Piece(NamedTuple):
    text: str
    ends_document: bool


def pieces(source: str, text_field: str = "text", *, by_line: bool = False) -> Iterator[Piece]:
    """The text of a source, in order; `by_line` takes every line of a text file for a document."""
    if source.startswith("hub:"):
        yield from _hub_pieces(source.removeprefix("hub:"), text_field)
        return
    for file in files_of(source):
        read = {".jsonl": _jsonl_pieces, ".parquet": _parquet_pieces}.get(file.suffix)
        if read:
            yield from read(file, text_field)
        else:
            yield from _lines(_text_pieces(file)) if by_line else _text_pieces(file)


def files_of(source: str) -> list[Path]:
    """The files of an asset or a path, in order; a ValueError if there is nothing to read."""
    if source in ASSETS:
        asset = fetch(source)
        return [asset] if asset.is_file() else [asset / "train.txt"]
    path = Path(source)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)
        if not files:
            raise ValueError(f"folder {source} holds no {', '.join(SUFFIXES)} file")
        return files
    if not path.exists():
        raise ValueError(
            f"no data at {source!r}; give a file, a folder, hub:owner/name or one of {', '.join(_texts())}"
        )
    return [path]


def _texts() -> list[str]:
    return [name for name in ASSETS if name not in ("gpt2", "bert", "smollm2")]


def fingerprint(source: str) -> str:
    """A hash of the content of a source; of a hub data set, of its name and revision."""
    digest = hashlib.sha256()
    if source.startswith("hub:"):
        from huggingface_hub import HfApi

        name = source.removeprefix("hub:")
        digest.update(f"{name}@{HfApi().dataset_info(name).sha}".encode())
        return digest.hexdigest()
    for file in files_of(source):
        try:
            with open(file, "rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise ValueError(f"cannot read {file}: {error.strerror}") from error
    return digest.hexdigest()


def num_bytes(source: str) -> int:
    """The size of a source's files; 0 for the hub, where it is not known."""
    return 0 if source.startswith("hub:") else sum(file.stat().st_size for file in files_of(source))


def _text_pieces(file: Path) -> Iterator[Piece]:
    """A text file is one document, cut at line ends (or anywhere in a line longer than a piece)."""
    held = ""
    with open(file, encoding="utf-8", newline="") as stream:
        try:
            while text := stream.read(PIECE_BYTES) + stream.readline(PIECE_BYTES):
                if "\0" in text:
                    raise ValueError(f"{file} is binary, not text")
                if held:
                    yield Piece(held, ends_document=False)
                held = text
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    if held:
        yield Piece(held, ends_document=True)


def _lines(source: Iterator[Piece]) -> Iterator[Piece]:
    """Every line as a document; pieces end at line ends, but for lines longer than a piece."""
    for piece in source:
        for line in piece.text.splitlines():
            if line.strip():
                yield Piece(line, ends_document=True)


def _jsonl_pieces(file: Path, text_field: str) -> Iterator[Piece]:
    with open(file, encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{file} line {number} is not JSON: {error.msg}") from error
            yield from _row_pieces(row, text_field, f"{file} line {number}")


def _parquet_pieces(file: Path, text_field: str) -> Iterator[Piece]:
    from pyarrow import parquet

    table = parquet.ParquetFile(file)
    if text_field not in table.schema_arrow.names:
        raise ValueError(f"{file} has no column {text_field!r}; it has {', '.join(table.schema_arrow.names)}")
    for batch in table.iter_batches(batch_size=256, columns=[text_field]):
        for text in batch[text_field].to_pylist():
            yield from _document_pieces(text or "")


def _hub_pieces(name: str, text_field: str) -> Iterator[Piece]:
    from datasets import load_dataset

    for row in load_dataset(name, split="train", streaming=True):
        yield from _row_pieces(row, text_field, f"a row of {name}")


def _row_pieces(row: object, text_field: str, where: str) -> Iterator[Piece]:
    if not isinstance(row, dict) or not isinstance(row.get(text_field), str):
        fields = ", ".join(row) if isinstance(row, dict) else type(row).__name__
        raise ValueError(f"{where} has no text in {text_field!r}; it has {fields}")
    yield from _document_pieces(row[text_field])


def _document_pieces(text: str) -> Iterator[Piece]:
    for start in range(0, len(text), PIECE_BYTES):
        end = start + PIECE_BYTES
        yield Piece(text[start:end], ends_document=end >= len(text))
