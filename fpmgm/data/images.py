"""Images as codes: a data set of images, written in the codes of an image tokenizer once, and cached."""

import hashlib
import json
import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from fpmgm.backbones.network import Vocabulary
from fpmgm.backbones.vq import VQConfig
from fpmgm.codecs import Codec, ImageCodec
from fpmgm.codecs.image_tokenizer import DiffusersTokenizer, ImageTokenizer, VQTokenizer, read_weights
from fpmgm.codecs.images import FILE as CODEC_FILE
from fpmgm.codecs.images import MAX_NAMED
from fpmgm.data.assets import cache_folder, making
from fpmgm.data.dataset import Dataset
from fpmgm.data.pixels import Pixels, PixelsConfig, load_pixels
from fpmgm.files import whole_folder
from fpmgm.places import find_folder
from fpmgm.progress import Progress
from fpmgm.schema import read_json, read_object, require

AT_ONCE = 1024
PATIENCE = 3.0


@dataclass(frozen=True, kw_only=True)
class ImagesConfig(PixelsConfig):
    """Which images, in the codes of which tokenizer. Codes, grid and classes are what the network is built for."""

    data_type: ClassVar[str] = "images"
    has_ends: ClassVar[bool] = False
    is_begun: ClassVar[bool] = False

    tokenizer: str = "fashion"
    """The image tokenizer: that of a model (fashion is bundled), the folder of a run that trained one, or a folder of a
    VQModel of diffusers."""
    num_codes: int = 256
    """The number of codes of the tokenizer."""
    grid: tuple[int, int] = (7, 7)
    """Rows and columns of codes."""
    num_classes: int = 10
    """The number of classes of the images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("data.num_codes", self.num_codes, 2, 1 << 20)
        require("data.num_classes", self.num_classes, 0, 1 << 20)
        for each in self.grid:
            require("data.grid", each, 1, 1 << 10)

    @property
    def vocabulary(self) -> Vocabulary:
        rows, columns = self.grid
        return Vocabulary(
            size=self.num_codes + 1, mask_id=self.num_codes, length=rows * columns, num_classes=self.num_classes
        )

    def placed(self, content: str = "") -> "ImagesConfig":
        """The same with whole paths and the hash of the images. A bundled tokenizer keeps its name."""
        placed = super().placed(content)
        is_folder = os.path.isdir(self.tokenizer)
        found: ImagesConfig = replace(placed, tokenizer=os.path.abspath(self.tokenizer)) if is_folder else placed
        return found

    def load(self, codec: Codec | None = None) -> Dataset:
        """The codes of every image as a row, with its class."""
        if codec is not None and not isinstance(codec, ImageCodec):
            raise ValueError(f"{self.source} are images, and the model writes {codec.kind}")
        tokenizer = codec.tokenizer if codec else tokenizer_named(self.tokenizer, self.size)
        self._check(tokenizer, "codes", self.num_codes, tokenizer.num_codes)
        self._check(tokenizer, "rows and columns", self.grid, tokenizer.grid)
        pixels = load_pixels(self)
        if pixels.shape != tokenizer.image_shape:
            raise ValueError(
                f"the images of {self.source} have the shape {pixels.shape}, and tokenizer {self.tokenizer} is for "
                f"{tokenizer.image_shape}; give --data.size, or another tokenizer"
            )
        self._check(tokenizer, "classes", self.num_classes, len(pixels.class_names))
        if codec and codec.class_names != pixels.class_names:
            raise ValueError(
                f"the classes of {self.source} are {_named(pixels.class_names)}, and those of the model "
                f"{_named(codec.class_names)}; give the images that the model was trained on"
            )
        folder = encoded(pixels, tokenizer)
        codec = codec or ImageCodec(tokenizer, pixels.class_names)
        return Dataset(
            rows=np.load(folder / "codes.npy", mmap_mode="r"),
            labels=pixels.labels,
            train=pixels.train,
            held_out=pixels.held_out,
            codec=codec,
            vocabulary=codec.vocabulary,
            content=pixels.content,
            place=folder,
        )

    def _check(self, tokenizer: ImageTokenizer, what: str, ours: object, theirs: object) -> None:
        if ours != theirs:
            whose = self.source if what == "classes" else f"tokenizer {self.tokenizer}"
            raise ValueError(f"the run is set for {ours} {what}, and {whose} has {theirs}; set --data.{_flag(what)}")


def _flag(what: str) -> str:
    return {"codes": "num-codes", "rows and columns": "grid", "classes": "num-classes"}[what]


def _named(classes: tuple[str, ...]) -> str:
    return ", ".join(classes[:MAX_NAMED]) + (" and more" if len(classes) > MAX_NAMED else "")


def encoded(pixels: Pixels, tokenizer: ImageTokenizer) -> Path:
    """The folder of the cache with the codes of all images, made on first use; known by images and tokenizer."""
    parts = [tokenizer.kind, json.dumps(tokenizer.settings, sort_keys=True), pixels.content]
    key = hashlib.sha256("\0".join(parts).encode() + tokenizer.weights).hexdigest()[:32]
    folder = cache_folder() / "packed" / f"images-{key}"
    with making(folder) as is_missing:
        if is_missing:
            dtype = np.uint16 if tokenizer.num_codes < 1 << 16 else np.uint32
            with Progress("encoding images", len(pixels.images), patience=PATIENCE) as progress:
                found = []
                for start in range(0, len(pixels.images), AT_ONCE):
                    part = torch.from_numpy(np.array(pixels.images[start : start + AT_ONCE]))
                    found.append(tokenizer.encode(part).numpy().astype(dtype))
                    progress.reach(min(start + AT_ONCE, len(pixels.images)))
            with whole_folder(folder) as unfinished:
                np.save(unfinished / "codes.npy", np.concatenate(found))
    return folder


def tokenizer_named(name: str, size: int = 0) -> ImageTokenizer:
    """An image tokenizer: a bundled one, a run's, a model's own, or a VQModel of diffusers for images of that size."""
    folder = find_folder(name)
    folder = folder / "vqvae" if (folder / "vqvae" / "config.json").is_file() else folder  # of a whole pipeline
    if not (folder / CODEC_FILE).is_file() and not (folder / "config.json").is_file():
        raise ValueError(f"{folder} holds no image tokenizer: it has no config.json")
    changed = max(file.stat().st_mtime_ns for file in folder.iterdir())
    return _tokenizer_in(folder.resolve(), size, changed)


@lru_cache(maxsize=4)
def _tokenizer_in(folder: Path, size: int, changed: int) -> ImageTokenizer:
    """The tokenizer of a folder, read again if its files have changed."""
    if (folder / CODEC_FILE).is_file():
        return ImageCodec.load(folder).tokenizer
    file = folder / "config.json"
    settings = read_json(file)
    if settings.get("_class_name") == "VQModel":
        return DiffusersTokenizer.read(folder, size)
    if settings.pop("model_type", None) != VQConfig.model_type:
        raise ValueError(f"{folder} holds no image tokenizer; train one with fpmgm train fashion-tokenizer")
    settings.pop("data", None)
    return _trained(read_object(VQConfig, settings, str(file)), folder / "model.safetensors")


def _trained(config: VQConfig, file: Path) -> VQTokenizer:
    """The tokenizer that a run has trained."""
    if not file.is_file():
        raise ValueError(f"{file.parent} has no {file.name}")
    network, tensors = config.build(), read_weights(file.read_bytes(), str(file))
    if {name: t.shape for name, t in tensors.items()} != {name: t.shape for name, t in network.state_dict().items()}:
        raise ValueError(f"{file} does not fit its config.json: it has other tensors")
    network.load_state_dict(tensors)
    return VQTokenizer.made_of(config, network)
