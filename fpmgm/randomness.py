"""Where random numbers come from: generators keyed by what they are for, never global state."""

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Generator

from fpmgm.types import PerSequence, Uniforms

DRAWN_AHEAD = 4096
"""How many numbers of a stream are drawn at a time, at least."""


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


class Streams:
    """One generator per sequence: a sample does not depend on the batch it is drawn in.

    Numbers are drawn ahead, some thousand of every stream at a time, so that a denoising step takes those of the whole
    batch in one piece.
    """

    def __init__(self, generators: Sequence[Generator]) -> None:
        self.generators = tuple(generators)
        self._ahead = torch.empty(len(self.generators), 0, dtype=torch.float64)

    @classmethod
    def of(cls, seed: int, indices: Iterable[int]) -> "Streams":
        """Streams of the sequences with these indices, each seeded by (seed, index)."""
        return cls([generator(seed, index) for index in indices])

    def __len__(self) -> int:
        return len(self.generators)

    @cached_property
    def fixed(self) -> PerSequence:
        """A number in [0, 1) of every stream that is the same whenever it is asked for, and takes nothing from it."""
        seeds = [each.initial_seed() % (1 << 64) for each in self.generators]
        drawn = [torch.rand((), generator=generator(seed, 0), dtype=torch.float64) for seed in seeds]
        return torch.stack(drawn) if drawn else torch.empty(0, dtype=torch.float64)

    def uniform(self, length: int) -> Uniforms:
        """The next `length` numbers of every stream, in [0, 1), on the CPU, in float64: 53 random bits each."""
        missing = length - self._ahead.shape[1]
        if missing > 0:
            num = max(missing, DRAWN_AHEAD)
            drawn = [torch.rand(num, generator=g, dtype=torch.float64) for g in self.generators]
            self._ahead = torch.cat([self._ahead, torch.stack(drawn)], dim=1)
        found, self._ahead = self._ahead[:, :length], self._ahead[:, length:]
        return found
