"""The folder of a run: one process at a time, the settings it was started with, and what is left over in it."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from fpmgm.checkpoint import CURVES, MODEL_FILES
from fpmgm.files import remove_leftovers, write_json
from fpmgm.locks import hold
from fpmgm.schema import read_json
from fpmgm.training.card import KINDS, flat
from fpmgm.training.config import Training
from fpmgm.training.metrics import Row, keep_copy
from fpmgm.training.state import UPDATE, newest_state, read_about, states, update_of

CONFIG, MODEL, STATE, SNAPSHOTS = "config.json", "model", "state", "snapshots"
EXTENDED = "extended"
"""The key of config.json that says how a run was extended."""
MAY_CHANGE = {"out", "checkpoint_every", "validate_every", "validation_sequences", "validation_iters"}
MAY_CHANGE |= {"micro_batch_size", "compile", "sharding", "device", "trackers", "extend", EXTENDED}
"""Settings that a resumed run may have otherwise than before; the number of updates has rules of its own."""
LEFTOVERS = {
    "": r"model|metrics|metrics\.jsonl|config\.json|start\.json|wandb-id",
    STATE: UPDATE.replace("(", "(?:"),
    SNAPSHOTS: UPDATE.replace("(", "(?:"),
    MODEL: "|".join(MODEL_FILES).replace(".", r"\."),
}
"""What a killed run may have left half-written, by folder."""


@contextmanager
def held(folder: Path, accelerator: Accelerator) -> Iterator[None]:
    """Hold the folder for this run alone. The main process does so for all processes of the run."""
    with ExitStack() as stack:
        problem: Exception | None = None
        if accelerator.is_main_process:
            try:
                stack.enter_context(hold(folder))
                for name, pattern in LEFTOVERS.items():
                    remove_leftovers(folder / name, pattern, is_held=True)
            except (ValueError, OSError) as error:
                problem = error
        if any_process(accelerator, problem is not None):
            raise problem or SystemExit(2)
        yield


def why_stopped(row: Row, title: str, share: float) -> str:
    """What there is to say of a run that the rule about its validation has ended."""
    return (
        f"stopped after update {row['update']}: {title} {row['validation']:.2f} is beyond {row['stopped']:.2f}, "
        f"{share:.0%} worse than at the start; this checkpoint is kept"
    )


def any_process(accelerator: Accelerator, flag: bool) -> bool:
    """Whether the flag is set in any process of the run."""
    return bool(accelerator.reduce(torch.tensor(float(flag), device=accelerator.device), "sum") > 0)


def settings_before(folder: Path) -> dict[str, Any] | None:
    """The settings that the run in the folder was started with, or None if no run is there.

    If a power cut or an accident has emptied config.json, the state knows them too.
    """
    settings = _readable(folder / CONFIG)
    if "model_type" in settings:
        raise ValueError(f"{folder} is a model folder and not that of a run; give another --out")
    if settings:
        return settings
    for path in states(folder / STATE):
        try:
            found = read_about(path).get("settings")
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    if states(folder / STATE):
        raise ValueError(
            f"{folder / CONFIG} is gone or damaged, and the state does not tell its settings either; "
            "restore it, or give another --out"
        )
    return None


def _readable(file: Path) -> dict[str, Any]:
    """The settings in a file, or none if it is gone or damaged."""
    try:
        return read_json(file) if file.exists() else {}
    except ValueError:
        return {}


def settings_of(config: Training) -> dict[str, Any]:
    """The settings as config.json has them: as on the command line, and the kinds of its parts by name."""
    return {**flat(asdict(config)), **{part: type(getattr(config, part)).__name__ for part in KINDS}}


def _defaults(config: Training, before: dict[str, Any]) -> dict[str, Any]:
    """What settings are if nobody sets them; those of a part if the run has the same kind of it."""
    usual = settings_of(Training())
    for part in KINDS:
        kind = type(getattr(config, part))
        if before.get(part, usual[part]) != usual[part]:
            usual = {key: value for key, value in usual.items() if not key.startswith(f"{part}.")}
        if before.get(part) == kind.__name__:
            usual |= {f"{part}.{key}": value for key, value in flat(asdict(kind())).items()}
    return usual


def check_same(folder: Path, before: dict[str, Any], config: Training) -> None:
    """A ValueError if the run that is there has other settings, or another number of updates than it may have."""
    settings = settings_of(config)
    before = _defaults(config, before) | before  # a setting that is newer than the run had its default
    may_change = MAY_CHANGE if config.objective.is_cut_by_updates else MAY_CHANGE | {"updates"}
    if config.stop_above:
        may_change = may_change - {"validation_sequences", "validation_iters"}  # the limit was measured with them
    for key in sorted(set(before) | set(settings)):  # the kind of objective before its settings
        if json.dumps(before.get(key)) != json.dumps(settings.get(key)) and key not in may_change:
            raise ValueError(
                f"{folder} holds a run with {key} {before.get(key)!r}, not {settings.get(key)!r}; "
                f"give the same settings to continue it, or another --out"
            )
    _check_updates(folder, before["updates"], config)


def _check_updates(folder: Path, planned: Any, config: Training) -> None:
    newest = newest_state(folder / STATE)
    done = update_of(newest) if newest else 0
    if type(planned) is not int or planned < 1:
        raise ValueError(f"{folder / CONFIG} has updates {str(planned)[:40]!r}; restore it, or give another --out")
    if config.updates < planned:
        raise ValueError(
            f"{folder} holds a run of {planned} updates, {done} of them done, and cannot be cut to {config.updates}; "
            f"give --updates {planned} to continue it, or another --out"
        )
    if config.updates > planned and not config.extend:
        raise ValueError(
            f"{folder} holds a run of {planned} updates, not {config.updates}; give --updates {planned} to continue "
            f"it, --extend to go on to {config.updates} with the learning rates of the longer run, or another --out"
        )


def check_trained(folder: Path) -> None:
    """A ValueError if a model is there but no state to go on from: it is not trained again unasked."""
    weights = folder / MODEL / "model.safetensors"
    if weights.exists() and newest_state(folder / STATE) is None:
        raise ValueError(
            f"{folder} holds a trained model and no state to go on from, and is not trained again; "
            f"delete {folder / MODEL} to train it anew, or give another --out"
        )


def keep_settings(
    folder: Path, before: dict[str, Any] | None, config: Training, done: int, *, is_stopped: bool
) -> dict[str, Any]:
    """Write config.json if the run is new, if it is extended, or if the file was damaged; returns the settings."""
    file = folder / CONFIG
    settings = settings_of(config) if before is None else dict(before)
    if before is not None and before.get("updates", Training.updates) < config.updates:
        if is_stopped:
            raise ValueError(f"{folder} holds a run that its rule stopped after update {done}; it cannot be extended")
        settings |= {"updates": config.updates, EXTENDED: [*extensions(before), _extended(before, config, done)]}
        print(f"{folder} is {settings[EXTENDED][-1]}", file=sys.stderr)
    there = _readable(file)
    if before is not None and not there:
        beside = f"; what was there is kept as {keep_copy(file).name}" if file.exists() else ""
        print(f"{file} was gone or damaged and is written anew from the state{beside}", file=sys.stderr)
    if there != json.loads(json.dumps(settings)):
        write_json(file, settings)
    return settings


def extensions(settings: dict[str, Any]) -> list[str]:
    """How a run was extended, a sentence each."""
    found = settings.get(EXTENDED)
    return [str(text) for text in found] if isinstance(found, list) else []


def _extended(before: dict[str, Any], config: Training, done: int) -> str:
    planned = before.get("updates", Training.updates)
    rates = [config.optim.learning_rate(done, updates) for updates in (planned, config.updates)]
    return (
        f"extended from {planned} to {config.updates} updates after update {done}: learning rate and warm-ups follow "
        f"those of the longer run from there on ({rates[1]:.3g} instead of {rates[0]:.3g} at the next update)"
    )


def is_written(folder: Path) -> bool:
    """Whether the model folder is there, to its last file, and younger than the last state."""
    newest, last = newest_state(folder / STATE), folder / MODEL / CURVES
    return newest is not None and last.exists() and last.stat().st_mtime >= newest.stat().st_mtime
