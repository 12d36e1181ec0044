"""Image tokenizers: our autoencoder, VQModels of diffusers, and one that a user adds."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save, save_file

import fpmgm
from fpmgm.backbones.maskgit import MaskGITNetwork
from fpmgm.backbones.network import Vocabulary
from fpmgm.backbones.vq import Autoencoder, VQConfig, VQNetwork
from fpmgm.checkpoint import Model, load
from fpmgm.codecs import ImageCodec, PixelCodec, image_tokenizer, load_codec
from fpmgm.codecs.image_tokenizer import (
    TOKENIZERS,
    DiffusersTokenizer,
    ImageTokenizer,
    VQTokenizer,
    is_alike,
    to_bytes,
    to_signed,
)
from fpmgm.data.images import ImagesConfig, tokenizer_named
from tests.images import random_images, small_config, small_network, small_tokenizer
from tests.test_image_codec import write


def test_bytes_become_numbers_from_minus_1_to_1_and_back() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    assert (float(to_signed(every).min()), float(to_signed(every).max())) == (-1, 1)
    assert torch.equal(to_bytes(to_signed(every)), every)
    assert to_bytes(torch.tensor([-3.0, 3.0]).view(1, 1, 1, 2)).flatten().tolist() == [0, 255]


def test_an_image_is_written_in_the_codes_that_are_nearest_to_its_latents() -> None:
    tokenizer, images = small_tokenizer(), random_images(6, seed=2)
    network = tokenizer.network
    with torch.no_grad():
        latents = network.encoder(to_signed(images)).flatten(2).transpose(1, 2)  # (B, L, K)
        distances = (latents[:, :, None] - network.codebook).norm(dim=3)
    assert torch.equal(tokenizer.encode(images), distances.argmin(dim=2))


def test_codes_fill_the_grid_row_by_row() -> None:
    config = replace(small_config(), image_height=8)  # 8 high and 16 wide
    tokenizer = VQTokenizer.made_of(config, config.build(seed=3))
    images = random_images(2)[:, :, :8]
    codes = tokenizer.encode(images)
    assert (tokenizer.grid, codes.shape) == ((2, 4), (2, 8))
    with torch.no_grad():
        grids = tokenizer.network.encode(to_signed(images))
        decoded = to_bytes(tokenizer.network.decode(grids))
    assert codes[0].tolist() == [*grids[0, 0].tolist(), *grids[0, 1].tolist()]
    assert torch.equal(tokenizer.decode(codes), decoded)


def test_weights_are_used_in_half_precision_everywhere() -> None:
    config = small_config()
    network = small_network(config)
    with torch.no_grad():
        network.codebook.mul_(1 + 1e-4)  # what half precision does not hold
    tokenizer = VQTokenizer.made_of(config, network)
    for name, tensor in tokenizer.network.state_dict().items():
        if name == "codebook" or name.startswith(("encoder", "decoder")):
            assert tensor.dtype == torch.float32
            assert torch.equal(tensor, network.state_dict()[name].half().float())
    assert not torch.equal(tokenizer.network.codebook, network.codebook)
    again = VQTokenizer.of(tokenizer.settings, tokenizer.weights, "here")
    images = random_images(8, seed=3)
    codes = tokenizer.encode(images)
    assert torch.equal(again.encode(images), codes)
    assert torch.equal(again.decode(codes), tokenizer.decode(codes))
    twice = VQTokenizer.made_of(config, tokenizer.network)
    assert twice.weights == tokenizer.weights


def test_images_are_encoded_and_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, images = small_tokenizer(), random_images(5)
    codes = tokenizer.encode(images)
    decoded = tokenizer.decode(codes)
    sizes: list[int] = []
    original = Autoencoder.encode

    def watched(self: Autoencoder, part: torch.Tensor) -> torch.Tensor:
        sizes.append(len(part))
        return original(self, part)

    monkeypatch.setattr(Autoencoder, "encode", watched)
    monkeypatch.setattr(image_tokenizer, "PIXELS_AT_ONCE", 2 * 16 * 16)
    assert torch.equal(tokenizer.encode(images), codes)
    assert sizes == [2, 2, 1]
    assert (tokenizer.decode(codes).int() - decoded.int()).abs().max() <= 1
    monkeypatch.setattr(image_tokenizer, "PIXELS_AT_ONCE", 1)
    assert torch.equal(tokenizer.encode(images[:1]), codes[:1])


def test_sizes_that_the_stages_do_not_divide_are_refused() -> None:
    vocabulary = Vocabulary(size=257, mask_id=256, length=30 * 32, shape=(1, 30, 32))
    with pytest.raises(ValueError, match="image_height is 30; 2 stages need a multiple of 4"):
        VQNetwork().fit(vocabulary)
    with pytest.raises(ValueError, match="learns from pixels, and this data has none"):
        VQNetwork().fit(replace(vocabulary, shape=None))
    config = VQNetwork(num_stages=3).fit(replace(vocabulary, shape=(3, 32, 64)))
    assert (config.grid, config.shape) == ((4, 8), (3, 32, 64))


def run_folder(folder: Path, config: VQConfig, network: Autoencoder) -> Path:
    learned: Any = network
    Model(denoiser=learned, config=config, codec=PixelCodec(config.shape, ("a",))).save(folder)
    return folder


def test_the_tokenizer_of_a_run_is_that_of_its_network(tmp_path: Path) -> None:
    config = small_config()
    network = small_network(config)
    found = tokenizer_named(str(run_folder(tmp_path / "run", config, network)))
    assert is_alike(found, VQTokenizer.made_of(config, network))


def test_a_tokenizer_that_was_trained_again_is_read_again(tmp_path: Path) -> None:
    config = small_config()
    network = small_network(config)
    folder = str(run_folder(tmp_path / "run", config, network))
    first = tokenizer_named(folder)
    assert tokenizer_named(folder) is first
    with torch.no_grad():
        network.codebook.add_(1)
    run_folder(tmp_path / "run", config, network)
    assert not is_alike(tokenizer_named(folder), first)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("none", r"has no model\.safetensors"),
        ("half", r"model\.safetensors is truncated or not a safetensors file"),
        ("other", r"model\.safetensors does not fit its config\.json: it has other tensors"),
    ],
)
def test_a_broken_tokenizer_of_a_run_is_told_in_one_line(tmp_path: Path, how: str, said: str) -> None:
    config = small_config()
    file = run_folder(tmp_path / "run", config, small_network(config)) / "model.safetensors"
    tensors = load_file(file)
    if how == "half":
        file.write_bytes(file.read_bytes()[:-50])
    elif how == "other":
        save_file({**tensors, "codebook": torch.zeros(9, 4)}, file)
    elif how == "none":
        file.unlink()
    with pytest.raises(ValueError, match=said) as caught:
        tokenizer_named(str(tmp_path / "run"))
    assert "\n" not in str(caught.value)


def test_all_that_a_codebook_learns_is_in_the_weights_of_its_network() -> None:
    def learn(network: Autoencoder, seed: int) -> None:
        torch.manual_seed(seed)
        with torch.no_grad():
            network(to_signed(random_images(8, seed=seed)))

    straight, first = (small_network(small_config()).train() for _ in range(2))
    learn(straight, 1)
    learn(straight, 2)
    learn(first, 1)
    resumed = small_network(small_config()).train()
    resumed.load_state_dict(first.state_dict())
    learn(resumed, 2)
    assert not torch.equal(straight.codebook, small_network(small_config()).codebook)
    for name, tensor in straight.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name
    before = straight.codebook.clone()
    learn(straight.eval(), 3)
    assert torch.equal(straight.codebook, before)


@pytest.fixture
def patch_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tokenizer of the docs' example for images of 8 x 8 pixels; the example has written `patch-means`."""
    text = (Path(__file__).parent.parent / "docs" / "images.md").read_text()
    [example] = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "class PatchMeans" in block]
    monkeypatch.setitem(TOKENIZERS, "patch-means", VQTokenizer)  # what the example enters is taken back
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "example"}
    exec(example, names)
    kind: Any = TOKENIZERS["patch-means"]
    assert kind is names["PatchMeans"]
    return kind(8)


def test_a_tokenizer_of_ones_own_keeps_the_protocol(patch_means: Any) -> None:
    assert isinstance(patch_means, ImageTokenizer)
    images = random_images(3, size=8)
    codes = patch_means.encode(images)
    assert codes.shape == (3, 4)
    assert torch.equal(patch_means.encode(patch_means.decode(codes)), codes)
    means = images.float().view(3, 1, 2, 4, 2, 4).mean(dim=(3, 5), keepdim=True)
    apart = patch_means.decode(codes).float().view(3, 1, 2, 4, 2, 4) - means
    assert apart.abs().max() <= 8


def test_a_tokenizer_of_ones_own_is_saved_and_loaded_with_a_codec(patch_means: Any, tmp_path: Path) -> None:
    found = load_codec(write(ImageCodec(patch_means, ("a", "b")), tmp_path))
    assert isinstance(found, ImageCodec)
    assert found.tokenizer == patch_means
    (tmp_path / "image_codec.json").write_text('{"tokenizer_type": "patch-means", "tokenizer": {}, "classes": []}')
    with pytest.raises(ValueError, match=r"image_codec\.json: size is None; it must be a whole number"):
        load_codec(tmp_path)


def test_a_model_learns_and_draws_in_a_tokenizer_of_ones_own(
    patch_means: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    data = ImagesConfig(source="digits", tokenizer="patch-means", num_codes=16, grid=(2, 2), num_classes=10)
    rows = data.load()
    network = MaskGITNetwork(width=16, num_heads=2, num_pre=1, mlp_multiple=8).fit(data.vocabulary)
    Model(denoiser=network.build(), config=network, codec=rows.codec, data=data).save(tmp_path / "model")
    model = load(str(tmp_path / "model"), device="cpu")
    assert model.codec is not None
    assert model.codec.is_alike(rows.codec)
    drawn = fpmgm.generate(model, num_samples=2, steps=2, classes=["7"])
    assert [np.asarray(picture).shape for picture in drawn.shown] == [(8, 8)] * 2


def small_vq_model(folder: Path, **settings: Any) -> Any:
    """A VQModel of diffusers with random weights, saved to a folder."""
    from diffusers import VQModel

    torch.manual_seed(0)
    shape = {
        "down_block_types": ["DownEncoderBlock2D"] * 2,
        "up_block_types": ["UpDecoderBlock2D"] * 2,
        "block_out_channels": [8, 16],
        "latent_channels": 4,
        "sample_size": 16,
        "num_vq_embeddings": 8,
        "norm_num_groups": 4,
    }
    network: Any = VQModel(**{**shape, **settings})
    network.eval()
    with torch.no_grad():  # codes that lie among the latents, so that many of them are used
        images = to_signed(random_images(8, channels=network.config.in_channels))
        latents = network.encode(images).latents.permute(0, 2, 3, 1).flatten(0, 2)
        network.quantize.embedding.weight.copy_(latents[:: len(latents) // 8][:8])
    network.save_pretrained(folder)
    return network


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "wide codes": {"vq_embed_dim": 6},
    "spatial norm": {"norm_type": "spatial", "block_out_channels": [32, 32], "vq_embed_dim": 4},
    "positive": {"lookup_from_codebook": True, "mid_block_add_attention": False},
    "grey": {"in_channels": 1, "out_channels": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_diffusers_is_used_as_diffusers_does(tmp_path: Path, kind: str) -> None:
    network = small_vq_model(tmp_path / "vq", **KINDS[kind])
    tokenizer = tokenizer_named(str(tmp_path / "vq"))
    assert isinstance(tokenizer, DiffusersTokenizer)
    assert (tokenizer.num_codes, tokenizer.grid) == (8, (8, 8))
    images = random_images(3, channels=tokenizer.image_shape[0])
    is_positive = kind == "positive"
    with torch.no_grad():
        latents = network.encode(images / 255 if is_positive else to_signed(images)).latents
        _, _, (_, _, codes) = network.quantize(latents)
        shown = network.decode(latents).sample
    assert torch.equal(tokenizer.encode(images), codes.view(3, 64))
    assert len(codes.unique()) > 2
    expected = to_bytes(2 * shown - 1 if is_positive else shown)
    assert (tokenizer.decode(codes.view(3, 64)).int() - expected.int()).abs().max() <= 1


@pytest.mark.slow
def test_a_model_of_diffusers_goes_with_a_model_folder(tmp_path: Path) -> None:
    small_vq_model(tmp_path / "vq")
    tokenizer = tokenizer_named(str(tmp_path / "vq"), 8)
    assert (tokenizer.grid, tokenizer.image_shape) == ((4, 4), (3, 8, 8))
    codec = ImageCodec(tokenizer, ("cat", "dog"))
    network = MaskGITNetwork(width=16, num_heads=2, num_pre=1, mlp_multiple=8).fit(codec.vocabulary)
    Model(denoiser=network.build(), config=network, codec=codec).save(tmp_path / "model")
    found = load(str(tmp_path / "model"), device="cpu").codec
    assert isinstance(found, ImageCodec)
    assert found.is_alike(codec)
    codes = torch.arange(32).view(2, 16) % 8
    assert torch.equal(found.images(codes), codec.images(codes))


@pytest.mark.slow
def test_the_tokenizer_of_a_pipeline_is_found(tmp_path: Path) -> None:
    small_vq_model(tmp_path / "pipeline" / "vqvae")
    assert isinstance(tokenizer_named(str(tmp_path / "pipeline")), DiffusersTokenizer)


def spoil(folder: Path, how: str) -> None:
    file, config = folder / "diffusion_pytorch_model.safetensors", folder / "config.json"
    settings = json.loads(config.read_text())
    if how == "pickle":
        file.rename(folder / "diffusion_pytorch_model.bin")
    elif how == "half":
        file.write_bytes(file.read_bytes()[:-50])
    elif how == "a tensor less":
        tensors = load_file(file)
        del tensors["quantize.embedding.weight"]
        save_file(tensors, file)
    elif how == "another number of codes":
        config.write_text(json.dumps({**settings, "num_vq_embeddings": 9}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("pickle", r"has no diffusion_pytorch_model\.safetensors; save the VQModel as safetensors"),
        ("half", "holds no VQModel that diffusers can load"),
        ("a tensor less", r"its weights do not fit its config\.json, such as quantize\.embedding\.weight"),
        ("another number of codes", "holds no VQModel that diffusers can load|do not fit its config"),
    ],
)
def test_a_broken_model_of_diffusers_is_told_in_one_line(tmp_path: Path, how: str, said: str) -> None:
    small_vq_model(tmp_path / "vq")
    spoil(tmp_path / "vq", how)
    with pytest.raises(ValueError, match=said) as caught:
        tokenizer_named(str(tmp_path / "vq"))
    assert "\n" not in str(caught.value)


def diffusers_codec(**changes: Any) -> dict[str, Any]:
    config = {"num_vq_embeddings": 8, "block_out_channels": [8, 16], "in_channels": 3, **changes}
    return {"config": config, "size": 16}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "here: config is None; it must be an object"),
        ({"config": {}}, "here: size is None"),
        ({**diffusers_codec(), "size": 15}, "here: images of 15 pixels; this VQModel takes multiples of 2"),
        (diffusers_codec(num_vq_embeddings="many"), "here: num_vq_embeddings of the VQModel is 'many'"),
        (diffusers_codec(in_channels=None), "here: in_channels of the VQModel is None"),
    ],
)
def test_broken_settings_of_a_model_of_diffusers_are_told_without_it(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DiffusersTokenizer.of(settings, save({}), "here")
    with pytest.raises(ValueError, match=r"here: image_tokenizer\.safetensors is truncated"):
        DiffusersTokenizer.of(diffusers_codec(), b"half", "here")


def test_diffusers_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    tokenizer = DiffusersTokenizer.of(diffusers_codec(), save({}), "here")
    assert tokenizer.grid == (8, 8)  # what it is, is known without
    with pytest.raises(ValueError, match=r"a VQModel of diffusers, which is not installed; install fpmgm\[image\]"):
        tokenizer.encode(random_images(1, channels=3))
