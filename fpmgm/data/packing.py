"""Documents in tokens become rows of one length.

`wrap`: documents are joined with an end-of-text token between them and cut into pieces of length - 2; every row is one
piece between two end-of-text tokens, which serve as BOS and EOS (MDLM's wrapping). What is left over is dropped.
`pad`: every document is a row of its own, cut off or filled up with a symbol that the loss leaves out.
`begin`: every document begins a row, which is filled up with the documents that follow; the last one is cut off.
`end`: every document is a row of its own, filled up with end-of-text tokens, which a model learns to write too.

`pairs` are in `pairs.py`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, cycle, islice
from typing import BinaryIO

import numpy as np
from jaxtyping import Int
from tokenizers import Tokenizer

from fpmgm.data.sources import Piece
from fpmgm.symbols import Symbols, continuing, encode_texts

Tokenised = Iterator[tuple[Piece, list[int]]]
RowIndices = Int[np.ndarray, "..."]
PerRow = Int[np.ndarray, " N"]


@dataclass(frozen=True, kw_only=True)
class RowFile:
    """Where rows are written to, and what they are made of."""

    file: BinaryIO
    source: str
    length: int
    symbols: Symbols
    dtype: np.dtype

    def add(self, tokens: list[int], fill: int) -> None:
        """Write a row: these tokens, and as many of `fill` as it takes."""
        row = np.full(self.length, fill, self.dtype)
        row[: len(tokens)] = tokens
        row.tofile(self.file)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """What is known of the rows that were written."""

    held_out_from: int
    """The row in which the last documents begin."""
    note: str = ""
    """What a user must be told of them, such as how many documents were cut."""
    per_row: dict[str, PerRow] = field(default_factory=dict)
    """Numbers of each row, by name."""


def wrap(out: RowFile, source: Tokenised, num_last: int) -> Packed:
    """Rows of joined documents."""
    body = out.length - 2
    left = np.empty(0, out.dtype)
    num_tokens = 0
    starts = deque([0], maxlen=num_last + 1)  # where the last documents begin
    for piece, ids in source:
        tokens = np.asarray([*ids, out.symbols.last] if piece.ends_document else ids, out.dtype)
        num_tokens += len(tokens)
        if piece.ends_document:
            starts.append(num_tokens)
        stream = np.concatenate([left, tokens])
        num_rows = len(stream) // body
        rows = np.empty((num_rows, out.length), out.dtype)
        rows[:, 0], rows[:, -1] = out.symbols.first, out.symbols.last
        rows[:, 1:-1] = stream[: num_rows * body].reshape(num_rows, body)
        rows.tofile(out.file)
        left = stream[num_rows * body :]
    if out.file.tell() == 0:
        raise ValueError(f"{out.source} holds {len(left)} tokens; one sequence of length {out.length} needs {body}")
    return Packed(held_out_from=starts[0] // body)


def pad(out: RowFile, source: Tokenised, num_last: int) -> Packed:
    """A row for each document, padded."""
    num_rows = 0
    begins = True
    for piece, ids in source:
        if begins and ids:  # what follows in a later piece of the same document is cut off
            out.add([out.symbols.first, *ids[: out.length - 2], out.symbols.last], out.symbols.pad_id)
            num_rows += 1
        begins = piece.ends_document
    return Packed(held_out_from=_last_rows(out, num_rows, num_last))


def end(out: RowFile, source: Tokenised, num_last: int) -> Packed:
    """A row for each document, filled up with ends; one that leaves no place for an end is cut and has none."""
    num_rows, num_cut = 0, 0
    for document in documents(source, out.length):
        num_rows += 1
        num_cut += len(document) > out.length - 2
        out.add([out.symbols.first, *document][: out.length], out.symbols.last)
    note = (
        f"{num_cut:,} of {num_rows:,} documents have more than {out.length - 2} tokens: they are cut and have no end; "
        "a larger --data.length keeps them whole"
    )
    return Packed(held_out_from=_last_rows(out, num_rows, num_last), note=note if num_cut else "")


def begin(out: RowFile, source: Tokenised, num_last: int) -> Packed:
    """A row for each document and those after it; the last rows go on with the first documents."""
    most = out.length - 1
    spans: list[int] = []
    head: list[list[int]] = []  # the first documents, as many as fill a row
    ahead: deque[list[int]] = deque()
    num_ahead = 0
    for document in documents(source, out.length):
        ended = [*document, out.symbols.last][:most]
        if sum(map(len, head)) < most:
            head.append(ended)
        ahead.append(ended)
        num_ahead += len(ended)
        while num_ahead >= most:
            spans.append(_add_begun(out, ahead))
            num_ahead -= len(ahead.popleft())
    while ahead:
        spans.append(_add_begun(out, chain(ahead, cycle(head))))
        ahead.popleft()
    per_row = {"spans": np.asarray(spans, np.int64)}
    return Packed(held_out_from=_last_rows(out, len(spans), num_last), per_row=per_row)


def _add_begun(out: RowFile, following: Iterable[list[int]]) -> int:
    """Write a row of these documents; returns how many of them it holds, the cut one among them."""
    row, num_documents = [out.symbols.first], 0
    for document in following:
        row += document
        num_documents += 1
        if len(row) >= out.length:
            break
    out.add(row[: out.length], out.symbols.last)
    return num_documents


def tokenised(source: Iterator[Piece], tokenizer: Tokenizer, at_once: int) -> Tokenised:
    """Pieces of text with their tokens. The later pieces of a document go on from the one before."""
    going_on, begins = continuing(tokenizer.to_str()), True
    while batch := list(islice(source, at_once)):
        is_first = [begins, *(piece.ends_document for piece in batch[:-1])]
        begins = batch[-1].ends_document
        firsts = iter(
            encode_texts(tokenizer, [piece.text for piece, first in zip(batch, is_first, strict=True) if first])
        )
        others = iter(
            encode_texts(going_on, [piece.text for piece, first in zip(batch, is_first, strict=True) if not first])
        )
        yield from ((piece, next(firsts if first else others)) for piece, first in zip(batch, is_first, strict=True))


def documents(source: Tokenised, most: int) -> Iterator[list[int]]:
    """The first `most` tokens of each document that has any."""
    held: list[int] = []
    for piece, ids in source:
        held += ids[: most - len(held)]
        if piece.ends_document:
            if held:
                yield held
            held = []


def _last_rows(out: RowFile, num_rows: int, num_last: int) -> int:
    """The row of the first of the last documents, each of which has one."""
    if num_rows == 0:
        raise ValueError(f"{out.source} holds no text")
    return max(0, num_rows - num_last)


PACKINGS: dict[str, Callable[[RowFile, Tokenised, int], Packed]] = {
    "wrap": wrap,
    "pad": pad,
    "begin": begin,
    "end": end,
}


def without_shared(train: RowIndices, held_out: RowIndices, spans: PerRow) -> RowIndices:
    """The training rows that share no document with a held-out row.

    Row i holds `spans[i]` documents from document i on; after the last one comes the first again.

    >>> without_shared(np.array([0, 1, 3, 4, 5]), np.array([2]), np.array([2, 2, 2, 2, 2, 2]))
    array([0, 4, 5])
    """
    num = len(spans)
    spans = np.minimum(spans, num)
    edges = np.zeros(2 * num + 1, np.int64)
    np.add.at(edges, held_out, 1)
    np.add.at(edges, held_out + spans[held_out], -1)
    is_covered = edges.cumsum()[:-1] > 0
    is_held = is_covered[:num] | is_covered[num:]
    before = np.concatenate([[0], np.tile(is_held, 2).cumsum()])  # how many held-out documents there are before each
    return train[before[train + spans[train]] == before[train]]
