"""Judges of images: a classifier trained on the data, and Inception. Features of real images are kept in the cache."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, UInt8
from safetensors.torch import load_file
from torch import Tensor

from fpmgm import places
from fpmgm.backbones.classifier import ClassifierConfig
from fpmgm.checkpoint import find_folder, load, read_settings, weights_of
from fpmgm.codecs.image_tokenizer import ImageTokenizer
from fpmgm.codecs.pixels import PixelCodec
from fpmgm.data.assets import cache_folder, making
from fpmgm.data.dataset import DataConfig
from fpmgm.data.pixels import PixelsConfig, load_pixels
from fpmgm.evaluation.classification import classified
from fpmgm.evaluation.frechet import Vectors
from fpmgm.evaluation.inception import SHA256, inception_features
from fpmgm.evaluation.inception_score import Probabilities
from fpmgm.files import whole_file, write_tensors

Pictures = UInt8[Tensor, "B C H W"]
Classes = Int[np.ndarray, " _"]
AUTO = "auto"
"""As a judge: the bundled classifier of the data that a model was trained on."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a judge finds in images, one row an image."""

    features: Vectors
    probabilities: Probabilities | None = None
    """Of the classes, if the judge tells them."""

    @property
    def classes(self) -> Classes:
        """The most probable class of each image."""
        assert self.probabilities is not None
        return self.probabilities.argmax(axis=1)


@dataclass(frozen=True, kw_only=True)
class ImageJudge:
    """Who looks at images, the name under which its results go, and what tells it from any other."""

    name: str
    key: str
    look: Callable[[Pictures], Look]
    shape: tuple[int, int, int] | None = None
    """Of the images that it reads; None: any."""
    class_names: tuple[str, ...] = ()


@lru_cache(maxsize=4)
def load_classifier(source: str, *, device: str = "auto") -> ImageJudge:
    """A classifier of ours: a bundled one, or the folder of one."""
    model = load(source, device=device)
    config, codec = model.config, model.codec
    if not isinstance(config, ClassifierConfig) or not isinstance(codec, PixelCodec):
        raise ValueError(
            f"judge is {source}, a {config.kind}; images are judged by a classifier, such as fashion-classifier"
        )

    def look(images: Pictures) -> Look:
        found = classified(model.denoiser, images)
        return Look(features=found.features.numpy(), probabilities=found.logits.double().softmax(dim=1).numpy())

    name = f"fpmgm:{Path(source).name}"
    return ImageJudge(name=name, key=weights_of(source), look=look, shape=config.shape, class_names=codec.class_names)


def inception_judge(device: str = "auto") -> ImageJudge:
    """FID's Inception, which reads images of any size and tells no classes."""

    def look(images: Pictures) -> Look:
        return Look(features=inception_features(images, device=device))

    return ImageJudge(name="inception", key=SHA256[:16], look=look)


def classifier_for(data: DataConfig | None) -> str:
    """The bundled classifier of the data that a model was trained on; a ValueError that says how to train one."""
    name = data.name if data is not None else ""
    for folder in sorted(places.BUNDLED.glob("*")):
        if (folder / "pixels.json").is_file():
            config, own = read_settings(folder)
            if isinstance(config, ClassifierConfig) and own is not None and own.name == name:
                return folder.name
    source = f" --data.source {name}" if name else ""
    raise ValueError(
        f"no bundled classifier judges images of {name or 'unknown data'}; train one with fpmgm train "
        f"fashion-classifier{source} --out runs/judge and give --judge runs/judge, or give --judge '' for none"
    )


def judge_of(judge: str, model: str) -> str:
    """A judge by name; `auto` is the bundled classifier of what the model was trained on."""
    return classifier_for(read_settings(find_folder(model))[1]) if judge == AUTO else judge


@dataclass(frozen=True, kw_only=True)
class RealImages:
    """Real images to compare with, and what tells them from any others."""

    images: Pictures
    labels: Classes
    content: str


def real_images(data: PixelsConfig, num: int, *, is_reference: bool = True) -> RealImages:
    """So many held-out images, spread evenly, or all if there are fewer.

    Every other held-out image is a reference, which samples are compared with. The rest are never in it: what these
    score says what samples that could not be told from real images would.
    """
    pixels = load_pixels(data)
    rows = pixels.held_out[0 if is_reference else 1 :: 2]
    chosen = rows[np.linspace(0, len(rows) - 1, min(num, len(rows))).round().astype(int)]
    return RealImages(
        images=torch.from_numpy(np.array(pixels.images[chosen])),
        labels=np.asarray(pixels.labels[chosen], dtype=np.int64),
        content=json.dumps([pixels.content, hashlib.sha256(chosen.astype(np.int64).tobytes()).hexdigest()]),
    )


def through_tokenizer(real: RealImages, tokenizer: ImageTokenizer) -> RealImages:
    """What a tokenizer makes of the codes of images: the best that a model which writes these codes can do."""
    made = tokenizer.decode(tokenizer.encode(real.images))
    known = hashlib.sha256(tokenizer.weights).hexdigest()
    return RealImages(images=made, labels=real.labels, content=json.dumps([real.content, known, tokenizer.settings]))


def real_look(judge: ImageJudge, real: RealImages) -> Look:
    """What a judge finds in real images, looked at once and then read from the cache."""
    key = hashlib.sha256(json.dumps([judge.name, judge.key, real.content]).encode()).hexdigest()[:32]
    file = cache_folder() / "features" / f"{key}.safetensors"
    with making(file) as is_missing:
        if is_missing:
            found = judge.look(real.images)
            tensors = {"features": torch.from_numpy(found.features)}
            if found.probabilities is not None:
                tensors["probabilities"] = torch.from_numpy(found.probabilities)
            with whole_file(file) as scratch:
                write_tensors(tensors, scratch)
    arrays = {name: tensor.numpy() for name, tensor in load_file(file).items()}
    return Look(features=arrays["features"], probabilities=arrays.get("probabilities"))
