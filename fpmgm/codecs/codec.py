"""What the frame knows of a codec."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from fpmgm.backbones.network import Vocabulary


@dataclass(frozen=True, kw_only=True)
class Starts:
    """What a sampler starts from: tokens of each sequence, masks among them, and their classes if there are any."""

    tokens: list[list[int]]
    labels: list[int] | None = None


@runtime_checkable
class Codec(Protocol):
    """Between people and tokens."""

    kind: ClassVar[str]
    """What it writes: text or image."""
    request_names: ClassVar[tuple[str, ...]]
    """What a request may name."""

    @property
    def files(self) -> Mapping[str, str | bytes]:
        """The files of a model folder that it is saved as."""
        ...

    @classmethod
    def is_in(cls, folder: Path) -> bool: ...

    @classmethod
    def load(cls, folder: Path) -> "Codec": ...

    def check(self, vocabulary: Vocabulary, where: str) -> None:
        """A ValueError unless a network with that vocabulary can be read and written by this codec."""
        ...

    def starts(self, request: Mapping[str, Any], vocabulary: Vocabulary, num_samples: int) -> Starts:
        """What to sample from for a request, such as prompts: `num_samples` starts for each thing that is asked for.

        The list is complete: the codec repeats what is asked for, and says the class of each sample. What the codec
        does not know is a ValueError.
        """
        ...

    @property
    def grid(self) -> tuple[int, int] | None:
        """The rows and columns that tokens fill, row by row; None where they are in a line, as in a text."""
        ...

    @property
    def first(self) -> int | None:
        """The token that every sequence begins with, if there is one."""
        ...

    @property
    def last(self) -> int | None:
        """The token that ends a text, if there is one."""
        ...

    def show(self, tokens: Sequence[int]) -> Any:
        """What a person sees of a sequence, masks too."""
        ...

    @property
    def pipeline(self) -> str:
        """What the hub calls a model that writes this."""
        ...

    def in_card(self, shown: Sequence[Any]) -> tuple[str, dict[str, bytes]]:
        """What `show` gave of some samples, in the Markdown of a model card, and the files that it shows."""
        ...

    def is_alike(self, other: "Codec") -> bool:
        """Whether both read and write everything with the same tokens."""
        ...
