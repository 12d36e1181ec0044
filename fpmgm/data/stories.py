"""The corpus `stories`: what a small language model of children's stories writes, drawn once and kept in the cache.

It is synthetic, and its distribution is known: `stories_source`. The held-out stories come first, with seeds of their
own and the whole head. The training stories come in shards, drawn with the rows of the head that carry nearly all
mass. A shard is a folder: `ids.npy` (uint16, story after story; a story that ended within the source's positions ends
with `BEGIN`), `offsets.npy` (where each story begins, and the end of the last), `stories.jsonl` (the text of each) and
`about.json`. A shard appears whole or not at all, and each process makes a shard that no other process holds.
"""

import json
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, UInt16
from torch import Tensor

from fpmgm.data.assets import cache_folder, fetch
from fpmgm.data.stories_sampler import Head, Story, sample_stories
from fpmgm.data.stories_source import ASSET, Source, load_source
from fpmgm.data.stories_tokenizer import SourceTokenizer, load_tokenizer
from fpmgm.files import whole_folder, write_json
from fpmgm.locks import claim
from fpmgm.progress import Progress

STORIES = "stories"
DEFAULT_SIZE = 12_000_000
"""How many tokens of the source the corpus has, unless told otherwise."""
MAX_SIZE = 10_000_000_000
TRAIN_SEED, HELD_OUT_SEED = 0, 1
HELD_OUT = "held-out"
PATIENCE = 3.0
"""Seconds of work after which its progress is shown."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How the corpus is cut up. The default is the corpus; tests make smaller ones."""

    num_held_out: int = 2_000
    stories_per_shard: int = 2_000
    num_rows: int = 8_000
    """How many rows of the head the training stories are drawn with."""
    batch_size: int = 128


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Stories on disk."""

    ids: UInt16[np.ndarray, " T"]  # memory-mapped
    offsets: Int[np.ndarray, " N"]
    folder: Path

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def story(self, index: int) -> Story:
        """The tokens of a story, with the `BEGIN` that ends it if it ended."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def texts(self) -> Iterator[str]:
        """The text of each story."""
        with open(self.folder / "stories.jsonl", encoding="utf-8") as stream:
            for line in stream:
                yield json.loads(line)["text"]


def stories_folder() -> Path:
    """Where the corpus is kept."""
    return cache_folder() / "stories"


def read_shard(folder: Path) -> Shard:
    """A shard that is there."""
    ids = np.load(folder / "ids.npy", mmap_mode="r")
    return Shard(ids=ids, offsets=np.load(folder / "offsets.npy"), folder=folder)


def no_report(num_stories: int, note: str) -> None:
    """Say nothing of the stories that were made."""


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """Makes the corpus in a folder; what is there already is not made again."""

    folder: Path
    source: Source
    tokenizer: SourceTokenizer
    plan: Plan = Plan()
    report: Callable[[int, str], None] = no_report
    """Called with the number of stories that are done since the last call, and a note, empty if they were there."""

    def reporting(self, report: Callable[[int, str], None]) -> "Workshop":
        """The same with another report."""
        return replace(self, report=report)

    def has_held_out(self) -> bool:
        """Whether the held-out stories are there."""
        return (self.folder / HELD_OUT).exists()

    def held_out(self) -> Shard:
        """The held-out stories, made now if they are not there. They are exact draws from the source."""
        folder = self.folder / HELD_OUT
        with claim(self.folder / "claims" / HELD_OUT):
            if not folder.exists():
                self._make_held_out(folder)
        return read_shard(folder)

    def train(self, size: int) -> list[Shard]:
        """So many shards of training stories that they have `size` tokens, each made now if it is not there."""
        done: dict[int, Shard] = {}
        expected = self.num_shards(size)
        for is_waiting in (False, True):  # first what no other process is at, then what they did
            for index in [index for index in range(expected) if index not in done]:
                shard = self._train_shard(index, is_waiting=is_waiting)
                done |= {} if shard is None else {index: shard}
        while sum(len(shard.ids) for shard in done.values()) < size:
            shard = self._train_shard(len(done), is_waiting=True)
            done |= {} if shard is None else {len(done): shard}
        return [done[index] for index in sorted(done)]

    def num_shards(self, size: int) -> int:
        """How many shards have about `size` tokens, by the mean length of the held-out stories."""
        held_out = self.held_out()
        mean = len(held_out.ids) / len(held_out)
        return math.ceil(size / mean / self.plan.stories_per_shard)

    def _train_shard(self, index: int, *, is_waiting: bool) -> Shard | None:
        """None if another process is making it."""
        folder = train_folder(self.folder, index)
        with claim(self.folder / "claims" / folder.name, is_waiting=is_waiting) as is_held:
            if not is_held:
                return None
            if folder.exists():
                self.report(self.plan.stories_per_shard, "")
            else:
                self._make_train(folder, index)
        return read_shard(folder)

    def _make_held_out(self, folder: Path) -> None:
        """In two halves: the first one's tally chooses the rows of the head, the second one's measures what is cut."""
        head = Head.of(self.source)
        tally = torch.zeros(2, len(head.rows), dtype=torch.float64)
        stories: list[Story] = []
        for half, indices in enumerate(np.array_split(np.arange(self.plan.num_held_out), 2)):
            stories += self._draw(head, HELD_OUT_SEED, indices, tally[half], folder.name)
        mass = (tally / tally.sum(dim=1, keepdim=True)).numpy()
        rows = np.sort(np.argsort(-mass[0], kind="stable")[: self.plan.num_rows])
        about = {"seed": HELD_OUT_SEED, "rows_of_head": len(head.rows), "cut_mass_of_train": cut_mass(mass[1], rows)}
        write_shard(folder, stories, self.tokenizer, about=about, arrays={"rows": rows, "mass": mass})

    def _make_train(self, folder: Path, index: int) -> None:
        rows = np.load(self.folder / HELD_OUT / "rows.npy")
        first = index * self.plan.stories_per_shard
        indices = np.arange(first, first + self.plan.stories_per_shard)
        stories = self._draw(Head.of(self.source, torch.from_numpy(rows)), TRAIN_SEED, indices, None, folder.name)
        about = {"seed": TRAIN_SEED, "first_story": first, "rows_of_head": len(rows)}
        write_shard(folder, stories, self.tokenizer, about=about)

    def _draw(
        self, head: Head, seed: int, indices: Int[np.ndarray, " N"], tally: Tensor | None, name: str
    ) -> list[Story]:
        stories: list[Story] = []
        start, size = time.perf_counter(), self.plan.batch_size
        for batch in sample_stories(
            self.source, head, seed=seed, indices=indices.tolist(), batch_size=size, tally=tally
        ):
            stories += batch
            rate = sum(len(story) for story in stories) / (time.perf_counter() - start)
            self.report(len(batch), f"{name}, {rate:.0f} tokens/s")
        return stories


def train_folder(folder: Path, index: int) -> Path:
    """Where a shard of training stories is kept."""
    return folder / f"train-{index:05d}"


def cut_mass(mass: Float[np.ndarray, " V"], rows: Int[np.ndarray, " R"]) -> float:
    """The probability of a token whose row is cut, on average."""
    return float(1 - mass[rows].sum() / mass.sum())


def write_shard(
    folder: Path,
    stories: list[Story],
    tokenizer: SourceTokenizer,
    *,
    about: Mapping[str, int | float],
    arrays: dict[str, np.ndarray] | None = None,
) -> None:
    """Write stories into a shard that appears whole or not at all."""
    offsets = np.cumsum([0, *map(len, stories)])
    with whole_folder(folder) as unfinished:
        for name, array in {"ids": np.concatenate(stories), "offsets": offsets, **(arrays or {})}.items():
            np.save(unfinished / f"{name}.npy", array)
        with open(unfinished / "stories.jsonl", "w", encoding="utf-8") as file:
            for story in stories:
                file.write(json.dumps({"text": tokenizer.decode(story.tolist())}, ensure_ascii=False) + "\n")
        counts = {"stories": len(stories), "tokens": int(offsets[-1])}
        write_json(unfinished / "about.json", {**counts, **about})


def workshop() -> Workshop:
    """The one that makes the corpus in the cache."""
    return Workshop(folder=stories_folder(), source=load_source(), tokenizer=load_tokenizer())


def make_stories(size: int = DEFAULT_SIZE, *, workers: int = 1) -> Path:
    """The folder of the corpus, with the held-out stories and `size` tokens of training stories.

    What is not there is made now by so many processes of one thread each. A call that was stopped can be repeated.
    """
    fetch(ASSET)  # once, before the processes start
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_help, args=(size,), daemon=True) for _ in range(workers - 1)]
    for process in others:
        process.start()
    _make(size, is_shown=True)
    for process in others:
        process.join()
    return stories_folder()


def _help(size: int) -> None:
    """What another process does. It says nothing of an error: the first process meets the same one, and reports it."""
    with suppress(OSError, ValueError, KeyboardInterrupt):
        _make(size, is_shown=False)


def _make(size: int, *, is_shown: bool) -> None:
    """Make stories on one thread, because the numbers that are drawn may depend on the number of threads."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        making = workshop()
        if not making.has_held_out():
            with Progress("held-out stories", making.plan.num_held_out, is_shown=is_shown) as progress:
                making.reporting(_shown_by(progress)).held_out()
        if size:
            total = making.num_shards(size) * making.plan.stories_per_shard
            with Progress("stories", total, is_shown=is_shown, patience=PATIENCE) as progress:
                making.reporting(_shown_by(progress)).train(size)
    finally:
        torch.set_num_threads(num_threads)


def _shown_by(progress: Progress) -> Callable[[int, str], None]:
    first = multiprocessing.parent_process()

    def report(num_stories: int, note: str) -> None:
        if first and not first.is_alive():
            raise KeyboardInterrupt  # the process that this one helps was killed
        progress.reach(progress.done + num_stories, note)

    return report
