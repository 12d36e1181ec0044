"""Text as packed sequences: tokenised once into a memory-mapped cache keyed by content, tokenizer and length.

`wrap`: documents are joined with an end-of-text token between them and cut into pieces of length - 2; every sequence is
one piece between two end-of-text tokens, which serve as BOS and EOS (MDLM's wrapping). What is left over is dropped.
`pad`: every document is a sequence of its own, cut off or filled up with a symbol that the loss leaves out.
"""

import hashlib
import json
import os
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import Int
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from fpmgm.data.assets import cache_folder, fetch
from fpmgm.data.sources import Piece, fingerprint, num_bytes, pieces
from fpmgm.names import choose
from fpmgm.symbols import END_OF_TEXT, Symbols, symbols_of

TOKENIZER_BYTES = 64 << 20  # a tokenizer is trained on at most this much text, taken evenly from the source
PIECES_AT_ONCE = 8
DOCUMENTS_AT_ONCE = 1024
NUM_REGIONS = 16

KNOWN = {"gpt2": (50257, 50258), "bert": (103, 30522)}
"""Mask and size of tokenizers that are assets, so that a recipe's parameters can be counted without them."""

RowIndices = Int[np.ndarray, "..."]


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Which text, in which tokens, in sequences of which length."""

    source: str = "poetry"
    """poetry, shakespeare, wikitext-2; a .txt, .jsonl or .parquet file; a folder of them; or hub:owner/name."""
    text_field: str = "text"
    """The field or column that holds the text of .jsonl, .parquet and hub data."""
    tokenizer: str = "bpe-2048"
    """bpe-N: byte-level BPE trained on the source, N symbols with the mask; gpt2; bert; or a tokenizer.json."""
    length: int = 128
    packing: str = "wrap"
    """wrap: documents joined and cut to length; pad: a sequence for each document (of a .txt file, for each line)."""
    validation_share: float = 0.01
    """How much of the text is held out, as whole regions spread over it."""
    validation_documents: int = 0
    """If above 0, the last so many documents are held out instead."""

    def __post_init__(self) -> None:
        choose("packing", self.packing, {"wrap": None, "pad": None})
        if self.length < 3:
            raise ValueError(f"data.length is {self.length}; it must be at least 3")
        if not 0 < self.validation_share < 0.5:
            raise ValueError(f"data.validation_share is {self.validation_share}; it must lie between 0 and 0.5")
        if self.validation_documents < 0:
            raise ValueError(f"data.validation_documents is {self.validation_documents}; it must be 0 or more")


@dataclass(frozen=True, kw_only=True)
class PackedText:
    """Sequences on disk, and how to read them."""

    rows: np.ndarray  # (number of sequences, length), memory-mapped
    tokenizer: Tokenizer
    symbols: Symbols
    train: RowIndices
    validation: RowIndices


def mask_and_size(tokenizer: str) -> tuple[int, int]:
    """The mask's id and the number of symbols, the mask included, that a tokenizer setting asks for."""
    if tokenizer in KNOWN:
        return KNOWN[tokenizer]
    if tokenizer.startswith("bpe-") and tokenizer[4:].isdigit():
        size = int(tokenizer[4:])
        if size < 258:
            raise ValueError(f"tokenizer is {tokenizer}; byte-level BPE needs at least 258 symbols: bpe-258")
        return size - 1, size
    symbols = symbols_of(Tokenizer.from_file(str(_tokenizer_file(tokenizer))))
    return symbols.mask_id, symbols.size


def load_text(config: TextConfig) -> PackedText:
    """The packed sequences of a source, from the cache or made now."""
    content = fingerprint(config.source)
    tokenizer = tokenizer_for(config, content)
    how = [] if config.packing == "wrap" else [config.packing]
    documents = str(config.validation_documents)
    key = _key(content, config.text_field, tokenizer.to_str(), str(config.length), documents, *how)
    folder = cache_folder() / "packed" / key
    if not folder.exists():
        _write_packed(folder, config, tokenizer)
    shape = json.loads((folder / "shape.json").read_text())
    tokens = np.memmap(folder / "rows.bin", dtype=np.uint16 if shape["bytes"] == 2 else np.uint32, mode="r")
    rows = tokens.reshape(-1, config.length)
    if config.validation_documents:
        train, validation = np.split(np.arange(len(rows)), [shape["held_out_from"]])
        if config.packing == "wrap":
            validation = validation[1:]  # the row in which they begin belongs to neither
        if not (len(train) and len(validation)):
            raise ValueError(
                f"the last {config.validation_documents} documents leave {len(train)} sequences to train on and "
                f"{len(validation)} to validate on; change data.validation_documents"
            )
    else:
        train, validation = held_out(len(rows), config.validation_share)
    return PackedText(rows=rows, tokenizer=tokenizer, symbols=symbols_of(tokenizer), train=train, validation=validation)


def tokenizer_for(config: TextConfig, content: str) -> Tokenizer:
    """The tokenizer of a configuration: loaded, or trained on the source and cached."""
    if config.tokenizer in KNOWN:
        return Tokenizer.from_file(str(fetch(config.tokenizer)))
    _, size = mask_and_size(config.tokenizer)
    if not config.tokenizer.startswith("bpe-"):
        return Tokenizer.from_file(str(_tokenizer_file(config.tokenizer)))
    file = cache_folder() / "tokenizers" / f"{_key(content, config.text_field, str(size))}.json"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        tokenizer = train_bpe(_sampled_text(config), size - 1)
        scratch = file.with_name(f".{file.name}.{os.getpid()}")
        tokenizer.save(str(scratch))
        os.replace(scratch, file)
    return Tokenizer.from_file(str(file))


def train_bpe(texts: Iterator[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE with the end-of-text token as id 0; the mask is not a symbol of the tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def held_out(num_rows: int, share: float) -> tuple[RowIndices, RowIndices]:
    """(training, validation) rows: validation is whole regions, evenly spread, never single rows among others."""
    if num_rows < 2:
        raise ValueError(
            f"the text fills {num_rows} sequences; at least 2 are needed: give more text or a shorter length"
        )
    num_regions = NUM_REGIONS if num_rows * share >= 2 * NUM_REGIONS else 1
    size = max(1, round(num_rows * share / num_regions))
    is_held = np.zeros(num_rows, dtype=bool)
    for region in range(num_regions):
        start = int((region + 0.5) * num_rows / num_regions)
        is_held[start : start + size] = True
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def _write_packed(folder: Path, config: TextConfig, tokenizer: Tokenizer) -> None:
    """Tokenise into a folder beside the final one, then rename: a kill leaves no half cache."""
    symbols = symbols_of(tokenizer)
    dtype = np.dtype(np.uint16 if symbols.size <= 1 << 16 else np.uint32)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        unfinished = Path(scratch) / "packed"
        unfinished.mkdir()
        write = _wrap if config.packing == "wrap" else _pad
        with open(unfinished / "rows.bin", "wb") as file:
            held_out_from = write(file, config, tokenizer, symbols, dtype)
        shape = {"bytes": dtype.itemsize, "length": config.length, "held_out_from": held_out_from}
        (unfinished / "shape.json").write_text(json.dumps(shape))
        if not folder.exists():  # another process may have been faster
            os.replace(unfinished, folder)


def _wrap(file: BinaryIO, config: TextConfig, tokenizer: Tokenizer, symbols: Symbols, dtype: np.dtype) -> int:
    """Write the rows; returns the row in which the last documents begin."""
    body = config.length - 2
    left = np.empty(0, dtype)
    num_tokens = 0
    starts = deque([0], maxlen=config.validation_documents + 1)  # where the last documents begin
    source = pieces(config.source, config.text_field)
    for piece, ids in _tokenised(source, tokenizer, PIECES_AT_ONCE):
        tokens = np.asarray([*ids, symbols.last] if piece.ends_document else ids, dtype)
        num_tokens += len(tokens)
        if piece.ends_document:
            starts.append(num_tokens)
        stream = np.concatenate([left, tokens])
        num_rows = len(stream) // body
        rows = np.empty((num_rows, config.length), dtype)
        rows[:, 0], rows[:, -1] = symbols.first, symbols.last
        rows[:, 1:-1] = stream[: num_rows * body].reshape(num_rows, body)
        rows.tofile(file)
        left = stream[num_rows * body :]
    if file.tell() == 0:
        raise ValueError(
            f"{config.source} holds {len(left)} tokens; one sequence of length {config.length} needs {body}"
        )
    return starts[0] // body


def _pad(file: BinaryIO, config: TextConfig, tokenizer: Tokenizer, symbols: Symbols, dtype: np.dtype) -> int:
    """Write a row for each document; returns the row of the first of the last documents."""
    num_rows = 0
    begins = True
    source = pieces(config.source, config.text_field, by_line=True)
    for piece, ids in _tokenised(source, tokenizer, DOCUMENTS_AT_ONCE):
        if begins and ids:  # what follows in a later piece of the same document is cut off
            row = np.full(config.length, symbols.pad_id, dtype)
            kept = ids[: config.length - 2]
            row[: len(kept) + 2] = [symbols.first, *kept, symbols.last]
            row.tofile(file)
            num_rows += 1
        begins = piece.ends_document
    if num_rows == 0:
        raise ValueError(f"{config.source} holds no text")
    return max(0, num_rows - config.validation_documents)


def _tokenised(source: Iterator[Piece], tokenizer: Tokenizer, at_once: int) -> Iterator[tuple[Piece, list[int]]]:
    while batch := list(islice(source, at_once)):
        encoded = tokenizer.encode_batch_fast([piece.text for piece in batch], add_special_tokens=False)
        for piece, encoding in zip(batch, encoded, strict=True):
            yield piece, encoding.ids


def _sampled_text(config: TextConfig) -> Iterator[str]:
    """Every k-th piece of a source, so that no more than TOKENIZER_BYTES are read into the tokenizer."""
    size = num_bytes(config.source)
    every = max(1, -(-size // TOKENIZER_BYTES))
    budget = TOKENIZER_BYTES
    for piece in islice(pieces(config.source, config.text_field), 0, None, every):
        yield piece.text
        budget -= len(piece.text)
        if budget < 0:
            return


def _tokenizer_file(tokenizer: str) -> Path:
    path = Path(tokenizer)
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"tokenizer is {tokenizer!r}; give gpt2, bert, bpe-N or a tokenizer.json that exists")
    return path


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
