"""Kills: at every call that changes a file, at any moment, and together with power cuts."""

import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.kills import kill_at, stop_first
from tests.faults.runs import end, outcome, run, start
from tests.faults.test_power_cuts import cut

SHORT = {"updates": "4", "checkpoint_every": "2"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was left alone; its calls that change files are counted beside it."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert run(folder, (kill_at, (folder, -1, folder.parent / "count")), **SHORT).code == 0
    return folder


def check_kill(whole: Path, place: Path, number: int) -> None:
    """Kill at a call, go on, and compare; nothing is left over."""
    folder = place / "run"
    ended = run(folder, (kill_at, (folder, number, place / "count")), **SHORT)
    assert ended.code == -signal.SIGKILL, ended.said
    ended = run(folder, **SHORT)
    assert ended.code == 0, ended.said
    assert outcome(folder) == outcome(whole)
    left = [path for path in folder.rglob(".*") if path.name != ".lock"]
    assert not left


@pytest.mark.parametrize("share", [0.45, 0.9])
def test_a_kill_at_a_call_that_changes_a_file_does_no_harm(whole: Path, tmp_path: Path, share: float) -> None:
    count = int((whole.parent / "count").read_text())
    check_kill(whole, tmp_path, round(count * share))


@pytest.mark.slow
def test_a_kill_at_any_call_that_changes_a_file_does_no_harm(whole: Path, tmp_path: Path) -> None:
    for number in range(0, int((whole.parent / "count").read_text()), 3):
        check_kill(whole, tmp_path / str(number), number)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_a_kill_at_a_system_call_does_no_harm(whole: Path, tmp_path: Path) -> None:
    """strace ends the process at its Nth system call that changes a file, those of the tensor writer among them."""
    calls = "write,pwrite64,fsync,rename,renameat,renameat2,mkdir,unlink,unlinkat,rmdir,ftruncate,link,linkat"
    num_killed = 0
    for number in range(1, 49, 3):
        place = tmp_path / str(number)
        process = start(place / "run", (stop_first, ()), **SHORT)
        options = ["-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}"]
        inject = ["-e", f"inject={calls}:signal=SIGKILL:when={number}"]
        tracer = subprocess.Popen(["strace", *options, *inject, "-p", str(process.pid)], stderr=subprocess.DEVNULL)
        _wait_for_tracer(process)
        process_ended = _continue(process, place)
        tracer.wait(60)
        num_killed += process_ended == -signal.SIGKILL
        ended = run(place / "run", **SHORT)
        assert ended.code == 0, ended.said
        assert outcome(place / "run") == outcome(whole)
    assert num_killed >= 10


def _wait_for_tracer(process: Any) -> None:
    for _ in range(1000):
        status = Path(f"/proc/{process.pid}/status").read_text()
        if "TracerPid:\t0\n" not in status:
            return
        time.sleep(0.01)
    pytest.skip("this machine does not let strace attach")


def _continue(process: Any, place: Path) -> int:
    time.sleep(0.2)
    subprocess.run(["kill", "-CONT", str(process.pid)], check=False)
    return end(process, place).code


@pytest.mark.slow
def test_a_hundred_kills_and_twenty_power_cuts_leave_a_run_as_one_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"updates": "300", "validate_every": "100"}
    assert run(tmp_path / "whole" / "run", **changes).code == 0
    rng = random.Random(14)
    faults = ["kill"] * 100 + ["cut"] * 20
    rng.shuffle(faults)
    place, done = tmp_path / "disk", {"kill": 0, "cut": 0}
    for number, fault in enumerate(faults):
        if fault == "cut":
            done["cut"] += cut(place, rng.randint(0, 60), seed=number, **changes)
            continue
        process = start(place / "run", **changes)
        time.sleep(rng.uniform(0, 1.2))
        process.kill()
        done["kill"] += end(process, place).code == -signal.SIGKILL
    ended = run(place / "run", **changes)
    assert ended.code == 0, ended.said
    found, expected = outcome(place / "run"), outcome(tmp_path / "whole" / "run")
    with capsys.disabled():
        print(f"\n{done['kill']} kills and {done['cut']} power cuts of one run of {len(found[0])} updates:", end=" ")
        print(f"losses {found[0] == expected[0]}, weights {found[1] == expected[1]} bit for bit")
    assert found == expected
