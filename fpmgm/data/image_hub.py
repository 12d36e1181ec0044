"""Images of a data set on the hub: columns are found by what they hold."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fpmgm.data.assets import hub_answers
from fpmgm.data.image_files import BrokenImageError, Entry, Listing
from fpmgm.hub import asking_hub
from fpmgm.schema import shortened

HELD_OUT = ("validation", "valid", "val", "test")
"""Splits that may be held out; the first that is there is."""
LABELS = ("label", "labels", "class", "category")
"""Columns of numbers or words that tell the class, where no column says that it does."""


def hub_listing(source: str) -> Listing:
    """The images of `owner/name` or `owner/name:configuration`."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ValueError(
            f"hub:{source} is read with the package datasets, which is not installed; install fpmgm[data]"
        ) from error
    from huggingface_hub import HfApi

    name, _, configuration = source.partition(":")
    if not hub_answers():
        raise ConnectionError(f"the hub does not answer, and {name} is there; check the network, or give a folder")
    with asking_hub(name):
        revision = HfApi().dataset_info(name).sha
        splits = load_dataset(name, configuration or None, revision=revision)
    return listing_of(splits, source, f"{source}@{revision}")


def listing_of(splits: Mapping[str, Any], name: str, version: str) -> Listing:
    """The images of a loaded data set: those of `train`, and of a split that is held out if there is one."""
    from datasets import Image

    first = "train" if "train" in splits else next(iter(splits))
    names = [first, *[split for split in HELD_OUT if split in splits and split != first][:1]]
    image, label = _columns(splits[first].features, name)
    classes, labels = _labels([splits[split][label] for split in names], splits[first].features[label], name)
    entries = []
    for split, own in zip(names, labels, strict=True):
        part = splits[split].cast_column(image, Image(decode=False))
        entries += [
            Entry(f"image {row} of {name} ({split})", index, partial(_content, part, row, image))
            for row, index in enumerate(own)
        ]
    digest = hashlib.sha256(f"{version} {' '.join(names)}".encode()).hexdigest()
    return Listing(classes, entries, len(labels[1]) if len(names) == 2 else 0, digest)


def _columns(features: Mapping[str, Any], name: str) -> tuple[str, str]:
    """The columns of the image and of its class."""
    from datasets import ClassLabel, Image

    images = [column for column, kind in features.items() if isinstance(kind, Image)]
    labels = [column for column, kind in features.items() if isinstance(kind, ClassLabel)]
    labels = labels or [column for column in LABELS if column in features][:1]
    for what, found in (("images", images), ("classes", labels)):
        if len(found) != 1:
            raise ValueError(
                f"{name} has {len(found)} columns of {what}, and 1 is needed; its columns are {', '.join(features)}"
            )
    return images[0], labels[0]


def _labels(columns: Sequence[Sequence[Any]], kind: Any, name: str) -> tuple[tuple[str, ...], list[list[int]]]:
    """The names of the classes, and the class of each image of each split."""
    from datasets import ClassLabel

    values = [list(column) for column in columns]
    if isinstance(kind, ClassLabel):
        known: list[Any] = list(range(kind.num_classes))
        classes = tuple(kind.names)
    else:
        known = sorted({value for value in values[0] if value is not None}, key=str)
        classes = tuple(map(str, known))
    places = {value: index for index, value in enumerate(known)}
    for value in (value for own in values for value in own if value not in places):
        raise ValueError(
            f"{name} has an image of class {shortened(value)}, which is none of its {len(classes)} classes"
        )
    return classes, [[places[value] for value in own] for own in values]


def _content(part: Any, row: int, column: str) -> bytes:
    image = part[row][column]
    if image is None:
        raise BrokenImageError("there is none")
    if image.get("bytes") is not None:
        content: bytes = image["bytes"]
        return content
    return Path(image["path"]).read_bytes()
