"""Run folders in other hands: a second process, damaged files, other people's files, Ctrl-C and SIGTERM."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fpmgm.checkpoint import BUNDLED
from tests.faults.kills import kill_at_update, slow_updates
from tests.faults.runs import Ended, arguments, copy_of, end, outcome, run, start, start_command, wait_for_rows

SLOW = (slow_updates, (0.2,))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place with a run that was killed at update 6 of 8, its state being that of update 4."""
    place = tmp_path_factory.mktemp("killed")
    assert run(place / "run", (kill_at_update, (5,))).code == -signal.SIGKILL
    return place


@pytest.fixture(scope="module")
def whole(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that was left alone from there on, and has ended."""
    folder = copy_of(place, tmp_path_factory.mktemp("whole") / "place")
    assert run(folder).code == 0
    return folder


@pytest.fixture
def folder(place: Path, tmp_path: Path) -> Path:
    return copy_of(place, tmp_path / "place")


@pytest.fixture
def finished(whole: Path, tmp_path: Path) -> Path:
    return copy_of(whole.parent, tmp_path / "finished")


def test_a_second_process_is_refused_in_one_line_that_names_the_first(folder: Path, whole: Path) -> None:
    first = start(folder, SLOW)
    wait_for_rows(folder, 6)
    second = run(folder)
    assert second.code == 2
    assert second.said.count("\n") == 1
    assert f"{folder} is in use by process {first.pid} on {os.uname().nodename} since 20" in second.said
    first.kill()
    end(first, folder.parent)
    assert run(folder).code == 0  # a killed process releases the folder
    assert outcome(folder) == outcome(whole)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_a_signal_ends_a_run_with_a_checkpoint_and_the_command_that_goes_on(
    folder: Path, whole: Path, number: int, code: int
) -> None:
    process = start(folder, SLOW, checkpoint_every="1000")
    wait_for_rows(folder, 6)
    os.kill(process.pid, number)
    ended = end(process, folder.parent)
    assert ended.code == code, ended.said
    assert "Traceback" not in ended.said
    last = ended.said.splitlines()[-1]
    update = len((folder / "metrics.jsonl").read_text().splitlines())
    assert f"after update {update} of 8, with a checkpoint; to go on: fpmgm train poetry --out {folder}" in last
    assert [path.name for path in (folder / "state").iterdir()] == [f"update-{update:08d}"]
    again = end(start_command(last.split("to go on: fpmgm ")[1].split(), folder.parent), folder.parent)
    assert again.code == 0, again.said
    assert outcome(folder) == outcome(whole)


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once_and_does_no_harm(folder: Path, whole: Path) -> None:
    process = start(folder, (slow_updates, (3.0,)))
    time.sleep(1.5)
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.7)
    os.kill(process.pid, signal.SIGINT)
    began = time.monotonic()
    ended = end(process, folder.parent)
    assert time.monotonic() - began < 1.5
    assert ended.code == 130, ended.said
    assert "Traceback" not in ended.said
    assert run(folder).code == 0
    assert outcome(folder) == outcome(whole)


@pytest.mark.slow
def test_two_processes_of_one_run_hold_it_together_and_end_together(folder: Path) -> None:
    """With torch's own launcher. Its exit code is its own; the line and the checkpoint are the run's."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29714"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "FPMGM_CACHE": str(folder.parent / "cache")}
    environment |= {"PYTHONPATH": str(BUNDLED.parents[1]), "OMP_NUM_THREADS": "1"}
    words = [*launch, "-m", "fpmgm", *arguments(folder.parent / "two", updates="100000")]
    with open(folder.parent / "said", "w") as said:
        first = subprocess.Popen(words, cwd=folder.parent, env=environment, stdout=said, stderr=said)
        wait_for_rows(folder.parent / "two", 5)
        second = run(folder.parent / "two", updates="100000")
        first.terminate()
        first.wait(60)
    assert (second.code, "is in use by process" in second.said) == (2, True)
    update = len((folder.parent / "two" / "metrics.jsonl").read_text().splitlines())
    assert (folder.parent / "said").read_text().count(f"ended by SIGTERM after update {update} of 100000") == 1
    assert [path.name for path in (folder.parent / "two" / "state").iterdir()] == [f"update-{update:08d}"]


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def second_line_is(line: bytes) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        lines = file.read_bytes().splitlines()
        file.write_bytes(b"\n".join([lines[0], line, *lines[2:]]) + b"\n")

    return damage


METRICS = {
    "short": (cut_off, "lacks 1 of 4 updates"),
    "empty": (lambda file: file.write_bytes(b""), "lacks 3 of 4"),
    "gone": (Path.unlink, "lacks 3 of 4"),
    "not text": (
        second_line_is(b"\xff\xfe\x00"),
        "lacks 1 of 4 updates (what was there is kept as metrics.jsonl.damaged",
    ),
    "not objects": (second_line_is(b"[1, 2]"), "lacks 1 of 4 updates (what was there"),
    "deeply nested": (second_line_is(b"[" * 100_000), "lacks 1 of 4 updates (what was there"),
    "words": (second_line_is(b'{"update": 2, "loss": "low"}'), "lacks 1 of 4 updates (what was there"),
}
FAST = {"empty", "not text"}
CASES = [pytest.param(*METRICS[name], id=name, marks=[] if name in FAST else pytest.mark.slow) for name in METRICS]


@pytest.mark.parametrize(("damage", "said"), CASES)
def test_a_run_with_damaged_metrics_goes_on_from_its_state_and_says_what_is_missing(
    folder: Path, whole: Path, damage: Callable[[Path], None], said: str
) -> None:
    file = folder / "metrics.jsonl"
    damage(file)
    before = file.read_bytes() if file.exists() else b""
    ended = run(folder)
    assert ended.code == 0, ended.said
    assert ended.said.count(said) == 1
    if "kept" in said:
        assert (folder / "metrics.jsonl.damaged").read_bytes() == before
    assert outcome(folder)[1] == outcome(whole)[1]
    updates = [json.loads(line)["update"] for line in file.read_text().splitlines()]
    assert updates[-5:] == [4, 5, 6, 7, 8]
    assert "updates; the other rows were lost" in (folder / "model" / "README.md").read_text()


def test_metrics_are_left_alone_if_the_run_does_not_go_on(folder: Path) -> None:
    cut_off(folder / "state" / "update-00000004" / "state.safetensors")
    before = (folder / "metrics.jsonl").read_bytes()
    assert run(folder).code == 2
    assert run(folder, seed="1").code == 2
    assert (folder / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(b""), pytest.param(cut_off, marks=pytest.mark.slow)])
def test_a_run_with_a_damaged_config_takes_its_settings_from_the_state(
    folder: Path, whole: Path, damage: Callable[[Path], None]
) -> None:
    damage(folder / "config.json")
    other = run(folder, seed="1")
    assert (other.code, "holds a run with seed 0, not 1" in other.said) == (2, True)
    ended = run(folder)
    assert ended.code == 0, ended.said
    assert "config.json was gone or damaged and is written anew from the state" in ended.said
    assert outcome(folder) == outcome(whole)
    assert json.loads((folder / "config.json").read_text())["updates"] == 8


def without_a_tensor(state: Path) -> None:
    tensors = load_file(state / "state.safetensors")
    del tensors[max(tensors)]
    save_file(tensors, state / "state.safetensors")


def of_another_shape(state: Path) -> None:
    tensors = load_file(state / "state.safetensors")
    name = next(name for name in tensors if name.startswith("optimiser.exp_avg."))
    save_file({**tensors, name: torch.zeros(3)}, state / "state.safetensors")


STATES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda state: cut_off(state / "state.safetensors"), "is damaged or of another run"),
    "without tensors": (lambda state: (state / "state.safetensors").unlink(), "it has no state.safetensors"),
    "without JSON": (lambda state: (state / "state.json").unlink(), "it has no state.json"),
    "torn JSON": (lambda state: cut_off(state / "state.json"), "is not JSON"),
    "a list": (lambda state: (state / "state.json").write_text("[]"), "must hold a JSON object"),
    "words": (lambda state: (state / "state.json").write_text('{"update": "4"}'), "does not tell the update"),
    "a tensor less": (without_a_tensor, "tensors and should have"),
    "another shape": (of_another_shape, "is [3] torch.float32 there and"),
}
FAST_STATES = {"truncated", "words"}
STATE_CASES = [
    pytest.param(*STATES[name], id=name, marks=[] if name in FAST_STATES else pytest.mark.slow) for name in STATES
]


@pytest.mark.parametrize(("damage", "said"), STATE_CASES)
def test_a_damaged_state_gets_one_line_and_the_one_before_is_taken_if_there_is_one(
    folder: Path, whole: Path, damage: Callable[[Path], object], said: str
) -> None:
    whole_state = whole / "state" / "update-00000008"
    for file in whole_state.iterdir():
        (folder / "state" / "update-00000008").mkdir(exist_ok=True)
        shutil.copy(file, folder / "state" / "update-00000008")
    damage(folder / "state" / "update-00000008")
    ended = run(folder)
    assert ended.code == 0, ended.said
    assert said in ended.said
    assert f"the run goes on from {folder / 'state' / 'update-00000004'}" in ended.said
    assert outcome(folder) == outcome(whole)
    damage(folder / "state" / "update-00000008")
    refused = run(folder)
    assert refused.code == 2
    assert refused.said.count("\n") == 1
    assert said in refused.said
    assert "there is no other state to go on from" in refused.said


@pytest.mark.slow
def test_a_damaged_start_is_measured_again(folder: Path) -> None:
    changes = {"stop_above": "1000"}
    place = folder.parent / "ruled"
    assert run(place, (kill_at_update, (5,)), **changes).code == -signal.SIGKILL
    before = (place / "start.json").read_text()
    (place / "start.json").write_text('{"validation": "high"}')
    ended = run(place, **changes)
    assert ended.code == 0, ended.said
    assert "it is measured again" in ended.said
    assert (place / "start.json").read_text() == before


def test_a_finished_run_without_its_state_is_not_trained_again(finished: Path) -> None:
    shutil.rmtree(finished / "state")
    before = (finished / "metrics.jsonl").read_bytes()
    ended = run(finished)
    assert ended.code == 2
    assert ended.said.count("\n") == 1
    assert f"delete {finished / 'model'} to train it anew, or give another --out" in ended.said
    assert (finished / "metrics.jsonl").read_bytes() == before


def test_files_of_others_stay_where_they_are(folder: Path, whole: Path) -> None:
    theirs = {
        "state/update-00000060.bak/state.json": "{}",
        "state/update-backup/notes.txt": "mine",
        "state/update-00000004/notes.txt": "mine",
        "state/notes.txt": "mine",
        "model/notes.txt": "mine",
        "model/figures/a/figure.txt": "mine",
        ".model.notes": "mine",
        ".notes.4194305": "mine",
        "notes.txt": "mine",
    }
    for name, text in theirs.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "model" / "link").symlink_to("notes.txt")
    ended = run(folder)
    assert ended.code == 0, ended.said
    assert outcome(folder)[0] == outcome(whole)[0]
    ended = run(folder, updates="10", extend="")
    assert ended.code == 0, ended.said
    assert {name: (folder / name).read_text() for name in theirs} == theirs
    assert (folder / "model" / "link").is_symlink()


def test_the_next_run_removes_what_a_dead_one_left_and_nothing_else(folder: Path) -> None:
    dead = 4_194_305  # above the largest process id there can be
    for name in (f".model.{dead}/config.json", f"state/.update-00000006.{dead}/state.json", f".metrics.{dead}"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("half")
    (folder / f".other.{dead}").write_text("not ours")
    assert run(folder).code == 0
    hidden = sorted(str(path.relative_to(folder)) for path in folder.rglob(".*"))
    assert hidden == [".lock", f".other.{dead}"]


def test_tensorboard_goes_on_in_one_file_after_a_kill(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = (folder / "tensorboard").iterdir()
    with open(file, "ab") as stream:
        stream.write(file.read_bytes()[:30])  # a record that a kill cut off
    assert run(folder).code == 0
    assert [path.name for path in (folder / "tensorboard").iterdir()] == [file.name]
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("loss")]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert found == [(row["update"], pytest.approx(row["loss"])) for row in rows]


@pytest.mark.slow
def test_the_dynamics_of_a_broken_run_get_one_line(folder: Path) -> None:
    def dynamics() -> Ended:
        words = ["analyse", str(folder), "dynamics", "--budgets", "24", "--num-samples", "2", "--judge", ""]
        return end(start_command(words, folder.parent), folder.parent)

    (folder / "snapshots" / "update-backup").mkdir(parents=True)
    assert "has no snapshots" in dynamics().said
    broken = folder / "snapshots" / "update-00000004"
    broken.mkdir()
    (folder / "metrics.jsonl").write_bytes(b"\xff\n[1]\n")
    assert dynamics().code == 2
    broken.rmdir()
    shutil.copytree(BUNDLED / "stories-fp", broken)
    (folder / "start.json").write_text("[]")
    ended = dynamics()
    assert (ended.code, ended.said.count("\n")) == (2, 1)
    (folder / "start.json").unlink()
    assert dynamics().code == 0
