"""Solvers approximate Fix(F) (Eq. 3). They know nothing of tokens or gradients.

A solver is `(f, h, num_iters) -> Solution`, exact for one and two iterations, which are the normal case. With a
`tolerance` each sequence stops by itself, and `f(h, rows)` is then asked for the remaining sequences only. With a
`where` positions rest, and `f.part(places, ...)` is then asked for the others only.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from fpmgm.devices import no_autocast
from fpmgm.names import choose
from fpmgm.positionwise import Resting, solve_where
from fpmgm.types import Counts, Hidden, Map, PerSequence, Somewhere

Window = list[Hidden]


@dataclass(frozen=True, kw_only=True)
class Solution:
    """What a solver found, how good it is and what it cost. It never raises for lack of convergence."""

    h: Hidden
    residual: PerSequence  # |f(h) - h| / |h| at the last point where f was evaluated
    num_iters: Counts  # evaluations of f, sequence by sequence
    updates: Counts | None = None  # the same by position, summed over those of a sequence; None: all in each

    @property
    def row_evals(self) -> int:
        """Evaluations of f summed over sequences: what was computed."""
        return int(self.num_iters.sum())


@runtime_checkable
class Solver(Protocol):
    def __call__(self, f: Map, h: Hidden, num_iters: int) -> Solution: ...


@runtime_checkable
class PositionSolver(Protocol):
    """A solver that lets positions rest."""

    def __call__(self, f: Map, h: Hidden, num_iters: int, *, where: Resting) -> Solution: ...


def picard(
    f: Map, h: Hidden, num_iters: int, *, tolerance: float | None = None, where: Resting | None = None
) -> Solution:
    """Iterate h <- f(h): the paper's solver."""
    return _iterate(f, h, num_iters, memory=1, mix=_latest, tolerance=tolerance, where=where)


def anderson(
    f: Map,
    h: Hidden,
    num_iters: int,
    *,
    memory: int = 5,
    ridge: float = 1e-6,
    tolerance: float | None = None,
    where: Resting | None = None,
) -> Solution:
    """Mix the last `memory` images of f so that their combined residual is smallest; Picard if memory is 1.

    With a `where` the residual is that of the positions that run.
    """
    if memory < 1:
        raise ValueError(f"memory is {memory}; Anderson needs at least 1")

    def mix(points: Window, images: Window, runs: Somewhere | None = None) -> Hidden:
        return _smallest_residual(points, images, ridge, runs)

    return _iterate(f, h, num_iters, memory=memory, mix=mix, tolerance=tolerance, where=where)


SolverName = Literal["picard", "anderson"]
SOLVERS: dict[str, Callable[..., Solution]] = {"picard": picard, "anderson": anderson}


def solver_by_name(name: str) -> Callable[..., Solution]:
    """The solver of that name: `picard` or `anderson`."""
    return choose("solver", name, SOLVERS)


def check_tolerance(tolerance: float) -> None:
    """A ValueError if it is no tolerance: negative, infinite or not a number."""
    if not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance is {tolerance}; it must be a number, 0 or more, or None to run all iterations")


def _iterate(
    f: Map,
    h: Hidden,
    num_iters: int,
    *,
    memory: int,
    mix: Callable[..., Hidden],
    tolerance: float | None,
    where: Resting | None,
) -> Solution:
    if num_iters < 1:
        raise ValueError(f"num_iters is {num_iters}; a solver needs at least 1 iteration")
    if tolerance is not None:
        check_tolerance(tolerance)
    if where is not None:
        run = solve_where(f, h, num_iters, memory=memory, mix=mix, tolerance=tolerance, where=where)
        return Solution(h=run.h, residual=run.residual, num_iters=run.num_iters, updates=run.updates)
    if tolerance is not None:
        return _iterate_until(f, h, num_iters, memory=memory, mix=mix, tolerance=tolerance)
    points: Window = []
    images: Window = []
    for _ in range(num_iters):
        points, images = [*points, h][-memory:], [*images, f(h)][-memory:]
        h = mix(points, images)
    spent = torch.full((len(h),), num_iters, device=h.device)
    return Solution(h=h, residual=_relative_residual(points[-1], images[-1]), num_iters=spent)


def _iterate_until(
    f: Map,
    h: Hidden,
    num_iters: int,
    *,
    memory: int,
    mix: Callable[..., Hidden],
    tolerance: float,
) -> Solution:
    """Each sequence stays as it is once its residual is at most the tolerance; then f is no longer asked for it.

    To know which sequences these are, the host waits for the device: at most twice a solve, but for the CPU.
    """
    looks = _looks(h.device, num_iters)
    points: Window = []
    images: Window = []
    batch, rows = h, torch.arange(len(h), device=h.device)  # rows: the sequences that f is asked for
    residual, spent = h.new_full((len(h),), torch.inf), rows.new_zeros(len(h))
    is_running = torch.ones_like(rows, dtype=torch.bool)  # which of them have not met the tolerance
    for n in range(1, num_iters + 1):
        is_whole = len(rows) == len(batch)
        point = batch if is_whole else batch[rows]
        image = f(point) if is_whole else f(point, rows)
        points, images = [*points, point][-memory:], [*images, image][-memory:]
        h = torch.where(is_running[:, None, None], mix(points, images), point)
        batch = h if is_whole else batch.index_copy(0, rows, h)
        measured = _relative_residual(point, image)
        residual[rows] = torch.where(is_running, measured, residual[rows])
        spent[rows] += is_running
        is_running = is_running & (measured > tolerance)
        if n in looks:
            kept = [place for place, runs in enumerate(is_running.tolist()) if runs]
            if not kept:
                break
            if len(kept) < len(rows):
                index = torch.tensor(kept, device=h.device)
                rows, is_running = rows[index], is_running[index]
                points, images = [p[index] for p in points], [i[index] for i in images]
    return Solution(h=batch, residual=residual, num_iters=spent)


def _looks(device: torch.device, num_iters: int) -> set[int]:
    """After which iterations the host looks which sequences still run: after each on the CPU, else after two."""
    every = set(range(1, num_iters))
    return every if device.type == "cpu" else every & {num_iters // 3, 2 * num_iters // 3}


def _relative_residual(point: Hidden, image: Hidden) -> PerSequence:
    with torch.no_grad():
        moved = torch.linalg.vector_norm(image - point, dim=(1, 2))
        return moved / torch.linalg.vector_norm(point, dim=(1, 2)).clamp_min(torch.finfo(point.dtype).tiny)


def _latest(points: Window, images: Window, runs: Somewhere | None = None) -> Hidden:
    return images[-1]


def _smallest_residual(points: Window, images: Window, ridge: float, runs: Somewhere | None = None) -> Hidden:
    stacked, before = torch.stack(images, dim=1), torch.stack(points, dim=1)  # (B, M, L, D)
    if runs is not None:  # a position at rest has no say
        before = torch.where(runs[:, None, :, None], before, stacked)
    with no_autocast(stacked.device):  # the small system needs all its digits
        weights = _anderson_weights(stacked, before, ridge)
    return torch.einsum("bm,bmld->bld", weights.to(stacked.dtype), stacked).to(points[-1].dtype)


def _anderson_weights(images: Float[Tensor, "B M L D"], points: Float[Tensor, "B M L D"], ridge: float) -> Tensor:
    dtype = torch.promote_types(images.dtype, torch.float32)
    residuals = (images.to(dtype) - points.to(dtype)).flatten(2)  # (B, M, L*D)
    gram = residuals @ residuals.mT  # (B, M, M)
    # Scaled to a largest diagonal of 1, so that the ridge holds at any size, exact convergence included.
    largest = gram.diagonal(dim1=1, dim2=2).amax(dim=1).clamp_min(torch.finfo(gram.dtype).tiny)
    gram = gram / largest[:, None, None] + ridge * torch.eye(gram.shape[1], dtype=dtype, device=gram.device)
    weights = torch.linalg.solve(gram, torch.ones_like(gram[..., 0]))
    return weights / weights.sum(dim=1, keepdim=True)
