"""Cut power: a run whose power was cut goes on from its last checkpoint and ends as one that was left alone."""

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fpmgm.training.state import newest_state, update_of
from tests.faults.power import CUT, cut_at
from tests.faults.runs import end, outcome, run, start, wait_for_rows


def cut(place: Path, event: int, seed: int, **changes: str) -> bool:
    """Run until the power is cut at an event, and leave in `place` what the cut leaves; False if it ended before."""
    place.mkdir(parents=True, exist_ok=True)
    target, checkpoints = place.with_name("left"), place.with_name("checkpoints")
    ended = run(place / "run", (cut_at, (place, target, event, seed, checkpoints)), **changes)
    if ended.code == 0:
        return False
    assert ended.code == CUT, ended.said
    shutil.rmtree(place)
    target.rename(place)
    newest = newest_state(place / "run" / "state")
    if checkpoints.exists():
        assert newest, "a checkpoint was lost"
        assert update_of(newest) >= int(checkpoints.read_text())
    return True


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], list[bytes]]:
    """What a run that is left alone ends with."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert run(folder).code == 0
    return outcome(folder)


@pytest.mark.parametrize("events", [(16, 22, 52), pytest.param(range(0, 80, 4), marks=pytest.mark.slow)])
def test_a_run_goes_on_from_its_last_checkpoint_after_every_power_cut(
    tmp_path: Path, whole: tuple[list[float], list[bytes]], events: tuple[int, ...]
) -> None:
    for event in events:
        place = tmp_path / str(event) / "disk"
        cut(place, event, seed=event)
        ended = run(place / "run")
        assert ended.code == 0, ended.said
        assert outcome(place / "run") == whole


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    folder.mkdir()
    if subprocess.run(["mount", "-o", "loop", str(image), str(folder)], capture_output=True).returncode:
        pytest.skip("this machine does not let us mount a file system image")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mkfs.ext4"), reason="needs root and mkfs.ext4")
def test_a_run_on_a_real_file_system_goes_on_after_power_cuts(tmp_path: Path) -> None:
    """The image of the file system is copied while the run is stopped: what was not yet written to it is lost."""
    changes = {"updates": "60"}
    assert run(tmp_path / "whole" / "run", **changes).code == 0
    image, rng, num_resumed = tmp_path / "image", random.Random(0), 0
    subprocess.run(["truncate", "-s", "64M", str(image)], check=True)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    for number in range(4):
        with mounted(image, tmp_path / f"mounted-{number}") as place:
            process = start(place / "run", **changes)
            wait_for_rows(place / "run", 12 * (number + 1) + rng.randrange(10))
            os.kill(process.pid, signal.SIGSTOP)
            shutil.copy(image, tmp_path / "copy")
            process.kill()
            end(process, place)
        shutil.copy(tmp_path / "copy", image)
        with mounted(image, tmp_path / f"looked-{number}") as place:
            num_resumed += newest_state(place / "run" / "state") is not None
    assert num_resumed
    with mounted(image, tmp_path / "last") as place:
        ended = run(place / "run", **changes)
        assert ended.code == 0, ended.said
        assert outcome(place / "run") == outcome(tmp_path / "whole" / "run")
