"""Reuse coefficients and a tolerance that fit a model, from solves that are followed to their fixed points."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fpmgm.analysis.lagged import kl
from fpmgm.analysis.trace import MASKED, REVEALED, Before, Course, Following, Solve, stops_at, transition_kinds
from fpmgm.denoiser import Denoiser
from fpmgm.guidance import Asked
from fpmgm.reuse import CHANGED, Shares
from fpmgm.reuse import MASKED as PAPERS_MASKED
from fpmgm.sampling import Passed, Step
from fpmgm.types import Counts, Hidden, Labels, Logits, Tokens

PerSample = Float[np.ndarray, " N"]

LADDER = tuple(digit * 10.0**-power for power in range(1, 5) for digit in (5, 3, 2, 1))
"""Tolerances that are tried, largest first: 0.5, 0.3, 0.2, 0.1, 0.05 and so on."""
LEAST_SAVED = 0.02
"""A tolerance that saves a smaller share of the iterations is not worth having."""


class Fit:
    """Adds up, step by step, what a least-squares fit of the coefficients needs.

    A coefficient g starts the solver at h_pre + g (h_last - h_pre). Best is the g whose starts are nearest to the fixed
    points, by the sum of squared distances over positions. At masked positions g is m0 (1 - v) + m1 v, with v the
    visible share of the sequence; at changed positions it is one number.
    """

    def __init__(self, following: Following, mask_id: int) -> None:
        self.following, self.mask_id = following, mask_id
        self.masked = torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
        self.changed = torch.zeros(2, dtype=torch.float64)
        self.last: tuple[Tokens, Before] | None = None

    def __call__(self, step: Step, label: Labels | None) -> None:
        solve = self.following.last
        assert solve is not None
        if self.last is not None and step.index > 0:
            self._add(step.z, step.h_pre, solve.h_star, *self.last)
        self.last = step.z, step.solution.h

    def _add(self, z: Tokens, h_pre: Passed, h_star: Passed, z_last: Tokens, h_last: Before) -> None:
        num, length = min(len(h_last), len(h_star)), z.shape[1]
        kinds = transition_kinds(z_last, z, mask_id=self.mask_id).repeat(num // len(z), 1)
        h_pre, h_star, h_last = (h[:num, :length].double() for h in (h_pre, h_star, h_last))
        way, wanted = h_last - h_pre, h_star - h_pre
        square, product = way.square().sum(dim=2), (way * wanted).sum(dim=2)  # (R, L)
        visible = (z != self.mask_id).double().mean(dim=1).repeat(num // len(z))
        basis = torch.stack([1 - visible, visible], dim=1)  # (R, 2)
        is_masked, is_changed = (kinds == MASKED).double(), (kinds >= REVEALED).double()
        self.masked[0].add_((basis.mT @ (basis * (square * is_masked).sum(dim=1, keepdim=True))).cpu())
        self.masked[1].add_((basis.mT @ (product * is_masked).sum(dim=1)).cpu())
        self.changed.add_(torch.stack([(square * is_changed).sum(), (product * is_changed).sum()]).cpu())

    @property
    def shares(self) -> tuple[Shares, Shares]:
        """The coefficients at masked and at changed positions, to two digits; the paper's where nothing was seen."""
        gram, towards = self.masked
        first, second = boxed(gram, towards) if float(gram.trace()) else PAPERS_MASKED
        square, product = self.changed.tolist()
        changed = round(min(max(product / square, 0.0), 1.0), 2) if square else CHANGED[0]
        return (round(first, 2), round(second, 2)), (changed, changed)


def boxed(gram: Float[Tensor, "2 2"], towards: Float[Tensor, " 2"]) -> Shares:
    """Where x' gram x - 2 towards' x is lowest, of all x with both numbers between 0 and 1."""
    tried = [torch.linalg.lstsq(gram, towards[:, None], driver="gelsd").solution[:, 0]]
    for fixed in (0, 1):
        for value in (0.0, 1.0):
            x = torch.full((2,), value, dtype=gram.dtype)
            free = 1 - fixed
            if gram[free, free] > 0:
                x[free] = ((towards[free] - gram[free, fixed] * value) / gram[free, free]).clamp(0, 1)
            tried.append(x)
    inside = [x for x in tried if bool(((x >= 0) & (x <= 1)).all())]
    best = min(inside, key=lambda x: float(x @ gram @ x - 2 * towards @ x))
    return float(best[0]), float(best[1])


class Errors:
    """What the tokens of each step are drawn from, against what the fixed point says: KL(fixed point || drawn from)."""

    def __init__(self, denoiser: Denoiser, following: Following) -> None:
        self.denoiser, self.following = denoiser, following
        self.steps: list[Followed] = []

    def __call__(self, step: Step, label: Labels | None) -> None:
        solve, num = self.following.last, len(step.z)
        assert solve is not None
        exact = _logits(self.denoiser, step, solve, solve.h_star)
        sequences = step.places.sequences[: len(exact)]
        nats = torch.zeros(num, len(solve.path), dtype=torch.float64)
        for n, h in enumerate(solve.path):
            lost = kl(exact, _logits(self.denoiser, step, solve, h)).double()
            nats[:, n].index_add_(0, sequences.cpu(), lost.cpu())
        counts = torch.tensor(step.places.counts[:num], dtype=torch.float64)
        residuals = solve.residuals[:, : len(solve.path) - 1].cpu()
        residuals = residuals.view(-1, num, residuals.shape[1]).amax(dim=0)  # of the half that is farther
        stops = solve.stops.view(-1, num).amax(dim=0).cpu()
        self.steps.append(Followed(step.index, nats, counts, residuals, stops))

    def stopped(self) -> tuple[PerSample, PerSample]:
        """By sequence, as the sampler stopped: the mean KL of a token, and the iterations."""
        return self._summed([each.stops for each in self.steps])

    def at(self, tolerance: float | None) -> tuple[float, float]:
        """The mean KL of a token, and the iterations of a sequence, had the solvers stopped at a tolerance."""
        stops = [stops_at(each.residuals, each.residuals.shape[1], tolerance) for each in self.steps]
        lost, spent = self._summed(stops)
        return float(lost.mean()), float(spent.mean())

    def _summed(self, stops: Sequence[Counts]) -> tuple[PerSample, PerSample]:
        """Over the steps of each batch, with so many iterations of each step."""
        batches: list[Float[Tensor, "3 B"]] = []
        for each, stop in zip(self.steps, stops, strict=True):
            if each.index == 0:
                batches.append(torch.zeros(3, len(each.nats), dtype=torch.float64))
            batches[-1] += torch.stack([each.nats.gather(1, stop[:, None])[:, 0], each.counts, stop.double()])
        lost, counts, spent = torch.cat(batches, dim=1).numpy()
        return lost / counts.clip(1), spent


@dataclass(frozen=True)
class Followed:
    """What is kept of a step, by sequence."""

    index: int
    nats: Float[Tensor, "B N"]  # summed over the places of the step, after 0, 1, ... iterations
    counts: Float[Tensor, " B"]
    residuals: Float[Tensor, "B M"]
    stops: Counts


def _logits(denoiser: Denoiser, step: Step, solve: Solve, h: Hidden) -> Logits:
    """What tokens would be drawn from had the solver stopped at h, without the mask."""
    logits = denoiser.head(denoiser.post(h, solve.cond, step.places))
    is_doubled = len(h) > len(step.z)
    asked = Asked(z=step.z, label=None, places=step.places, weight=step.weight, is_doubled=is_doubled)
    return asked.mixed(logits)[:, torch.arange(logits.shape[1], device=logits.device) != denoiser.mask_id]


def fitted(course: Course, *, depth: int) -> tuple[Shares, Shares]:
    """The coefficients that fit a run of three-state reuse with the paper's."""
    following = Following(depth)
    fit = Fit(following, course.model.denoiser.mask_id)
    course.run(fit, what="fitting the coefficients", solver=following)
    return fit.shares


def errors(course: Course, *, depth: int, what: str) -> Errors:
    """How far what tokens are drawn from is from the fixed points, in a run with the course's own tolerance."""
    following = Following(depth, course.sampling.tolerance)
    found = Errors(course.model.denoiser, following)
    course.run(found, what=what, solver=following)
    return found


def largest_tolerance(found: Errors, *, slack: float, tried: Sequence[float] = LADDER) -> float | None:
    """The largest tolerance that adds at most `slack` nats a token to the KL of running all iterations.

    None if it would save less than a fiftieth of the iterations.
    """
    lost, spent = found.at(None)
    for tolerance in tried:
        more, fewer = found.at(tolerance)
        if more <= lost + slack:
            return tolerance if fewer <= (1 - LEAST_SAVED) * spent else None
    return None
