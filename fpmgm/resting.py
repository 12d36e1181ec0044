"""Training as the sampler solves: after the first iteration of a solve only some positions run, and the others rest.

The first iteration runs everywhere. A position at rest keeps the state that it gave, and the others see it by the keys
and values that it had there. This departs from the paper, whose solver iterates everywhere.
"""

from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor

from fpmgm.solvers import Solution
from fpmgm.types import Features, Hidden, Map, PerSequence, Places, Somewhere

Running = Float[Tensor, "1 M D"]  # the states of positions that run, in row-major order, as of one sequence


class RestingMap:
    """h -> F(h; u, t) at the places that run: a map like any other.

    The first call runs everywhere. What positions at rest take from it has gradients if that call had, and is constant
    if it had none.
    """

    def __init__(self, f: Any, h_init: Hidden, places: Places) -> None:
        self.f, self.h_init, self.places = f, h_init, places
        self.constant = places.take(f.constant)[None]
        self.first: Hidden | None = None  # the states of all positions after the first call
        self.seen: Any = (
            None  # of all positions at that call: keys and values, or what the first of several blocks read
        )

    @property
    def start(self) -> Running:
        """The state that the first call starts from."""
        return self.places.take(self.h_init)[None]

    def __call__(self, h: Running) -> Running:
        if self.first is None:
            # sjfb-cut detaches the state that it is given; then the whole initial state is detached.
            self.first, self.seen = self._everywhere(self.h_init if h.requires_grad else self.h_init.detach())
            return self.places.take(self.first)[None]
        return self._where_it_runs(h)[None]

    def whole(self, h: Running) -> Hidden:
        """The states of all positions, where those that ran have come to h."""
        assert self.first is not None
        return _replaced(self.first, self.places, h[0])

    def _everywhere(self, h: Hidden) -> tuple[Hidden, Any]:
        denoiser, cond = self.f.denoiser, self.f.cond
        read = denoiser.inject(h, self.f.constant)
        blocks = denoiser.fixed_point_range
        if len(blocks) == 1:
            out, kept = denoiser.keeping_backbone.run_block_keeping(blocks[0], read, cond)
            return out, kept
        out = read
        for index in blocks:
            out = denoiser.backbone.run_block(index, out, cond)
        return out, read

    def _where_it_runs(self, h: Running) -> Features:
        denoiser, cond = self.f.denoiser, self.f.cond
        read: Tensor = denoiser.inject(h, self.constant)[0]
        *others, last = denoiser.fixed_point_range
        if others:  # these run everywhere, as in `PartialMap`
            x = _replaced(self.seen, self.places, read)
            for index in others:
                x = denoiser.backbone.run_block(index, x, cond)
            moved: Features = denoiser.backbone.run_block_at(last, x, cond, self.places)
        else:
            moved = denoiser.keeping_backbone.run_block_among(last, read, cond, self.places, self.seen)
        return moved


def solve_resting(
    solve: Callable[[Map, Hidden], Solution], f: Any, h_init: Hidden, runs: Somewhere
) -> tuple[Hidden, PerSequence]:
    """The states that a solve finds in which all other positions rest, and its residual.

    f is a `FixedPointMap`. The residual is that of all positions of the batch that run together.
    """
    resting = RestingMap(f, h_init, Places.of(runs))
    found = solve(resting, resting.start)
    return resting.whole(found.h), found.residual.expand(len(h_init))


def _replaced(into: Hidden, places: Places, values: Features) -> Hidden:
    """A copy of `into` with these values at the places."""
    return into.flatten(0, 1).index_copy(0, places.flat, values.to(into.dtype)).view_as(into)
