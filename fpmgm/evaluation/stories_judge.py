"""The judge of the world of `stories`: the source that wrote them, so the likelihood it gives is the true one.

Each document is read after `BEGIN`, alone, as the source writes it. All its tokens are scored, and its end if another
document follows. Texts of models that write the source's own ids are read as these ids; other texts are first cut
into ids as the source's tokenizer cuts them, which leaves out other spellings of the same text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from fpmgm.data.stories import Shard
from fpmgm.data.stories_source import BEGIN, Source, features, load_source
from fpmgm.data.stories_symbols import to_source
from fpmgm.data.stories_tokenizer import SourceTokenizer
from fpmgm.data.stories_tokenizer import load_tokenizer as load_source_tokenizer
from fpmgm.devices import device_named
from fpmgm.evaluation.intervals import Interval, bootstrap
from fpmgm.evaluation.judges import STORIES_IDS, STORIES_SOURCE, Judge, Reading
from fpmgm.products import linear
from fpmgm.progress import tracked
from fpmgm.symbols import END_OF_TEXT, load_tokenizer

DOCUMENTS_AT_ONCE = 16
POSITIONS_AT_ONCE = 512

Nats = Float[Tensor, " _"]
Feature = Float[Tensor, " D"]
Ids = list[int]


def load_stories_judge(name: str, device: str) -> Judge:
    """The source as a judge, fetched on first use."""
    source = load_source().to(device_named(device))
    return stories_judge(source, load_source_tokenizer(), reads_text=name != STORIES_IDS)


def stories_judge(source: Source, tokenizer: SourceTokenizer, *, reads_text: bool = True) -> Judge:
    """A source as a judge of its own ids and, if wanted, of texts."""

    def read(texts: Sequence[str]) -> list[Reading]:
        return read_documents(source, [[tokenizer.encode(part) for part in text.split(END_OF_TEXT)] for text in texts])

    @lru_cache(maxsize=4)
    def ids_of(content: str) -> Int[np.ndarray, " N"] | None:
        return to_source(load_tokenizer(content), tokenizer)

    def read_ids(content: str, rows: Sequence[Ids]) -> list[Reading] | None:
        own = ids_of(content)
        return None if own is None else read_documents(source, [documents_of(own, row) for row in rows])

    return Judge(name=STORIES_SOURCE, read=read, read_ids=read_ids, reads_text=reads_text)


def documents_of(own: Int[np.ndarray, " N"], row: Ids) -> list[Ids]:
    """The documents of a row of a model's symbols, in the source's ids, without empty ones at both ends.

    The mask is no symbol of the tokenizer. It fills rows up, so it is left out.
    """
    parts: list[Ids] = [[]]
    for index in own[[symbol for symbol in row if symbol < len(own)]].tolist():
        if index == BEGIN:
            parts.append([])
        else:
            parts[-1].append(index)
    filled = [place for place, part in enumerate(parts) if part]
    return parts[filled[0] : filled[-1] + 1] if filled else [[]]


def read_documents(source: Source, texts: Sequence[Sequence[Ids]]) -> list[Reading]:
    """What the source finds in texts of one document or more each."""
    flat: list[Ids] = []
    for text in texts:
        flat += [[*part, BEGIN] for part in text[:-1]] + [[*part] for part in text[-1:]]
    read = read_stories(source, flat)
    found, place = [], 0
    for text in texts:
        own = read[place : place + len(text)]
        place += len(text)
        found.append(Reading(torch.cat([nats for nats, _ in own]), own[-1][1]))
    return found


@torch.inference_mode()
def read_stories(source: Source, stories: Sequence[Ids]) -> list[tuple[Nats, Feature]]:
    """-log p of every token of each story, up to the positions of the source, and what its head reads at the end."""
    found: dict[int, tuple[Nats, Feature]] = {}
    by_length = sorted(range(len(stories)), key=lambda index: len(stories[index]))
    for first in tracked(range(0, len(stories), DOCUMENTS_AT_ONCE), "judging stories"):
        batch = by_length[first : first + DOCUMENTS_AT_ONCE]
        rows = [[BEGIN, *stories[index]][: source.num_positions + 1] for index in batch]
        longest = max(2, *(len(row) for row in rows))
        tokens = torch.tensor([[*row, *[BEGIN] * (longest - len(row))] for row in rows])
        tokens = tokens.to(source.device)
        hidden = features(source, tokens[:, : source.num_positions])  # what fills a row up is not seen from before it
        nats = _nats(source, hidden[:, : longest - 1].flatten(0, 1), tokens[:, 1:].flatten()).view(len(batch), -1)
        for place, (index, row) in enumerate(zip(batch, rows, strict=True)):
            last = min(len(row), source.num_positions) - 1
            found[index] = (nats[place, : len(row) - 1].clone().cpu(), hidden[place, last].clone().cpu())
    return [found[index] for index in range(len(stories))]


def _nats(source: Source, hidden: Float[Tensor, "M D"], targets: Int[Tensor, " M"]) -> Float[Tensor, " M"]:
    parts = zip(hidden.split(POSITIONS_AT_ONCE), targets.split(POSITIONS_AT_ONCE), strict=True)
    losses = [functional.cross_entropy(linear(part, source.embedding), ids, reduction="none") for part, ids in parts]
    return torch.cat(losses)


def entropy_rate(source: Source, shard: Shard, *, num_stories: int = 0) -> dict[str, Any]:
    """The nats per token and per byte of text that the source finds in its own stories, their ends included.

    The first `num_stories` are read, or all; intervals are of 95 %, over stories.
    """
    num = num_stories or len(shard)
    stories = [shard.story(index).tolist() for index in range(num)]
    sums = np.array([float(nats.double().sum()) for nats, _ in read_stories(source, stories)])
    texts = [text for text, _ in zip(shard.texts(), range(num), strict=False)]
    return {
        "stories": num,
        "nats_per_token": asdict(_ratio(sums, map(len, stories))),
        "nats_per_byte": asdict(_ratio(sums, (len(text.encode()) for text in texts))),
    }


def _ratio(sums: Float[np.ndarray, " N"], counts: Iterable[int]) -> Interval:
    columns = np.stack([sums, np.array([*counts], float)], axis=1)
    return bootstrap(columns, lambda means: means[:, 0] / means[:, 1])
