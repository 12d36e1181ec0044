"""In-painting: an image of the editor and what is painted on it become what a model of images is asked for."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fpmgm.codecs import ImageCodec
from fpmgm.names import choose
from fpmgm.pictures import Picture, resized

PAINTED = "what I painted"
REGIONS = {
    PAINTED: (0.0, 0.0, 0.0, 0.0),
    "the left half": (0.0, 0.0, 1.0, 0.5),
    "the right half": (0.0, 0.5, 1.0, 1.0),
    "the upper half": (0.0, 0.0, 0.5, 1.0),
    "the lower half": (0.5, 0.0, 1.0, 1.0),
    "the middle": (0.25, 0.25, 0.75, 0.75),
}
"""What is drawn anew: top, left, bottom and right, as shares. All but the first need no brush."""
COVERED = 64
"""A pixel is painted if the brush covers at least a quarter of it."""
EDITOR = 336
"""Pixels of the editor, each way."""


def request_of(codec: ImageCodec, edited: Any, region: Any) -> dict[str, Any]:
    """The image and the hole in it, in the size of the model; a ValueError if there is no image or no hole."""
    if not isinstance(edited, Mapping) or edited.get("background") is None:
        raise ValueError("there is no image to fill in; put one into the editor first")
    channels, height, width = codec.tokenizer.image_shape
    image = _picture(edited["background"], is_grey=channels == 1)
    top, left, bottom, right = choose("part", str(region), REGIONS)
    if region == PAINTED:
        hole = _painted(edited.get("layers") or [], height, width)
        if not hole.any():
            raise ValueError("nothing is painted; paint over the part to draw anew, or choose a part by its name")
    else:
        hole = np.zeros((height, width), dtype=bool)
        hole[round(top * height) : round(bottom * height), round(left * width) : round(right * width)] = True
    return {"inpaint": resized(image, height, width), "inpaint_mask": hole}


def for_editor(picture: Picture) -> Picture:
    """An image as the editor shows it: in colours, each pixel a square of several."""
    colours = picture if picture.ndim == 3 else np.repeat(picture[:, :, None], 3, axis=2)
    times = max(1, EDITOR // max(colours.shape[:2]))
    return colours.repeat(times, axis=0).repeat(times, axis=1)


def _picture(image: np.ndarray, *, is_grey: bool) -> Picture:
    colours = image[:, :, :3] if image.ndim == 3 else np.repeat(image[:, :, None], 3, axis=2)
    if not is_grey:
        return np.ascontiguousarray(colours)
    return np.asarray((colours @ [0.299, 0.587, 0.114]).round(), dtype=np.uint8)


def _painted(layers: list[np.ndarray], height: int, width: int) -> np.ndarray:
    """Where any layer has paint, by its fourth channel."""
    hole = np.zeros((height, width), dtype=bool)
    for layer in layers:
        if layer.ndim == 3 and layer.shape[2] == 4:
            paint = np.where(layer[:, :, 3] > 0, 255, 0).astype(np.uint8)
            hole |= resized(paint, height, width) >= COVERED
    return hole
