"""The state of a run on disk: written whole or not at all, so that a kill or a power cut leaves the one before.

No pickle: tensors as safetensors, the rest as JSON.
"""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from fpmgm.files import whole_folder, write_tensors
from fpmgm.schema import parse_object, read_text
from fpmgm.training.sharding import load_whole, placed, whole

UPDATE = r"update-(\d{8,12})"
"""The names of states and snapshots; whatever else lies beside them is not ours."""
COMPANION, AVERAGED = "companion.", "num_averaged"
STATE_FILES = ("state.safetensors", "state.json")
Kind = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True, kw_only=True)
class TrainState:
    """All that training changes; everything else follows from the seed and the number of the update."""

    model: nn.Module
    ema: AveragedModel
    optimiser: torch.optim.Optimizer
    teacher: nn.Module | None = None
    """A teacher that changes during the run."""
    companion: "TrainState | None" = None
    """Of a network that learns beside this one."""

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the state by name, in shards if the run is."""
        found = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        found |= {f"ema.{name}": tensor for name, tensor in self.ema.module.state_dict().items()}
        if self.teacher is not None:
            found |= {f"teacher.{name}": tensor for name, tensor in self.teacher.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimiser.state[parameter].items():
                found[f"optimiser.{key}.{name}"] = value
        if self.companion is not None:
            found |= {f"{COMPANION}{name}": tensor for name, tensor in self.companion.tensors().items()}
            found[f"{COMPANION}{AVERAGED}"] = self.companion.ema.n_averaged
        return found

    def load(self, tensors: dict[str, Tensor], num_averaged: int) -> None:
        """Take over saved tensors, all or none."""
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith(COMPANION)}
        beside = _below(COMPANION, tensors)
        self._check(own)
        if self.companion is not None:
            averaged = beside.pop(AVERAGED, None)
            if averaged is None:
                raise ValueError(f"{COMPANION}{AVERAGED} is missing")
            self.companion.load(beside, int(averaged))
        elif beside:
            raise ValueError(f"it has {len(beside)} tensors of a network beside this one, and the run has none")
        tensors = own
        load_whole(self.model, _below("model.", tensors))
        load_whole(self.ema.module, _below("ema.", tensors))
        self.ema.n_averaged.fill_(num_averaged)
        if self.teacher is not None:
            self.teacher.load_state_dict(_below("teacher.", tensors))
        kept = _below("optimiser.", tensors)
        for name, parameter in self.model.named_parameters():
            found = {key.split(".")[0]: value for key, value in kept.items() if key.split(".", 1)[1] == name}
            self.optimiser.state[parameter] = {
                key: value if key == "step" else placed(value, parameter) for key, value in found.items()
            }

    def _check(self, tensors: dict[str, Tensor]) -> None:
        """A ValueError if a tensor is missing, left over, or of another shape or type."""
        modules = {"model": self.model, "ema": self.ema.module, "teacher": self.teacher}
        expected = {
            f"{prefix}.{name}": _kind(tensor)
            for prefix, module in modules.items()
            if module is not None
            for name, tensor in module.state_dict().items()
        }
        saved = {name: _kind(tensor) for name, tensor in tensors.items()}
        groups = self.optimiser.param_groups
        matrices = {id(matrix) for group in groups if group.get("is_matrix") for matrix in group["params"]}
        for name, parameter in self.model.named_parameters():
            keys = ("momentum",) if id(parameter) in matrices else ("exp_avg", "exp_avg_sq")
            moments = {f"optimiser.{key}.{name}": _kind(parameter) for key in keys}
            if id(parameter) not in matrices:
                moments[f"optimiser.step.{name}"] = ((), torch.float32)
            if moments.keys() & saved.keys():  # a weight that no loss depends on has none
                expected |= moments
        if expected != saved:
            raise ValueError(_difference(expected, saved))


def save_state(folder: Path, state: TrainState, update: int, *, is_main: bool = True, **about: Any) -> None:
    """Write the state after `update` updates into folder/update-N and remove those before.

    Shards are put together, for which all processes are needed; the main one writes.
    """
    final = folder / f"update-{update:08d}"
    tensors: dict[str, Tensor] = {}
    for name, tensor in state.tensors().items():
        found = whole(tensor.detach())
        if is_main:
            tensors[name] = found.cpu().contiguous()
    if not is_main:
        return
    about = {
        "update": update,
        "num_averaged": int(state.ema.n_averaged),
        "num_tensors": len(tensors),
        **about,
    }
    with whole_folder(final, STATE_FILES) as scratch:
        write_tensors(tensors, scratch / "state.safetensors")
        (scratch / "state.json").write_text(json.dumps(about, indent=1))
    remove_states_before(folder, update)


def remove_states_before(folder: Path, update: int) -> None:
    """Remove the states of earlier updates; what others put beside them stays."""
    for old in states(folder):
        if update_of(old) < update:
            _remove(old)


def update_of(path: Path) -> int:
    """The update that a folder update-N is of."""
    found = re.fullmatch(UPDATE, path.name)
    assert found
    return int(found[1])


def folders_by_update(folder: Path) -> list[Path]:
    """The folders update-N of a folder, the latest first."""
    found = [path for path in folder.glob("update-*") if re.fullmatch(UPDATE, path.name) and path.is_dir()]
    return sorted(found, key=update_of, reverse=True)


def states(folder: Path) -> list[Path]:
    """The folders of the states that are there, the latest first."""
    return [path for path in folders_by_update(folder) if any((path / name).exists() for name in STATE_FILES)]


def newest_state(folder: Path) -> Path | None:
    """The folder of the last state, or None."""
    return next(iter(states(folder)), None)


def last_update(folder: Path) -> int:
    """The update of the last state; 0 if there is none."""
    newest = newest_state(folder)
    return update_of(newest) if newest else 0


def check_state(run: Path) -> None:
    """A ValueError if a folder holds no run that another one can continue from."""
    if newest_state(run / "state") is None:
        raise ValueError(f"{run} holds no state of a run to continue from; give the folder of a run, such as runs/owt")


def take_over(run: Path, state: TrainState) -> None:
    """Weights, optimiser and moving average of another run, after its last update."""
    check_state(run)
    load_newest(run / "state", state)


def load_newest(folder: Path, state: TrainState, *, is_told: bool = True) -> dict[str, Any] | None:
    """Take over the last state that is whole; returns what its state.json says, or None if there is no state.

    Damaged states are said on stderr and passed over. If all are damaged there is a ValueError.
    """
    reasons = []
    for path in states(folder):
        try:
            about = load_state(path, state)
        except ValueError as error:
            reasons.append(str(error))
            continue
        for reason in reasons if is_told else ():
            print(f"{reason}; the run goes on from {path}", file=sys.stderr)
        return about
    if reasons:
        raise ValueError(f"{reasons[0]}; there is no other state to go on from: restore it, or give another --out")
    return None


def load_state(path: Path, state: TrainState) -> dict[str, Any]:
    """Take over a saved state; returns what its state.json says."""
    about = read_about(path)
    try:
        tensors = load_file(path / "state.safetensors")
        if about.get("num_tensors", len(tensors)) != len(tensors):
            raise ValueError(f"it has {len(tensors)} tensors and should have {about['num_tensors']}")
        state.load(tensors, about["num_averaged"])
    except FileNotFoundError:
        raise ValueError(f"the state {path} is damaged: it has no state.safetensors") from None
    except (ValueError, SafetensorError) as error:
        raise ValueError(f"the state {path} is damaged or of another run: {error}") from error
    return about


def read_about(path: Path) -> dict[str, Any]:
    """The state.json of a state, checked."""
    file = path / "state.json"
    if not file.is_file():
        raise ValueError(f"the state {path} is damaged: it has no state.json")
    about = parse_object(read_text(file), str(file), is_strict=False)  # one held-out sequence has an error of nan
    number = about.get("num_averaged")
    if about.get("update") != update_of(path) or type(number) is not int or not 0 <= number < 1 << 62:
        raise ValueError(f"{file} is damaged: it does not tell the update of its folder and the average's number")
    return about


def _remove(state: Path) -> None:
    """Remove a state, and its folder unless somebody else has put files there."""
    for name in STATE_FILES:
        (state / name).unlink(missing_ok=True)
    if not any(state.iterdir()):
        state.rmdir()


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _kind(tensor: Tensor) -> Kind:
    return tuple(tensor.shape), tensor.dtype


def _difference(expected: dict[str, Kind], saved: dict[str, Kind]) -> str:
    name = sorted(n for n in {*expected, *saved} if expected.get(n) != saved.get(n))[0]
    kinds = [f"{list(k[name][0])} {k[name][1]}" if name in k else "absent" for k in (saved, expected)]
    return f"{name} is {kinds[0]} there and {kinds[1]} here"
