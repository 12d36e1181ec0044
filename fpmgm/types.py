"""Every tensor shape, named once, and the records that pass between the nouns.

B sequences, L positions, S positions of hidden states (L, then the network's registers), D hidden width, V symbols (the
mask included), M chosen positions of a whole batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

Tokens = Int[Tensor, "B L"]
Positions = Bool[Tensor, "B L"]
Hidden = Float[Tensor, "B S D"]
Somewhere = Bool[Tensor, "B S"]  # some positions of hidden states, registers among them
PerSequence = Float[Tensor, " B"]
Counts = Int[Tensor, " B"]
Labels = Int[Tensor, " B"]  # the class of each sequence, or NO_CLASS; a network says how many there are
Rows = Int[Tensor, " R"]  # indices of sequences in a batch
Uniforms = Float[Tensor, "B L"]
Features = Float[Tensor, "M D"]  # what the head reads, at the chosen positions, in row-major order
Logits = Float[Tensor, "M V"]
PerChoice = Float[Tensor, " M"]
Chosen = Int[Tensor, " M"]  # one token per chosen position

NO_CLASS = -1
"""The label of a sequence whose class a network is not told."""

Map = Callable[..., Hidden]  # f(h), or f(h, rows) where h holds only those sequences of the batch


@dataclass(frozen=True, kw_only=True)
class Places:
    """Chosen positions of a batch as indices. They are found once a pass; nothing later waits for the device."""

    flat: Int[Tensor, " M"]  # sequence * L + position, in row-major order
    by_row: Int[Tensor, "B N"]  # the chosen positions of each sequence, filled up with others to the largest number N
    slots: Int[Tensor, " M"]  # which entries of the flattened by_row are chosen, in row-major order
    counts: tuple[int, ...]  # the number of places of each sequence
    length: int  # L

    @classmethod
    def of(cls, positions: Positions) -> "Places":
        """The places where a map is true. Their number is a shape, so this waits for the device once."""
        counts = tuple(positions.sum(dim=1).tolist())
        by_row = positions.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, : max(counts)]
        return cls(
            flat=torch.nonzero_static(positions.flatten(), size=sum(counts))[:, 0],
            by_row=by_row,
            slots=torch.nonzero_static(positions.gather(1, by_row).flatten(), size=sum(counts))[:, 0],
            counts=counts,
            length=positions.shape[1],
        )

    def to(self, device: torch.device) -> "Places":
        return replace(self, flat=self.flat.to(device), by_row=self.by_row.to(device), slots=self.slots.to(device))

    @property
    def sequences(self) -> Chosen:
        """The sequence that each place belongs to."""
        return self.flat // self.length

    def take(self, values: Shaped[Tensor, "B S ..."]) -> Shaped[Tensor, "M ..."]:
        """What lies at these places, in row-major order. Registers, which follow the L positions, are no places."""
        num_registers = values.shape[1] - self.length
        flat = self.flat + self.sequences * num_registers if num_registers else self.flat
        return values.flatten(0, 1)[flat.to(values.device)]

    def put(self, into: Shaped[Tensor, "B L"], values: Shaped[Tensor, " M"]) -> Shaped[Tensor, "B L"]:
        """A copy of `into` with these values at the places."""
        return into.flatten().index_copy(0, self.flat, values.to(into)).view_as(into)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Clean sequences, and what is known of them."""

    x: Tokens
    label: Labels | None = None
    counts: Positions | None = None  # where x counts: padding does not; None: everywhere
    given: Positions | None = None  # such as a prompt: it is never masked and does not count; None: nowhere

    @classmethod
    def of(cls, x: "Tokens | Batch") -> "Batch":
        """Sequences alone, if nothing else is known."""
        return x if isinstance(x, Batch) else cls(x=x)

    def to(self, device: torch.device) -> "Batch":
        """The same on another device."""
        known = (self.label, self.counts, self.given)
        label, counts, given = (None if each is None else each.to(device) for each in known)
        return Batch(x=self.x.to(device), label=label, counts=counts, given=given)

    @property
    def is_real(self) -> Positions:
        """Where x counts."""
        counts = torch.ones_like(self.x, dtype=torch.bool) if self.counts is None else self.counts
        return counts if self.given is None else counts & ~self.given

    def sparing(self, u: Uniforms) -> Uniforms:
        """Uniform numbers that masks are made of: infinite where x is given, so that no time masks it."""
        return u if self.given is None else u.masked_fill(self.given.to(u.device), torch.inf)


@dataclass(frozen=True, kw_only=True)
class State:
    """A partly masked batch on its way through the sampler."""

    z: Tokens
    mask_id: int
    is_given: Positions  # the user's tokens: a transition never changes them
    confidence: Uniforms  # the probability each token had when `Remasking` wrote it, else 0

    @property
    def is_masked(self) -> Positions:
        return self.z == self.mask_id

    @property
    def length(self) -> int:
        return self.z.shape[1]

    @property
    def device(self) -> torch.device:
        return self.z.device

    def written(self, places: Places, tokens: Chosen) -> "State":
        """The state with these tokens at those places, in row-major order."""
        return replace(self, z=places.put(self.z, tokens))


@dataclass(frozen=True, kw_only=True)
class Solved:
    """A fixed point, and the tokens it was solved for."""

    z: Tokens
    h_star: Hidden
