"""What a page keeps of a run: one frame for each step, with all that is drawn of it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import count
from typing import Any

import torch

from fpmgm.budget import plan
from fpmgm.demo.offers import Offer
from fpmgm.demo.steps import Steps
from fpmgm.draws import probability
from fpmgm.evaluation.sweep import MultiplyAdds
from fpmgm.generation import Sampling, with_saved_settings
from fpmgm.sampling import Step

Rows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Written:
    """When a token was written, and how probable it was then."""

    step: int
    probability: float


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A run after one of its steps. Step 0 is the start, before the first step."""

    step: int
    t: float
    before: Rows
    tokens: Rows
    written: tuple[tuple[Written | None, ...], ...]
    """For each token of each sequence; None where it is given or masked."""
    residual: float = 0.0
    """The mean relative residual of the solver; 0 for a plain stack."""
    iterations: float = 0.0
    """Solver iterations of this step; the mean over sequences."""
    block_evals: int = 0
    """Block evaluations of a sequence up to this step."""
    multiply_adds: float = 0.0
    """The same in multiply-adds; the mean over sequences."""
    seconds: float = 0.0


@dataclass(kw_only=True, eq=False)
class Recording:
    """The frames of one side of a page, and what it was asked for. It grows while the run goes on."""

    name: str
    budget: int
    num_steps: int
    """Steps that the whole run has."""
    has_solver: bool
    frames: list[Frame] = field(default_factory=list)
    labels: list[int] | None = None
    """The class of each image."""

    @property
    def done(self) -> int:
        """Steps that are done."""
        return max(0, len(self.frames) - 1)

    @property
    def share(self) -> float:
        """How far the run is, from 0 to 1."""
        return self.done / self.num_steps

    def at(self, share: float) -> Frame:
        """The frame that is that far into the steps that were done."""
        return self.frames[round(share * self.done)]


def begun(offer: Offer, settings: dict[str, Any]) -> tuple[Recording, Steps]:
    """A run that has not computed anything yet; a ValueError if it cannot be done as it is asked for."""
    model, own = offer.model, {each.name for each in fields(Sampling)}
    request = {name: value for name, value in settings.items() if name in model.speech.request_names}
    starts = model.starts(request, settings.get("num_samples", 1))
    asked = Sampling(**{name: value for name, value in settings.items() if name in own})
    asked = with_saved_settings(model.generation, asked, model.speech.grid)
    spending = plan(asked.budget, model.denoiser.cost, num_steps=asked.steps, allocation=asked.allocation)
    recording = Recording(
        name=offer.name,
        budget=asked.budget,
        num_steps=spending.num_steps,
        has_solver=model.denoiser.cost.fp > 0,
        labels=starts.labels,
    )
    return recording, Steps(model, **settings)


def record(recording: Recording, steps: Steps, first: int | None = None) -> Iterator[Frame]:
    """Add a frame to the recording for each step of a run, as the steps come. `first` limits the sequences kept."""
    spent, cost = MultiplyAdds(steps.model), steps.model.denoiser.cost
    for number, step in zip(count(1), steps, strict=False):
        spent(step)
        if not recording.frames:
            recording.frames.append(_start(step, first))
        last = recording.frames[-1]
        num_iters = step.solution.num_iters.view(-1, len(step.z)).amax(dim=0)  # of the longer half of a guided step
        recording.frames.append(
            Frame(
                step=number,
                t=step.t_next,
                before=last.tokens,
                tokens=_rows(step.z_next, first),
                written=_written(step, last.written, number),
                residual=float(step.solution.residual.mean()),
                iterations=float(num_iters.double().mean()),
                block_evals=last.block_evals + cost.step(int(num_iters.max())),
                multiply_adds=spent.total / len(step.z),
                seconds=steps.seconds,
            )
        )
        yield recording.frames[-1]


def _start(step: Step, first: int | None) -> Frame:
    rows = _rows(step.z, first)
    return Frame(step=0, t=step.t, before=rows, tokens=rows, written=tuple((None,) * len(row) for row in rows))


def _rows(z: torch.Tensor, first: int | None) -> Rows:
    return tuple(tuple(row) for row in z[:first].tolist())


def _written(
    step: Step, last: Sequence[Sequence[Written | None]], number: int
) -> tuple[tuple[Written | None, ...], ...]:
    """What is known of each token after a step: that of before, but for tokens that the step wrote or masked."""
    chances = drawn_probabilities(step)[: len(last)]
    is_new = (step.z != step.z_next)[: len(last)]
    found = []
    for kept, row, new in zip(last, chances.tolist(), is_new.tolist(), strict=True):
        found.append(
            tuple(
                (Written(step=number, probability=chance) if chance >= 0 else None) if changed else old
                for old, chance, changed in zip(kept, row, new, strict=True)
            )
        )
    return tuple(found)


def drawn_probabilities(step: Step) -> torch.Tensor:
    """The probability that the model gave each token that a step wrote, before temperature and top-p; -1 elsewhere."""
    num_places = len(step.logits)
    flat = step.places.flat[:num_places].to(step.logits.device)  # of the first half of a guided step
    tokens = step.z_next.to(step.logits.device).flatten()[flat]
    is_masked = step.logits.gather(1, tokens[:, None])[:, 0].isneginf()  # the mask itself is never drawn
    chances = probability(step.logits, tokens).masked_fill(is_masked, -1.0)
    found = torch.full((step.z.numel(),), -1.0, dtype=chances.dtype, device=chances.device)
    return found.index_copy(0, flat, chances).view(step.z.shape).cpu()


def together(runs: Sequence[tuple[Recording, Iterator[Frame]]], is_stopped: Callable[[], bool]) -> Iterator[Recording]:
    """Advance several runs by turns, always the one that has done the smallest share; stop between two steps if told.

    Yields the recording that has just grown.
    """
    open_runs = list(runs)
    while open_runs and not is_stopped():
        recording, frames = min(open_runs, key=lambda run: run[0].share)
        if next(frames, None) is None:
            open_runs.remove((recording, frames))
        else:
            yield recording
