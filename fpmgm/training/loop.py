"""The training loop. Update u of a run depends on the seed and u alone, so a resumed run repeats an unbroken one."""

import copy
import json
import math
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.distributed.fsdp import fully_shard

from fpmgm.backbones import NetworkConfig
from fpmgm.backbones.network import Learned
from fpmgm.checkpoint import Model, load
from fpmgm.data import Dataset
from fpmgm.evaluation.evaluator import evaluator_of
from fpmgm.files import append_line, flush
from fpmgm.objectives import Moment, Objective
from fpmgm.progress import Progress
from fpmgm.randomness import generator
from fpmgm.training.card import NUM_SAMPLES, command_of, flat, write_model
from fpmgm.training.companion import companion_of
from fpmgm.training.config import FSDP, Training
from fpmgm.training.folder import (
    MODEL,
    SNAPSHOTS,
    STATE,
    any_process,
    check_same,
    check_trained,
    extensions,
    held,
    is_written,
    keep_settings,
    settings_before,
    why_stopped,
)
from fpmgm.training.interrupts import Interrupts, agreed, leave
from fpmgm.training.learner import Learner, network_blocks
from fpmgm.training.metrics import METRICS, Row, is_row, keep_metrics, read_metrics, read_start, write_start
from fpmgm.training.optim import moving_average, optimiser_of, set_learning_rate
from fpmgm.training.order import Order, parts_of
from fpmgm.training.sharding import accelerator_for, check_sharding, cut, gather, whole, whole_state, without_sync
from fpmgm.training.start import (
    check_named_models,
    first_weights,
    load_data,
    model_beside,
    named_teacher,
    sampled_as,
    seen_before,
)
from fpmgm.training.state import (
    TrainState,
    last_update,
    load_newest,
    remove_states_before,
    save_state,
    take_over,
)
from fpmgm.training.trackers import start_tracking
from fpmgm.training.watch import Watched

EMA, START = "ema", "start"
"""Teachers that a run makes of itself."""
BAD_LOSS = 100
"""How many times the loss of a guess, log V, is taken for a run that has gone bad."""


def train(
    config: Training,
    name: str,
    recipe: Training | None = None,
    *,
    is_over: Callable[[float], bool] | None = None,
    card_samples: int = NUM_SAMPLES,
) -> Path:
    """Run a training to its end, from where it was left if its folder is there; returns the model folder.

    `recipe` is what the run is a variant of: the model card gives the command that leads from one to the other. If
    `is_over`, asked after each update with its seconds, says so, that update is the last, with its validation, state
    and model; started again, the run goes on from there. The card shows `card_samples` samples.

    While updates are made, Ctrl-C and SIGTERM let the update at hand end, write a checkpoint, say how to go on, and
    raise SystemExit with code 130 or 143; a second Ctrl-C ends at once. The handlers that were there before are put
    back afterwards. The folder is held by a lock meanwhile: a ValueError says who else holds it.
    """
    folder = Path(config.out or f"runs/{name}")
    accelerator = accelerator_for(config)
    check_sharding(config, accelerator.num_processes)
    with held(folder, accelerator):
        check_named_models(config)
        before = settings_before(folder)
        if before is not None:
            check_same(folder, before, config)
        check_trained(folder)
        data = load_data(config.data, model_beside(config))  # by one process; others wait outside any collective
        accelerator.wait_for_everyone()
        run = Run(config, folder, accelerator, data)  # what does not fit is refused, with nothing written
        run.resume()
        if accelerator.is_main_process:
            if warning := seen_before(config):
                print(warning, file=sys.stderr)
            run.settings = keep_settings(folder, before, config, run.done, is_stopped=run.is_stopped)
        run.is_over = is_over
        run.go()
        if run.signal:
            command = command_of(config, recipe or config, name)
            leave(run.signal, f"after update {run.done} of {config.updates}", command, accelerator.is_main_process)
        run.gather()
        if accelerator.is_main_process and not is_written(folder):
            told = (name, run.last_row(), extensions(run.settings), card_samples)
            write_model(folder, run.best_model, data, config, recipe or config, *told)
        accelerator.wait_for_everyone()
    return folder / MODEL


class Run:
    """A training run under way."""

    def __init__(self, config: Training, folder: Path, accelerator: Accelerator, data: Dataset) -> None:
        self.config, self.folder, self.accelerator, self.data = config, folder, accelerator, data
        self.network: NetworkConfig = config.model.fit(data.vocabulary)
        self.objective: Objective = config.objective
        self.evaluator = evaluator_of(self.network, data.codec, objective=config.objective)
        denoiser = first_weights(config, self.network, data).to(accelerator.device)
        self.denoiser = denoiser
        self.ema = moving_average(denoiser, config.optim.ema)
        self.averaged: Learned = self.ema.module  # type: ignore[assignment]
        """What is validated, sampled and saved; in a sharded run those who need it have it whole, after `gather`."""
        optimiser: torch.optim.Optimizer = optimiser_of(denoiser, config.optim)
        self._take_over(optimiser)
        if config.sharding == FSDP and (accelerator.is_main_process or self.objective.teacher_source == EMA):
            self.averaged = copy.deepcopy(denoiser)
        self.teacher = self._teacher()
        self.companion = companion_of(config, self.network, data, self.teacher, accelerator.device)
        learner = Learner(denoiser, self.objective, self.teacher, self.companion)
        if config.compile:  # block by block: a whole pass would be compiled anew for every number of iterations
            for block in network_blocks(denoiser):
                block.compile()
        if config.sharding == FSDP:
            optimiser = self._shard(learner)
            self.learner, self.optimiser = learner, accelerator.prepare(optimiser)
        else:
            self.learner, self.optimiser = accelerator.prepare(learner, optimiser)
        beside = None
        if self.companion is not None:
            self.companion.optimiser = accelerator.prepare(self.companion.optimiser)
            beside = self.companion.state
        changing = self.teacher if self.objective.teacher_source == START else None
        self.state = TrainState(model=denoiser, ema=self.ema, optimiser=optimiser, teacher=changing, companion=beside)
        self.order = Order(data.train, config.batch_size, config.seed)
        self.done, self.is_stopped, self.is_late, self.signal = 0, False, False, 0
        self.is_over: Callable[[float], bool] | None = None
        self.watched, self.generation = Watched(config.watch, folder), sampled_as(config)
        self.row: Row = {}
        """The metrics of the last update."""
        self.settings: dict[str, Any] = {}
        """What config.json says."""

    def _teacher(self) -> Learned | None:
        """Who else has a say: the moving average, a frozen model, the start of this one, or nobody."""
        source = self.objective.teacher_source
        if source == START:
            return copy.deepcopy(self.denoiser).eval().requires_grad_(False)
        if source == EMA:
            return self.averaged
        teacher = named_teacher(self.config, self.network, self.data)
        return teacher.to(self.accelerator.device) if teacher else None

    def _shard(self, learner: Learner) -> torch.optim.Optimizer:
        """Cut the weights and their averages; returns the optimiser of the shards."""
        fully_shard(learner)
        cut(self.ema.module, self.denoiser)
        if self.companion is not None:
            self.companion.shard()
        optimiser = optimiser_of(self.denoiser, self.config.optim)
        self._take_over(optimiser)
        return optimiser

    def _take_over(self, optimiser: torch.optim.Optimizer) -> None:
        """What the run that this one continues has left, if there is one."""
        if before := self.config.continue_from:
            take_over(Path(before), TrainState(model=self.denoiser, ema=self.ema, optimiser=optimiser))

    def gather(self) -> None:
        """Put the average of a sharded run together in the processes that need it; all call this at once."""
        if self.config.sharding == FSDP:
            gather(self.ema.module, None if self.averaged is self.ema.module else self.averaged)

    def resume(self) -> None:
        """Take over the last whole state of the folder, and drop the metrics that came after it."""
        is_main = self.accelerator.is_main_process
        about = load_newest(self.folder / STATE, self.state, is_told=is_main) or {}
        self.done = about.get("update", 0)
        known: Any = about.get("row")
        known = known if is_row(known) and known["update"] == self.done else None
        if is_main and (missing := keep_metrics(self.folder, self.done, known)):
            print(missing, file=sys.stderr)
        self.accelerator.wait_for_everyone()
        rows = {row["update"]: row for row in read_metrics(self.folder)}
        self.row = known or rows.get(self.done, {})
        if is_main:
            remove_states_before(self.folder / STATE, self.done)
            self.watched.keep(self.done)
        self.is_stopped = "stopped" in self.row
        self.is_late = self.watched.is_over()

    def go(self) -> None:
        """Update until done or over, with metrics, validation and checkpoints; `signal` says what ended it before."""
        config, is_main = self.config, self.accelerator.is_main_process
        trackers = start_tracking(config.trackers, self.folder, flat(asdict(config)), self.done) if is_main else []
        self.gather()
        limit = self._limit() if is_main and config.stop_above else None
        if is_main and config.snapshot_every and self.done == 0:
            self._keep_snapshot()
            self._start()
        if is_main and self.done == 0 and self.watched.is_due(0):
            self._keep_snapshot()
            self.watched.measure(self.model, 0)
        with Progress("update", config.updates, self.done, is_shown=is_main) as progress, Interrupts() as interrupts:
            while self.done < config.updates and not self.is_stopped and not self.is_late and not self.signal:
                self._next(limit)
                for log in trackers:
                    log(self.row, self.done)
                self.signal = agreed(self.accelerator, interrupts.signal)
                is_due = self.done == config.updates or self.done % config.checkpoint_every == 0
                if is_due or self.is_stopped or self.is_late or self.signal:
                    self._checkpoint()
                progress.step(f"loss {self.row['loss']:.3f}")
        if is_main and self.is_stopped:
            print(why_stopped(self.row, self.evaluator.validated.title, config.stop_above), file=sys.stderr)

    def _next(self, limit: float | None) -> None:
        """The next update with its row of metrics, validation and snapshot if they are due."""
        config, is_main = self.config, self.accelerator.is_main_process
        start = time.perf_counter()
        row = self.update(self.done)
        self.done += 1
        row = {"update": self.done, **row, "seconds": time.perf_counter() - start}
        self.is_late = self.is_over is not None and any_process(self.accelerator, self.is_over(row["seconds"]))
        is_measured = self.is_late or self.done == config.updates or self.done % config.validate_every == 0
        is_watched = self.watched.is_due(self.done)
        is_kept = is_watched or bool(config.snapshot_every and self.done % config.snapshot_every == 0)
        if is_measured or is_kept:
            self.gather()
        if is_main and is_measured:
            row |= self.validate()
            if limit is not None and self.evaluator.validated.is_worse(row["validation"], limit):
                row["stopped"] = limit
        self.is_stopped = bool(config.stop_above) and any_process(self.accelerator, "stopped" in row)
        if is_main and is_kept:
            self._keep_snapshot()
        if is_main and is_watched:
            row["frontier"] = self.watched.measure(self.model, self.done)
        if is_watched:
            self.accelerator.wait_for_everyone()
            self.is_late = self.is_late or self.watched.is_over()
        if is_main:
            append_line(self.folder / METRICS, json.dumps(row))
        self.row = row

    def _checkpoint(self) -> None:
        """Make the metrics durable, then the state, which knows its own row and the settings too."""
        is_main = self.accelerator.is_main_process
        if is_main:
            flush(self.folder / METRICS)
            flush(self.folder)
        if is_main or self.config.sharding == FSDP:
            about = {"row": self.row, "settings": self.settings}
            save_state(self.folder / STATE, self.state, self.done, is_main=is_main, **about)

    def last_row(self) -> Row:
        """The metrics of the update whose model is kept, the last one as a rule, with its validation."""
        best = self.watched.best()
        if best and best != self.done:
            rows = {row["update"]: row for row in read_metrics(self.folder)}
            return {**rows.get(best, self.row), **self._validated(self.best_model.denoiser)}
        lost = {} if "validation" in self.row else {"update": self.done, **self.validate()}
        return {**self.row, **lost}

    def _limit(self) -> float:
        """The validation beyond which the stopping rule ends the run."""
        is_low = self.evaluator.validated.best == "lowest"
        return self._start() * (1 + self.config.stop_above if is_low else 1 - self.config.stop_above)

    def _start(self) -> float:
        """The validation of the start, measured once, or again from the same weights if it was lost."""
        try:
            found = read_start(self.folder)
        except ValueError as error:
            print(f"{error}; it is measured again", file=sys.stderr)
            found = None
        if found is None:
            first = None if self.done == 0 else first_weights(self.config, self.network, self.data)
            measured = self.validate() if first is None else self._validated(first.to(self.accelerator.device))
            write_start(self.folder, measured)
            found = measured["validation"]
        return found

    def _keep_snapshot(self) -> None:
        self.model.save(self.folder / SNAPSHOTS / f"update-{self.done:08d}", dtype=torch.float16, overwrite=True)
        self.learner.train()

    def update(self, update: int) -> dict[str, float]:
        """One update of the weights; what metrics.jsonl says of it."""
        config, accelerator = self.config, self.accelerator
        rank, world = accelerator.process_index, accelerator.num_processes
        moment = Moment(update=update, updates=config.updates)
        batch = self.data.batch(self.order.batch(update))
        if following := self.objective.next_teacher_at(moment):
            assert self.teacher is not None
            self.teacher.load_state_dict(whole_state(self.ema.module if following == EMA else self.denoiser))
        if self.objective.teacher_source == EMA:
            self.gather()
        noise = self.objective.draw(self.denoiser, batch, rng=generator(config.seed, update), moment=moment)
        torch.manual_seed(generator(config.seed, update, rank, 2).initial_seed())  # dropout
        lr = config.optim.learning_rate(update, config.updates, is_warm=bool(config.continue_from))
        set_learning_rate(self.optimiser, lr)
        self.learner.train()
        self.optimiser.zero_grad()
        if self.companion is not None:
            self.companion.begin(lr)
        parts = parts_of(len(batch.x), rank, world, config.micro_batch_size)
        loss, residual = torch.zeros((), device=accelerator.device), 0.0
        terms: dict[str, Tensor] = {}
        for index, part in enumerate(parts):
            sync = without_sync(accelerator, self.learner) if index + 1 < len(parts) else nullcontext()
            with sync, accelerator.autocast():
                losses = self.learner(batch.x[part].to(accelerator.device), noise.rows(part))
                accelerator.backward(losses.total * world)  # processes are averaged, and these are parts of a sum
            loss = loss + losses.total.detach()
            terms = {name: value + terms.get(name, 0) for name, value in losses.terms.items()}
            residual += float(losses.residual.mean()) / len(parts)
        total = float(accelerator.reduce(loss, "sum"))
        norm = float(whole(accelerator.clip_grad_norm_(self.denoiser.parameters(), config.optim.clip)))
        if self.companion is not None:
            norm += float(whole(accelerator.clip_grad_norm_(self.companion.parameters(), config.optim.clip)))
        if not (total < self._bad_loss and math.isfinite(norm)):  # nan too; the weights have not been touched
            self.optimiser.zero_grad()
            raise FloatingPointError(
                f"the loss is {total}, the norm of its gradient {norm} at update {update + 1}: lower --optim.lr (now "
                f"{config.optim.lr}) or --optim.clip (now {config.optim.clip}); the last checkpoint, after update "
                f"{last_update(self.folder / STATE)}, is as it was"
            )
        self._step(is_learning=getattr(noise, "is_learning", True))
        summed = {name: float(accelerator.reduce(value, "sum")) for name, value in terms.items()}
        residual = float(accelerator.reduce(torch.tensor(residual, device=accelerator.device), "mean"))
        return {"loss": total, **summed, "lr": lr, "grad_norm": norm, "residual": residual}

    def _step(self, *, is_learning: bool) -> None:
        """Move the weights and their average; those of a companion too, which may learn more often."""
        if is_learning:
            self.optimiser.step()
            self.ema.update_parameters(self.denoiser)
        if self.companion is not None:
            self.companion.optimiser.step()
            self.companion.average()

    @property
    def _bad_loss(self) -> float:
        """Far above what knowing nothing costs, in nats; of other losses nobody knows what that is."""
        return BAD_LOSS * math.log(self.network.vocabulary.size) if self.objective.is_in_nats else math.inf

    def validate(self) -> dict[str, float]:
        """How well the moving average knows held-out data, with the error of that."""
        return self._validated(self.averaged)

    def _validated(self, denoiser: Learned) -> dict[str, float]:
        batch = self.data.measured(self.config.validation_sequences).to(self.accelerator.device)
        found = self.evaluator.validate(denoiser, batch, num_iters=self.config.validation_iters)
        return {"validation": found.value, "validation_error": found.error}

    @cached_property
    def best_model(self) -> Model:
        """What the run gives: the model with the best frontier, if it was watched, else that of the last update."""
        best = self.watched.best()
        if best is None or best == self.done:
            return self.model
        kept = load(self.folder / SNAPSHOTS / f"update-{best:08d}", device="cpu")
        print(f"the frontier was best after update {best}; that model is kept", file=sys.stderr)
        return replace(self.model, denoiser=kept.denoiser.to(self.accelerator.device))

    @property
    def model(self) -> Model:
        """What the run has made: the moving average of the weights, and what it was made of."""
        data = self.config.data.placed(self.data.content)
        parts: dict[str, Any] = {"config": self.network, "codec": self.data.codec, "generation": self.generation}
        return Model(denoiser=self.averaged.eval(), data=data, **parts)
