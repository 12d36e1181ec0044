"""What the solver does along a sampling run: residuals, how far it starts from the solution, how the solution moves."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from fpmgm.analysis.trace import KINDS, Before, Course, Following, Kinds, transition_kinds
from fpmgm.sampling import Passed, Step
from fpmgm.solvers import picard
from fpmgm.types import Labels, Tokens

REUSES = ("none", "full", "three-state")
TOLERANCES = (0.3, 0.1, 0.05, 0.02)

Curve = tuple[float, ...]
"""A number of every denoising step."""
Gaps = tuple[float | None, ...]
"""The same, None where there was nothing to measure."""


@dataclass(frozen=True, kw_only=True)
class Residuals:
    """|f(h) - h| / |h|, the mean over sequences."""

    reuses: tuple[str, ...]
    times: Curve
    iterations: tuple[int, ...]
    """Of the sampler, by step. What comes after them is measured and not used."""
    residuals: tuple[tuple[Curve, ...], ...]
    """By reuse, step and iteration, from 0 on: before the first, after the first, and so on."""

    def by_iteration(self, reuse: int, *, skip: int = 0) -> list[float]:
        """The mean over steps, without the first `skip`, after 0, 1, ... iterations."""
        return torch.tensor(self.residuals[reuse][skip:], dtype=torch.float64).mean(dim=0).tolist()

    def first(self, reuse: int) -> list[float]:
        """Of each step, where the solver starts."""
        return [step[0] for step in self.residuals[reuse]]

    def last(self, reuse: int) -> list[float]:
        """Of each step, where the sampler stops."""
        stops = (min(num, len(self.residuals[reuse][0]) - 1) for num in self.iterations)
        return [step[stop] for step, stop in zip(self.residuals[reuse], stops, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Movement:
    """How far the solution of a position moves from one step to the next, without reuse, by what happens to it."""

    kinds: tuple[str, ...]
    times: Curve
    """Of the later of the two steps; the first step has nothing before it."""
    moved: tuple[Gaps, ...]
    """The mean Euclidean distance, by kind and step."""
    norms: tuple[Gaps, ...]
    """The mean norm of the later solution at the same positions."""
    counts: tuple[tuple[int, ...], ...]
    """Positions, by kind and step, of all sequences."""

    def mean(self, kind: int) -> float | None:
        """The mean over all positions of a kind."""
        pairs = [(m, n) for m, n in zip(self.moved[kind], self.counts[kind], strict=True) if m is not None]
        return sum(m * n for m, n in pairs) / sum(n for _, n in pairs) if pairs else None


@dataclass(frozen=True, kw_only=True)
class Starts:
    """How far the solver starts from the solution, and how far from it the sampler stops."""

    reuses: tuple[str, ...]
    times: Curve
    start: tuple[Curve, ...]
    """|h_init - h*| / |h*|, the mean over sequences, by reuse and step."""
    stop: tuple[Curve, ...]
    """The same where the sampler stops."""
    kinds: tuple[str, ...]
    by_kind: tuple[tuple[float | None, ...], ...]
    """The mean distance |h_init - h*| of a position, by reuse and kind of transition; the first step is left out."""


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Iterations that the solver spends if it stops at a tolerance, the mean over sequences."""

    reuses: tuple[str, ...]
    tolerances: tuple[float, ...]
    times: Curve
    allotted: tuple[int, ...]
    """The most that a step may spend."""
    spent: tuple[tuple[Curve, ...], ...]
    """By reuse, tolerance and step."""

    def total(self, reuse: int, tolerance: int) -> float:
        """Of a sequence."""
        return sum(self.spent[reuse][tolerance])


class Watch:
    """Looks at each step of a run and adds up what its solve shows, in float64 on the CPU."""

    def __init__(self, following: Following, num_steps: int, mask_id: int) -> None:
        self.following, self.mask_id = following, mask_id
        self.residuals = torch.zeros(num_steps, following.depth, dtype=torch.float64)
        self.rows, self.start, self.stop = (torch.zeros(num_steps, dtype=torch.float64) for _ in range(3))
        self.moved, self.started, self.norms = (
            torch.zeros(len(KINDS), num_steps, dtype=torch.float64) for _ in range(3)
        )
        self.counts = torch.zeros(len(KINDS), num_steps, dtype=torch.long)
        self.last: tuple[Tokens, Before] | None = None

    def __call__(self, step: Step, label: Labels | None) -> None:
        solve, index = self.following.last, step.index
        assert solve is not None
        h_star = solve.h_star
        size = torch.linalg.vector_norm(h_star, dim=(1, 2))
        self.rows[index] += len(h_star)
        self.residuals[index] += solve.residuals[:, : self.following.depth].double().sum(dim=0).cpu()
        for found, h in ((self.start, solve.path[0]), (self.stop, step.solution.h)):
            found[index] += float((torch.linalg.vector_norm(h - h_star, dim=(1, 2)) / size).double().sum())
        if self.last is not None and index > 0:
            self._add_positions(index, *self.last, step.z, solve.path[0], h_star)
        self.last = step.z, h_star

    def _add_positions(
        self, index: int, z_last: Tokens, h_last: Before, z: Tokens, h_init: Passed, h_star: Passed
    ) -> None:
        """Of the halves that both steps have: with classes, and without one if both steps are guided."""
        num, length = min(len(h_last), len(h_star)), z.shape[1]
        kinds = transition_kinds(z_last, z, mask_id=self.mask_id).repeat(num // len(z), 1)
        h_last, h_init, h_star = (h[:num, :length] for h in (h_last, h_init, h_star))
        self.counts[:, index] += kinds.flatten().bincount(minlength=len(KINDS)).cpu()
        measured = ((self.moved, h_star - h_last), (self.started, h_init - h_star), (self.norms, h_star))
        for found, difference in measured:
            found[:, index] += _by_kind(kinds, torch.linalg.vector_norm(difference, dim=2))


def _by_kind(kinds: Kinds, values: Float[Tensor, "B L"]) -> Float[Tensor, " K"]:
    return kinds.flatten().bincount(values.flatten().double(), minlength=len(KINDS)).cpu()


def watched(course: Course, reuse: str, *, depth: int) -> Watch:
    """What a run with that reuse shows."""
    following = Following(depth)
    watch = Watch(following, len(course.iterations), course.model.denoiser.mask_id)
    course.reusing(reuse).run(watch, what=f"following solves, reuse {reuse}", solver=following)
    return watch


def solving(course: Course, *, depth: int, reuses: Sequence[str] = REUSES) -> tuple[Residuals, Movement, Starts]:
    """Three analyses of the same runs, one for each reuse; movement is of the first reuse."""
    watches = [watched(course, reuse, depth=depth) for reuse in reuses]
    times, first = course.times, watches[0]
    residuals = Residuals(
        reuses=tuple(reuses),
        times=times,
        iterations=course.iterations,
        residuals=tuple(_rows(watch.residuals / watch.rows[:, None]) for watch in watches),
    )
    movement = Movement(
        kinds=KINDS,
        times=times[1:],
        moved=_gaps(first.moved, first.counts),
        norms=_gaps(first.norms, first.counts),
        counts=tuple(tuple(row) for row in first.counts[:, 1:].tolist()),
    )
    starts = Starts(
        reuses=tuple(reuses),
        times=times,
        start=tuple(tuple((watch.start / watch.rows).tolist()) for watch in watches),
        stop=tuple(tuple((watch.stop / watch.rows).tolist()) for watch in watches),
        kinds=KINDS,
        by_kind=tuple(_means(watch.started.sum(dim=1), watch.counts.sum(dim=1)) for watch in watches),
    )
    return residuals, movement, starts


def _rows(values: Float[Tensor, "S N"]) -> tuple[Curve, ...]:
    return tuple(tuple(row) for row in values.tolist())


def _gaps(sums: Float[Tensor, "K S"], counts: Tensor) -> tuple[Gaps, ...]:
    return tuple(_means(total[1:], number[1:]) for total, number in zip(sums, counts, strict=True))


def _means(sums: Tensor, counts: Tensor) -> Gaps:
    return tuple(s / n if n else None for s, n in zip(sums.tolist(), counts.tolist(), strict=True))


def spent_under(course: Course, *, reuses: Sequence[str] = REUSES, tolerances: Sequence[float] = TOLERANCES) -> Spent:
    """Iterations by step of runs that stop at a tolerance, none at more than the budget gives it."""
    spent = tuple(tuple(_spent(course, reuse, tolerance) for tolerance in tolerances) for reuse in reuses)
    return Spent(
        reuses=tuple(reuses),
        tolerances=tuple(tolerances),
        times=course.times,
        allotted=course.iterations,
        spent=spent,
    )


def _spent(course: Course, reuse: str, tolerance: float) -> Curve:
    totals = torch.zeros(len(course.iterations), dtype=torch.float64)

    def look(step: Step, label: Labels | None) -> None:
        totals[step.index] += float(step.solution.num_iters.view(-1, len(step.z)).amax(dim=0).sum())

    what = f"tolerance {tolerance:g}, reuse {reuse}"
    course.reusing(reuse).run(look, what=what, solver=partial(picard, tolerance=tolerance))
    return tuple((totals / course.num_samples).tolist())
