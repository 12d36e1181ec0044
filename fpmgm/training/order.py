"""Which rows each update takes, and which of them each process."""

import numpy as np
import torch

from fpmgm.randomness import generator


class Order:
    """Which rows each update takes: a new permutation every epoch, drawn from (seed, epoch)."""

    def __init__(self, rows: np.ndarray, batch_size: int, seed: int) -> None:
        if len(rows) < batch_size:
            raise ValueError(
                f"the data has {len(rows)} training sequences; a batch takes {batch_size}: "
                "lower --batch-size or give more data"
            )
        self.rows, self.batch_size, self.seed = rows, batch_size, seed
        self._epoch, self._permutation = -1, rows

    def batch(self, update: int) -> np.ndarray:
        """The rows of an update; the remainder of an epoch is dropped."""
        epoch, index = divmod(update, len(self.rows) // self.batch_size)
        if epoch != self._epoch:
            permutation = torch.randperm(len(self.rows), generator=generator(self.seed, epoch, 1))
            self._epoch, self._permutation = epoch, self.rows[permutation.numpy()]
        return self._permutation[index * self.batch_size : (index + 1) * self.batch_size]


def parts_of(num: int, rank: int, world: int, micro: int) -> list[slice]:
    """The rows of this process, in passes of `micro` sequences.

    Rows are dealt out in turn: times fall from row to row, and every process must see all noise levels.
    """
    if num % world:
        raise ValueError(
            f"a batch of {num} sequences cannot be shared by {world} processes; take a multiple of {world}"
        )
    stride = (micro or num) * world
    return [slice(start + rank, min(start + stride, num), world) for start in range(0, num, stride)]
