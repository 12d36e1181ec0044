"""`--data.tokenizer source`: the ids of the source of `stories`, cut to those that carry nearly all of its mass.

The symbols are end-of-text, the 256 single bytes and the most probable pieces. A rare id is spelled with the pieces and
bytes that are left, so no text is lost. A model with these symbols writes the source's own ids, and the source judges
it exactly.
"""

import json
import re
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Integer
from tokenizers import Tokenizer, decoders, models, normalizers

from fpmgm.data.stories_source import BEGIN
from fpmgm.data.stories_tokenizer import FIRST_BYTE, FIRST_PIECE, SourceTokenizer
from fpmgm.symbols import END_OF_TEXT

DEFAULT_SYMBOLS = 4096
NUM_BYTES = 256
SPACE = "▁"


def source_size(setting: str) -> int | None:
    """The number of symbols, with the mask, that `source` or `source-N` asks for; None for another tokenizer.

    >>> source_size("source"), source_size("source-2048"), source_size("gpt2")
    (4096, 2048, None)
    """
    found = re.fullmatch(r"source(?:-(\d{1,40}))?", setting, re.ASCII)
    if found is None:
        return None
    size = int(found[1]) if found[1] else DEFAULT_SYMBOLS
    if not NUM_BYTES + 2 < size <= 32_000:
        raise ValueError(f"tokenizer is {setting}; the source's symbols can be cut to 259 to 32000: source-4096")
    return size


def kept_pieces(source: SourceTokenizer, mass: Float[np.ndarray, " V"], size: int) -> list[int]:
    """The most probable pieces and the pieces that they are merged from, as many as fit beside the other symbols.

    With the latter, text is cut as the source's own tokenizer cuts it, wherever that needs no rare piece.
    """
    room = size - NUM_BYTES - 2
    kept: set[int] = set()
    for index in np.argsort(-mass, kind="stable").tolist():
        if len(kept) == room:
            break
        if index < FIRST_PIECE or index in kept:
            continue
        merging = source.merging(source.pieces[index].decode("utf-8"))
        parts = {index} | {part for ids in merging for part in ids if part >= FIRST_PIECE}
        if len(kept | parts) <= room:
            kept |= parts
    return sorted(kept)


def cut_tokenizer(source: SourceTokenizer, mass: Float[np.ndarray, " V"], size: int) -> Tokenizer:
    """A tokenizer of `size` - 1 symbols; the mask is one more, as with every tokenizer here."""
    kept = kept_pieces(source, mass, size)
    pieces = {source.pieces[index].decode("utf-8").replace(" ", SPACE): source.scores[index] for index in kept}
    names = [END_OF_TEXT, *(f"<0x{byte:02X}>" for byte in range(NUM_BYTES)), *pieces]
    merges = [
        (piece[:cut], piece[cut:])
        for piece in sorted(pieces, key=lambda piece: -pieces[piece])
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
    vocabulary = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def to_source(tokenizer: Tokenizer, source: SourceTokenizer) -> Int[np.ndarray, " N"] | None:
    """The source's id of each symbol of a tokenizer; None if its symbols are not the source's own ids."""
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    if not model.get("byte_fallback"):
        return None
    ids = {piece: index for index, piece in enumerate(source.pieces) if index >= FIRST_PIECE}
    found = np.zeros(tokenizer.get_vocab_size(), np.int64)
    for name, symbol in tokenizer.get_vocab().items():
        byte = re.fullmatch(r"<0x([0-9A-F]{2})>", name)
        own = FIRST_BYTE + int(byte[1], 16) if byte else ids.get(name.replace(SPACE, " ").encode())
        own = BEGIN if name == END_OF_TEXT else own
        if own is None:
            return None
        found[symbol] = own
    return found


class Spelling:
    """The symbols of a cut tokenizer for the source's ids: one each, or several for a rare one."""

    def __init__(self, tokenizer: Tokenizer, source: SourceTokenizer) -> None:
        own = to_source(tokenizer, source)
        if own is None:
            raise ValueError("the tokenizer's symbols are not the ids of the source of stories")
        self.source = source
        self.symbols = np.full(len(source.pieces), -1, np.int64)
        self.symbols[own] = np.arange(len(own))
        self._pieces = {
            source.pieces[index]: symbol for symbol, index in enumerate(own.tolist()) if index >= FIRST_BYTE
        }
        self._longest = max(map(len, self._pieces))

    def __call__(self, ids: Integer[np.ndarray, " N"]) -> Int[np.ndarray, " M"]:
        """The symbols of a story."""
        symbols = self.symbols[ids]
        if symbols.min(initial=0) >= 0:
            return symbols
        parts = [
            [symbol] if symbol >= 0 else self._spelled(self.source.pieces[index])
            for symbol, index in zip(symbols.tolist(), ids.tolist(), strict=True)
        ]
        return np.array([symbol for part in parts for symbol in part])

    def _spelled(self, piece: bytes) -> list[int]:
        """From left to right, each time the longest piece that is left; single bytes are always there."""
        found = []
        while piece:
            length = next(n for n in range(min(self._longest, len(piece)), 0, -1) if piece[:n] in self._pieces)
            found.append(self._pieces[piece[:length]])
            piece = piece[length:]
        return found
