"""Images as bytes: data sets by name, folders by class, the hub. An image tokenizer learns from them as they are."""

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import tyro

from fpmgm.backbones.network import Vocabulary
from fpmgm.codecs import Codec, PixelCodec
from fpmgm.data.assets import fetch
from fpmgm.data.dataset import DataConfig, Dataset, RowIndices
from fpmgm.data.image_folder import folder_images
from fpmgm.names import choose
from fpmgm.schema import field_value, read_json, require

KNOWN: dict[str, tuple[tuple[int, int, int], int]] = {
    "fashion": ((1, 28, 28), 10),
    "mnist": ((1, 28, 28), 10),
    "digits": ((1, 8, 8), 10),
    "cifar10": ((3, 32, 32), 10),
    "emoji": ((3, 64, 64), 9),
    "shapes": ((3, 64, 64), 3),
    "dsprites": ((1, 64, 64), 3),
}
"""Data sets by name: the shape of their images, and the number of classes."""


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """A data set of images, in memory or mapped from a file."""

    images: np.ndarray  # (number, channels, height, width), bytes
    labels: np.ndarray
    class_names: tuple[str, ...]
    train: RowIndices
    held_out: RowIndices
    content: str
    """A hash of them, or of where they came from."""

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.images.shape[1:]
        return channels, height, width


@dataclass(frozen=True, kw_only=True)
class PixelsConfig:
    """Which images, and which of them are held out."""

    data_type: ClassVar[str] = "pixels"
    has_ends: ClassVar[bool] = False
    is_begun: ClassVar[bool] = False
    note: ClassVar[str] = ""

    source: str = "fashion"
    """A data set (fashion, mnist, digits, cifar10, emoji, shapes, dsprites), a folder with a folder of images for each
    class, hub:owner/name, or hub:owner/name:configuration."""
    size: int = 0
    """Images of a folder or of the hub are cut to a square in their middle and resized to so many pixels. With 0, they
    are taken as they are, and all must have one size."""
    colours: Literal["auto", "grey", "rgb"] = "auto"
    """Whether images have one channel (grey) or three (rgb). With auto, they have one if all images are grey."""
    broken: Literal["refuse", "skip"] = "refuse"
    """What happens to files that cannot be read. refuse names the first one and ends; skip names them and goes on."""
    validation_share: float = 0.1
    """The share of images that is held out, if the data has no split of its own."""
    content: Annotated[str, tyro.conf.Suppress] = ""
    """A hash of the images. Training writes it into the model folder, so that images that have changed are refused."""

    def __post_init__(self) -> None:
        require("data.size", self.size, 0, 1 << 14)
        choose("colours", self.colours, dict.fromkeys(("auto", "grey", "rgb")))
        choose("broken", self.broken, dict.fromkeys(("refuse", "skip")))
        if not 0 < self.validation_share < 0.5:
            raise ValueError(f"data.validation_share is {self.validation_share}; it must lie between 0 and 0.5")
        if self.source in KNOWN and (self.size or self.colours != "auto"):
            raise ValueError(
                f"data.size and data.colours are for folders and the hub; the images of {self.source} have one size"
            )

    @property
    def name(self) -> str:
        return self.source

    @property
    def vocabulary(self) -> Vocabulary:
        if self.source in KNOWN:
            shape, num = KNOWN[self.source]
        elif self.size and self.colours != "auto":
            shape, num = (3 if self.colours == "rgb" else 1, self.size, self.size), 0
        else:
            shape, num = _shape_and_classes(self)
        channels, height, width = shape
        return Vocabulary(size=257, mask_id=256, length=channels * height * width, num_classes=num, shape=shape)

    @property
    def length(self) -> int:
        """Of a sequence of pixels."""
        return self.vocabulary.length

    def placed(self, content: str = "") -> Any:
        """The same with the whole path of a folder, and the hash of its content."""
        is_elsewhere = self.source in KNOWN or self.source.startswith("hub:")
        return replace(self, source=self.source if is_elsewhere else os.path.abspath(self.source), content=content)

    def is_split_as(self, other: DataConfig) -> bool:
        """Whether both hold out the same images; in which codes does not matter."""
        if not isinstance(other, PixelsConfig):
            return False
        names = [name for name in asdict(PixelsConfig()) if name != "content"]
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def held_out_only(self) -> Any:
        """The same: images of both parts are in one file."""
        return self

    def load(self, codec: Codec | None = None) -> Dataset:
        """The pixels of every image as a row of 256 values."""
        pixels = load_pixels(self)
        return Dataset(
            rows=pixels.images.reshape(len(pixels.images), -1),
            labels=pixels.labels,
            train=pixels.train,
            held_out=pixels.held_out,
            codec=PixelCodec(pixels.shape, pixels.class_names),
            vocabulary=Vocabulary(
                size=257,
                mask_id=256,
                length=int(np.prod(pixels.shape)),
                num_classes=len(pixels.class_names),
                shape=pixels.shape,
            ),
            content=pixels.content,
        )


def load_pixels(config: PixelsConfig) -> Pixels:
    """The images of a config; a ValueError if they are not those that a model was trained on."""
    if config.source in KNOWN:
        pixels = _by_name(config)
    else:
        pixels = _read(folder_images(config.source, config.size, config.colours, config.broken), config)
    if config.content and config.content != pixels.content:
        raise ValueError(f"the images of {config.source} have changed since the model was trained on them")
    if not len(pixels.train) or not len(pixels.held_out):
        raise ValueError(
            f"{config.source} has {len(pixels.images)} images, of which {len(pixels.held_out)} would be held out; "
            "give more images, or another --data.validation-share"
        )
    return pixels


def _by_name(config: PixelsConfig) -> Pixels:
    """A data set by name, with its own test images held out."""
    if config.source == "digits":
        return _digits(config)
    return _read(fetch(config.source), config, content=config.source)  # the package was checked by its hash


def _digits(config: PixelsConfig) -> Pixels:
    """The handwritten digits of scikit-learn: small enough for tests, without any download."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ValueError("the digits come with scikit-learn, which is not installed; install fpmgm[image]") from error
    images, labels = load_digits(return_X_y=True)
    bytes_ = (images.reshape(-1, 1, 8, 8) * (255 / 16)).round().astype(np.uint8)
    train, held_out = split_evenly(len(bytes_), config.validation_share)
    names = tuple(str(digit) for digit in range(10))
    return Pixels(images=bytes_, labels=labels, class_names=names, train=train, held_out=held_out, content="digits")


def _read(folder: Path, config: PixelsConfig, content: str = "") -> Pixels:
    """The images of a folder in the cache; held out are its last ones, or a share if it has no split of its own."""
    about = read_json(folder / "about.json")
    images, labels = np.load(folder / "images.npy", mmap_mode="r"), np.load(folder / "labels.npy")
    num = field_value(about.get("num_held_out"), int, f"{folder}: num_held_out")
    if num:
        train, held_out = np.split(np.arange(len(images)), [len(images) - num])
    else:
        train, held_out = split_evenly(len(images), config.validation_share)
    return Pixels(
        images=images,
        labels=labels,
        class_names=field_value(about.get("classes"), tuple[str, ...], f"{folder}: classes"),
        train=train,
        held_out=held_out,
        content=content or field_value(about.get("content"), str, f"{folder}: content"),
    )


def split_evenly(num: int, share: float) -> tuple[RowIndices, RowIndices]:
    """Rows to learn from and rows held out, which are spread by chance, always the same ones."""
    order = np.random.default_rng(0).permutation(num)
    held_out = np.sort(order[: round(num * share)])
    return np.setdiff1d(np.arange(num), held_out), held_out


def _shape_and_classes(config: PixelsConfig) -> tuple[tuple[int, int, int], int]:
    pixels = load_pixels(config)
    return pixels.shape, len(pixels.class_names)
