"""Data as the frame knows it: sequences of tokens, which of them train, and how to show them."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int

from fpmgm.backbones.network import Vocabulary
from fpmgm.codecs import Codec
from fpmgm.types import Batch, Positions

RowIndices = Int[np.ndarray, "..."]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Sequences on disk: rows of tokens, some to learn from and some held out."""

    rows: np.ndarray  # (number of sequences, length), memory-mapped
    train: RowIndices
    held_out: RowIndices
    codec: Codec
    vocabulary: Vocabulary
    pad_id: int | None = None
    """What fills sequences up, if anything does: it has no part in a loss or a metric."""
    given: np.ndarray | None = None
    """How many tokens at the beginning of each row are given, such as a prompt: they are never masked, and have no part
    in a loss or a metric. None if nothing is given."""
    is_begun: bool = False
    """Whether every row begins with the first symbol, which says nothing: it is given, in training and in sampling."""
    labels: np.ndarray | None = None
    """The class of each row, if there are classes."""
    content: str = ""
    """A hash of what they were made of."""
    place: Path | None = None
    """The folder of the cache that holds them."""

    def batch(self, rows: RowIndices) -> Batch:
        """Those sequences, on the CPU."""
        x = torch.from_numpy(self.rows[rows].astype(np.int64))
        label = None if self.labels is None else torch.from_numpy(self.labels[rows].astype(np.int64))
        counts = None if self.pad_id is None else x != self.pad_id
        return Batch(x=x, label=label, counts=counts, given=self._given(rows))

    def _given(self, rows: RowIndices) -> Positions | None:
        """Where those sequences are given."""
        if self.given is None and not self.is_begun:
            return None
        given = np.ones(np.shape(rows)) if self.given is None else self.given[rows]
        return torch.arange(self.rows.shape[1]) < torch.from_numpy(given.astype(np.int64))[:, None]

    def tokens(self, row: int) -> list[int]:
        """One sequence, without what fills it up."""
        return [token for token in self.rows[row].tolist() if token != self.pad_id]

    def measured(self, num: int) -> Batch:
        """`num` of the held-out sequences, spread over all of them, or all if there are fewer."""
        if num < 1:
            raise ValueError(f"{num} sequences are asked for; ask for at least 1")
        return self.batch(self.held_out[:: max(1, len(self.held_out) // num)][:num])


@runtime_checkable
class DataConfig(Protocol):
    """A frozen dataclass that says which data a model learns from. It is stored with the model."""

    data_type: ClassVar[str]
    note: ClassVar[str]
    """What results must say of it besides its name, such as that it is synthetic; empty if nothing."""

    @property
    def vocabulary(self) -> Vocabulary:
        """What its sequences are made of, as far as that can be told without loading them."""
        ...

    @property
    def name(self) -> str:
        """What to call it in messages."""
        ...

    @property
    def has_ends(self) -> bool:
        """Whether a sequence says where it ends, so that what comes after its first end is not shown."""
        ...

    @property
    def is_begun(self) -> bool:
        """Whether every sequence begins with the first symbol, which is given then, in training and in sampling."""
        ...

    def placed(self, content: str = "") -> "DataConfig":
        """The same with whole paths and the hash of the content, as a model folder keeps it.

        A later command may start in another directory, and data that has changed would be split otherwise.
        """
        ...

    def is_split_as(self, other: "DataConfig") -> bool:
        """Whether both hold out the same, if their tokens are the same."""
        ...

    def load(self, codec: Codec | None = None) -> Dataset:
        """The sequences, from the cache or made now; by this codec if one is given, else by its own."""
        ...

    def held_out_only(self) -> "DataConfig":
        """A config with the same held-out sequences, for measuring. If it can do without training ones, it has none."""
        ...
