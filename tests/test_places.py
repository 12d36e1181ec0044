"""Where models are: in the folder of a run, and in the forms of other code."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fpmgm.__main__ import main
from fpmgm.backbones.dit import as_mdlm
from fpmgm.checkpoint import Model, find_folder, load
from fpmgm.evaluation.held_out import text_codec
from fpmgm.places import convert_hint
from tests.conftest import Build
from tests.published import hub_config, hydra_config, mdlm_tensors, write_hub


def test_the_folder_of_a_run_stands_for_its_model(text_model: Model, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "mine"
    text_model.save(run / "model")
    (run / "config.json").write_text(json.dumps({"data.source": "my.txt"}))
    assert find_folder(str(run)) == run / "model"
    assert find_folder(str(run / "model")) == run / "model"
    assert load(run).config == text_model.config


@pytest.mark.parametrize("file", ["config.json", "metrics.jsonl", "plan.json"])
def test_a_run_without_a_model_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str) -> None:
    (tmp_path / file).write_text(json.dumps({"data.source": "my.txt"}))
    assert main(["sample", str(tmp_path)]) == 2
    assert "is a training run that has not written its model yet" in capsys.readouterr().err


@pytest.mark.parametrize("form", [hub_config, hydra_config], ids=["MDLM", "SDTT"])
def test_a_model_in_the_form_of_other_code_is_answered_with_the_command_that_helps(
    text_model: Model,
    small_model: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    form: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    plain: dict[str, Any] = {"num_pre": 2, "num_fp": 0, "num_post": 0}
    config = replace(as_mdlm(text_model.config), **plain)
    denoiser = small_model(vocab_size=config.vocab_size, mask_id=config.mask_id, length=24, **plain)
    write_hub(tmp_path / "theirs", mdlm_tensors(denoiser, config), form(config), text_codec(text_model).content)
    assert main(["sample", "theirs"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    found = re.search(r"fpmgm (convert theirs (runs/theirs) --map none)", said)
    assert found
    assert main(found[1].split()) == 0
    assert main(["sample", found[2], "--budget", "6"]) == 0


def test_a_snapshot_of_the_hub_is_named_by_its_hub_id() -> None:
    place = Path("/cache/models--kuleshov-group--mdlm-owt/snapshots/0123")
    assert "fpmgm convert kuleshov-group/mdlm-owt runs/mdlm-owt --map none" in convert_hint(
        place, {"model_type": "mdlm"}
    )
    assert convert_hint(place, {"model_type": "gpt2"}) == ""


def test_a_checkpoint_file_is_answered_with_the_command_that_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "last.ckpt").touch()
    assert main(["sample", str(tmp_path / "last.ckpt")]) == 2
    assert f"fpmgm convert {tmp_path / 'last.ckpt'} runs/last --map none" in capsys.readouterr().err
