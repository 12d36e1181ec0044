import json
import os
import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fpmgm.backbones.dit import MDLMConfig
from fpmgm.checkpoint import Model
from fpmgm.codecs import TextCodec
from fpmgm.data.tokenizing import train_bpe
from fpmgm.denoiser import Denoiser
from fpmgm.interop.foreign import config_of, load_foreign, num_symbols, read_foreign, write_hub_folder
from fpmgm.interop.pickled import PickledTensor
from tests.conftest import SMALL, Build
from tests.published import hub_config, hydra_config, mdlm_tensors, write_hub, write_lightning

PLAIN = replace(SMALL, num_pre=3, num_fp=0, num_post=0, time_conditioning=True, dropout=0.25)
"""Four heads of width 8: a guess of 64 would be wrong."""
CODEC = TextCodec(train_bpe(iter(["the sea"]), 258).to_str())


@pytest.fixture
def plain(small_model: Build) -> Denoiser:
    return small_model(num_pre=3, num_fp=0, num_post=0, time_conditioning=True, dropout=0.25)


def logits(denoiser: Denoiser) -> Tensor:
    z = torch.randint(SMALL.vocab_size, (2, 16), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        return denoiser.head(denoiser(z, torch.tensor([0.3, 0.8]), torch.ones_like(z, dtype=torch.bool)).features)


def imported(place: Path, **told: Any) -> tuple[Denoiser, MDLMConfig]:
    source = read_foreign(place)
    config = config_of(source, mask_id=num_symbols(source) - 1, **told)
    return load_foreign(source, config), config


def averages(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """An EMA that is not the weights: the weights plus one."""
    shadows = [tensor + 1 for name, tensor in tensors.items() if not name.endswith("inv_freq")]
    return {"decay": 0.9999, "num_updates": 1000, "shadow_params": shadows}


def assert_same(found: tuple[Denoiser, MDLMConfig], expected: Denoiser) -> None:
    denoiser, config = found
    assert config == PLAIN
    assert not denoiser.training
    torch.testing.assert_close(logits(denoiser), logits(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize("prefix", ["backbone.", "", "backbone.backbone.", "module.backbone.", "backbone._orig_mod."])
@pytest.mark.parametrize("naming", ["MDLM", "SDTT"])
def test_a_hub_folder_gives_the_logits_of_its_model(tmp_path: Path, plain: Denoiser, prefix: str, naming: str) -> None:
    config = hub_config(PLAIN) if naming == "MDLM" else hydra_config(PLAIN)
    folder = write_hub(tmp_path / "hub", mdlm_tensors(plain, PLAIN, prefix), config)
    assert read_foreign(folder).format == f"hub folder in {naming}'s naming"
    assert_same(imported(folder), plain)


@pytest.mark.parametrize("prefix", ["backbone.", "_orig_mod.backbone.", "module._orig_mod.backbone.backbone."])
def test_a_lightning_checkpoint_gives_the_logits_of_its_moving_average(
    tmp_path: Path, plain: Denoiser, prefix: str
) -> None:
    tensors = mdlm_tensors(plain, PLAIN, prefix)
    file = write_lightning(tmp_path / "x.ckpt", {"state_dict": tensors, "ema": averages(tensors)}, PLAIN)
    found = imported(file)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(1)
    assert_same(found, plain)


def test_the_average_goes_by_the_order_of_parameters_even_if_the_state_dict_was_sorted(
    tmp_path: Path, plain: Denoiser
) -> None:
    tensors = mdlm_tensors(plain, PLAIN)
    content = {"state_dict": dict(sorted(tensors.items())), "ema": averages(tensors)}
    found = imported(write_lightning(tmp_path / "x.ckpt", content, PLAIN))
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(1)
    assert_same(found, plain)


def test_without_a_moving_average_the_weights_are_taken(tmp_path: Path, plain: Denoiser) -> None:
    file = write_lightning(tmp_path / "x.ckpt", {"state_dict": mdlm_tensors(plain, PLAIN)}, PLAIN)
    assert read_foreign(file).average == ()
    assert_same(imported(file), plain)


def test_blocks_that_were_compiled_one_by_one_lose_the_wrapper_too(tmp_path: Path, plain: Denoiser) -> None:
    tensors = mdlm_tensors(plain, PLAIN)
    renamed = {name.replace("blocks.1.", "blocks.1._orig_mod."): tensor for name, tensor in tensors.items()}
    assert_same(imported(write_hub(tmp_path / "hub", renamed, hub_config(PLAIN))), plain)


def test_weights_in_half_precision_become_float32(tmp_path: Path, plain: Denoiser) -> None:
    halves = {name: tensor.bfloat16() for name, tensor in mdlm_tensors(plain, PLAIN).items()}
    denoiser, config = imported(write_hub(tmp_path / "hub", halves, hub_config(PLAIN)))
    assert config.num_heads == PLAIN.num_heads
    for name, tensor in denoiser.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, halves[name].float())


def test_a_model_that_is_written_in_mdlms_naming_and_read_again_is_the_same(tmp_path: Path, plain: Denoiser) -> None:
    model = Model(denoiser=plain, config=PLAIN, codec=CODEC, card="# card\n")
    write_hub_folder(model, tmp_path / "hub")
    assert_same(imported(tmp_path / "hub"), plain)
    assert read_foreign(tmp_path / "hub").tokenizer == CODEC.content
    written = load_file(tmp_path / "hub" / "model.safetensors")
    expected = mdlm_tensors(plain, PLAIN)
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in expected.items())
    config = json.loads((tmp_path / "hub" / "config.json").read_text())
    published = hub_config(PLAIN)
    assert {name: config[name] for name in published if name in config and name != "auto_map"} == {
        name: value for name, value in published.items() if name in config and name != "auto_map"
    }
    assert set(published) - set(config) == {"_name_or_path", "transformers_version"}


def test_mdlm_small_has_131_tensors_in_the_hubs_naming(tmp_path: Path) -> None:
    from fpmgm.backbones.dit import mdlm

    config = MDLMConfig(width=16, num_heads=2, vocab_size=20, mask_id=19, cond_width=4)
    write_hub_folder(Model(denoiser=mdlm(config), config=config), tmp_path / "hub")
    assert len(load_file(tmp_path / "hub" / "model.safetensors")) == 131


def test_a_fixed_point_or_a_causal_model_has_no_form_in_mdlms_naming(tmp_path: Path, small_model: Build) -> None:
    with pytest.raises(ValueError, match=r"a fixed-point model \(1/1/1 blocks\) has no form in MDLM's naming"):
        write_hub_folder(Model(denoiser=small_model(), config=SMALL), tmp_path / "hub")
    causal = {"num_pre": 2, "num_fp": 0, "num_post": 0, "is_causal": True}
    model = Model(denoiser=small_model(**causal), config=replace(SMALL, **causal))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a causal model is no MDLM"):
        write_hub_folder(model, tmp_path / "hub")
    assert list(tmp_path.iterdir()) == []


def test_heads_and_length_are_asked_for_where_nothing_tells_them(tmp_path: Path, plain: Denoiser) -> None:
    tensors = mdlm_tensors(plain, PLAIN)
    del tensors["backbone.rotary_emb.inv_freq"]
    file = write_lightning(tmp_path / "x.ckpt", {"state_dict": tensors})
    with pytest.raises(ValueError, match="does not say its num_heads; give --num-heads"):
        imported(file, length=16)
    with pytest.raises(ValueError, match="does not say its length; give --length"):
        imported(file, num_heads=4)
    with pytest.raises(ValueError, match="num_heads is 0; it must be at least 1"):
        imported(file, num_heads=0, length=16)
    denoiser, config = imported(file, num_heads=4, length=16)
    assert config == replace(PLAIN, time_conditioning=False, dropout=0.1)  # what MDLM has, where nothing is said
    assert torch.equal(
        denoiser.state_dict()["backbone.vocab_embed.embedding"], tensors["backbone.vocab_embed.embedding"]
    )


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("cond_dim", 129, "its settings say that cond_width is 129, but it is 8"),
        ("hidden_dim", 64, "its settings say that width is 64, but it is 32"),
        ("n_blocks", 12, "its settings say that num_pre is 12, but it is 3"),
        ("n_heads", 2, "its settings say that num_heads is 2, but it is 4"),
        ("vocab_size", 50258, "its settings say that vocab_size is 50258, but it is 12"),
        ("model_length", "long", "its setting model_length is 'long'"),
        ("model_length", True, "its setting model_length is True"),
        ("model_length", -1, "length is -1; it must be at least 1"),
        ("dropout", 2.0, "dropout is 2.0; it must be at least 0 and below 1"),
        ("time_conditioning", 1, "its setting time_conditioning is 1"),
        ("model_type", "bert", r"is of another kind of model (bert); convert reads fpmgm-mdlm, mdlm and SDTT's"),
    ],
)
def test_settings_that_disagree_with_the_tensors_are_refused(
    tmp_path: Path, plain: Denoiser, setting: str, value: Any, message: str
) -> None:
    config = {**hub_config(PLAIN), setting: value}
    folder = write_hub(tmp_path / "hub", mdlm_tensors(plain, PLAIN), config)
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        imported(folder)
    assert message in str(refusal.value)


def test_what_the_user_says_must_agree_too(tmp_path: Path, plain: Denoiser) -> None:
    folder = write_hub(tmp_path / "hub", mdlm_tensors(plain, PLAIN), hub_config(PLAIN))
    with pytest.raises(ValueError, match="you say that length is 1024, but it is 16"):
        imported(folder, length=1024)
    with pytest.raises(ValueError, match="you say that num_heads is 8, but it is 4"):
        imported(folder, num_heads=8)


def spoil(tensors: dict[str, Tensor], how: str) -> None:
    b = "backbone."
    match how:
        case "missing":
            del tensors[b + "blocks.1.norm2.weight"], tensors[b + "output_layer.linear.bias"]
        case "missing block":
            for name in [name for name in tensors if "blocks.1." in name]:
                del tensors[name]
        case "extra":
            tensors |= {b + "blocks.1.norm1.bias": torch.ones(32), "teacher.x": torch.ones(1)}
        case "shape":
            tensors[b + "blocks.2.mlp.0.weight"] = torch.ones(64, 32)
        case "twice":
            tensors["blocks.0.norm1.weight"] = torch.ones(32)
        case "rotary":
            tensors[b + "rotary_emb.inv_freq"] = torch.tensor([1.0, 0.5, 0.2, 0.1])
        case "heads":
            tensors[b + "rotary_emb.inv_freq"] = 10_000.0 ** -(torch.arange(10) / 10)
        case "integers":
            tensors[b + "blocks.0.norm1.weight"] = torch.ones(32, dtype=torch.int64)
        case "other model":
            tensors.clear()
            tensors["wte.weight"] = torch.ones(3, 3)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", "is no MDLM of 3 blocks, 32 wide; missing: blocks.1.norm2.weight, output_layer.linear.bias"),
        ("missing block", "missing: blocks.1.norm1.weight, blocks.1.attn_qkv.weight, blocks.1.attn_out.weight,"),
        ("extra", "; extra: blocks.1.norm1.bias, teacher.x"),
        ("shape", "; of another shape: blocks.2.mlp.0.weight (64 x 32, not 128 x 32)"),
        ("twice", "holds blocks.0.norm1.weight twice"),
        ("rotary", "its rotary_emb.inv_freq is not that of rotary positions with base 10000"),
        ("heads", "rotary_emb.inv_freq tells heads of width 20, the network is 32 wide"),
        ("integers", "backbone.blocks.0.norm1.weight holds torch.int64"),
        ("other model", "not all are there; it holds wte.weight"),
    ],
)
@pytest.mark.parametrize("format", ["hub", "lightning"])
def test_tensors_that_do_not_fit_are_listed(
    tmp_path: Path, plain: Denoiser, how: str, message: str, format: str
) -> None:
    tensors = dict(mdlm_tensors(plain, PLAIN))
    spoil(tensors, how)
    if format == "hub":
        place = write_hub(tmp_path / "hub", tensors, hub_config(PLAIN))
    else:
        place = write_lightning(tmp_path / "x.ckpt", {"state_dict": tensors}, PLAIN)
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        imported(place)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("ema", "message"),
    [
        ({"shadow_params": [torch.ones(2)]}, "its EMA holds 1 tensors, its network 40"),
        ({"shadow_params": "none"}, "its EMA is no list of tensors"),
        ({"shadow_params": [1.0]}, "its EMA is no list of tensors"),
        ({}, "its EMA is no list of tensors"),
        ([], "its EMA is no list of tensors"),
    ],
)
def test_a_moving_average_that_does_not_fit_is_refused(tmp_path: Path, plain: Denoiser, ema: Any, message: str) -> None:
    file = write_lightning(tmp_path / "x.ckpt", {"state_dict": mdlm_tensors(plain, PLAIN), "ema": ema}, PLAIN)
    with pytest.raises(ValueError, match=message):
        imported(file)


def test_a_moving_average_in_another_order_is_refused_where_shapes_show_it(tmp_path: Path, plain: Denoiser) -> None:
    tensors = mdlm_tensors(plain, PLAIN)
    ema = averages(tensors)
    ema["shadow_params"].reverse()
    file = write_lightning(tmp_path / "x.ckpt", {"state_dict": tensors, "ema": ema}, PLAIN)
    with pytest.raises(ValueError, match=r"its EMA has 64 where vocab_embed\.embedding has 12 x 32"):
        imported(file)


@pytest.mark.parametrize("content", [{}, {"model": 1}, {"state_dict": 3}, {"state_dict": {"a": 3}}, [1, 2], "text"])
def test_a_saved_thing_that_is_no_checkpoint_is_refused(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "x.ckpt")
    with pytest.raises(ValueError, match=r"holds no state_dict|in its state_dict is no tensor"):
        read_foreign(tmp_path / "x.ckpt")


def test_a_checkpoint_that_tries_to_run_code_is_refused_and_nothing_ran(tmp_path: Path, plain: Denoiser) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    content = {"state_dict": mdlm_tensors(plain, PLAIN), "callbacks": {"x": Trap()}}
    file = write_lightning(tmp_path / "x.ckpt", content, PLAIN)
    with pytest.raises(ValueError, match=r"x\.ckpt asks to run posix\.mkdir when it is read; refused, and nothing ran"):
        read_foreign(file)
    assert not (tmp_path / "ran").exists()


def test_hyper_parameters_that_go_in_circles_say_nothing(tmp_path: Path, plain: Denoiser) -> None:
    circle: dict[str, Any] = {}
    circle["model"] = circle
    content = {"state_dict": mdlm_tensors(plain, PLAIN), "hyper_parameters": {"config": circle}}
    with pytest.raises(ValueError, match="give --length"):
        imported(write_lightning(tmp_path / "x.ckpt", content))


def test_folders_that_cannot_be_read_are_refused(tmp_path: Path, plain: Denoiser) -> None:
    tensors = mdlm_tensors(plain, PLAIN)
    folder = write_hub(tmp_path / "hub", tensors, hub_config(PLAIN))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match="is truncated or not a safetensors file"):
        read_foreign(folder)
    weights.unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    with pytest.raises(ValueError, match=r"has no model\.safetensors; pytorch_model\.bin is a pickle"):
        read_foreign(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"it has no config\.json"):
        read_foreign(folder)


def test_tensors_are_read_one_by_one(tmp_path: Path, plain: Denoiser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, shapes and settings are checked before any weight is read."""
    tensors = mdlm_tensors(plain, PLAIN)
    file = write_lightning(tmp_path / "x.ckpt", {"state_dict": tensors, "ema": averages(tensors)}, PLAIN)
    read: list[tuple[int, ...]] = []
    original = PickledTensor.read

    def counted(tensor: PickledTensor) -> Tensor:
        read.append(tensor.shape)
        return original(tensor)

    monkeypatch.setattr(PickledTensor, "read", counted)
    source = read_foreign(file)
    config = config_of(source, mask_id=11)
    assert set(read) == {(4,)}  # the rotary frequencies
    read.clear()
    load_foreign(source, config)
    assert len(read) == 40
