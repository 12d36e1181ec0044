"""Where text comes from: an asset by name, a file, a folder, or a data set of the hub, read piece by piece.

A piece is about a quarter of a megabyte and says whether its document ends with it; nothing larger is ever held.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fpmgm.data.assets import ASSETS, fetch
from fpmgm.hub import asking_hub
from fpmgm.schema import has_surrogates, parse_object, shortened

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
    if source in _texts():
        asset = fetch(source)
        return [asset] if asset.is_file() else [asset / "train.txt"]
    path = Path(source)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)
        if not files:
            raise ValueError(f"folder {source} holds no {', '.join(SUFFIXES)} file")
        return files
    if source == "stories" and not path.exists():
        raise ValueError("stories is no text to read: it has recipes of its own, as in fpmgm train stories-fp")
    if not path.exists():
        raise ValueError(
            f"no data at {source!r}; give a file, a folder, hub:owner/name or one of {', '.join(_texts())}"
        )
    return [path]


def _texts() -> list[str]:
    return [name for name, asset in ASSETS.items() if asset.kind == "text"]


def fingerprint(source: str) -> str:
    """A hash of the content of a source; of a hub data set, of its name and revision."""
    digest = hashlib.sha256()
    if source.startswith("hub:"):
        from huggingface_hub import HfApi

        name = source.removeprefix("hub:")
        with asking_hub(name):
            revision = HfApi().dataset_info(name).sha
        digest.update(f"{name}@{revision}".encode())
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


def is_compressed(source: str) -> bool:
    """Whether a source has more text than its files have bytes."""
    return any(file.suffix == ".parquet" for file in files_of(source))


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
    for row, where in json_rows(file):
        yield from _row_pieces(row, text_field, where)


def json_rows(file: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """The objects of a .jsonl file, each with words for where it is."""
    with open(file, "rb") as stream:
        for number, line in enumerate(stream, 1):
            where = f"{file} line {number}"
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"{where} is not UTF-8 text: {error.reason} at byte {error.start}") from error
            if text.strip():
                yield parse_object(text, where, is_strict=False), where


def _parquet_pieces(file: Path, text_field: str) -> Iterator[Piece]:
    """A parquet file, whose text column must be one of text; a row without a text is left out."""
    from pyarrow import lib, parquet, types

    try:
        table = parquet.ParquetFile(file)
        if text_field not in table.schema_arrow.names:
            raise ValueError(f"{file} has no column {text_field!r}; it has {', '.join(table.schema_arrow.names)}")
        kind = table.schema_arrow.field(text_field).type
        if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
            raise ValueError(f"{file}: column {text_field!r} holds {kind}; it must hold text")
        for batch in table.iter_batches(batch_size=256, columns=[text_field]):
            for text in batch[text_field].to_pylist():
                yield from _document_pieces(text or "")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: column {text_field!r} holds text that is not UTF-8: {error.reason}") from error
    except (lib.ArrowException, OSError) as error:  # Arrow calls a damaged file an OSError
        raise ValueError(f"{file} is damaged or not a parquet file: {error}") from error


def _hub_pieces(name: str, text_field: str) -> Iterator[Piece]:
    from datasets import load_dataset

    with asking_hub(name):
        rows = iter(load_dataset(name, split="train", streaming=True))
    while True:
        with asking_hub(name):
            row = next(rows, None)
        if row is None:
            return
        yield from _row_pieces(row, text_field, f"a row of {name}")


def _row_pieces(row: object, text_field: str, where: str) -> Iterator[Piece]:
    if not isinstance(row, dict) or not isinstance(row.get(text_field), str):
        fields = ", ".join(map(shortened, row)) if isinstance(row, dict) else type(row).__name__
        raise ValueError(f"{where} has no text in {text_field!r}; it has {fields or 'nothing'}")
    if has_surrogates(row[text_field]):
        raise ValueError(f"{where} holds half a character (a lone surrogate), which is no text")
    yield from _document_pieces(row[text_field])


def _document_pieces(text: str) -> Iterator[Piece]:
    for start in range(0, len(text), PIECE_BYTES):
        end = start + PIECE_BYTES
        yield Piece(text[start:end], ends_document=end >= len(text))
