"""Every tensor shape, named once, and the two records that pass between the nouns.

B sequences, L positions, D hidden width, V symbols (the mask included), M chosen positions of a whole batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from jaxtyping import Bool, Float, Int
from torch import Tensor

Tokens = Int[Tensor, "B L"]
Positions = Bool[Tensor, "B L"]
Hidden = Float[Tensor, "B L D"]
PerSequence = Float[Tensor, " B"]
Counts = Int[Tensor, " B"]
Rows = Int[Tensor, " R"]  # indices of sequences in a batch
Uniforms = Float[Tensor, "B L"]
Features = Float[Tensor, "M D"]  # what the head reads, at the chosen positions, in row-major order
Logits = Float[Tensor, "M V"]
PerChoice = Float[Tensor, " M"]
Chosen = Int[Tensor, " M"]  # one token per chosen position

Map = Callable[..., Hidden]  # f(h), or f(h, rows) where h holds only those sequences of the batch


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

    def written(self, positions: Positions, tokens: Chosen) -> "State":
        """The state with these tokens at those positions, in row-major order."""
        return replace(self, z=self.z.masked_scatter(positions, tokens))


@dataclass(frozen=True, kw_only=True)
class Solved:
    """A fixed point, and the tokens it was solved for."""

    z: Tokens
    h_star: Hidden
