"""Files of images, one at a time: read by pillow, turned upright, put on white, cropped, resized, as bytes."""

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

Colours = Literal["auto", "grey", "rgb"]
MAX_PIXELS = 1 << 26
"""Of one image. A small file can claim more pixels than memory holds."""
DEEP = {"I", "I;16", "I;16B", "I;16L", "I;16N"}
"""What pillow calls grey images of 16 bits a pixel."""


@dataclass(frozen=True)
class Entry:
    """An image that is to be read."""

    name: str
    """What messages call it."""
    label: int
    read: Callable[[], bytes]


@dataclass(frozen=True)
class Listing:
    """All images of a data set, in order, the held-out ones last."""

    classes: tuple[str, ...]
    entries: list[Entry]
    num_held_out: int
    digest: str
    """A hash of their names and contents."""


class BrokenImageError(ValueError):
    """An image cannot be read. The message says why, without its name."""


def pillow() -> Any:
    """The module that reads images; a ValueError if it is not installed."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ValueError("pillow, which reads images, is not installed; install fpmgm[image]") from error
    return Image


def image_array(content: bytes, size: int, colours: Colours) -> np.ndarray:
    """An image as bytes, (channels, height, width). Only `grey` makes one channel.

    With a size it is cropped to the largest square in its middle, and that is resized to so many pixels by pillow's
    bicubic filter, which averages over what it makes smaller.
    """
    image = upright(content)
    if colours == "grey":
        image = image.convert("L")
    if size:
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.resize((size, size), pillow().Resampling.BICUBIC, box=(left, top, left + side, top + side))
    array = np.asarray(image)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def upright(content: bytes) -> "Image.Image":
    """The (first) image of a file in RGB, turned as its camera says; what is transparent lies on white.

    Whatever is wrong with the file is a BrokenImageError.
    """
    kinds = pillow()
    from PIL import ImageOps

    try:
        with warnings.catch_warnings(action="ignore"), kinds.open(io.BytesIO(content)) as image:
            if image.width * image.height > MAX_PIXELS:
                raise BrokenImageError(f"it has {image.width} x {image.height} pixels; at most {MAX_PIXELS} are read")
            image.load()
            return _in_rgb(ImageOps.exif_transpose(image))
    except (BrokenImageError, MemoryError):
        raise
    except kinds.DecompressionBombError as error:
        raise BrokenImageError(f"it has too many pixels; at most {MAX_PIXELS} are read") from error
    except Exception as error:  # pillow's decoders raise whatever comes of a damaged file
        reason = "it is empty" if not content else _first_line(error)
        raise BrokenImageError(reason) from error


def _first_line(error: Exception) -> str:
    if isinstance(error, pillow().UnidentifiedImageError):
        return "it is no image that pillow can read"
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _in_rgb(image: "Image.Image") -> "Image.Image":
    kinds = pillow()
    if image.mode in DEEP:
        deep = np.asarray(image).astype(np.float64)
        image = kinds.fromarray((deep.clip(0, 65535) / 257).round().astype(np.uint8))
    if not image.has_transparency_data:
        return image.convert("RGB")
    shown = kinds.new("RGBA", image.size, "white")
    shown.alpha_composite(image.convert("RGBA"))
    converted: Image.Image = shown.convert("RGB")
    return converted
