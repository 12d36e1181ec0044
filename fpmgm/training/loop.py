"""The training loop. Update u of a run depends on the seed and u alone, so a resumed run repeats an unbroken one."""

import copy
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from fpmgm.backbones.dit import MDLMConfig
from fpmgm.checkpoint import Model
from fpmgm.data.text import PackedText, load_text
from fpmgm.denoiser import Denoiser
from fpmgm.evaluation.held_out import held_out_sequences
from fpmgm.evaluation.likelihood import perplexity
from fpmgm.objectives import Losses
from fpmgm.randomness import generator
from fpmgm.sdtt import SelfDistillation
from fpmgm.training.card import CURVES, flat, write_model
from fpmgm.training.config import EMA, Objective, Training
from fpmgm.training.optim import adamw, moving_average, set_learning_rate
from fpmgm.training.progress import Progress
from fpmgm.training.start import check_named_models, first_weights, named_teacher
from fpmgm.training.state import TrainState, load_state, newest_state, read_metrics, save_state
from fpmgm.training.trackers import start_tracking

MAY_CHANGE = {"out", "updates", "checkpoint_every", "validate_every", "validation_sequences", "validation_iters"}
MAY_CHANGE |= {"micro_batch_size", "compile", "trackers"}
"""Settings that a resumed run may have otherwise than before."""

CONFIG = "config.json"

BAD_LOSS = 100
"""How many times the loss of a guess, log V, is taken for a run that has gone bad."""


class Learner(nn.Module):
    """A denoiser with its objective: what several processes wrap, so that gradients are shared."""

    def __init__(self, denoiser: Denoiser, objective: Objective, teacher: Denoiser | None) -> None:
        super().__init__()
        self.denoiser = denoiser
        self.objective = objective
        self.taught: dict[str, Any] = {} if teacher is None else {"teacher": teacher}  # no module of this one

    def forward(self, x: Tensor, noise: Any) -> Losses:
        return self.objective.loss(self.denoiser, x, noise, **self.taught)


class Order:
    """Which rows each update takes: a new permutation every epoch, drawn from (seed, epoch)."""

    def __init__(self, rows: np.ndarray, batch_size: int, seed: int) -> None:
        if len(rows) < batch_size:
            raise ValueError(
                f"the text has {len(rows)} training sequences; a batch takes {batch_size}: "
                "lower --batch-size or give more text"
            )
        self.rows, self.batch_size, self.seed = rows, batch_size, seed
        self._epoch, self._permutation = -1, rows

    def batch(self, update: int) -> np.ndarray:
        """The rows of an update; the remainder of an epoch is dropped."""
        epoch, index = divmod(update, len(self.rows) // self.batch_size)
        if epoch != self._epoch:
            permutation = torch.randperm(len(self.rows), generator=generator(self.seed, epoch, 1))
            self._epoch, self._permutation = epoch, self.rows[permutation.numpy()]
        return self._permutation[index * self.batch_size : (index + 1) * self.batch_size]


def train(config: Training, name: str, recipe: Training | None = None) -> Path:
    """Run a training to its end, from where it was left if its folder is there; returns the model folder.

    `recipe` is what the run is a variant of: the model card gives the command that leads from one to the other.
    """
    folder = Path(config.out or f"runs/{name}")
    accelerator = Accelerator(mixed_precision=config.mixed_precision)
    check_named_models(config)
    _check_same(folder, config)
    with accelerator.main_process_first():
        text = load_text(config.data)
    network = replace(config.network, vocab_size=text.symbols.size, mask_id=text.symbols.mask_id)
    run = Run(config, folder, accelerator, network, text)  # what does not fit is refused here, with nothing written
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / CONFIG).exists():
        _write_json(folder / CONFIG, flat(asdict(config)))
    run.resume()
    run.go()
    if accelerator.is_main_process and not _is_written(folder):
        write_model(folder, run.model, config, recipe or config, name)
    accelerator.wait_for_everyone()
    return folder / "model"


class Run:
    """A training run under way."""

    def __init__(
        self, config: Training, folder: Path, accelerator: Accelerator, network: MDLMConfig, text: PackedText
    ) -> None:
        self.config, self.folder, self.accelerator, self.network, self.text = config, folder, accelerator, network, text
        denoiser = first_weights(config, network, text).to(accelerator.device)
        self.denoiser = denoiser
        self.ema = moving_average(denoiser, config.optim.ema)
        optimiser = adamw(denoiser, config.optim)
        self.pad_id = text.symbols.pad_id if config.data.packing == "pad" else None
        self.objective = config.objective(self.pad_id)
        self.teacher = self._teacher()
        learner = Learner(denoiser, self.objective, self.teacher)
        if config.compile:  # block by block: a whole pass would be compiled anew for every number of iterations
            for block in denoiser.backbone.blocks:
                block.compile()
        self.learner, self.optimiser = accelerator.prepare(learner, optimiser)
        changing = self.teacher if isinstance(self.objective, SelfDistillation) else None
        self.state = TrainState(model=denoiser, ema=self.ema, optimiser=optimiser, teacher=changing)
        self.order = Order(text.train, config.batch_size, config.seed)
        self.done, self.is_stopped = 0, False

    def _teacher(self) -> Denoiser | None:
        """Who else has a say: the moving average, a frozen model, the start of this one, or nobody."""
        if isinstance(self.objective, SelfDistillation):
            return copy.deepcopy(self.denoiser).eval().requires_grad_(False)
        if self.config.consistency.weight and self.config.consistency.teacher == EMA:
            return self.averaged
        teacher = named_teacher(self.config, self.network, self.text)
        return teacher.to(self.accelerator.device) if teacher else None

    @property
    def averaged(self) -> Denoiser:
        module = self.ema.module
        assert isinstance(module, Denoiser)
        return module

    def resume(self) -> None:
        """Take over the last whole state of the folder, and drop the metrics that came after it."""
        newest = newest_state(self.folder / "state")
        if newest is not None:
            self.done = load_state(newest, self.state)
        if self.accelerator.is_main_process:
            _keep_metrics(self.folder / "metrics.jsonl", self.done)
        self.is_stopped = self.done > 0 and "stopped" in read_metrics(self.folder)[self.done - 1]
        self.accelerator.wait_for_everyone()

    def go(self) -> None:
        """Update until done, with metrics, validation and checkpoints."""
        config, is_main = self.config, self.accelerator.is_main_process
        trackers = start_tracking(config.trackers, self.folder, flat(asdict(config)), self.done) if is_main else []
        limit = self._start() * (1 + config.stop_above) if is_main and config.stop_above else math.inf
        if is_main and config.snapshot_every and self.done == 0:
            self._keep_snapshot()
            self._start()
        with Progress("update", config.updates, self.done, is_shown=is_main) as progress:
            while self.done < config.updates and not self.is_stopped:
                start = time.perf_counter()
                row = self.update(self.done)
                self.done += 1
                row = {"update": self.done, **row, "seconds": time.perf_counter() - start}
                is_last = self.done == config.updates
                if is_main and (is_last or self.done % config.validate_every == 0):
                    row |= self.validate()
                    if row["validation_perplexity"] > limit:
                        row["stopped"] = limit
                self.is_stopped = bool(config.stop_above) and self._any_process("stopped" in row)
                if is_main and config.snapshot_every and self.done % config.snapshot_every == 0:
                    self._keep_snapshot()
                if is_main:
                    with open(self.folder / "metrics.jsonl", "a") as file:
                        file.write(json.dumps(row) + "\n")
                for log in trackers:
                    log(row, self.done)
                if is_main and (is_last or self.is_stopped or self.done % config.checkpoint_every == 0):
                    save_state(self.folder / "state", self.state, self.done)
                progress.step(f"loss {row['loss']:.3f}")
        if is_main and self.is_stopped:
            row = read_metrics(self.folder)[-1]
            print(
                f"stopped after update {self.done}: validation perplexity {row['validation_perplexity']:.2f} is above "
                f"{row['stopped']:.2f}, that of the start and {config.stop_above:.0%} more; this checkpoint is kept",
                file=sys.stderr,
            )

    def _start(self) -> float:
        """The validation perplexity of the start, measured once."""
        file = self.folder / "start.json"
        if not file.exists():
            _write_json(file, self.validate())
        start: float = json.loads(file.read_text())["validation_perplexity"]
        return start

    def _any_process(self, flag: bool) -> bool:
        return bool(self.accelerator.reduce(torch.tensor(float(flag), device=self.accelerator.device), "sum") > 0)

    def _keep_snapshot(self) -> None:
        self.model.save(self.folder / "snapshots" / f"update-{self.done:08d}", dtype=torch.float16)
        self.learner.train()

    def update(self, update: int) -> dict[str, float]:
        """One update of the weights; what metrics.jsonl says of it."""
        config, accelerator = self.config, self.accelerator
        rank, world = accelerator.process_index, accelerator.num_processes
        rows = self.order.batch(update)
        x = torch.from_numpy(self.text.rows[rows].astype(np.int64)).to(accelerator.device)
        if isinstance(self.objective, SelfDistillation) and self.objective.is_round_start(update):
            assert self.teacher is not None
            student = self.averaged if config.sdtt.next_teacher == EMA else self.denoiser
            self.teacher.load_state_dict(student.state_dict())
        noise = self.objective.draw(self.denoiser, x, rng=generator(config.seed, update), update=update)
        torch.manual_seed(generator(config.seed, update, rank, 2).initial_seed())  # dropout
        lr = config.optim.learning_rate(update, config.updates)
        set_learning_rate(self.optimiser, lr)
        self.learner.train()
        self.optimiser.zero_grad()
        parts = _parts(len(x), rank, world, config.micro_batch_size)
        loss, residual = torch.zeros((), device=x.device), 0.0
        terms: dict[str, Tensor] = {}
        for index, part in enumerate(parts):
            sync = accelerator.no_sync if index + 1 < len(parts) else _nothing
            with sync(self.learner), accelerator.autocast():
                losses = self.learner(x[part], noise.rows(part))
                accelerator.backward(losses.total * world)  # processes are averaged, and these are parts of a sum
            loss = loss + losses.total.detach()
            terms = {name: value + terms.get(name, 0) for name, value in losses.terms.items()}
            residual += float(losses.residual.mean()) / len(parts)
        total = float(accelerator.reduce(loss, "sum"))
        if not total < self._bad_loss:  # nan too
            raise FloatingPointError(
                f"the loss is {total} at update {update + 1}: lower --optim.lr (now {config.optim.lr}) or --optim.clip "
                f"(now {config.optim.clip}); the last checkpoint, after update {_last(self.folder)}, is as it was"
            )
        norm = float(accelerator.clip_grad_norm_(self.denoiser.parameters(), config.optim.clip))
        self.optimiser.step()
        self.ema.update_parameters(self.denoiser)
        summed = {name: float(accelerator.reduce(value, "sum")) for name, value in terms.items()}
        return {"loss": total, **summed, "lr": lr, "grad_norm": norm, "residual": residual}

    @property
    def _bad_loss(self) -> float:
        """Far above what knowing nothing costs; of sums over symbols nobody knows what that is."""
        is_in_nats = not self.config.sdtt.rounds or self.config.sdtt.divergence.startswith("kl")
        return BAD_LOSS * math.log(self.network.vocab_size) if is_in_nats else math.inf

    def validate(self) -> dict[str, float]:
        """Validation perplexity of the moving average, with its error."""
        x = held_out_sequences(self.text, self.config.validation_sequences)
        found = perplexity(
            self.averaged, x.to(self.accelerator.device), num_iters=self.config.validation_iters, pad_id=self.pad_id
        )
        return {"validation_perplexity": found.value, "validation_error": found.error}

    @property
    def model(self) -> Model:
        """What the run has made: the moving average of the weights."""
        tokenizer = self.text.tokenizer.to_str(pretty=True)
        return Model(denoiser=self.averaged.eval(), config=self.network, tokenizer=tokenizer)


def _parts(num: int, rank: int, world: int, micro: int) -> list[slice]:
    """The rows of this process, in passes of `micro` sequences."""
    if num % world:
        raise ValueError(
            f"a batch of {num} sequences cannot be shared by {world} processes; take a multiple of {world}"
        )
    share = num // world
    micro = micro or share
    first = rank * share
    return [slice(start, min(start + micro, first + share)) for start in range(first, first + share, micro)]


def _check_same(folder: Path, config: Training) -> None:
    """A ValueError if a run with other settings is there."""
    file = folder / CONFIG
    if not file.exists():
        return
    settings = flat(asdict(config))
    before = flat(asdict(Training())) | json.loads(file.read_text())  # a setting that is newer than the run was so
    may_change = MAY_CHANGE
    if config.sdtt.rounds:
        may_change = may_change - {"updates"}  # rounds are shares of the run
    if config.stop_above:
        may_change = may_change - {"validation_sequences", "validation_iters"}  # the limit was measured with them
    for key in sorted(set(before) | set(settings)):
        if json.dumps(before.get(key)) != json.dumps(settings.get(key)) and key not in may_change:
            raise ValueError(
                f"{folder} holds a run with {key} {before.get(key)!r}, not {settings.get(key)!r}; "
                f"give the same settings to continue it, or another --out"
            )


def _write_json(file: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    scratch.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(scratch, file)


def _keep_metrics(file: Path, done: int) -> None:
    """Drop the rows after update `done`, and a last row that a kill cut off."""
    if not file.exists():
        return
    kept = []
    for line in file.read_text().splitlines():
        try:
            if json.loads(line)["update"] <= done:
                kept.append(line + "\n")
        except (ValueError, KeyError):
            break
    scratch = file.with_name(f".metrics.{os.getpid()}")
    scratch.write_text("".join(kept))
    os.replace(scratch, file)


def _is_written(folder: Path) -> bool:
    """Whether the model folder is there, to its last file, and younger than the last state."""
    newest, last = newest_state(folder / "state"), folder / "model" / CURVES
    return newest is not None and last.exists() and last.stat().st_mtime >= newest.stat().st_mtime


def _last(folder: Path) -> int:
    newest = newest_state(folder / "state")
    return int(newest.name.split("-")[1]) if newest else 0


@contextmanager
def _nothing(model: nn.Module) -> Iterator[None]:
    yield
