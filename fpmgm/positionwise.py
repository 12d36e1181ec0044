"""Position-wise solving: iterate where it matters, and let the other positions rest.

A rule (`Where`) says which positions of which sequences run in an iteration. A position at rest keeps its hidden state,
and the others still attend to it as it was when it last ran, in this step or in an earlier one: its keys and values are
those of that iteration, and are not computed again. The result is what a full computation gives whose block reads, at a
position at rest, what it read there last.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fpmgm.names import choose
from fpmgm.schema import require
from fpmgm.types import Counts, Hidden, PerSequence, Places, Positions, Solved, Somewhere, Tokens

SolveName = Literal["all", "changed-and-masked", "tolerance", "both"]
SOLVES: dict[str, str] = {
    "all": "every position runs in every iteration",
    "changed-and-masked": "a visible token that has not changed since the last step rests",
    "tolerance": "a position rests once its own residual is small",
    "both": "either makes a position rest",
}
MAX_STEPS = 1_000_000
PerPosition = Float[Tensor, "B S"]


class Seen:
    """What positions are seen by, as they last ran, from step to step of one sampling run: nothing at first."""

    def __init__(self) -> None:
        self.kept: Any = None  # keys and values of all positions
        self.is_kept: Somewhere | None = None  # where there are any


@dataclass(frozen=True, kw_only=True)
class Resting:
    """Which positions rest in one solve."""

    known: Somewhere  # they rest from the start, or after a first iteration of all
    given: Somewhere | None = None  # of those, the ones that rest from the start in any case
    tolerance: float | None = None  # any other rests once its own residual is at most this
    whole_first: bool = True
    seen: Seen | None = None  # of the steps before; None: this solve stands alone

    @property
    def first(self) -> Somewhere:
        """The positions that run in the first iteration."""
        if not self.whole_first:
            return ~self.known
        return torch.ones_like(self.known) if self.given is None else ~self.given


@dataclass(frozen=True, kw_only=True)
class Where:
    """Which positions run in an iteration, whatever the network. Registers have no token, and count as masked."""

    changed_and_masked: bool = True
    """Whether visible tokens that have not changed since the last step rest at their last solution."""
    tolerance: float | None = None
    """A position rests once its own relative residual is at most this; None: never for that reason."""
    whole_first: bool = True
    """Whether the first iteration of a step runs at all tokens that were not given, all the same."""
    whole_every: int = 1
    """Of so many steps, one has a whole first iteration."""

    def __post_init__(self) -> None:
        if self.tolerance is not None and not 0 <= self.tolerance < math.inf:
            raise ValueError(f"position_tolerance is {self.tolerance}; it must be a number, 0 or more")
        if not self.changed_and_masked and self.tolerance is None:
            raise ValueError("no position would ever rest; set changed_and_masked or a tolerance")
        if not self.changed_and_masked and not (self.whole_first and self.whole_every == 1):
            off = "off" if not self.whole_first else f"on at every {self.whole_every} steps"
            raise ValueError(
                f"whole_first is {off}, and solve tolerance must run every position once to know which may rest; "
                "solve changed-and-masked or both with it"
            )
        require("whole_every", self.whole_every, 1, MAX_STEPS)
        if not self.whole_first and self.whole_every != 1:
            raise ValueError(f"whole_every is {self.whole_every}, and whole_first is off; leave one of the two out")

    def is_whole(self, index: int) -> bool:
        """Whether the first iteration of the step of that index is whole. In the first step nothing rests anyway."""
        return self.whole_first and index % self.whole_every == 0

    def check(self, z: Tokens, mask_id: int) -> None:
        """A ValueError if nothing would be left to iterate after the first step."""
        if self.changed_and_masked and not (z == mask_id).any():
            raise ValueError(
                "no token is masked, so solve changed-and-masked leaves nothing to iterate; mask some, or solve all"
            )

    def resting(
        self,
        z: Tokens,
        last: Solved | None,
        *,
        index: int,
        is_given: Positions,
        num_hidden: int,
        mask_id: int,
        seen: Seen,
    ) -> Resting:
        """The positions that rest in the solve of a step for z, after that of the last. In the first step all run."""
        known = torch.zeros(len(z), num_hidden, dtype=torch.bool, device=z.device)
        given = None
        if self.changed_and_masked and last is not None:
            room = (0, num_hidden - z.shape[1])
            known, given = F.pad((z == last.z) & (z != mask_id), room), F.pad(is_given, room)
        return Resting(known=known, given=given, tolerance=self.tolerance, whole_first=self.is_whole(index), seen=seen)


def where_by_name(
    name: str, *, position_tolerance: float | None, whole_first: bool, has_solver: bool, whole_every: int = 1
) -> Where | None:
    """The rule that settings name; None: all positions run. A ValueError if a setting would do nothing."""
    choose("solve", name, SOLVES)
    if name == "all" and not whole_first:
        raise ValueError("whole_first is off, and with solve all every iteration runs everywhere; leave it out")
    if name == "all" and whole_every != 1:
        raise ValueError(
            f"whole_every is {whole_every}, and with solve all every iteration runs everywhere; leave it out"
        )
    if (position_tolerance is not None) != (name in ("tolerance", "both")):
        if position_tolerance is None:
            raise ValueError(f"solve is {name}, and no position_tolerance is given; give one, such as 0.1")
        raise ValueError(f"position_tolerance is {position_tolerance}, and solve {name} does not use it; leave it out")
    if name == "all":
        return None
    if not has_solver:
        raise ValueError(f"solve is {name}, and a plain stack leaves nothing to iterate; solve all")
    is_known = name in ("changed-and-masked", "both")
    return Where(
        changed_and_masked=is_known, tolerance=position_tolerance, whole_first=whole_first, whole_every=whole_every
    )


@dataclass(frozen=True, kw_only=True)
class PositionSettings:
    """Where the solver iterates, as settings of sampling say it."""

    solve: SolveName = "all"
    """Where the solver iterates. all: everywhere. changed-and-masked: visible tokens that have not changed since the
    last step rest. tolerance: a position rests once its residual is at most `position_tolerance`. both: for either
    reason."""
    position_tolerance: float | None = None
    """The relative residual at which a position rests, for solve tolerance and both."""
    whole_first: bool = True
    """Whether the first iteration of a step runs at all tokens that were not given, whatever rests later."""
    whole_every: int = 1
    """Of so many steps, one has such a whole first iteration. With 2, it is every second step."""
    budget_in: Literal["blocks", "positions"] = "blocks"
    """What the budget counts. blocks: block evaluations, wherever a block runs. positions: the work at positions. Then
    iterations are planned so that the work expected is that of `budget` blocks that run everywhere, where given tokens
    rest after the first step."""

    def where(self, *, has_solver: bool) -> Where | None:
        """The rule; None: all positions run. A ValueError if a setting would do nothing."""
        return where_by_name(
            self.solve,
            position_tolerance=self.position_tolerance,
            whole_first=self.whole_first,
            whole_every=self.whole_every,
            has_solver=has_solver,
        )


@dataclass(kw_only=True)
class Run:
    """A solve in progress, and then its result."""

    h: Hidden
    residual: PerSequence  # of the positions that ran, at the last point where any of the sequence did
    num_iters: Counts  # in how many iterations any position of a sequence ran
    updates: Counts  # positions that ran, summed over iterations

    @classmethod
    def of(cls, h: Hidden) -> "Run":
        nothing = torch.zeros(len(h), dtype=torch.long, device=h.device)
        return cls(h=h, residual=h.new_zeros(len(h)), num_iters=nothing, updates=nothing.clone())

    def note(self, runs: Somewhere, residual: PerSequence | None) -> None:
        """Count an iteration in which those positions ran."""
        num = runs.sum(dim=1)
        if residual is not None:
            self.residual = torch.where(num > 0, residual, self.residual)
        self.num_iters = self.num_iters + (num > 0)
        self.updates = self.updates + num


def solve_where(
    f: Any,
    h: Hidden,
    num_iters: int,
    *,
    memory: int,
    mix: Callable[..., Hidden],
    tolerance: float | None,
    where: Resting,
) -> Run:
    """Iterate like a solver of that memory and mix, each position only as long as it does not rest.

    f is a fixed-point map that has parts. `tolerance` is that of whole sequences. The host waits for the device
    whenever other positions run than in the iteration before.
    """
    run, parts = Run.of(h), _Parts(f, h, where)
    points: list[Hidden] = []
    images: list[Hidden] = []
    runs, has_tolerance = where.first, tolerance is not None or where.tolerance is not None
    told = {num_iters - 1, 0} if bool(where.known.all(dim=1).any()) else {num_iters - 1}
    for n in range(num_iters):
        if not parts.choose(runs, run.h, is_last=n == num_iters - 1):
            break
        # Without a tolerance, the last iteration tells the residual, or the first where nothing runs after it.
        is_told = has_tolerance or n in told
        point, image = run.h, parts.image(run.h, in_place=n > 0 and memory == 1 and not is_told)
        points, images = [*points, point][-memory:], [*images, image][-memory:]
        mixed = mix(points, images, runs)
        run.h = mixed if memory == 1 else torch.where(runs[..., None], mixed, point)
        found = _Residuals.of(point, image, runs) if is_told else None
        run.note(runs, found.by_sequence if found else None)
        runs = runs & ~where.known
        if found and where.tolerance is not None:
            runs = runs & (found.by_position > where.tolerance)
        if found and tolerance is not None:
            runs = runs & (found.by_sequence > tolerance)[:, None]
    return run


@dataclass(frozen=True, kw_only=True)
class _Residuals:
    """|f(h) - h| / |h|, position by position, and of those positions of a sequence that ran together."""

    by_position: PerPosition
    by_sequence: PerSequence

    @classmethod
    def of(cls, point: Hidden, image: Hidden, runs: Somewhere) -> "_Residuals":
        moved, size = _norms(image - point), _norms(point)
        together = _relative(_norms(moved * runs), _norms(size * runs))
        return cls(by_position=_relative(moved, size), by_sequence=together)


class _Parts:
    """f at the positions that run: all of it, or a part that knows the others by their keys and values."""

    def __init__(self, f: Any, h: Hidden, where: Resting) -> None:
        self.f = f
        self.seen = where.seen or Seen()
        self.is_needed = where.seen is not None  # whether later steps need keys and values
        self.may_rest = self.is_needed or where.tolerance is not None or bool(where.known.any())
        if self.seen.is_kept is None or self.seen.is_kept.shape != h.shape[:2]:
            self.seen.kept = None
            self.seen.is_kept = torch.zeros(h.shape[:2], dtype=torch.bool, device=h.device)
        self.state = h  # of positions as they last ran, which only several blocks read
        self.runs: Somewhere | None = None
        self.part: Any = None  # None: all, and nothing is kept

    def choose(self, runs: Somewhere, h: Hidden, *, is_last: bool) -> bool:
        """Let those positions run from now on; False if there are none."""
        if self.runs is not None and torch.equal(self.runs, runs):
            return True
        places = Places.of(runs)
        if not any(places.counts):
            return False
        self.runs, self.part = runs, None
        if len(places.flat) < runs.numel() or self.is_needed or (self.may_rest and not is_last):
            seen = self.seen
            assert seen.is_kept is not None
            seen.kept = self.f.keys_for(h) if seen.kept is None else seen.kept
            self._keep(~runs & ~seen.is_kept, h)
            self.part = self.f.part(places, seen.kept)
            seen.is_kept = seen.is_kept | runs  # the iteration keeps them
        return True

    def _keep(self, at: Somewhere, h: Hidden) -> None:
        """Compute keys and values of positions that rest and have never run in parts."""
        places = Places.of(at)
        if any(places.counts):
            self.f.part(places, self.seen.kept).settle(h)

    def image(self, h: Hidden, *, in_place: bool) -> Hidden:
        """f where positions run, h elsewhere; h itself may be written to if it is nobody else's."""
        if self.part is None:
            return self.f(h)
        assert self.runs is not None
        if self.seen.kept is None:  # several blocks
            self.state = torch.where(self.runs[..., None], h, self.state)
        moved = self.part(self.state if self.seen.kept is None else h).to(h.dtype)
        flat = h.flatten(0, 1)
        return (flat.index_copy_ if in_place else flat.index_copy)(0, self.part.places.flat, moved).view_as(h)


def _norms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1)


def _relative(moved: Tensor, size: Tensor) -> Tensor:
    return moved / size.clamp_min(torch.finfo(size.dtype).tiny)
