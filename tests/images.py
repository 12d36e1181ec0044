"""A small image tokenizer, codec and model with fixed weights, for the tests of everything that works with images."""

from typing import Any

import torch

from fpmgm.backbones.maskgit import MaskGITConfig, MaskGITNetwork
from fpmgm.backbones.vq import Autoencoder, VQConfig
from fpmgm.checkpoint import Model
from fpmgm.codecs import ImageCodec
from fpmgm.codecs.image_tokenizer import VQTokenizer
from fpmgm.randomness import generator

CLASS_NAMES = ("circle", "square", "star", "heart", "moon", "cross", "ring", "wave", "leaf", "bird")


def small_config(size: int = 16, channels: int = 1, num_codes: int = 8) -> VQConfig:
    """An autoencoder of 8 channels and 2 stages: a code stands for 4 x 4 pixels."""
    return VQConfig(
        channels=8,
        num_stages=2,
        num_codes=num_codes,
        code_width=4,
        image_channels=channels,
        image_height=size,
        image_width=size,
    )


def random_images(num: int, size: int = 16, channels: int = 1, seed: int = 0) -> torch.Tensor:
    """Bytes, (num, channels, size, size): patches of 4 x 4 pixels of one colour each, with noise."""
    rng = generator(seed)
    patches = torch.randint(0, 256, (num, channels, size // 4, size // 4), generator=rng)
    noise = torch.randint(-20, 21, (num, channels, size, size), generator=rng)
    images = patches.repeat_interleave(4, 2).repeat_interleave(4, 3) + noise
    return images.clamp(0, 255).to(torch.uint8)


def small_network(config: VQConfig) -> Autoencoder:
    """An autoencoder with random weights whose codes lie among its latents, so that images use many of them."""
    network: Autoencoder = config.build(seed=3)
    images = random_images(64, config.image_height, config.image_channels).float() / 127.5 - 1
    with torch.no_grad():
        latents = network.encoder(images).permute(0, 2, 3, 1).flatten(0, 2)
        network.codebook.copy_(latents[:: len(latents) // config.num_codes][: config.num_codes])
    return network.eval()


def small_tokenizer(size: int = 16, channels: int = 1, num_codes: int = 8) -> VQTokenizer:
    """8 codes for grey images of 16 x 16 pixels: a grid of 4 x 4. Images of 8 x 8 pixels have 2 x 2."""
    config = small_config(size, channels, num_codes)
    return VQTokenizer.made_of(config, small_network(config))


def small_codec(num_classes: int = 3, *, size: int = 16, channels: int = 1, num_codes: int = 8) -> ImageCodec:
    """The small tokenizer with so many classes: circle, square, star and so on."""
    return ImageCodec(small_tokenizer(size, channels, num_codes), CLASS_NAMES[:num_classes])


def small_image_model(
    fp: bool = True,
    *,
    num_classes: int = 3,
    size: int = 16,
    channels: int = 1,
    num_codes: int = 8,
    std: float = 0.15,
    seed: int = 1,
    **fields: Any,
) -> Model:
    """A MaskGIT of 3 blocks, 32 wide, with weights that are nowhere 0; blocks 1/1/1 with a fixed point, else 3/0/0.

    `fields` are settings of the network, such as num_registers.
    """
    codec = small_codec(num_classes, size=size, channels=channels, num_codes=num_codes)
    blocks = {"num_pre": 1, "num_fp": 1, "num_post": 1} if fp else {"num_pre": 3, "num_fp": 0, "num_post": 0}
    shape: dict[str, Any] = {"width": 32, "num_heads": 4, "mlp_multiple": 16, "dropout": 0.0, **blocks, **fields}
    config: MaskGITConfig = MaskGITNetwork(**shape).fit(codec.vocabulary)
    denoiser, rng = config.build(), generator(seed)
    with torch.no_grad():
        for parameter in denoiser.parameters():
            parameter.add_(std * torch.randn(parameter.shape, generator=rng))
    return Model(denoiser=denoiser.eval(), config=config, codec=codec)
