"""What the tests of several processes run in each of them: python -m tests.processes JOB PLACE."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch.distributed.tensor import DTensor

from fpmgm.backbones.dit import Network
from fpmgm.data import text
from fpmgm.data.text import TextConfig
from fpmgm.denoiser import Denoiser
from fpmgm.post_training.consistency import Consistency
from fpmgm.post_training.matching import Matching
from fpmgm.training import loop
from fpmgm.training.config import Training
from fpmgm.training.metrics import Row, read_metrics
from fpmgm.training.optim import OptimConfig
from fpmgm.training.state import TrainState

ROOT = Path(__file__).parents[1]
VERSE = "".join(f"line {i} of a poem about the {word}\n" for i in range(200) for word in ("sea", "sky", "old oak"))
LONGEST = 900
"""Seconds that a job may take, on a machine that is busy."""
ATTEMPTS, ABORTED = 3, "(SIGABRT)"
"""Twice a sharded process has been aborted from within torch, gloo or glibc (docs/log.md, 2026-11-18). Jobs go on where
they were stopped, so such a job is started again."""
LIMIT, PACKING = 8, 14
"""Seconds that a collective may wait, and that packing takes, where the one is to outlast the other."""


def tiny(place: Path, **changes: Any) -> Training:
    """A small run without dropout, whose only randomness is drawn for whole batches."""
    (place / "verse.txt").write_text(VERSE)
    settings: dict[str, Any] = {
        "out": str(place / "run"),
        "model": Network(width=16, num_heads=2, num_pre=1, num_fp=1, num_post=1, cond_width=8, dropout=0.0),
        "data": TextConfig(source=str(place / "verse.txt"), tokenizer="bpe-300", length=16),
        "optim": OptimConfig(lr=0.1, warmup=0, clip=1e9, ema=0.5),
        "updates": 3,
        "batch_size": 8,
        "checkpoint_every": 1,
        "validation_sequences": 8,
        "trackers": (),
    }
    return Training(**{**settings, **changes})


def plain_sgd(denoiser: Denoiser, config: OptimConfig) -> torch.optim.Optimizer:
    """Weights that move by the gradient itself, so that its scale shows."""
    return torch.optim.SGD([{"params": list(denoiser.parameters()), "multiple": 1.0}], lr=config.lr)


def launch(job: str, place: Path, num: int, *words: str) -> "subprocess.CompletedProcess[str]":
    """A job in so many real processes; each leaves what it has to say in place/JOB-RANK.json."""
    command = [sys.executable, "-m"]
    if num > 1:
        command += ["torch.distributed.run", "--standalone", "--nproc_per_node", str(num), "-m"]
    command += ["tests.processes", job, str(place), *words]
    settings = {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "FPMGM_CACHE": str(place / "cache")}
    environment = {**os.environ, **settings}
    for _ in range(ATTEMPTS):
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST)
        if done.returncode == 0 or ABORTED not in done.stderr:
            break
    return done


def said(job: str, place: Path, num: int) -> list[dict[str, Any]]:
    """What each of so many processes left."""
    return [json.loads((place / f"{job}-{rank}.json").read_text()) for rank in range(num)]


def _say(job: str, place: Path, **found: Any) -> None:
    state = PartialState()
    found = {"world": state.num_processes, **found}
    (place / f"{job}-{state.process_index}.json").write_text(json.dumps(found))


def run(place: Path, micro: str) -> None:
    """A whole run, with the times that this process saw in each update."""
    times: list[list[float]] = []
    forward, one_update = loop.Learner.forward, loop.Run.update

    def watched(self: loop.Learner, x: torch.Tensor, noise: Any) -> Any:
        times[-1].extend(noise.t.tolist())
        return forward(self, x, noise)

    def counted(self: loop.Run, update: int) -> dict[str, float]:
        times.append([])
        return one_update(self, update)

    loop.Learner.forward, loop.Run.update = watched, counted  # type: ignore[method-assign]
    loop.optimiser_of = plain_sgd  # type: ignore[assignment]
    loop.train(tiny(place, micro_batch_size=int(micro)), "test", card_samples=1)
    _say("run", place, times=times)


def resume(place: Path) -> None:
    """What each process knows of the metrics once it has resumed; the main process is slow to mend them."""
    mend, go_on = loop.keep_metrics, loop.Run.resume

    def slow(folder: Path, done: int, last: Row | None) -> str:
        time.sleep(3)
        return mend(folder, done, last)

    def watched(self: loop.Run) -> None:
        go_on(self)
        _say("resume", place, rows=read_metrics(self.folder), row=self.row, done=self.done)

    loop.keep_metrics, loop.Run.resume = slow, watched  # type: ignore[method-assign]
    loop.Run.go = lambda self: None  # type: ignore[method-assign]
    loop.write_model = lambda *_: None
    loop.train(tiny(place), "test")


def prepare(place: Path) -> None:
    """Data that takes longer to pack than a collective may wait."""
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=LIMIT))
    pack = text._write_packed

    def slow(*given: Any) -> None:
        time.sleep(PACKING)
        pack(*given)
        _say("packed", place)

    text._write_packed = slow  # type: ignore[assignment]
    loop.Run.go = lambda self: None  # type: ignore[method-assign]
    loop.write_model = lambda *_: None
    loop.train(tiny(place), "test")
    _say("prepare", place)


def command(place: Path, *words: str) -> None:
    """A command of fpmgm."""
    from fpmgm.__main__ import main

    code = main(words)
    _say("command", place, code=code)


def _held(state: TrainState) -> float:
    """The share of all numbers of a state that this process holds."""
    tensors = state.tensors().values()
    own = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return sum(map(torch.Tensor.numel, own)) / sum(map(torch.Tensor.numel, tensors))


class KilledError(Exception):
    """In place of a kill."""


def several(place: Path, *runs: str) -> None:
    """Runs of four updates one after the other, each NAME,KIND,MICRO BATCH,SHARDING,LAST UPDATE (0: all).

    A kind is an optimiser, or a stage: `ema` has the moving average as its teacher, and `match` has a second network
    with an average of its own; it starts from the run `1-sgd`. A run that is there already goes on. All of them in one
    process save the time of importing.
    """
    one_update, usual = loop.Run.update, loop.optimiser_of
    settings: dict[str, dict[str, Any]] = {
        "sgd": {"clip": 1e9, "lr": 0.1},
        "clipped": {"clip": 0.02, "lr": 0.5},
        "adamw": {"clip": 1.0, "lr": 1e-2},
        "muon": {"clip": 1.0, "lr": 1e-2, "kind": "muon"},
        "ema": {"clip": 1e9, "lr": 0.1},
        "match": {"clip": 1.0, "lr": 1e-3},
    }
    matching = Matching(
        steps=(2,), inputs="own", reuse="three-state", fake_lr=1e-3, fake_updates=2, fake_ema=0.5, first="base"
    )
    stages: dict[str, dict[str, Any]] = {
        "ema": {"objective": Consistency(teacher="ema", weight=1.0, warmup=0.0)},
        "match": {"objective": matching, "init": str(place / "1-sgd")},
    }
    for wanted in runs:
        name, kind, micro, sharding, last = wanted.split(",")

        def until(self: loop.Run, update: int, last: int = int(last)) -> dict[str, float]:
            if last and update == last:
                raise KilledError
            row = one_update(self, update)
            _say(Path(self.folder).name, place, held=_held(self.state))
            return row

        loop.Run.update = until  # type: ignore[method-assign]
        loop.optimiser_of = plain_sgd if kind in ("sgd", "clipped", "ema") else usual  # type: ignore[assignment]
        changes: dict[str, Any] = {"out": str(place / name), "updates": 4, "micro_batch_size": int(micro)}
        changes |= stages.get(kind, {})
        optim = OptimConfig(warmup=0, ema=0.5, **settings[kind])
        with suppress(KilledError):
            loop.train(tiny(place, optim=optim, sharding=sharding, **changes), "test", card_samples=1)
    _say("several", place)


JOBS: dict[str, Any] = {"run": run, "resume": resume, "prepare": prepare, "command": command, "several": several}

if __name__ == "__main__":
    JOBS[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
