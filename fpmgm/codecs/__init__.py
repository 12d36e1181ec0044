"""Codecs: requests become starting tokens, and tokens what a person sees. A codec is saved with its model."""

from pathlib import Path

from fpmgm.codecs.codec import Codec, Starts
from fpmgm.codecs.images import ImageCodec
from fpmgm.codecs.pixels import PixelCodec
from fpmgm.codecs.text import TextCodec

CODECS: tuple[type[TextCodec] | type[ImageCodec] | type[PixelCodec], ...] = (TextCodec, ImageCodec, PixelCodec)

__all__ = ["Codec", "ImageCodec", "PixelCodec", "Starts", "TextCodec", "load_codec"]


def load_codec(folder: Path) -> Codec | None:
    """The codec of a model folder, known by its files; None if it has none."""
    return next((kind.load(folder) for kind in CODECS if kind.is_in(folder)), None)
