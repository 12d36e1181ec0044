"""Pixels as tokens of 256 values: what an image tokenizer learns from."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from fpmgm.backbones.network import Vocabulary
from fpmgm.codecs.codec import Codec, Starts
from fpmgm.codecs.images import Picture, as_picture, in_card
from fpmgm.schema import field_value, read_json

FILE = "pixels.json"


@dataclass(frozen=True)
class PixelCodec:
    """The shape of images, and the names of their classes."""

    shape: tuple[int, int, int]
    """Channels, height and width."""
    class_names: tuple[str, ...] = ()

    kind: ClassVar[str] = "pixels"
    request_names: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        return (folder / FILE).is_file()

    @classmethod
    def load(cls, folder: Path) -> "PixelCodec":
        settings, where = read_json(folder / FILE), str(folder / FILE)
        shape = field_value(settings.get("shape"), tuple[int, int, int], f"{where}: shape")
        return cls(shape, field_value(settings.get("classes"), tuple[str, ...], f"{where}: classes"))

    @property
    def files(self) -> Mapping[str, str | bytes]:
        return {FILE: json.dumps({"shape": list(self.shape), "classes": list(self.class_names)}, indent=1) + "\n"}

    @property
    def grid(self) -> None:
        return None

    @property
    def first(self) -> None:
        return None

    @property
    def last(self) -> None:
        return None

    def check(self, vocabulary: Vocabulary, where: str) -> None:
        if vocabulary.shape != self.shape:
            raise ValueError(f"{where} is for images of shape {self.shape}, and the network for {vocabulary.shape}")

    def starts(self, request: Mapping[str, Any], vocabulary: Vocabulary, num_samples: int) -> Starts:
        raise ValueError("this model reads images and draws none; sample a model that uses it, such as fashion")

    def show(self, tokens: Sequence[int]) -> Picture:
        """The image of pixels, row by row, channel by channel."""
        return as_picture(torch.tensor(list(tokens), dtype=torch.uint8).view(self.shape))

    @property
    def pipeline(self) -> str:
        return "image-feature-extraction"

    def in_card(self, shown: Sequence[Picture]) -> tuple[str, dict[str, bytes]]:
        return in_card(shown, "Held-out images")

    def is_alike(self, other: Codec) -> bool:
        return isinstance(other, PixelCodec) and self.shape == other.shape
