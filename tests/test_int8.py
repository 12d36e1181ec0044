"""Weights of 8 bits."""

from pathlib import Path

import pytest
import torch
from torch import nn

import fpmgm
from fpmgm.backbones.dit_block import Block
from fpmgm.checkpoint import Model, load
from fpmgm.devices import check_pair
from fpmgm.int8 import Int8Linear, in_precision
from fpmgm.randomness import generator
from tests.images import small_image_model

CPU = torch.device("cpu")


def layers(*, bias: bool = True) -> tuple[nn.Linear, Int8Linear, torch.Tensor]:
    rng = generator(0)
    layer = nn.Linear(48, 20, bias=bias)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng))
    return layer, Int8Linear.of(layer), torch.randn(3, 5, 48, generator=rng)


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_a_layer_of_8_bits_multiplies_rounded_rows_one_number_at_a_time(bias: bool) -> None:
    layer, rounded, x = layers(bias=bias)
    found = rounded(x)
    for place, output in (((0, 0), 0), ((2, 4), 19), ((1, 3), 7)):
        row, column = x[place].tolist(), layer.weight[output].tolist()
        of_row, of_column = max(map(abs, row)) / 127, max(map(abs, column)) / 127
        total = sum(round(a / of_row) * round(b / of_column) for a, b in zip(row, column, strict=True))
        expected = of_row * of_column * total + (float(layer.bias[output]) if bias else 0)
        assert float(found[place][output]) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert float((found - layer(x)).norm() / layer(x).norm()) < 0.02


@torch.no_grad()
def test_a_row_has_the_same_bits_alone_and_in_a_batch_and_nothing_gives_the_bias() -> None:
    layer, rounded, x = layers()
    assert torch.equal(rounded(x)[1, 2], rounded(x[1, 2][None])[0])
    torch.testing.assert_close(rounded(torch.zeros(2, 48)), layer.bias.expand(2, -1), rtol=0, atol=0)


def test_with_gradients_it_is_the_layer_that_it_was_made_of() -> None:
    layer, rounded, x = layers()
    assert torch.equal(rounded(x), layer(x))
    assert rounded.weight is layer.weight


@torch.no_grad()
def test_a_model_of_8_bits_finds_nearly_the_same_and_keeps_its_weights(text_model: Model, tmp_path: Path) -> None:
    text_model.save(tmp_path / "model")
    whole, rounded = (load(tmp_path / "model", device="cpu", dtype=dtype) for dtype in ("float32", "int8"))
    block = rounded.denoiser.backbone.blocks[1]
    assert isinstance(block, Block)
    assert isinstance(block.attn_qkv, Int8Linear)
    assert isinstance(block.mlp[2], Int8Linear)
    assert not isinstance(block.adaLN_modulation, Int8Linear)
    before, after = (model.denoiser.state_dict() for model in (whole, rounded))
    assert list(before) == list(after)
    assert all(map(torch.equal, before.values(), after.values()))
    z = torch.randint(0, whole.denoiser.vocab_size, (2, 24), generator=generator(0))
    everywhere = torch.ones_like(z, dtype=torch.bool)
    ours, theirs = (model.denoiser(z, 0.5, everywhere, num_grad=3).features for model in (rounded, whole))
    difference = float((ours - theirs).norm() / theirs.norm())
    assert 0 < difference < 0.05
    assert len(fpmgm.generate(rounded, num_samples=2, budget=12).texts) == 2


@torch.no_grad()
def test_an_image_model_takes_8_bits_too() -> None:
    whole, rounded = (in_precision(small_image_model().denoiser, CPU, dtype) for dtype in ("float32", "int8"))
    z, label = torch.full((2, whole.max_length), whole.mask_id), torch.tensor([0, 1])
    everywhere = torch.ones_like(z, dtype=torch.bool)
    ours, theirs = (each(z, 1.0, everywhere, label=label, num_grad=2).features for each in (rounded, whole))
    assert 0 < float((ours - theirs).norm() / theirs.norm()) < 0.05


def test_8_bits_are_refused_where_no_cpu_computes() -> None:
    with pytest.raises(ValueError, match="dtype is int8, which is for the CPU, and the device is cuda"):
        check_pair(torch.device("cuda"), "int8")
