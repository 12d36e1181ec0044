"""Text as packed sequences: tokenised once into a memory-mapped cache keyed by content, tokenizer and length.

`packing.py` says how documents become sequences, and `pairs.py` how prompts with their answers do.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar

import numpy as np
import tyro
from tokenizers import Tokenizer

from fpmgm.backbones.network import Vocabulary
from fpmgm.codecs import Codec, TextCodec
from fpmgm.data.assets import ASSETS, cache_folder, making
from fpmgm.data.dataset import DataConfig, Dataset, RowIndices
from fpmgm.data.packing import PACKINGS, Packed, RowFile, documents, tokenised, without_shared
from fpmgm.data.pairs import Fields, Pair, pack_pairs, pair_tokens, read_pairs
from fpmgm.data.sources import Piece, fingerprint, is_compressed, num_bytes, pieces
from fpmgm.data.tokenizing import (
    ANY_KEY,
    KNOWN,
    is_bundled,
    mask_and_size,
    named_tokenizer,
    trained_size,
    trained_tokenizer,
)
from fpmgm.files import remove_leftovers, whole_folder
from fpmgm.names import choose
from fpmgm.progress import Progress
from fpmgm.schema import MAX_LENGTH, read_json, read_object, require
from fpmgm.symbols import symbols_of

TOKENIZER_BYTES = 64 << 20  # a tokenizer is trained on at most this much text, taken evenly from the source
PIECES_AT_ONCE = 8
DOCUMENTS_AT_ONCE = 1024
NUM_REGIONS = 16
PATIENCE = 3.0
"""Seconds of work after which its progress is shown."""
MAX_DOCUMENTS = 100_000_000
PAIRS = "pairs"
Read = TypeVar("Read", Piece, Pair)


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Which text, in which tokens, in sequences of which length."""

    data_type: ClassVar[str] = "text"
    note: ClassVar[str] = ""

    source: str = "poetry"
    """A corpus (poetry, shakespeare, wikitext-2), a .txt, .jsonl or .parquet file, a folder of them, or
    hub:owner/name."""
    text_field: str = "text"
    """The field or column that holds the text of .jsonl, .parquet and hub data."""
    tokenizer: str = "bpe-2048"
    """bpe-N trains a byte-level BPE of N symbols, the mask included, on the source; words-N takes its most frequent
    words as symbols, which suits text of few different words. Or it is gpt2, bert, a tokenizer.json, or a model, whose
    tokenizer is taken: a bundled one, a model folder or a run."""
    length: int = 128
    """Tokens of a sequence."""
    packing: Literal["wrap", "pad", "begin", "end", "pairs"] = "wrap"
    """How text becomes sequences. wrap: documents are joined and cut to length. With the others, each line of a .txt
    file is a document. pad: each document is a sequence; the rest of it is outside the loss. end: the same, but the
    rest is filled with ends, which are learned, so that the model knows where to stop. begin: every sequence begins
    with a document and is filled up with those that follow; the last one is cut. pairs: a sequence is a prompt, which
    is given and never learned, and its answer, as with end."""
    prompt_field: str = "prompt"
    """For pairs: the field of .jsonl that holds the prompt."""
    answer_field: str = "answer"
    """For pairs: the field of .jsonl that holds the answer."""
    between: str = "\n"
    """For pairs: what stands between prompt and answer. The model writes it."""
    validation_share: float = 0.01
    """The share of the text that is held out, as whole regions that are spread over it."""
    validation_documents: int = 0
    """If it is above 0, so many documents are held out instead, the last ones."""
    content: Annotated[str, tyro.conf.Suppress] = ""
    """A hash of the text. Training writes it into the model folder, so that a text that has changed is refused."""

    def __post_init__(self) -> None:
        choose("packing", self.packing, {**PACKINGS, PAIRS: None})
        for name in ("text_field",) if self.packing == PAIRS else ("prompt_field", "answer_field", "between"):
            if getattr(self, name) != getattr(TextConfig, name):
                raise ValueError(
                    f"data.{name} is {getattr(self, name)!r}, and packing {self.packing} does not use it; leave it out"
                )
        if self.packing == PAIRS and self.source.startswith("hub:"):
            raise ValueError(f"pairs are read from .jsonl files, and data.source is {self.source}")
        require("data.length", self.length, 3, MAX_LENGTH)
        trained_size(self.tokenizer)  # a wrong one is refused before any text is fetched
        if not 0 < self.validation_share < 0.5:
            raise ValueError(f"data.validation_share is {self.validation_share}; it must lie between 0 and 0.5")
        require("data.validation_documents", self.validation_documents, 0, MAX_DOCUMENTS)

    @property
    def vocabulary(self) -> Vocabulary:
        """Its symbols and length, told by the tokenizer's name or file."""
        mask_id, size = mask_and_size(self.tokenizer)
        return Vocabulary(size=size, mask_id=mask_id, length=self.length)

    @property
    def name(self) -> str:
        return self.source

    @property
    def fields(self) -> Fields:  # of pairs
        return Fields(prompt=self.prompt_field, answer=self.answer_field, between=self.between)

    @property
    def has_ends(self) -> bool:
        return self.packing != "wrap"

    @property
    def is_begun(self) -> bool:  # `wrap` and `pad` are MDLM's ways, whose first symbol is like any other
        return self.packing not in ("wrap", "pad")

    def placed(self, content: str = "") -> "TextConfig":
        """The same with whole paths and the hash of the text, as a model folder keeps it.

        Evaluation then finds the file from any working directory, as long as it is there and has not changed: the rows
        of another text would be split otherwise. Whoever gets the model folder sees the path.
        """
        is_path = self.source not in ASSETS and not self.source.startswith("hub:")
        is_file = self.tokenizer not in KNOWN and not trained_size(self.tokenizer) and not is_bundled(self.tokenizer)
        return replace(
            self,
            source=os.path.abspath(self.source) if is_path else self.source,
            tokenizer=os.path.abspath(self.tokenizer) if is_file else self.tokenizer,
            content=content,
        )

    def is_split_as(self, other: DataConfig) -> bool:
        if not isinstance(other, TextConfig):
            return False
        ours, theirs = (replace(each.placed(), tokenizer="") for each in (self, other))
        return ours == theirs

    def load(self, codec: Codec | None = None) -> Dataset:
        return load_text(self, codec)

    def held_out_only(self) -> "TextConfig":
        """The same: what is held out is cut out of the whole text."""
        return self


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a cache of packed sequences says of itself."""

    bytes: int
    """Of a token."""
    length: int
    held_out_from: int
    """The row in which the last documents begin."""
    note: str = ""
    """What a user must be told of it whenever it is loaded."""


@dataclass(frozen=True, kw_only=True)
class TextDataset(Dataset):
    """Sequences of text."""

    codec: TextCodec


def load_text(config: TextConfig, codec: Codec | None = None) -> TextDataset:
    """The packed sequences of a source, from the cache or made now; in the tokens of `codec`, or as the config says."""
    content = fingerprint(config.source)
    if config.content not in ("", content):
        raise ValueError(f"{config.source} has changed since then")
    if codec is not None and not isinstance(codec, TextCodec):
        raise ValueError(f"{config.source} is text, and the model writes {codec.kind}")
    tokenizer = codec.tokenizer if codec else tokenizer_for(config, content)
    how = [] if config.packing == "wrap" else [config.packing]
    num_last = str(config.validation_documents)
    key = _key(content, *_read_as(config), tokenizer.to_str(), str(config.length), num_last, *how)
    folder = cache_folder() / "packed" / key
    with making(folder) as is_missing:
        if is_missing:
            _write_packed(folder, config, tokenizer)
    shape = read_object(Shape, read_json(folder / "shape.json"), str(folder / "shape.json"))
    if shape.note:
        _say_once(f"{config.source}: {shape.note}")
    dtype = np.uint16 if shape.bytes == 2 else np.uint32
    rows = np.memmap(folder / "rows.bin", dtype=dtype, mode="r").reshape(-1, config.length)
    train, kept = _split(config, folder, len(rows), shape.held_out_from)
    symbols = symbols_of(tokenizer)
    return TextDataset(
        rows=rows,
        train=train,
        held_out=kept,
        codec=codec or TextCodec(tokenizer.to_str(pretty=True)),
        vocabulary=Vocabulary(size=symbols.size, mask_id=symbols.mask_id, length=config.length),
        pad_id=symbols.pad_id if config.packing == "pad" else None,
        given=np.load(folder / "given.npy", mmap_mode="r") if config.packing == PAIRS else None,
        is_begun=config.is_begun,
        content=content,
        place=folder,
    )


def _split(config: TextConfig, folder: Path, num_rows: int, held_out_from: int) -> tuple[RowIndices, RowIndices]:
    """(training, validation) rows: the last documents are held out, or a share of all rows."""
    if not config.validation_documents:
        train, kept = held_out(num_rows, config.validation_share)
    else:
        train, kept = np.split(np.arange(num_rows), [held_out_from])
        if config.packing == "wrap":
            kept = kept[1:]  # the row in which they begin belongs to neither
    if config.packing == "begin":
        train = without_shared(train, kept, np.load(folder / "spans.npy"))
        if not len(train):
            raise ValueError(
                f"every sequence of {config.length} tokens shares documents with held-out ones, so that none is left "
                "to train on; give more text, a shorter data.length, or --data.packing end"
            )
    if not (len(train) and len(kept)):
        raise ValueError(
            f"the last {config.validation_documents} documents leave {len(train)} sequences to train on and "
            f"{len(kept)} to validate on; change data.validation_documents"
        )
    return train, kept


@lru_cache(maxsize=64)
def _say_once(message: str) -> None:
    """Tell the user once, however often a command loads the same data."""
    print(message, file=sys.stderr)


def _read_as(config: TextConfig) -> tuple[str, ...]:
    """Which fields of the source are read."""
    return ("pairs", *config.fields) if config.packing == PAIRS else (config.text_field,)


def tokenizer_for(config: TextConfig, content: str) -> Tokenizer:
    """The tokenizer of a configuration: loaded, or trained on the source and cached."""
    if not trained_size(config.tokenizer):
        return named_tokenizer(config.tokenizer)
    key = _key(content, *_read_as(config), config.tokenizer)
    return trained_tokenizer(key, config.tokenizer, lambda: _sampled_text(config))


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
    """Tokenise into a folder beside the final one, then rename: a kill or a power cut leaves no half cache."""
    symbols = symbols_of(tokenizer)
    dtype = np.dtype(np.uint16 if symbols.size <= 1 << 16 else np.uint32)
    remove_leftovers(folder.parent, ANY_KEY)
    with whole_folder(folder) as unfinished:
        with open(unfinished / "rows.bin", "wb") as file:
            out = RowFile(file=file, source=config.source, length=config.length, symbols=symbols, dtype=dtype)
            packed = _packed(out, config, tokenizer)
        for name, numbers in packed.per_row.items():
            np.save(unfinished / f"{name}.npy", numbers)
        shape = Shape(bytes=dtype.itemsize, length=config.length, held_out_from=packed.held_out_from, note=packed.note)
        (unfinished / "shape.json").write_text(json.dumps(asdict(shape)))


def _packed(out: RowFile, config: TextConfig, tokenizer: Tokenizer) -> Packed:
    """Write the rows of a source."""
    if config.packing == PAIRS:
        pairs = _watched("tokenising", config.source, read_pairs(config.source, config.fields))
        return pack_pairs(out, pairs, tokenizer, config.validation_documents)
    by_line = {} if config.packing == "wrap" else {"by_line": True}
    source = _watched("tokenising", config.source, pieces(config.source, config.text_field, **by_line))
    ids = tokenised(source, tokenizer, DOCUMENTS_AT_ONCE if by_line else PIECES_AT_ONCE)
    return PACKINGS[config.packing](out, ids, config.validation_documents)


def row_sizes(config: TextConfig) -> list[int]:
    """How many tokens each document or pair of a source needs, with its two ends."""
    tokenizer = tokenizer_for(config, fingerprint(config.source))
    if config.packing == PAIRS:
        pairs = pair_tokens(read_pairs(config.source, config.fields), tokenizer)
        return [2 + len(prompt) + len(answer) for _, prompt, answer in pairs]
    source = tokenised(pieces(config.source, config.text_field, by_line=True), tokenizer, DOCUMENTS_AT_ONCE)
    return [2 + len(ids) for ids in documents(source, MAX_LENGTH)]


def _watched(what: str, source: str, pieces: Iterator[Read]) -> Iterator[Read]:
    """The same pieces, with a bar or lines that say how much of the source has been read if it takes long."""
    total = 0 if source.startswith("hub:") or is_compressed(source) else num_bytes(source) >> 20
    with Progress(f"{what} {source}", total, unit="MB", patience=PATIENCE) as progress:
        read = 0
        for piece in pieces:
            yield piece
            read += len(piece.text)
            progress.reach(read >> 20)


def _sampled_text(config: TextConfig) -> Iterator[str]:
    """Every k-th piece of a source, so that no more than TOKENIZER_BYTES are read into the tokenizer."""
    size = num_bytes(config.source)
    every = max(1, -(-size // TOKENIZER_BYTES))
    budget = TOKENIZER_BYTES
    for text in islice(texts_of(config), 0, None, every):
        yield text
        budget -= len(text)
        if budget < 0:
            return


def texts_of(config: TextConfig) -> Iterator[str]:
    """The text of a source, in pieces or pairs."""
    what = "reading for a tokenizer:"
    if config.packing == PAIRS:
        return (pair.text for pair in _watched(what, config.source, read_pairs(config.source, config.fields)))
    return (piece.text for piece in _watched(what, config.source, pieces(config.source, config.text_field)))


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
