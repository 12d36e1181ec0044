"""The corpus `stories` as training and held-out sequences.

Only whole stories are taken: those that ended within the source's positions. The source draws `size` tokens of training
stories; the held-out stories are those with seeds of their own, so with a size of 0 no training story is made or read.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Int
from tokenizers import Tokenizer

from fpmgm.backbones.network import Vocabulary
from fpmgm.codecs import Codec, TextCodec
from fpmgm.data.assets import cache_folder
from fpmgm.data.dataset import DataConfig
from fpmgm.data.stories import DEFAULT_SIZE, HELD_OUT, MAX_SIZE, STORIES, Shard, Workshop, make_stories, workshop
from fpmgm.data.stories_sampler import Story
from fpmgm.data.stories_source import BEGIN
from fpmgm.data.stories_symbols import Spelling, cut_tokenizer, source_size, to_source
from fpmgm.data.text import TextDataset
from fpmgm.data.tokenizing import KNOWN, mask_and_size, named_tokenizer, trained_size, trained_tokenizer
from fpmgm.files import whole_folder
from fpmgm.names import choose
from fpmgm.schema import MAX_LENGTH, field_value, read_json, require
from fpmgm.symbols import Symbols, encode_texts, symbols_of

Rows = Int[np.ndarray, "N L"]
Document = Int[np.ndarray, " _"]
STORIES_AT_ONCE = 1024


@dataclass(frozen=True, kw_only=True)
class StoriesConfig:
    """How much of the corpus `stories`, in which tokens, in sequences of which length."""

    data_type: ClassVar[str] = "stories"
    note: ClassVar[str] = "synthetic"

    size: int = DEFAULT_SIZE
    """How many tokens of their source the training stories have. With 0, there are only held-out stories."""
    tokenizer: str = "source"
    """source takes the ids of the model that wrote the stories, cut to 4096 symbols. source-N cuts them to N symbols.
    words-N takes the N most frequent words of the stories, bpe-N trains a byte-level BPE of N symbols on them. Or it is
    gpt2, bert or a tokenizer.json."""
    length: int = 256
    """Tokens of a sequence."""
    packing: Literal["begin", "wrap", "pad"] = "begin"
    """How stories become sequences. begin: every sequence begins with a story and is filled up with those that follow;
    the last one is cut. wrap: stories are joined and cut to length. pad: each story is a sequence."""

    def __post_init__(self) -> None:
        choose("packing", self.packing, PACKINGS)
        require("data.length", self.length, 3, MAX_LENGTH)
        require("data.size", self.size, 0, MAX_SIZE)
        if not source_size(self.tokenizer):  # a wrong one is refused before any story is made
            trained_size(self.tokenizer)

    @property
    def vocabulary(self) -> Vocabulary:
        """Its symbols and length, told by the tokenizer's name or file."""
        size = source_size(self.tokenizer)
        mask_id, size = (size - 1, size) if size else mask_and_size(self.tokenizer)
        return Vocabulary(size=size, mask_id=mask_id, length=self.length)

    @property
    def name(self) -> str:
        return STORIES

    @property
    def has_ends(self) -> bool:
        return self.packing != "wrap"

    @property
    def is_begun(self) -> bool:
        return self.packing == "begin"

    def load(self, codec: Codec | None = None) -> TextDataset:
        return load_stories(self, codec)

    def placed(self, content: str = "") -> "StoriesConfig":
        """The same with the whole path of a tokenizer.json, if the tokenizer is one.

        The hash of the content is not kept: held-out stories follow from their seeds, and no other text can be in their
        place.
        """
        is_file = self.tokenizer not in KNOWN and not source_size(self.tokenizer) and not trained_size(self.tokenizer)
        return replace(self, tokenizer=os.path.abspath(self.tokenizer)) if is_file else self

    def is_split_as(self, other: DataConfig) -> bool:
        """Held-out stories are always the same; only their packing can differ."""
        if not isinstance(other, StoriesConfig):
            return False
        return (self.length, self.packing) == (other.length, other.packing)

    def held_out_only(self) -> "StoriesConfig":
        """Without training stories: the held-out ones have seeds of their own."""
        return replace(self, size=0)


def load_stories(config: StoriesConfig, codec: Codec | None = None, making: Workshop | None = None) -> TextDataset:
    """The packed stories, from the cache or made now; in the tokens of `codec`, or as the config says."""
    if codec is not None and not isinstance(codec, TextCodec):
        raise ValueError(f"{STORIES} are text, and the model writes {codec.kind}")
    if making is None:
        make_stories(config.size)
        making = workshop()
    held_out = making.held_out()
    train = making.train(config.size) if config.size else []
    content = _fingerprint([held_out, *train])
    tokenizer = codec.tokenizer if codec else _tokenizer(config, making, train, content)
    symbols = symbols_of(tokenizer)
    key = _key(content, str(config.size), tokenizer.to_str(), str(config.length), config.packing)
    folder = cache_folder() / "packed" / f"stories-{key}"
    if not folder.exists():
        stories = documents(train, config.size, tokenizer, making)
        others = documents([held_out], len(held_out.ids), tokenizer, making)
        parts = [packed(part, symbols, length=config.length, packing=config.packing) for part in (stories, others)]
        dtype = np.uint16 if symbols.size <= 1 << 16 else np.uint32
        _write(folder, np.concatenate(parts).astype(dtype), num_train=len(parts[0]))
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    shape = folder / "shape.json"
    num_train = field_value(read_json(shape).get("num_train"), int, f"{shape}: num_train")
    train_rows, held_out_rows = np.split(np.arange(len(rows)), [num_train])
    return TextDataset(
        rows=rows,
        train=train_rows,
        held_out=held_out_rows,
        codec=codec or TextCodec(tokenizer.to_str(pretty=True)),
        vocabulary=Vocabulary(size=symbols.size, mask_id=symbols.mask_id, length=config.length),
        pad_id=symbols.pad_id if config.packing == "pad" else None,
        is_begun=config.is_begun,
        place=folder,
    )


def documents(shards: Iterable[Shard], size: int, tokenizer: Tokenizer, making: Workshop) -> Iterator[Document]:
    """The whole stories among the first `size` tokens, in a tokenizer's symbols."""
    stories = _first_stories(shards, size)
    if to_source(tokenizer, making.tokenizer) is not None:
        spelling = Spelling(tokenizer, making.tokenizer)
        yield from (spelling(ids[:-1]) for ids, _ in stories)
        return
    while batch := list(islice(stories, STORIES_AT_ONCE)):
        yield from (np.array(ids, np.int64) for ids in encode_texts(tokenizer, [text for _, text in batch]))


def _first_stories(shards: Iterable[Shard], size: int) -> Iterator[tuple[Story, str]]:
    """Ids and text of the stories that ended, among the first `size` tokens."""
    num_tokens = 0
    for shard in shards:
        for index, text in enumerate(shard.texts()):
            story = shard.story(index)
            num_tokens += len(story)
            if num_tokens > size:
                return
            if story[-1] == BEGIN and len(story) > 1:
                yield story, text


def packed(stories: Iterable[Document], symbols: Symbols, *, length: int, packing: str) -> Rows:
    """Sequences of stories; see `StoriesConfig` for the ways of packing.

    A story that is cut off has no end-of-text: it does not end there.
    """
    return PACKINGS[packing](stories, symbols, length)


def _begun(stories: Iterable[Document], symbols: Symbols, length: int) -> Rows:
    kept = [*stories]
    rows = np.empty((len(kept), length), np.int64)
    rows[:, 0] = symbols.first
    for index, row in enumerate(rows):
        place, filled = index, 1
        while filled < length:
            story = [*kept[place], symbols.last][: length - filled]
            row[filled : filled + len(story)] = story
            place, filled = (place + 1) % len(kept), filled + len(story)
    return rows


def _wrapped(stories: Iterable[Document], symbols: Symbols, length: int) -> Rows:
    body = length - 2
    end = np.array([symbols.last])
    stream = np.concatenate([end[:0], *chain.from_iterable((story, end) for story in stories)])
    rows = np.empty((len(stream) // body, length), np.int64)
    rows[:, 0], rows[:, -1] = symbols.first, symbols.last
    rows[:, 1:-1] = stream[: len(rows) * body].reshape(-1, body)
    return rows


def _padded(stories: Iterable[Document], symbols: Symbols, length: int) -> Rows:
    rows = []
    for story in stories:
        row = np.full(length, symbols.pad_id, np.int64)
        kept = np.array([symbols.first, *story, symbols.last])[:length]
        row[: len(kept)] = kept
        rows.append(row)
    return np.stack(rows) if rows else np.empty((0, length), np.int64)


PACKINGS: dict[str, Callable[[Iterable[Document], Symbols, int], Rows]] = {
    "begin": _begun,
    "wrap": _wrapped,
    "pad": _padded,
}


def _tokenizer(config: StoriesConfig, making: Workshop, train: list[Shard], content: str) -> Tokenizer:
    """The source's own symbols, a BPE that is trained on the training stories, or any other."""
    if size := source_size(config.tokenizer):
        mass = np.load(making.folder / HELD_OUT / "mass.npy").mean(axis=0)
        return cut_tokenizer(making.tokenizer, mass, size)
    if not trained_size(config.tokenizer):
        return named_tokenizer(config.tokenizer)
    if not train:
        raise ValueError(f"tokenizer {config.tokenizer} is trained on the stories, but data.size is 0; set it")
    key = _key(content, str(config.size), config.tokenizer)
    return trained_tokenizer(key, config.tokenizer, lambda: (text for _, text in _first_stories(train, config.size)))


def _fingerprint(shards: Iterable[Shard]) -> str:
    digest = hashlib.sha256()
    for shard in shards:
        digest.update(shard.ids.tobytes())
    return digest.hexdigest()


def _write(folder: Path, rows: np.ndarray, *, num_train: int) -> None:
    """Into a folder beside the final one, then rename: a kill leaves no half cache."""
    with whole_folder(folder) as unfinished:
        np.save(unfinished / "rows.npy", rows)
        (unfinished / "shape.json").write_text(json.dumps({"num_train": num_train}))


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join([STORIES, *parts]).encode()).hexdigest()[:32]
