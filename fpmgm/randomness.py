"""Where random numbers come from: generators keyed by what they are for, never global state."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator

from fpmgm.types import Uniforms


def generator(*key: int) -> Generator:
    """A CPU generator that depends on the whole key, such as (seed, update).

    >>> bool(torch.rand((), generator=generator(0, 1)) == torch.rand((), generator=generator(0, 1)))
    True
    """
    if min(key, default=0) < 0:
        raise ValueError(f"random numbers are keyed by {key}; seeds and indices must be 0 or more")
    # The length goes in too: numpy takes (0,) and (0, 0) for the same.
    state = np.random.SeedSequence((len(key), *key)).generate_state(1, np.uint64)[0]
    return Generator().manual_seed(int(state))


@dataclass(frozen=True)
class Streams:
    """One generator per sequence: a sample does not depend on the batch it is drawn in."""

    generators: tuple[Generator, ...]

    @classmethod
    def of(cls, seed: int, indices: Iterable[int]) -> "Streams":
        """Streams of the sequences with these indices, each seeded by (seed, index)."""
        return cls(tuple(generator(seed, index) for index in indices))

    def __len__(self) -> int:
        return len(self.generators)

    def uniform(self, length: int) -> Uniforms:
        """The next `length` numbers of every stream, in [0, 1), in float64: 53 random bits each."""
        rows = [torch.rand(length, generator=g, dtype=torch.float64) for g in self.generators]
        return torch.stack(rows)
