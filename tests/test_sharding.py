"""Training with weights in shards: two real processes over gloo against one, and runs that change their number."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fpmgm.__main__ import main
from fpmgm.checkpoint import load
from fpmgm.training.sharding import check_sharding
from tests.processes import launch, said, tiny

LAST = 4
pytestmark = pytest.mark.timeout(3000)


def test_sharding_without_processes_is_refused_in_one_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "poetry", "--sharding", "fsdp", "--device", "cpu", "--out", str(tmp_path / "run")]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "sharding is fsdp, and there is one process; start several, as in torchrun" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_launcher_that_asks_for_fsdp_by_itself_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_sharding(tiny(tmp_path, sharding="fsdp"), 2)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ValueError, match="accelerate's configuration asks for FSDP"):
        check_sharding(tiny(tmp_path), 2)


KINDS = ("sgd", "clipped", "adamw", "muon", "ema", "match")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs, by as few processes as can be, since importing takes longer than they do."""
    place = tmp_path_factory.mktemp("runs")
    alone = [f"1-{kind},{kind},0,none,0" for kind in KINDS]
    both = [f"2-{kind},{kind},0,fsdp,0" for kind in KINDS]
    both += ["2-micro,sgd,1,fsdp,0", "2-killed,adamw,0,fsdp,2", "2-match-killed,match,0,fsdp,2"]
    for num, wanted in ((1, [*alone, "1-killed,adamw,0,none,2"]), (2, both)):
        done = launch("several", place, num, *wanted)
        assert done.returncode == 0, done.stderr
    for name in ("1-killed", "2-killed"):
        shutil.copytree(place / name, place / f"{name}-again")
    again = {
        1: ["2-killed,adamw,0,none,0", "2-match-killed,match,0,none,0"],
        2: ["1-killed,adamw,0,fsdp,0", "2-killed-again,adamw,0,fsdp,0"],
    }
    for num, wanted in again.items():
        done = launch("several", place, num, *wanted)
        assert done.returncode == 0, done.stderr
    return place


def state_of(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "state" / f"update-{LAST:08d}" / "state.safetensors")


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*KINDS, "micro"])
def test_two_sharded_processes_end_with_the_weights_of_one(runs: Path, name: str) -> None:
    one, two = runs / ("1-sgd" if name == "micro" else f"1-{name}"), runs / f"2-{name}"
    start = tiny(runs).network.build(seed=0).state_dict()
    states = state_of(one), state_of(two)
    assert states[0].keys() == states[1].keys()
    for part, first in start.items():
        moved, also = (state[f"model.{part}"] - first for state in states)
        torch.testing.assert_close(also, moved, rtol=1e-3, atol=1e-3 * float(moved.abs().max()))
    for part, tensor in states[0].items():  # the average and the moments of the optimiser too
        close = max(1e-3 * float(tensor.abs().max()), 1e-9)  # some moments are sums that cancel
        torch.testing.assert_close(states[1][part], tensor, rtol=1e-3, atol=close)
    for measured in ("loss", "grad_norm", "residual"):
        values = [[row[measured] for row in rows_of(run)] for run in (one, two)]
        assert len(values[1]) == LAST
        assert values[1] == pytest.approx(values[0], rel=1e-4, abs=1e-7)  # some residuals are 1e-5
    validations = [rows_of(run)[-1]["validation"] for run in (one, two)]
    assert validations[1] == pytest.approx(validations[0], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adamw", "match"])
def test_each_process_holds_its_part_of_weights_averages_and_moments(runs: Path, kind: str) -> None:
    assert [found["held"] for found in said(f"1-{kind}", runs, 1)] == [1.0]
    assert [found["held"] for found in said(f"2-{kind}", runs, 2)] == pytest.approx([0.5, 0.5], abs=0.02)


@pytest.mark.slow
def test_the_model_folder_of_a_sharded_run_is_an_ordinary_one_with_the_whole_average(runs: Path) -> None:
    model = load(runs / "2-adamw" / "model", device="cpu")
    saved = {name: tensor for name, tensor in state_of(runs / "2-adamw").items() if name.startswith("ema.")}
    found = model.denoiser.state_dict()
    assert {f"ema.{name}" for name in found} == saved.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, saved[f"ema.{name}"])
    assert (runs / "2-adamw" / "model" / "README.md").stat().st_size > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "unbroken"), [("1-killed", "1-adamw"), ("2-killed", "1-adamw"), ("2-match-killed", "1-match")]
)
def test_a_run_that_goes_on_with_another_number_of_processes_has_the_losses_of_an_unbroken_one(
    runs: Path, name: str, unbroken: str
) -> None:
    found = rows_of(runs / name)
    assert [row["update"] for row in found] == [1, 2, 3, 4]
    for measured in ("loss", "grad_norm"):
        whole = [row[measured] for row in rows_of(runs / unbroken)]
        assert [row[measured] for row in found] == pytest.approx(whole, rel=1e-4)


@pytest.mark.slow
def test_a_sharded_run_that_goes_on_with_as_many_processes_repeats_the_unbroken_one_bit_for_bit(runs: Path) -> None:
    again, whole = state_of(runs / "2-killed-again"), state_of(runs / "2-adamw")
    assert again.keys() == whole.keys()
    assert all(torch.equal(again[name], whole[name]) for name in whole)
    assert [row["loss"] for row in rows_of(runs / "2-killed-again")] == [
        row["loss"] for row in rows_of(runs / "2-adamw")
    ]
