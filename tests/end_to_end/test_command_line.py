"""The commands, as their user types them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fpmgm import __version__
from fpmgm.__main__ import main
from fpmgm.recipes import ABOUT, RECIPES


def test_quickstart_writes_a_text_and_prints_its_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"
    assert main(["quickstart", "--num-samples", "2", "--svg", str(picture)]) == 0
    printed = capsys.readouterr().out
    moments = printed.split("─" * 20)
    assert "·" in printed  # a mask
    assert "·" not in moments[-1].split("budget")[0]  # none is left in the end
    for budget in (24, 48, 96, 192):
        assert re.search(rf"│ +{budget} │ +{budget // 6} │( +[\d.]+ │){{5}}", printed)  # six blocks a step
    for words in ("seconds", "MDLM's", "a mean over texts", "by stories-judge", "Stored, not measured now"):
        assert words in " ".join(printed.split())
    assert picture.read_text().startswith("<svg")
    assert "font-face" not in picture.read_text()  # it loads nothing from elsewhere


def test_sample_without_a_model_writes_with_the_bundled_one_and_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for _ in range(2):
        assert main(["sample", "--json", "--num-samples", "2", "--budget", "24", "--seed", "0"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["texts"] == found[1]["texts"]
    assert found[0]["block_evals"] <= 24
    assert found[0]["seconds"] > 0


def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-m", "fpmgm", "--help"], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["quikstart"], "unknown command 'quikstart'; did you mean 'quickstart'?"),
        (["quickstart", "--num-sample", "3"], "--num-sample, 3; did you mean --num-samples?"),
        (["quickstart", "--num-samples", "many"], "--num-samples: invalid literal for int() with base 10: 'many'"),
        (["quickstart", "--num-samples", "0"], "num_samples is 0"),
        (["quickstart", "--svg", "/no/such/folder/x.svg"], "svg is /no/such/folder/x.svg; its folder does not exist"),
        (["train", "poetri"], "unknown recipe 'poetri'; did you mean 'poetry'?"),
        (["train", "poetry", "--optim.ler", "1"], "did you mean --optim.lr?"),
        (["train", "poetry", "--model.injection", "liner", "--out", "OUT"], "did you mean 'linear'?"),
        (
            ["train", "poetry", "--data.packing", "wrapp"],
            "'--data.packing'. Expected one of ('wrap', 'pad', 'begin', 'end', 'pairs')",
        ),
        (["train", "poetry", "--data.source", "EMPTY", "--out", "OUT"], "holds 0 tokens"),
        (["train", "poetry", "--data.source", "BINARY", "--out", "OUT"], "is binary, not text"),
        (["train", "poetry", "--data.source", "NOWHERE", "--out", "OUT"], "no data at"),
        (["train", "poetry", "--trackers", "wandbb"], "unknown tracker 'wandbb'; did you mean 'wandb'?"),
        (["sample", "--budget", "2"], "smallest feasible budget is 3"),
        (["sample", "--prompt", "word " * 300], "so a prompt may have 254 at most"),
        (["sample", "--infill", "no blank"], "has no blank to fill in"),
        (["sample", "--reuse", "three"], "did you mean 'three-state'?"),
        (["sample", "--watch", "--json"], "watch and json are both set"),
        (["sample", "stories-mdlm", "--solve", "changed-and-masked"], "a plain stack leaves nothing to iterate"),
        (["sample", "--solve", "changed"], "did you mean 'changed-and-masked'?"),
        (["sample", "--position-tolerance", "0.1"], "position_tolerance"),
        (["sample", "--budget-in", "positions"], "positions"),
        (["sample", "EMPTY"], "no model at"),
        (["sample", "FOLDER"], "is not a model folder: it has no config.json; weights.pt is a pickle"),
        (["info", "owtt"], "did you mean 'owt'?"),
        (["evaluate", "--judge", "stories-fp"], "is a masked model; a judge must be causal"),
        (["evaluate", "--match", "temprature"], "did you mean 'temperature'"),
        (["evaluate", "--match", "top_p"], "give at least two"),
        (["evaluate", "--mauve", "--judge", ""], "MAUVE needs a judge's features; give --judge"),
        (["push", "stories-fp", "noowner"], "a hub repository is written owner/name"),
    ],
)
def test_wrong_input_gets_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    paths = {name: str(tmp_path / name) for name in ("OUT", "EMPTY", "BINARY", "NOWHERE", "FOLDER")}
    Path(paths["EMPTY"]).touch()
    Path(paths["BINARY"]).write_bytes(b"\0\1\2" * 999)
    Path(paths["FOLDER"]).mkdir()
    (Path(paths["FOLDER"]) / "weights.pt").touch()
    assert main([paths.get(word, word) for word in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_help_lists_the_commands_and_version_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "quickstart" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fpmgm {__version__}\n"


@pytest.mark.parametrize("arguments", [["train"], ["train", "--help"], ["train", "-h"]])
def test_train_without_a_recipe_lists_them_with_a_line_each(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert list(ABOUT) == ["mine", *RECIPES]
    for name, about in ABOUT.items():
        assert re.search(rf"^  {name} +{re.escape(about)}$", printed, flags=re.MULTILINE)
    assert "fpmgm train RECIPE --help" in printed
    assert max(map(len, printed.splitlines())) <= 100
