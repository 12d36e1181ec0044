"""The state of a run on disk: written beside its place and renamed, so that a kill at any moment leaves a whole one.

No pickle: tensors as safetensors, the rest as JSON.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from fpmgm.checkpoint import write_tensors


@dataclass(frozen=True, kw_only=True)
class TrainState:
    """All that training changes; everything else follows from the seed and the number of the update."""

    model: nn.Module
    ema: AveragedModel
    optimiser: torch.optim.Optimizer
    teacher: nn.Module | None = None
    """A teacher that changes during the run."""

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the state by name."""
        found = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        found |= {f"ema.{name}": tensor for name, tensor in self.ema.module.state_dict().items()}
        if self.teacher is not None:
            found |= {f"teacher.{name}": tensor for name, tensor in self.teacher.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimiser.state[parameter].items():
                found[f"optimiser.{key}.{name}"] = value
        return found

    def load(self, tensors: dict[str, Tensor], num_averaged: int) -> None:
        """Take over saved tensors, all or none."""
        expected = {f"model.{name}": tensor.shape for name, tensor in self.model.state_dict().items()}
        saved = {name: tensor.shape for name, tensor in tensors.items() if name.startswith("model.")}
        if expected != saved:
            raise ValueError(_difference(expected, saved))
        self.model.load_state_dict(_below("model.", tensors))
        self.ema.module.load_state_dict(_below("ema.", tensors))
        self.ema.n_averaged.fill_(num_averaged)
        if self.teacher is not None:
            self.teacher.load_state_dict(_below("teacher.", tensors))
        kept = _below("optimiser.", tensors)
        for name, parameter in self.model.named_parameters():
            found = {key.split(".")[0]: value for key, value in kept.items() if key.split(".", 1)[1] == name}
            self.optimiser.state[parameter] = {
                key: value if key == "step" else value.to(parameter.device) for key, value in found.items()
            }


def save_state(folder: Path, state: TrainState, update: int, **about: Any) -> None:
    """Write the state after `update` updates into folder/update-N and remove the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    final, scratch = folder / f"update-{update:08d}", folder / f".update-{update:08d}.{os.getpid()}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.tensors().items()}
        write_tensors(tensors, scratch / "state.safetensors")
        about = {"update": update, "num_averaged": int(state.ema.n_averaged), **about}
        (scratch / "state.json").write_text(json.dumps(about, indent=1))
        for file in scratch.iterdir():
            _flush(file)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(scratch, final)
        _flush(folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    for old in folder.iterdir():
        if old != final:
            shutil.rmtree(old, ignore_errors=True)


def newest_state(folder: Path) -> Path | None:
    """The folder of the last whole state, or None."""
    return max(folder.glob("update-*"), default=None)


def load_state(path: Path, state: TrainState) -> int:
    """Take over a saved state; returns the number of updates it had done."""
    about = json.loads((path / "state.json").read_text())
    state.load(load_file(path / "state.safetensors"), about["num_averaged"])
    return int(about["update"])


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics.jsonl, one an update."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _difference(expected: dict[str, torch.Size], saved: dict[str, torch.Size]) -> str:
    name = sorted(n for n in {*expected, *saved} if expected.get(n) != saved.get(n))[0]
    shapes = [str(tuple(s[name])) if name in s else "absent" for s in (saved, expected)]
    return (
        f"the saved run has another shape: {name.removeprefix('model.')} is {shapes[0]} there and {shapes[1]} here; "
        "give the same model settings, or another --out"
    )


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
