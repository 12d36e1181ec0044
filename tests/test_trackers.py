"""What TensorBoard and wandb get to see of a run."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fpmgm.training import trackers
from fpmgm.training.trackers import check_trackers, start_tracking


def losses_in(folder: Path) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, round(event.value, 3)) for event in events.Scalars("loss")]


def test_tensorboard_shows_every_update_once_after_a_kill_between_checkpoints(tmp_path: Path) -> None:
    (log,) = start_tracking(("tensorboard",), tmp_path, {"optim.lr": 1e-3}, 0)
    for update in range(1, 6):
        log({"update": update, "loss": 0.1 * update}, update)
    (log,) = start_tracking(("tensorboard",), tmp_path, {"optim.lr": 1e-3}, 3)  # killed at 5, last checkpoint at 3
    for update in range(4, 7):
        log({"update": update, "loss": 10.0 * update}, update)
    assert losses_in(tmp_path) == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 40), (5, 50), (6, 60)]


@pytest.mark.slow
def test_wandb_records_a_run_and_a_resumed_run_keeps_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    script = f"""
from pathlib import Path
from fpmgm.training.trackers import start_tracking
(log,) = start_tracking(("wandb",), Path({str(tmp_path)!r}), {{"optim.lr": 1e-3}}, 0)
log({{"update": 1, "loss": 0.5}}, 1)
"""
    for _ in range(2):
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=120)
    runs = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(runs) == 2
    assert {run.name for run in runs} == {f"run-{(tmp_path / 'wandb-id').read_text()}.wandb"}
    assert all(b"optim.lr" in run.read_bytes() for run in runs)


def test_an_unknown_tracker_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"unknown tracker 'tensorbord'; did you mean 'tensorboard'\?"):
        check_trackers(("tensorbord",))


def test_a_tracker_without_its_package_is_refused_and_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None if name == "wandb" else find_spec(name))
    check_trackers(("tensorboard",))
    with pytest.raises(ValueError, match="tracker wandb needs its package: pip install wandb"):
        check_trackers(("tensorboard", "wandb"))
