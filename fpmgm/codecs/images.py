"""Images: classes and images with holes become codes, and codes images, by an image tokenizer."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, UInt8

from fpmgm.backbones.network import Vocabulary
from fpmgm.codecs.codec import Codec, Starts
from fpmgm.codecs.image_tokenizer import TOKENIZERS, Bytes, ImageTokenizer, is_alike
from fpmgm.names import choose
from fpmgm.schema import field_value, parse_object, read_text, shortened
from fpmgm.types import Tokens

FILE, WEIGHTS = "image_codec.json", "image_tokenizer.safetensors"
SAMPLES = "samples.png"
GREY = 128
"""How a cell looks that is still masked."""
MAX_NAMED = 20
"""Classes that a message names."""
Picture = UInt8[np.ndarray, "H W *RGB"]


@dataclass(frozen=True)
class ImageCodec:
    """An image tokenizer, and the names of the classes."""

    tokenizer: ImageTokenizer
    class_names: tuple[str, ...] = ()

    kind: ClassVar[str] = "image"
    request_names: ClassVar[tuple[str, ...]] = ("classes", "inpaint", "inpaint_mask")

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        return (folder / FILE).is_file()

    @classmethod
    def load(cls, folder: Path) -> "ImageCodec":
        """The codec of a model folder; a ValueError that names the file if it is broken."""
        where = str(folder / FILE)
        settings = parse_object(read_text(folder / FILE), where)
        kind = choose("tokenizer_type", field_value(settings.get("tokenizer_type"), str, where), TOKENIZERS)
        if not (folder / WEIGHTS).is_file():
            raise ValueError(f"{folder} has no {WEIGHTS}, which its {FILE} needs")
        own = field_value(settings.get("tokenizer"), dict, f"{where}: tokenizer")
        names = field_value(settings.get("classes"), tuple[str, ...], f"{where}: classes")
        return cls(kind.of(own, (folder / WEIGHTS).read_bytes(), where), names)

    @property
    def files(self) -> Mapping[str, str | bytes]:
        settings = {
            "tokenizer_type": self.tokenizer.kind,
            "tokenizer": self.tokenizer.settings,
            "classes": list(self.class_names),
        }
        return {FILE: json.dumps(settings, indent=1) + "\n", WEIGHTS: self.tokenizer.weights}

    @property
    def grid(self) -> tuple[int, int]:
        return self.tokenizer.grid

    @property
    def mask_id(self) -> int:
        return self.tokenizer.num_codes

    @property
    def vocabulary(self) -> Vocabulary:
        """What a network for these images is made for."""
        size, (rows, columns) = self.tokenizer.num_codes, self.grid
        return Vocabulary(size=size + 1, mask_id=size, length=rows * columns, num_classes=len(self.class_names))

    @property
    def first(self) -> None:
        return None

    @property
    def last(self) -> None:
        return None

    def check(self, vocabulary: Vocabulary, where: str) -> None:
        if vocabulary != self.vocabulary:
            raise ValueError(
                f"{where} is for {_told(self.vocabulary)}, and the network for {_told(vocabulary)}; give the tokenizer "
                "that the network was trained with"
            )

    def class_index(self, name: str | int) -> int:
        """The class of that name or number; a ValueError with the nearest name if there is none.

        A word of digits is a name if a class is called so, else a number.
        """
        if not self.class_names:
            raise ValueError(f"class is {shortened(name)}; this model has no classes")
        if isinstance(name, str) and (name in self.class_names or not name.isdecimal()):
            return self._class_named(name)
        if not 0 <= int(name) < len(self.class_names):
            raise ValueError(f"class is {shortened(name)}; the model knows 0 to {len(self.class_names) - 1}")
        return int(name)

    def _class_named(self, name: str) -> int:
        names = self.class_names
        if name in names:
            return names.index(name)
        near = get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        raise ValueError(f"unknown class {shortened(name)}; {hint}Choices: {', '.join(names[:MAX_NAMED])}{more}")

    def starts(self, request: Mapping[str, Any], vocabulary: Vocabulary, num_samples: int) -> Starts:
        """`num_samples` of each class that is asked for, or of all classes in turn; with given cells if in-painting."""
        asked = () if request.get("classes") is None else request["classes"]
        classes = [self.class_index(each) for each in ([asked] if isinstance(asked, str | int) else asked)]
        cells = self._cells(request)
        if classes:
            labels: list[int] | None = [label for label in classes for _ in range(num_samples)]
        else:
            labels = self.labels_of(num_samples)
        return Starts(tokens=[cells] * (num_samples * max(len(classes), 1)), labels=labels)

    def labels_of(self, num_samples: int) -> list[int] | None:
        """The classes of samples for which none was asked: all of them in turn; None if there are none."""
        return [index % len(self.class_names) for index in range(num_samples)] if self.class_names else None

    def _cells(self, request: Mapping[str, Any]) -> list[int]:
        """The codes of what is given, masks elsewhere."""
        rows, columns = self.grid
        image, hole = request.get("inpaint"), request.get("inpaint_mask")
        if (image is None) != (hole is None):
            raise ValueError("in-painting needs an image and a mask that is true where it is to be filled in")
        if image is None or hole is None:
            return [self.mask_id] * (rows * columns)
        codes = self.encode(image).view(rows, columns)
        found: list[int] = codes.masked_fill(torch.from_numpy(self._touched(hole)), self.mask_id).flatten().tolist()
        return found

    def _touched(self, hole: Bool[np.ndarray, "H W"]) -> Bool[np.ndarray, "h w"]:
        """The cells that a hole touches."""
        _, height, width = self.tokenizer.image_shape
        if hole.shape != (height, width):
            raise ValueError(
                f"the mask has {hole.shape[1]} x {hole.shape[0]} pixels; the images of this model have "
                f"{width} x {height}"
            )
        if not hole.any():
            raise ValueError("the mask is true nowhere, so that nothing is to be filled in")
        rows, columns = self.grid
        return np.asarray(hole.reshape(rows, height // rows, columns, width // columns).any(axis=(1, 3)))

    def encode(self, picture: Picture) -> torch.Tensor:
        """The codes of one image, given as `show` gives it."""
        channels, height, width = self.tokenizer.image_shape
        given = torch.from_numpy(np.array(picture))
        image = given[None] if given.ndim == 2 else given.permute(2, 0, 1)
        if image.shape != (channels, height, width):
            raise ValueError(
                f"the image has {image.shape[2]} x {image.shape[1]} pixels of {image.shape[0]} colours; this model "
                f"takes {width} x {height} of {channels}"
            )
        return self.tokenizer.encode(image[None])[0]

    def images(self, tokens: Tokens) -> Bytes:
        """The images of codes. Cells that are still masked are grey."""
        tokens = tokens.cpu()
        if int(tokens.min()) < 0 or int(tokens.max()) > self.mask_id:
            raise ValueError(
                f"codes run from {int(tokens.min())} to {int(tokens.max())}; the codebook has 0 to {self.mask_id - 1}"
            )
        is_masked = tokens == self.mask_id
        found = self.tokenizer.decode(tokens.masked_fill(is_masked, 0))
        rows, columns = self.grid
        height, width = found.shape[2] // rows, found.shape[3] // columns
        cells = is_masked.view(-1, 1, rows, columns).repeat_interleave(height, 2).repeat_interleave(width, 3)
        return found.masked_fill(cells, GREY)

    def show(self, tokens: Sequence[int]) -> Picture:
        """The image of codes, for a person: height x width, and three colours if it has them."""
        return as_picture(self.images(torch.tensor([list(tokens)]))[0])

    @property
    def pipeline(self) -> str:
        return "unconditional-image-generation"

    def in_card(self, shown: Sequence[Picture]) -> tuple[str, dict[str, bytes]]:
        return in_card(shown, "Samples")

    def is_alike(self, other: Codec) -> bool:
        """Whether both read and write everything with the same codes and classes."""
        if not isinstance(other, ImageCodec):
            return False
        return self.class_names == other.class_names and is_alike(self.tokenizer, other.tokenizer)


def as_picture(image: UInt8[torch.Tensor, "C H W"]) -> Picture:
    """An image as programs that draw want it: height x width, and colours last if there are any."""
    found: Picture = (image[0] if len(image) == 1 else image.permute(1, 2, 0)).cpu().numpy()
    return found


def in_card(shown: Sequence[Picture], words: str) -> tuple[str, dict[str, bytes]]:
    """A grid of images in a model card."""
    from fpmgm.pictures import grid_png

    return f"![{words}]({SAMPLES})", {SAMPLES: grid_png(list(shown), columns=10, scale=2)}


def _told(vocabulary: Vocabulary) -> str:
    return f"{vocabulary.size - 1} codes, {vocabulary.length} cells and {vocabulary.num_classes} classes"
