"""Checkpoints of the public Halton-MaskGIT code: read, converted, written again."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fpmgm
from fpmgm.__main__ import main
from fpmgm.backbones.maskgit import MaskGITConfig
from fpmgm.checkpoint import Model
from fpmgm.denoiser import Denoiser
from fpmgm.interop.conversion import to_fixed_point
from fpmgm.interop.foreign import read_foreign
from fpmgm.interop.halton import load_halton, maskgit_of
from fpmgm.interop.layer_map import LayerMap
from fpmgm.solvers import picard
from fpmgm.types import Places
from tests.halton_reference import Reference, public_tensors, write_public, write_safe
from tests.images import small_codec, small_image_model

Z = torch.tensor([[12, 3, 12, 0, 11, 12, 7, 7, 12], [12] * 9, list(range(9))])
LABELS = torch.tensor([2, 0, -1])
HEADS = ["--num-heads", "5"]


def logits(denoiser: Denoiser, z: Tensor = Z, label: Tensor | None = LABELS, **iterations: int) -> Tensor:
    with torch.no_grad():
        return denoiser.head(denoiser(z, 0.5, torch.ones_like(z, dtype=torch.bool), label=label, **iterations).features)


def expected(tensors: dict[str, Tensor], num_heads: int) -> Tensor:
    reference = Reference(tensors, num_heads)
    return torch.cat([reference.logits(z, label) for z, label in zip(Z, LABELS.tolist(), strict=True)]).float()


def imported(file: Path, **told: Any) -> Model:
    source = read_foreign(file)
    config = maskgit_of(source, **told)
    return Model(denoiser=load_halton(source, config), config=config)


@pytest.mark.parametrize(
    ("changes", "num_heads"),
    [({}, 5), ({"registers": 0, "across": 32}, 4), ({"hidden": 256, "registers": 2, "across": 32}, 2)],
)
def test_a_public_checkpoint_gives_the_logits_of_a_plain_network(
    tmp_path: Path, changes: dict[str, int], num_heads: int
) -> None:
    tensors = public_tensors(**changes)
    model = imported(write_public(tmp_path / "x.pth", tensors), num_heads=num_heads)
    torch.testing.assert_close(logits(model.denoiser), expected(tensors, num_heads), atol=1e-5, rtol=1e-5)
    assert not model.denoiser.training


def test_all_sizes_are_read_from_the_tensors(tmp_path: Path) -> None:
    config = imported(write_public(tmp_path / "x.pth", public_tensors()), num_heads=5).config
    wanted = MaskGITConfig(
        width=32, num_heads=5, num_pre=3, mlp_multiple=88, vocab_size=13, mask_id=12, length=9, num_classes=3
    )
    assert config == wanted
    assert wanted.mlp_width == 88


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_wrappers_of_the_training_code_are_taken_off(tmp_path: Path, prefix: str) -> None:
    tensors = public_tensors()
    model = imported(write_public(tmp_path / "x.pth", tensors, prefix), num_heads=5)
    torch.testing.assert_close(logits(model.denoiser), expected(tensors, 5), atol=1e-5, rtol=1e-5)


def test_safetensors_and_half_precision_are_read_too(tmp_path: Path) -> None:
    tensors = {name: tensor.half() for name, tensor in public_tensors().items()}
    model = imported(write_safe(tmp_path / "x.safetensors", tensors), num_heads=5)
    assert {parameter.dtype for parameter in model.denoiser.parameters()} == {torch.float32}
    torch.testing.assert_close(logits(model.denoiser), expected(tensors, 5), atol=1e-5, rtol=1e-5)


def test_heads_are_known_by_the_width_of_a_public_size(tmp_path: Path) -> None:
    tensors = public_tensors(width=384, across=384, hidden=1024, depth=1)
    assert imported(write_public(tmp_path / "x.pth", tensors)).config == MaskGITConfig(
        width=384, num_heads=6, num_pre=1, vocab_size=13, mask_id=12, length=9, num_classes=3
    )


def without(name: str) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in public_tensors().items() if key != name}


@pytest.mark.parametrize(
    ("tensors", "told", "message"),
    [
        (public_tensors(), {}, "does not say its num_heads; give --num-heads"),
        (public_tensors(), {"num_heads": 4}, r"of another shape: .*attn\.wq\.weight \(30 x 32, not 32 x 32\)"),
        (public_tensors(), {"num_heads": 5, "length": 16}, "you say that length is 16, but it is 9"),
        (public_tensors(), {"num_heads": 5, "mask_id": 3}, "you say that mask_id is 3, but it is 12"),
        (without("transformer.layers.1.ff.w3.weight"), {"num_heads": 5}, r"missing: transformer\.layers\.1\.ff\.w3"),
        (without("pos_emb.weight"), {"num_heads": 5}, "is no Halton-MaskGIT: it has no table pos_emb.weight"),
        (without("tok_emb.weight"), {"num_heads": 5}, "tok_emb.weight and cls_emb.weight are not both there"),
        ({**public_tensors(), "in_proj.weight": torch.ones(2)}, {"num_heads": 5}, r"extra: in_proj\.weight"),
        (
            {**public_tensors(), "head.weight": torch.ones(13, 32)},
            {"num_heads": 5},
            "head.weight is not tok_emb.weight",
        ),
    ],
)
def test_a_file_that_is_no_halton_maskgit_is_refused(
    tmp_path: Path, tensors: dict[str, Tensor], told: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        imported(write_public(tmp_path / "x.pth", tensors), **told)


@pytest.mark.parametrize("name", ["x.pth", "x.safetensors"])
def test_convert_makes_a_model_folder_without_a_codec_and_says_so(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = public_tensors()
    write = write_public if name.endswith("pth") else write_safe
    file = write(tmp_path / name, tensors)
    assert main(["convert", str(file), str(tmp_path / "out"), "--map", "none", *HEADS, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["kind"], report["blocks"], report["source_blocks"]) == ("MaskGIT", "3", "3")
    assert any(note.startswith("no image tokenizer") for note in report["notes"])
    model = fpmgm.load(tmp_path / "out")
    assert model.codec is None
    assert "unconditional-image-generation" in model.card
    torch.testing.assert_close(logits(model.denoiser), expected(tensors, 5), atol=1e-5, rtol=1e-5)


def test_convert_to_halton_and_back_changes_nothing(tmp_path: Path) -> None:
    tensors = public_tensors()
    file = write_public(tmp_path / "x.pth", tensors)
    assert main(["convert", str(file), str(tmp_path / "ours"), "--map", "none", *HEADS]) == 0
    assert main(["convert", str(tmp_path / "ours"), str(tmp_path / "theirs"), "--to", "halton"]) == 0
    written = torch.load(tmp_path / "theirs" / "current.pth", weights_only=True)
    assert set(written) == {"iter", "global_epoch", "model_state_dict", "optimizer_state_dict"}
    assert set(written["model_state_dict"]) == set(tensors)
    assert all(torch.equal(written["model_state_dict"][name], tensor) for name, tensor in tensors.items())
    assert main(["convert", str(tmp_path / "theirs"), str(tmp_path / "again"), "--map", "none", *HEADS]) == 0
    again = fpmgm.load(tmp_path / "again").denoiser.state_dict()
    ours = fpmgm.load(tmp_path / "ours").denoiser.state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in ours.items())


@torch.no_grad()
def test_a_layer_map_makes_an_fp_maskgit_that_is_a_loop_of_its_layers(tmp_path: Path) -> None:
    tensors = public_tensors(depth=5)
    file = write_public(tmp_path / "x.pth", tensors)
    options = ["--map", "1,3/4/5", "--a", "1", "--b", "0", *HEADS]
    assert main(["convert", str(file), str(tmp_path / "fp"), *options]) == 0
    model, plain = fpmgm.load(tmp_path / "fp"), imported(file, num_heads=5).denoiser
    assert (model.config.kind, str(model.config.cost)) == ("FP-MaskGIT", "2/1/1")
    cond = plain.condition(Z, 0.5, LABELS)
    h = plain.backbone.embed(Z)
    for layer in (1, 3, 4, 4, 4, 5):
        h = plain.backbone.run_block(layer - 1, h, cond)
    everywhere = Places.of(torch.ones_like(Z, dtype=torch.bool))
    wanted = plain.head(plain.backbone.finish(everywhere.take(h), cond, everywhere))
    torch.testing.assert_close(logits(model.denoiser, num_grad=3), wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits(model.denoiser, num_no_grad=2, num_grad=1), wanted, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_map_of_all_layers_and_one_iteration_is_the_source() -> None:
    plain = small_image_model(fp=False)
    fp = to_fixed_point(plain, LayerMap((1,), (2,), (3,)), a=1.0, b=0.0)
    assert fp.codec == plain.codec
    z, label = torch.tensor([[8, 1, 8, 2] * 4]), torch.tensor([1])
    torch.testing.assert_close(
        logits(fp.denoiser, z, label, num_grad=1), logits(plain.denoiser, z, label), atol=1e-5, rtol=1e-5
    )
    cond = fp.denoiser.condition(z, 0.5, label)
    h_pre = fp.denoiser.pre(z, cond)
    assert picard(fp.denoiser.fixed_point_map(h_pre, cond), h_pre, 2).h.shape == (1, 17, 32)


@pytest.mark.parametrize("has_codec", [True, False])
def test_a_codec_that_fits_goes_with_the_model(tmp_path: Path, has_codec: bool) -> None:
    own = small_image_model(fp=False)
    if has_codec:
        own.save(tmp_path / "own")
    else:  # an image tokenizer as a run leaves it
        from tests.images import small_config, small_network

        config = small_config()
        Model(denoiser=small_network(config), config=config).save(tmp_path / "own")  # type: ignore[arg-type]
    file = write_public(tmp_path / "x.pth", public_tensors(codes=8, length=16))
    options = ["--map", "none", *HEADS, "--tokenizer", str(tmp_path / "own")]
    assert main(["convert", str(file), str(tmp_path / "out"), *options]) == 0
    codec = fpmgm.load(tmp_path / "out").codec
    assert isinstance(codec, fpmgm.codecs.ImageCodec)
    assert codec.class_names == (small_codec().class_names if has_codec else ("0", "1", "2"))
    assert codec.grid == (4, 4)


def test_what_cannot_be_converted_gets_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write_public(tmp_path / "x.pth", public_tensors()))
    own, fp = tmp_path / "own", tmp_path / "fp"
    small_image_model(fp=False).save(own)
    small_image_model().save(fp)
    for arguments, message in [
        (
            [file, "--map", "none", *HEADS, "--tokenizer", str(own)],
            "give the tokenizer that the network was trained with",
        ),
        ([file, *HEADS, "--to", "mdlm"], "this is for MDLM and FP-MDLM, and the model is a fpmgm-maskgit"),
        ([file, *HEADS, "--map", "1/2/9"], "names layer 9, but the source has layers 1 to 3"),
        ([file, *HEADS, "--map", "1/2/3", "--to", "halton"], "has no form in Halton-MaskGIT's naming; use --map none"),
        ([str(fp), "--to", "halton"], "a fixed-point model (1/1/1 blocks) has no form in Halton-MaskGIT's naming"),
        (["stories-mdlm", "--to", "halton"], "this is for MaskGIT and FP-MaskGIT"),
        ([str(fp), "--map", "1/1/1"], "the source has a fixed point already"),
    ]:
        source, *options = arguments
        assert main(["convert", source, str(tmp_path / "out"), *options]) == 2
        printed = capsys.readouterr().err
        assert message in printed
        assert printed.strip().count("\n") == 0
        assert not (tmp_path / "out").exists()
