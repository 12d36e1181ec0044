"""What several test files need: small models with real weights, and stand-in backbones with given answers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch import nn

import fpmgm
from fpmgm.backbones.dit import MDLMConfig, Network
from fpmgm.checkpoint import Model
from fpmgm.codecs import TextCodec
from fpmgm.data.text import TextConfig
from fpmgm.data.tokenizing import train_bpe
from fpmgm.denoiser import Denoiser
from fpmgm.training.config import Training

settings.register_profile("fpmgm", deadline=None)  # a loaded machine is no failure
settings.load_profile("fpmgm")

SMALL = MDLMConfig(
    vocab_size=12,
    mask_id=11,
    length=16,
    width=32,
    num_heads=4,
    num_pre=1,
    num_fp=1,
    num_post=1,
    cond_width=8,
    dropout=0.0,
)

Build = Callable[..., Denoiser]


@pytest.fixture
def small_model() -> Build:
    """A small denoiser with weights that are nowhere 0, fixed point 1/1/1 unless told otherwise."""

    def build(*, std: float = 0.15, seed: int = 1, dtype: torch.dtype = torch.float32, **fields: Any) -> Denoiser:
        denoiser = fpmgm.mdlm(replace(SMALL, **fields))
        rng = fpmgm.generator(seed)
        with torch.no_grad():
            for parameter in denoiser.parameters():
                parameter.copy_(std * torch.randn(parameter.shape, generator=rng))
            for module in denoiser.modules():
                if isinstance(module, nn.LayerNorm):
                    module.weight.add_(1)
        return denoiser.to(dtype).eval()

    return build


@pytest.fixture
def text_model(small_model: Build) -> Model:
    """A small model with a tokenizer, which writes 24 tokens of nonsense."""
    tokenizer = train_bpe(iter(["the sea and the sky and the old oak\n" * 50]), 270)
    size = tokenizer.get_vocab_size() + 1
    changes: dict[str, Any] = {"vocab_size": size, "mask_id": size - 1, "length": 24}
    return Model(
        denoiser=small_model(**changes),
        config=replace(SMALL, **changes),
        codec=TextCodec(tokenizer.to_str(pretty=True)),
    )


def network_of(config: Training) -> Network:
    """The network of a run that learns MDLM's."""
    assert isinstance(config.model, Network)
    return config.model


def text_of(config: Training) -> TextConfig:
    """The data of a run that learns from text."""
    assert isinstance(config.data, TextConfig)
    return config.data
