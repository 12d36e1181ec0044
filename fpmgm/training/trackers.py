"""Where metrics go besides metrics.jsonl: TensorBoard, and wandb if asked."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fpmgm.names import choose

Log = Callable[[Mapping[str, int | float], int], Any]


def start_tracking(names: Sequence[str], folder: Path, settings: dict[str, Any], done: int) -> list[Log]:
    """A function for each tracker that takes the metrics of an update, for a run that has made `done` updates."""
    return [TRACKERS[name](folder, settings, done) for name in names]


def check_trackers(names: Sequence[str]) -> None:
    """A ValueError for an unknown tracker or a missing package, before any work is done."""
    for name in names:
        choose("tracker", name, TRACKERS)
        if find_spec(name) is None:
            raise ValueError(f"tracker {name} needs its package: pip install {name}, or leave the tracker out")


def _tensorboard(folder: Path, settings: dict[str, Any], done: int) -> Log:
    """Curves in the folder `tensorboard`; what a killed run wrote after its last checkpoint is hidden."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1)
    lines = [f"    {key}: {value}" for key, value in settings.items()]
    writer.add_text("settings", "\n".join(lines), done)

    def log(row: Mapping[str, int | float], update: int) -> None:
        for key, value in row.items():
            writer.add_scalar(key, value, update)
        writer.flush()

    return log


def _wandb(folder: Path, settings: dict[str, Any], done: int) -> Log:
    """A run in the project fpmgm; its id is kept in the run folder, so that a resumed run continues the same curves."""
    import wandb

    file = folder / "wandb-id"
    if not file.exists():
        file.write_text(secrets.token_hex(8))
    run = wandb.init(
        project="fpmgm", name=folder.name, id=file.read_text(), resume="allow", dir=str(folder), config=settings
    )
    return lambda row, update: run.log(dict(row), step=update)


TRACKERS: dict[str, Callable[[Path, dict[str, Any], int], Log]] = {"tensorboard": _tensorboard, "wandb": _wandb}
