"""Inception's features of images, as FID has them: 2048 numbers an image, about a sixth of a second each on one core.

Images are resized to 299 pixels as clean-fid does it: bicubic, with antialiasing, of every colour by itself, in
float32, never rounded to bytes (Pillow's filter; torch's is the same to 1e-3). What overshoots is cut off at 0 and 255.
Grey images become three equal colours. The network is a TorchScript file: it is code, so its hash is checked each time.
"""

import hashlib
import warnings
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fpmgm.data.assets import fetch
from fpmgm.devices import device_named
from fpmgm.evaluation.frechet import Vectors
from fpmgm.progress import Progress

NAME = "inception"
SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
SIZE = 299
AT_ONCE = 16

Pictures = UInt8[Tensor, "B C H W"]


def inception_features(images: Pictures, *, device: str = "auto") -> Vectors:
    """What FID and KID compare."""
    network = load_inception(device)
    found: list[Vectors] = []
    with Progress("reading images with Inception", len(images), unit="images", patience=3.0) as progress:
        for part in images.split(AT_ONCE):
            found.append(run_inception(network, part, device))
            progress.reach(progress.done + len(part))
    return np.concatenate(found)


@lru_cache(maxsize=1)
def load_inception(device: str = "auto") -> Any:
    """The network, its constants folded: a sixth faster on a CPU, with the same features."""
    file = fetch(NAME)
    with open(file, "rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != SHA256:
            raise ValueError(
                f"{file} does not have the hash {SHA256}, so it is not run; remove it, and it is fetched again"
            )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript, which the file is
        network = torch.jit.load(str(file), map_location=device_named(device))
        return torch.jit.freeze(network.eval())


@torch.inference_mode()
def run_inception(network: Any, images: Pictures, device: str) -> Vectors:
    """The features of some images by a network that takes what `inception_input` makes."""
    given = inception_input(images.to(device_named(device)))
    found: Vectors = network(given.contiguous(memory_format=torch.channels_last)).float().cpu().numpy()
    return found


def inception_input(images: Pictures) -> Float[Tensor, "B 3 299 299"]:
    """Three colours of 299 x 299 pixels, from -1 to 0.992."""
    channels = images.shape[1]
    if channels not in (1, 3):
        raise ValueError(f"the images have {channels} colours; Inception reads 1 or 3")
    resized = F.interpolate(images.float(), size=(SIZE, SIZE), mode="bicubic", antialias=True)
    return ((resized.clamp(0, 255) - 128) / 128).expand(-1, 3, -1, -1)
