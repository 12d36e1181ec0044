"""Images of a folder, by class, or of a data set on the hub: read once into the cache, all of one size.

A folder has a folder for each class, `root/class/*.png`, or these in `root/train` and in one of `root/val`,
`root/valid`, `root/validation` and `root/test`, which is then held out.
"""

import hashlib
import json
import shutil
import sys
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from fpmgm.data.assets import ASSETS, cache_folder, making
from fpmgm.data.image_files import BrokenImageError, Colours, Entry, Listing, image_array
from fpmgm.data.image_hub import hub_listing
from fpmgm.files import whole_file, whole_folder
from fpmgm.progress import Progress
from fpmgm.schema import has_surrogates

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
TRAIN, HELD_OUT = "train", ("val", "valid", "validation", "test")
PATIENCE = 3.0
"""Seconds before progress is shown."""
MAX_NAMED = 10
"""Files that are named when they are skipped; of more there is a count."""
AT_ONCE = 1024


def folder_images(source: str, size: int, colours: Colours, broken: str) -> Path:
    """The folder of the cache with `images.npy`, `labels.npy` and `about.json` (classes, num_held_out, content)."""
    listing = hub_listing(source.removeprefix("hub:")) if source.startswith("hub:") else folder_listing(source)
    settings = json.dumps([listing.digest, size, colours, broken])
    key = hashlib.sha256(settings.encode()).hexdigest()[:32]
    folder = cache_folder() / "packed" / f"pixels-{key}"
    with making(folder) as is_missing:
        if is_missing:
            with whole_folder(folder) as unfinished:
                _pack(listing, unfinished, key, size, colours, broken)
    return folder


def folder_listing(source: str) -> Listing:
    """The images of a folder; a ValueError that says what is missing if it is laid out otherwise."""
    root = Path(source)
    if not root.is_dir():
        raise ValueError(_no_folder(root))
    splits = _splits(root)
    classes = _classes(splits[0])
    if len(splits) == 2 and (unknown := sorted(set(_classes(splits[1])) - set(classes))):
        raise ValueError(f"{splits[1]} has a class {unknown[0]}, which {splits[0]} does not have")
    files = [
        [(file, index) for index, name in enumerate(classes) for file in _images(split / name)] for split in splits
    ]
    entries = [Entry(str(file), index, partial(_content, file)) for own in files for file, index in own]
    digest = _digest(root, [file for own in files for file, _ in own])
    return Listing(classes, entries, len(files[1]) if len(splits) == 2 else 0, digest)


def _no_folder(root: Path) -> str:
    if root.exists():
        return f"{root} is a file; give a folder that has a folder of images for each class"
    names = [*(name for name, asset in ASSETS.items() if asset.kind == "images"), "digits"]
    near = [f"did you mean {name!r}? Give" for name in get_close_matches(str(root), names, n=1)] or ["give"]
    return f"no images at {str(root)!r}; {near[0]} a folder with a folder for each class, hub:owner/name or one of " + (
        ", ".join(names)
    )


def _splits(root: Path) -> list[Path]:
    """The folder itself, or the two in it whose images are to learn from and held out."""
    held_out = next((root / name for name in HELD_OUT if (root / name).is_dir()), None)
    found = [root / TRAIN, held_out]
    if held_out is not None and (root / TRAIN).is_dir() and not any(_images(part) for part in found if part):
        return [part for part in found if part]
    return [root]


def _classes(folder: Path) -> tuple[str, ...]:
    """The names of the class folders, sorted, each of which has images."""
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names and _images(folder):
        raise ValueError(
            f"{folder} has images, and no folder for each class; put them into one, as in {folder / 'cats' / '1.png'}"
        )
    if not names:
        raise ValueError(f"{folder} is empty; it needs a folder of images for each class")
    for name in names:
        if has_surrogates(name):
            raise ValueError(f"{folder} has a folder {name!a}, whose name is not UTF-8; rename it")
        if not _images(folder / name):
            deeper = any(path.is_dir() for path in (folder / name).iterdir())
            hint = "; it has folders: give the one above those of the classes" if deeper else ""
            raise ValueError(f"class {name} of {folder} has no images ({', '.join(SUFFIXES)}){hint}")
    return tuple(names)


def _images(folder: Path) -> list[Path]:
    """The image files of a folder, sorted by name; none if there is no such folder."""
    paths = folder.iterdir() if folder.is_dir() else ()
    wanted = (path for path in paths if path.suffix.lower() in SUFFIXES and not path.name.startswith("."))
    return sorted(path for path in wanted if path.is_file())


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BrokenImageError(error.strerror or str(error)) from error


def _digest(root: Path, files: list[Path]) -> str:
    """A hash of the names and contents of files. It is kept for as long as their sizes and times stay as they are."""
    digest = hashlib.sha256(ascii(root.resolve()).encode())
    for file in files:
        at = file.stat()
        told = (file.relative_to(root), at.st_size, at.st_mtime_ns, at.st_ctime_ns, at.st_ino)
        digest.update(ascii(told).encode())
    known = cache_folder() / "packed" / "seen" / digest.hexdigest()[:32]
    if not known.is_file():
        found = _content_digest(root, files)
        with whole_file(known) as scratch:
            scratch.write_text(found)
    return known.read_text()


def _content_digest(root: Path, files: list[Path]) -> str:
    digest = hashlib.sha256()
    with Progress("hashing images", len(files), patience=PATIENCE) as progress:
        for file in files:
            digest.update(ascii(str(file.relative_to(root))).encode() + b"\0")
            try:
                with open(file, "rb") as stream:
                    digest.update(hashlib.file_digest(stream, "sha256").digest())
            except OSError as error:
                digest.update(repr(error.errno).encode())
            progress.step()
    return digest.hexdigest()


@dataclass
class _Packed:
    """What is known after reading images, whose bytes are in a file one after another."""

    labels: list[int] = field(default_factory=list)
    num_held_out: int = 0
    shape: tuple[int, int, int] = (0, 0, 0)
    first: str = ""
    is_grey: bool = True
    skipped: list[str] = field(default_factory=list)


def _pack(listing: Listing, folder: Path, key: str, size: int, colours: Colours, broken: str) -> None:
    """Read all images and write them into a new folder."""
    raw = folder / "images.raw"
    with open(raw, "wb") as file:
        packed = _read_all(listing, file, size, colours, broken)
    _tell(packed.skipped)
    num_channels = 1 if colours == "auto" and packed.is_grey else packed.shape[0]
    read = np.memmap(raw, np.uint8, "r", shape=(len(packed.labels), *packed.shape))
    shape = (len(packed.labels), num_channels, *packed.shape[1:])
    images = np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, shape)
    for start in range(0, len(images), AT_ONCE):
        images[start : start + AT_ONCE] = read[start : start + AT_ONCE, :num_channels]
    images.flush()
    del read, images
    raw.unlink()
    np.save(folder / "labels.npy", np.array(packed.labels, np.int64))
    about = {"classes": list(listing.classes), "num_held_out": packed.num_held_out, "content": key}
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def _read_all(listing: Listing, file: IO[bytes], size: int, colours: Colours, broken: str) -> _Packed:
    packed, num_train = _Packed(), len(listing.entries) - listing.num_held_out
    with Progress("reading images", len(listing.entries), patience=PATIENCE) as progress:
        for number, entry in enumerate(listing.entries):
            progress.step()
            try:
                image = image_array(entry.read(), size, colours)
            except BrokenImageError as error:
                if broken == "refuse":
                    raise ValueError(
                        f"{entry.name} cannot be read: {error}; --data.broken skip leaves such files out"
                    ) from error
                packed.skipped.append(f"{entry.name}: {error}")
                continue
            _check_shape(packed, image, entry.name, len(listing.entries), Path(file.name).parent)
            packed.is_grey = packed.is_grey and bool((image == image[:1]).all())
            packed.labels.append(entry.label)
            packed.num_held_out += number >= num_train
            file.write(np.ascontiguousarray(image).tobytes())
    _check_classes(listing, packed)
    return packed


def _check_shape(packed: _Packed, image: np.ndarray, name: str, num: int, folder: Path) -> None:
    channels, height, width = image.shape
    if not packed.first:
        packed.first, packed.shape = name, (channels, height, width)
        needed, free = 2 * num * image.nbytes, shutil.disk_usage(folder).free
        if needed > free:
            raise ValueError(
                f"{num} images of {width} x {height} pixels take {needed / 1e9:.1f} GB, and {folder.parent} has "
                f"{free / 1e9:.1f} GB left; give a smaller --data.size"
            )
    if image.shape != packed.shape:
        raise ValueError(
            f"{name} has {width} x {height} pixels, and {packed.first} has {packed.shape[2]} x {packed.shape[1]}; "
            "give --data.size N to crop all to squares of N pixels"
        )


def _check_classes(listing: Listing, packed: _Packed) -> None:
    """A ValueError if all images of a class, or all held-out ones, were skipped."""
    num_train = len(packed.labels) - packed.num_held_out
    listed = listing.entries[: len(listing.entries) - listing.num_held_out]
    lost = {entry.label for entry in listed} - set(packed.labels[:num_train])
    if lost:
        raise ValueError(f"class {listing.classes[min(lost)]} has no image to learn from: {packed.skipped[0]}")
    if listing.num_held_out and not packed.num_held_out:
        raise ValueError(f"no held-out image can be read: {packed.skipped[0]}")


def _tell(skipped: list[str]) -> None:
    for line in skipped[:MAX_NAMED]:
        print(f"skipped {line}", file=sys.stderr)
    if len(skipped) > MAX_NAMED:
        print(f"skipped {len(skipped) - MAX_NAMED} more images that cannot be read", file=sys.stderr)
