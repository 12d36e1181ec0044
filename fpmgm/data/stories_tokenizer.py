"""The tokenizer of the source of `stories`: a list of pieces with scores, merged from characters, best score first.

The file holds an int32 and then, for each id, a float32 score, an int32 length and the bytes of the piece. The ids 3 to
258 are single bytes, spelled <0xNN>, for characters that have no piece.
"""

import math
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path

from fpmgm.data.assets import fetch
from fpmgm.data.stories_source import ASSET

FIRST_BYTE = 3
FIRST_PIECE = FIRST_BYTE + 256
CHUNK = re.compile(r" *[^ ]+| +")  # no piece has a space after another character, so chunks are merged alone


class SourceTokenizer:
    """Text to the source's ids and back."""

    def __init__(self, pieces: Sequence[bytes], scores: Sequence[float]) -> None:
        self.pieces = [*pieces]
        self.scores = [*scores]
        for byte in range(256):
            self.pieces[FIRST_BYTE + byte] = bytes([byte])
        self._encode_chunk = lru_cache(maxsize=1 << 16)(self._merge)

    @cached_property
    def _ids(self) -> dict[str, int]:
        pieces = ((index, self.pieces[index]) for index in range(FIRST_PIECE, len(self.pieces)))
        found: dict[str, int] = {}
        for index, piece in pieces:
            found.setdefault(piece.decode("utf-8"), index)
        return found

    def decode(self, ids: Iterable[int]) -> str:
        """The text of what follows `BEGIN`: one space before the first word is not part of it."""
        text = b"".join(self.pieces[index] for index in ids if index >= FIRST_BYTE)
        return text.removeprefix(b" ").decode("utf-8", errors="replace")

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without `BEGIN`; `decode` gives the text back."""
        if not text:
            return []
        return [index for chunk in CHUNK.findall(" " + text) for index in self._encode_chunk(chunk)]

    def merging(self, chunk: str) -> Iterator[list[int]]:
        """The ids of a text without spaces inside, from single characters to the last merge.

        Each time those neighbours are joined whose joint piece has the best score.
        """
        ids = self._characters(chunk)
        yield [*ids]
        while True:
            joined = [self._joint(*pair) for pair in pairwise(ids)]
            scores = [-math.inf if index is None else self.scores[index] for index in joined]
            if max(scores, default=-math.inf) == -math.inf:
                return
            place = scores.index(max(scores))
            ids[place : place + 2] = [index for index in joined[place : place + 1] if index is not None]
            yield [*ids]

    def _merge(self, chunk: str) -> list[int]:
        *_, last = self.merging(chunk)
        return last

    def _characters(self, chunk: str) -> list[int]:
        ids: list[int] = []
        for character in chunk:
            index = self._ids.get(character)
            ids += [FIRST_BYTE + byte for byte in character.encode("utf-8")] if index is None else [index]
        return ids

    def _joint(self, left: int, right: int) -> int | None:
        if min(left, right) < FIRST_PIECE:  # single bytes are never merged
            return None
        return self._ids.get((self.pieces[left] + self.pieces[right]).decode("utf-8"))


def load_tokenizer() -> SourceTokenizer:
    """The tokenizer of the source of `stories`, fetched on first use."""
    return read_tokenizer(fetch(ASSET) / "tokenizer.bin")


def read_tokenizer(file: Path) -> SourceTokenizer:
    """A tokenizer in llama2.c's binary format."""
    data = file.read_bytes()
    pieces, scores, place = [], [], 4
    while place < len(data):
        score, length = struct.unpack_from("<fi", data, place)
        place += 8
        pieces.append(data[place : place + length])
        scores.append(score)
        place += length
    return SourceTokenizer(pieces, scores)
