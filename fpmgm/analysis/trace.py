"""Sampling runs as analyses see them: tokens are drawn as ever, and every solve is followed on to its fixed point."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fpmgm.budget import plan
from fpmgm.checkpoint import Model
from fpmgm.generation import Sampling, check_guided, rules_of, with_saved_settings
from fpmgm.progress import StepProgress
from fpmgm.randomness import Streams
from fpmgm.sampling import Step, even_times, sample
from fpmgm.solvers import Solution, Solver
from fpmgm.types import Counts, Hidden, Labels, Map, Tokens

Residuals = Float[Tensor, "R N"]
Kinds = Int[Tensor, "B L"]
Before = Float[Tensor, "Q S D"]  # hidden states of the pass before, which may have had fewer or more halves

KINDS = ("unchanged visible", "still masked", "newly revealed", "remasked", "replaced")
"""What can happen to a position from one denoising step to the next. The last two only occur with remasking."""
VISIBLE, MASKED, REVEALED, REMASKED, REPLACED = range(len(KINDS))


def transition_kinds(z_last: Tokens, z: Tokens, *, mask_id: int) -> Kinds:
    """What happened to each position, as an index of `KINDS`.

    >>> transition_kinds(torch.tensor([[1, 9, 9, 2, 3]]), torch.tensor([[1, 9, 4, 9, 5]]), mask_id=9).tolist()
    [[0, 1, 2, 3, 4]]
    """
    was_masked, is_masked, is_same = z_last == mask_id, z == mask_id, z_last == z
    changed = torch.where(was_masked, REVEALED, torch.where(is_masked, REMASKED, REPLACED))
    return torch.where(is_same, torch.where(is_masked, MASKED, VISIBLE), changed)


@dataclass(frozen=True, kw_only=True)
class Solve:
    """One solve: as far as the sampler goes, and on from there to the fixed point.

    In a guided step, its sequences are those of the doubled batch.
    """

    cond: Any  # what the blocks need besides h
    path: tuple[Hidden, ...]  # after 0, 1, ... iterations, up to those that the sampler asked for
    residuals: Residuals  # |f(h) - h| / |h| after 0, 1, ... iterations, by sequence
    stops: Counts  # the iterations that the sampler got, by sequence
    h_star: Hidden  # after `depth` iterations


class Following:
    """Picard's solver, which goes on after it has what it was asked for, until `depth` iterations are done.

    The sampler gets what `picard` would give it, at the same tolerance. The whole solve is kept in `last`.
    """

    def __init__(self, depth: int, tolerance: float | None = None) -> None:
        self.depth, self.tolerance = depth, tolerance
        self.last: Solve | None = None

    def __call__(self, f: Map, h: Hidden, num_iters: int) -> Solution:
        path, residuals = [h], []
        for n in range(max(self.depth, num_iters)):
            image = f(h)
            residuals.append(_size(image - h) / _size(h).clamp_min(torch.finfo(h.dtype).tiny))
            h = image
            if n < num_iters:
                path.append(h)
        found = torch.stack(residuals, dim=1)
        stops = stops_at(found, num_iters, self.tolerance)
        rows = torch.arange(len(h), device=h.device)
        self.last = Solve(cond=getattr(f, "cond", None), path=tuple(path), residuals=found, stops=stops, h_star=h)
        return Solution(h=torch.stack(path)[stops, rows], residual=found[rows, stops - 1], num_iters=stops)


def stops_at(residuals: Residuals, num_iters: int, tolerance: float | None) -> Counts:
    """The iterations that a solver spends which stops after the first whose residual is at most the tolerance.

    >>> stops_at(torch.tensor([[0.9, 0.2, 0.1], [0.1, 0.1, 0.1], [0.9, 0.9, 0.9]]), 3, 0.2).tolist()
    [2, 1, 3]
    """
    if tolerance is None:
        return torch.full((len(residuals),), num_iters, device=residuals.device)
    is_met = residuals[:, :num_iters] <= tolerance
    return torch.where(is_met.any(dim=1), is_met.int().argmax(dim=1) + 1, num_iters)


def _size(h: Hidden) -> Float[Tensor, " R"]:
    return torch.linalg.vector_norm(h, dim=(1, 2))


Look = Callable[[Step, Labels | None], None]
"""Called after each denoising step, with the classes of the sequences."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """A model, how it is sampled, with nothing left open, and how often."""

    model: Model
    sampling: Sampling
    iterations: tuple[int, ...]
    num_samples: int

    @classmethod
    def of(cls, model: Model, sampling: Sampling, num_samples: int) -> "Course":
        """The steps and iterations that a budget buys."""
        sampling = with_saved_settings(model.generation, sampling, model.speech.grid)
        check_guided(sampling, model.config.vocabulary.num_classes)
        bought = plan(sampling.budget, model.denoiser.cost, num_steps=sampling.steps, allocation=sampling.allocation)
        return cls(model=model, sampling=sampling, iterations=bought.iterations, num_samples=num_samples)

    def with_steps(self, num_steps: int, num_iters: int) -> "Course":
        """The same in so many steps, each of so many iterations."""
        iterations = (num_iters if self.model.denoiser.cost.fp else 0,) * num_steps
        return replace(self, iterations=iterations)

    def reusing(self, reuse: Any, **settings: Any) -> "Course":
        """The same with another reuse, and other settings of sampling."""
        return replace(self, sampling=replace(self.sampling, reuse=reuse, **settings))

    def check_depth(self, depth: int) -> None:
        """A ValueError if solves that are followed so far would not go beyond what the sampler runs."""
        most = max(self.iterations)
        if depth <= most:
            raise ValueError(f"depth is {depth}, and the sampler runs up to {most} iterations; give more than that")

    @property
    def times(self) -> tuple[float, ...]:
        """The time of each step, as the model is told it."""
        return even_times(len(self.iterations))[:-1]

    def run(self, look: Look, *, what: str, solver: Solver | None = None) -> Tokens:
        """Sample, with another solver if one is given; all samples in their order."""
        asked = self.model.starts({}, self.num_samples)
        rules = rules_of(self.sampling, self.model.denoiser.cost)
        if solver is not None:
            rules["solver"] = solver
        size, done = self.sampling.batch_size, []
        with StepProgress(what, math.ceil(self.num_samples / size)) as shown:
            for first in range(0, self.num_samples, size):
                batch = range(first, min(first + size, self.num_samples))
                labels = None if asked.labels is None else self._tensor([asked.labels[index] for index in batch])

                def on_step(step: Step, label: Labels | None = labels) -> None:
                    look(step, label)
                    shown(step)

                sampled = sample(
                    self.model.denoiser,
                    self._tensor([asked.tokens[index] for index in batch]),
                    label=labels,
                    times=even_times(len(self.iterations)),
                    iterations=self.iterations,
                    rng=Streams.of(self.sampling.seed, batch),
                    on_step=on_step,
                    **rules,
                )
                done.append(sampled.z)
        return torch.cat(done)

    def _tensor(self, values: list[Any]) -> Tensor:
        return torch.tensor(values, device=self.model.device)
