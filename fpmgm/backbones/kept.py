"""What blocks of any network keep of attention: keys of positions at rest, and projections from step to step."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fpmgm.types import Hidden, Places, Tokens

Heads = Float[Tensor, "B N H d"]  # N positions
Keys = Float[Tensor, "B S H d"]


class Projected(NamedTuple):
    """Queries, keys and values of a block."""

    q: Heads
    k: Keys
    v: Keys


class Memory:
    """What the first block projects of every position, and the tokens that it was computed for.

    It holds from step to step of one sampling run, in which only tokens change.
    """

    def __init__(self) -> None:
        self.z: Tokens | None = None
        self.projected: Projected | None = None

    def begin(self, z: Tokens, projected: Projected) -> None:
        """Start with what is projected for z; its tensors are written into from now on."""
        self.z, self.projected = z, projected

    def is_for(self, z: Tokens) -> bool:
        return self.z is not None and self.z.shape == z.shape

    def changed(self, z: Tokens, num_hidden: int) -> Places | None:
        """Where tokens differ from those it was computed for, as places of hidden states; None: nowhere."""
        assert self.z is not None
        is_changed = F.pad(z != self.z, (0, num_hidden - z.shape[1]))
        self.z = z
        return Places.of(is_changed) if is_changed.any() else None

    def write(self, places: Places, projected: Projected) -> None:
        """Replace what is projected at some places; `projected` has them in row-major order, as of one sequence."""
        assert self.projected is not None
        for whole, part in zip(self.projected, projected, strict=True):
            whole.flatten(0, 1).index_copy_(0, places.flat, part[0])


@dataclass(frozen=True)
class KeptKeys:
    """Keys and values of all positions of a batch, written as they become known."""

    k: Keys
    v: Keys
    in_place: bool = True  # without it, what is written is a copy, which autograd can follow

    @classmethod
    def room(cls, h: Hidden, num_heads: int, head_width: int) -> "KeptKeys":
        shape = (*h.shape[:2], num_heads, head_width)
        return cls(h.new_empty(shape), h.new_empty(shape))

    def put(self, places: Places, k: Heads, v: Heads) -> "KeptKeys":
        """All, with those of some places, in row-major order, as of one sequence."""
        return replace(self, k=self._put(self.k, places, k), v=self._put(self.v, places, v))

    def _put(self, whole: Keys, places: Places, part: Float[Tensor, "1 M H d"]) -> Keys:
        flat = whole.flatten(0, 1)
        write = flat.index_copy_ if self.in_place else flat.index_copy
        return write(0, places.flat, part[0].to(whole.dtype)).view_as(whole)


def by_row(flat: Float[Tensor, "1 M H d"], places: Places) -> Heads:
    """What is in row-major order, sequence by sequence, filled up to the largest number of places."""
    num_rows, most = places.by_row.shape
    if len(places.slots) == num_rows * most:
        return flat.view(num_rows, most, *flat.shape[2:])
    filled = flat.new_zeros(num_rows * most, *flat.shape[2:]).index_copy_(0, places.slots, flat[0])
    return filled.unflatten(0, (num_rows, most))
