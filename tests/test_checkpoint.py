import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fpmgm.checkpoint import Model, load
from fpmgm.commands.sample import describe
from tests.conftest import SMALL, Build


@pytest.fixture
def folder(small_model: Build, tmp_path: Path) -> Path:
    Model(denoiser=small_model(), config=SMALL, generation={"budget": 24}, card="# card\n").save(tmp_path / "model")
    return tmp_path / "model"


def test_a_saved_model_comes_back_whole(folder: Path, small_model: Build) -> None:
    model = load(folder)
    expected = small_model().state_dict()
    assert model.denoiser.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.denoiser.state_dict().items())
    assert (model.config, model.generation, model.card) == (SMALL, {"budget": 24}, "# card\n")
    assert not model.denoiser.training


def test_weights_saved_in_half_precision_load_as_float32(folder: Path, tmp_path: Path) -> None:
    load(folder).save(tmp_path / "half", dtype=torch.float16)
    size, half = ((path / "model.safetensors").stat().st_size for path in (folder, tmp_path / "half"))
    assert half < 0.6 * size
    for name, tensor in load(tmp_path / "half").denoiser.state_dict().items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, load(folder).denoiser.state_dict()[name], atol=1e-3, rtol=1e-3)


def test_the_tensors_of_a_plain_model_have_the_names_of_the_hub(small_model: Build, tmp_path: Path) -> None:
    from safetensors import safe_open

    config = replace(SMALL, num_pre=2, num_fp=0, num_post=0)
    Model(denoiser=small_model(num_pre=2, num_fp=0, num_post=0), config=config).save(tmp_path / "m")
    with safe_open(tmp_path / "m" / "model.safetensors", "pt") as file:
        assert "backbone.blocks.1.adaLN_modulation.weight" in file.keys()  # noqa: SIM118
        assert all(name.startswith("backbone.") for name in file.keys())  # noqa: SIM118


def test_saving_over_a_model_that_cannot_be_written_leaves_the_old_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(folder)

    def full(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fpmgm.files.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        model.save(folder)
    assert load(folder).config == SMALL
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def damage(folder: Path, how: str) -> None:
    weights, config = folder / "model.safetensors", folder / "config.json"
    settings = json.loads(config.read_text())
    match how:
        case "no config":
            config.unlink()
        case "no weights":
            weights.unlink()
        case "pickle":
            weights.unlink()
            (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))
        case "pickle in disguise":
            weights.write_bytes(pickle.dumps({"a": 1}))
        case "truncated":
            weights.write_bytes(weights.read_bytes()[:-100])
        case "not JSON":
            config.write_text("{")
        case "foreign":
            config.write_text(json.dumps({**settings, "model_type": "mdlm"}))
        case "unknown setting":
            config.write_text(json.dumps({**settings, "wdith": 3}))
        case "other shape":
            config.write_text(json.dumps({**settings, "width": 64}))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no config", "is not a model folder: it has no config.json"),
        ("no weights", "has no model.safetensors"),
        ("pickle", "pytorch_model.bin is a pickle, and pickles are never read"),
        ("pickle in disguise", "is truncated or not a safetensors file"),
        ("truncated", "is truncated or not a safetensors file"),
        ("not JSON", "config.json is not JSON"),
        ("foreign", "has model_type 'mdlm'; fpmgm knows fpmgm-mdlm"),
        ("unknown setting", "has unknown settings: 'wdith'"),
        ("other shape", "does not fit its config.json"),
    ],
)
def test_a_damaged_folder_is_refused_with_the_reason(folder: Path, how: str, message: str) -> None:
    damage(folder, how)
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        load(folder)


def test_a_model_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="no model at 'nowhere'; give a model folder or a hub id"):
        load("nowhere")


def test_info_knows_the_papers_models() -> None:
    assert describe("owt")["parameters"] == 104_659_794
    assert describe("owt-mdlm")["parameters"] == 169_627_218
    assert describe("owt")["blocks"] == "1/1/1"
    with pytest.raises(ValueError, match="no recipe or model 'owt-mldm'; did you mean 'owt-mdlm'"):
        describe("owt-mldm")


def test_saving_keeps_the_files_of_others_and_refuses_a_folder_that_holds_no_model(
    folder: Path, tmp_path: Path
) -> None:
    model = load(folder)
    (folder / "notes.txt").write_text("mine")
    (folder / "figures").mkdir()
    (folder / "figures" / "a.txt").write_text("mine")
    model.save(folder)
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "figures" / "a.txt").read_text() == "mine"
    home = tmp_path / "home"
    home.mkdir()
    (home / "letter.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and holds no model; give another folder, or overwrite=True"):
        model.save(home)
    assert [path.name for path in home.iterdir()] == ["letter.txt"]
    model.save(home, overwrite=True)
    assert (home / "letter.txt").read_text() == "mine"
    assert load(home).config == model.config
    with pytest.raises(ValueError, match="is a file; give a folder"):
        model.save(home / "letter.txt")
