"""How what a model says of a masked position changes from one denoising step to later, cleaner ones.

Of one model, or of two models that read the same inputs.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fpmgm.analysis.trace import Course
from fpmgm.denoiser import Denoiser
from fpmgm.evaluation.intervals import Means, Statistics, bootstrap
from fpmgm.sampling import Step
from fpmgm.types import Labels, Logits, PerChoice, Places, Positions, Tokens

LAGS = (1, 2, 3, 4)
Over = Literal["later", "earlier"]
"""Whose distribution a KL is averaged over: KL(later step || step), or KL(step || later step)."""

Ends = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Lagged:
    """Means over the positions that are masked at both steps. A number is None where two steps share no mask."""

    models: tuple[str, ...]
    steps: tuple[int, ...]
    lags: tuple[int, ...]
    num_iters: int
    """Solver iterations of each step."""
    kl_over: Over = "later"
    """later: KL(later step || step). earlier: KL(step || later step)."""
    kl: tuple[tuple[tuple[float | None, ...], ...], ...]
    """In nats, by model, number of steps, and lag."""
    change: tuple[tuple[float | None, ...], ...]
    """How much the logits change from a step to the next, by model and number of steps: the standard deviation over
    symbols of the difference, which a constant added to all logits leaves as it is."""
    reduction: tuple[tuple[float | None, ...], ...] = ()
    """The share by which the first model's KL is lower than the second's, by number of steps and lag."""
    reduction_low: tuple[tuple[float | None, ...], ...] = ()
    """The lower end of its interval (95 %, by a bootstrap over sequences that both models read)."""
    reduction_high: tuple[tuple[float | None, ...], ...] = ()
    """The upper end."""


class Said(NamedTuple):
    """What a model says at the masked positions of some sequences."""

    is_masked: Positions
    logits: Logits  # without the mask's, at these positions in row-major order


class Sums(NamedTuple):
    """Of each sequence: sums over positions, and their number."""

    kl: Float[np.ndarray, "N K"]  # by lag
    counts: Float[np.ndarray, "N K"]
    change: Float[np.ndarray, " N"]  # of lag 1


@torch.no_grad()
def says(denoiser: Denoiser, z: Tokens, t: float, label: Labels | None, num_iters: int) -> Said:
    """Logits at all masked positions, from a solver that starts at h_pre."""
    is_masked = z == denoiser.mask_id
    counts = {"num_no_grad": num_iters - 1, "num_grad": 1} if denoiser.cost.fp else {}
    if not bool(is_masked.any()):
        return Said(is_masked, torch.empty(0, denoiser.vocab_size - 1, device=z.device))
    logits = denoiser.head(denoiser(z, t, Places.of(is_masked), label=label, **counts).features)
    is_symbol = torch.arange(denoiser.vocab_size, device=z.device) != denoiser.mask_id
    return Said(is_masked, logits[:, is_symbol])


def kl(over: Logits, other: Logits) -> PerChoice:
    """KL(over || other) of what is drawn from these logits."""
    log_p, log_q = over.log_softmax(dim=-1), other.log_softmax(dim=-1)
    return (log_p.exp() * (log_p - log_q)).sum(dim=-1)


class Reader:
    """Reads each step of a run with a model, and adds up how what it says differs from what it said before."""

    def __init__(self, denoiser: Denoiser, num_iters: int, lags: Sequence[int], kl_over: Over = "later") -> None:
        self.denoiser, self.num_iters, self.lags, self.kl_over = denoiser, num_iters, tuple(lags), kl_over
        self.window: deque[Said] = deque(maxlen=max(lags))
        self.batches: list[Float[Tensor, "3 B K"]] = []

    def __call__(self, step: Step, label: Labels | None) -> None:
        if step.index == 0:
            self.window.clear()
            self.batches.append(torch.zeros(3, len(step.z), len(self.lags), dtype=torch.float64))
        said = says(self.denoiser, step.z, step.t, label, self.num_iters)
        for place, lag in enumerate(self.lags):
            if lag <= len(self.window):
                self.batches[-1][:, :, place] += compared(said, self.window[-lag], self.kl_over)
        self.window.append(said)

    @property
    def sums(self) -> Sums:
        """Of all batches."""
        found = torch.cat(self.batches, dim=1).numpy()
        return Sums(kl=found[0], counts=found[1], change=found[2, :, 0])


def compared(later: Said, earlier: Said, kl_over: Over = "later") -> Float[Tensor, "3 B"]:
    """Sums by sequence of KL, of positions and of changes of logits, where both are masked."""
    both = later.is_masked & earlier.is_masked
    rows = both.nonzero()[:, 0].cpu()
    now, then = later.logits[both[later.is_masked]], earlier.logits[both[earlier.is_masked]]
    change = (now - then).std(dim=-1, correction=0)
    nats = kl(now, then) if kl_over == "later" else kl(then, now)
    found = torch.zeros(3, len(both), dtype=torch.float64)
    for total, values in zip(found, (nats, torch.ones_like(change), change), strict=True):
        total.index_add_(0, rows, values.double().cpu())
    return found


def lagged(
    courses: Sequence[Course],
    names: Sequence[str],
    *,
    steps: Sequence[int],
    num_iters: int,
    lags: Sequence[int] = LAGS,
    kl_over: Over = "later",
) -> Lagged:
    """Each model samples without reuse, in so many steps; every model reads every step of all of these runs."""
    by_steps = [_read(courses, num, num_iters, lags, kl_over) for num in steps]
    pairs = [
        [_reduction(found[0], found[1], place) for place in range(len(lags))] for found in by_steps if len(found) == 2
    ]
    return Lagged(
        models=tuple(names),
        steps=tuple(steps),
        lags=tuple(lags),
        num_iters=num_iters,
        kl_over=kl_over,
        kl=tuple(
            tuple(tuple(_ratio(own.kl[:, k], own.counts[:, k]) for k in range(len(lags))) for own in model)
            for model in zip(*by_steps, strict=True)
        ),
        change=tuple(
            tuple(_ratio(own.change, own.counts[:, 0]) for own in model) for model in zip(*by_steps, strict=True)
        ),
        reduction=tuple(tuple(each[0] for each in row) for row in pairs),
        reduction_low=tuple(tuple(each[1] for each in row) for row in pairs),
        reduction_high=tuple(tuple(each[2] for each in row) for row in pairs),
    )


def _read(courses: Sequence[Course], num_steps: int, num_iters: int, lags: Sequence[int], kl_over: Over) -> list[Sums]:
    readers = [Reader(course.model.denoiser, num_iters, lags, kl_over) for course in courses]

    def look(step: Step, label: Labels | None) -> None:
        for reader in readers:
            reader(step, label)

    for course in courses:
        course.reusing("none").with_steps(num_steps, num_iters).run(look, what=f"reading {num_steps} steps")
    return [reader.sums for reader in readers]


def _ratio(sums: Float[np.ndarray, " N"], counts: Float[np.ndarray, " N"]) -> float | None:
    return float(sums.sum() / counts.sum()) if counts.sum() else None


def _reduction(ours: Sums, theirs: Sums, place: int) -> tuple[float | None, float | None, float | None]:
    columns = np.stack([ours.kl[:, place], theirs.kl[:, place]], axis=1)
    if columns[:, 1].sum() == 0:
        return None, None, None
    found = bootstrap(columns, _lower_by)
    return found.value, found.low, found.high


def _lower_by(means: Means) -> Statistics:
    return 1 - means[:, 0] / means[:, 1]
