"""Images of a folder, by class, or of a data set on the hub: read once into the cache, all of one size."""

from pathlib import Path


def folder_images(source: str, size: int, colours: str, broken: str) -> Path:
    """The folder of the cache with `images.npy`, `labels.npy` and `about.json` (classes, num_held_out, content)."""
    raise ValueError(f"no images at {source!r}")
