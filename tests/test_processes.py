"""Training in more than one process: two real ones, which exchange gradients."""

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fpmgm.training.order import parts_of
from tests.processes import VERSE, launch, said, tiny


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("micro", [0, 1, 3, 64])
def test_processes_and_passes_take_every_row_once_and_every_process_rows_of_all_times(world: int, micro: int) -> None:
    num = 24
    taken = [[list(range(num))[part] for part in parts_of(num, rank, world, micro)] for rank in range(world)]
    assert sorted(row for parts in taken for part in parts for row in part) == list(range(num))
    assert len({len(parts) for parts in taken}) == 1  # as many passes in each process
    for parts in taken:
        assert all(0 < len(part) <= (micro or num) for part in parts)
        rows = sorted(row for part in parts for row in part)
        for start in range(0, num, world):  # times fall from row to row: one row of each stretch of them
            assert sum(start <= row < start + world for row in rows) == 1


def test_a_batch_that_processes_cannot_share_evenly_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of 9 sequences cannot be shared by 2 processes"):
        parts_of(9, 0, 2, 0)


def weights(place: Path) -> dict[str, torch.Tensor]:
    return load_file(place / "run" / "state" / "update-00000003" / "state.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("micro", ["0", "1"])
def test_two_processes_move_the_weights_as_one_does_by_plain_gradient_descent(tmp_path: Path, micro: str) -> None:
    """By gradient descent, because Adam moves the weights alike whatever the scale of the gradient."""
    places = {1: tmp_path / "one", 2: tmp_path / "two"}
    for num, place in places.items():
        place.mkdir()
        done = launch("run", place, num, micro if num == 2 else "0")
        assert done.returncode == 0, done.stderr
    one, two = (weights(place) for place in places.values())
    start = tiny(tmp_path).network.build(seed=0).state_dict()
    for name, first in start.items():
        moved = one[f"model.{name}"] - first
        torch.testing.assert_close(two[f"model.{name}"] - first, moved, rtol=1e-3, atol=1e-3 * float(moved.abs().max()))
        torch.testing.assert_close(two[f"ema.{name}"], one[f"ema.{name}"], rtol=1e-4, atol=1e-6)
    rows = [
        [json.loads(line) for line in (place / "run" / "metrics.jsonl").read_text().splitlines()]
        for place in places.values()
    ]
    for name in ("loss", "grad_norm", "residual"):
        assert [row[name] for row in rows[1]] == pytest.approx([row[name] for row in rows[0]], rel=1e-4)
    both = said("run", places[2], 2)
    assert [found["world"] for found in both] == [2, 2]
    [alone] = said("run", places[1], 1)
    for update in range(3):
        times = [found["times"][update] for found in both]
        assert sorted(times[0] + times[1]) == sorted(alone["times"][update])
        for own in times:  # every process has little and much masked rows
            assert len(own) == 4
            assert [int(4 * t) for t in sorted(own)] == [0, 1, 2, 3]


@pytest.mark.slow
def test_two_processes_of_the_train_command_have_the_losses_of_one(tmp_path: Path) -> None:
    (tmp_path / "verse.txt").write_text(VERSE)
    words = ["train", "poetry", "--data.source", str(tmp_path / "verse.txt"), "--data.tokenizer", "bpe-300"]
    words += ["--data.length", "16", "--model.width", "16", "--model.num-heads", "2", "--updates", "6"]
    words += ["--batch-size", "4", "--validation-sequences", "8"]
    losses = []
    for num in (1, 2):
        done = launch("command", tmp_path, num, *words, "--out", str(tmp_path / str(num)))
        assert done.returncode == 0, done.stderr
        assert [(found["world"], found["code"]) for found in said("command", tmp_path, num)] == [(num, 0)] * num
        lines = (tmp_path / str(num) / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in lines])
    assert len(losses[0]) == 6
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.slow
def test_all_processes_know_the_same_metrics_after_they_were_mended(tmp_path: Path) -> None:
    assert launch("run", tmp_path, 1, "0").returncode == 0
    file = tmp_path / "run" / "metrics.jsonl"
    lines = file.read_text().splitlines()
    late = json.dumps({**json.loads(lines[-1]), "update": 4})
    file.write_text("\n".join([lines[0], "no row", lines[2], late, late[: random.Random(0).randrange(2, 20)]]))
    done = launch("resume", tmp_path, 2)
    assert done.returncode == 0, done.stderr
    first, second = said("resume", tmp_path, 2)
    assert first == second
    assert (first["world"], first["done"]) == (2, 3)
    assert [row["update"] for row in first["rows"]] == [1, 3]
    assert first["row"] == json.loads(lines[2])


@pytest.mark.slow
def test_data_that_takes_longer_to_pack_than_a_collective_may_wait_does_no_harm(tmp_path: Path) -> None:
    done = launch("prepare", tmp_path, 2)
    assert done.returncode == 0, done.stderr
    assert [found["world"] for found in said("prepare", tmp_path, 2)] == [2, 2]
    assert len(list(tmp_path.glob("packed-*.json"))) == 1  # one process made it
    waited = [line for line in done.stderr.splitlines() if "another process is making" in line]
    assert sum("/packed/" in line for line in waited) == 1, waited  # for the tokenizer it may have waited too
