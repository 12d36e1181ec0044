"""Images in the middle of denoising as HTML: cells that are still masked are hatched, new ones have a frame."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape

import torch

from fpmgm.checkpoint import Model
from fpmgm.codecs import ImageCodec
from fpmgm.codecs.images import as_picture
from fpmgm.demo.frames import Frame
from fpmgm.pictures import Picture, png
from fpmgm.replay import change_of


def pictures_of(codec: ImageCodec, frame: Frame) -> list[Picture]:
    """The images of a frame."""
    return [as_picture(image) for image in codec.images(torch.tensor(frame.tokens))]


def images_of(model: Model, frame: Frame, labels: Sequence[int] | None) -> str:
    """All images of a frame, each with its class."""
    codec = model.speech
    assert isinstance(codec, ImageCodec)
    names = [codec.class_names[label] for label in labels or ()]
    items = []
    for index, picture in enumerate(pictures_of(codec, frame)):
        name = names[index] if names else f"image {index + 1}"
        drawn = _drawn(picture, _over(codec, frame.before[index], frame.tokens[index]), name)
        items.append(f"<figure>{drawn}<figcaption>{escape(name)}</figcaption></figure>")
    return f'<div class="fp-images">{"".join(items)}</div>'


def data_url(picture: Picture) -> str:
    """A picture that stands in the page itself."""
    return f"data:image/png;base64,{b64encode(png(picture)).decode()}"


def _drawn(picture: Picture, over: str, name: str) -> str:
    height, width = picture.shape[:2]
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(name)}">'
        f'<image href="{data_url(picture)}" width="{width}" height="{height}"/>{over}</svg>'
    )


def _over(codec: ImageCodec, before: Sequence[int], tokens: Sequence[int]) -> str:
    """What lies over the cells that the model has not drawn yet, or has just drawn or masked."""
    _, height, width = codec.tokenizer.image_shape
    rows, columns = codec.grid
    high, wide = height // rows, width // columns
    parts = []
    for place, (old, new) in enumerate(zip(before, tokens, strict=True)):
        change = change_of(old, new, codec.mask_id)
        if change != "unchanged":
            top, left = place // columns * high, place % columns * wide
            parts.append(f'<rect class="fp-{change}" x="{left}" y="{top}" width="{wide}" height="{high}"/>')
    return "".join(parts)
