"""What the frame around the method knows of a network: its config."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from torch import nn

from fpmgm.budget import Cost
from fpmgm.denoiser import Denoiser

if TYPE_CHECKING:
    Learned = Denoiser
else:
    Learned = nn.Module
"""What learns. Nearly always it is a denoiser, and the code is checked as if it always were. The autoencoder of images
and the classifier that judges them learn in the same loop, but they are never sampled."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What sequences are made of: the part of a network that follows from its data."""

    size: int
    """Symbols, the mask included."""
    mask_id: int
    length: int
    num_classes: int = 0
    """Classes that a sequence may be of; 0: data has no classes."""
    shape: tuple[int, int, int] | None = None
    """Channels, height and width, if a sequence is the pixels of an image."""


@runtime_checkable
class NetworkConfig(Protocol):
    """A frozen dataclass that says all there is to say of a network but its weights."""

    model_type: ClassVar[str]

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def cost(self) -> Cost:
        """Blocks before, inside and after the fixed point."""
        ...

    @property
    def width(self) -> int:
        """Of hidden states."""
        ...

    @property
    def is_causal(self) -> bool:
        """Whether it is a causal model, which judges and is not sampled by denoising."""
        ...

    @property
    def kind(self) -> str:
        """What such a model is called."""
        ...

    @property
    def training_only(self) -> frozenset[str]:
        """Settings that a trained network no longer depends on."""
        ...

    def told_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of some tensors of the backbone by which weights of another size are told, before it is built."""
        ...

    def build(self, *, seed: int = 0) -> Learned:
        """A denoiser with fresh weights."""
        ...

    def multiply_adds(self, *, num_iters: int, num_positions: int, length: int | None = None) -> int:
        """Of one denoising step for one sequence, with logits at `num_positions` of its `length` positions."""
        ...

    def for_timing(self, length: int) -> Any:
        """The same for sequences of another length, without dropout."""
        ...
