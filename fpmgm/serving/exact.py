"""Batches that change nobody's result: what is computed of a sequence has the same bits as if it were alone.

A matrix product of one shape may round otherwise than one of another shape. Two things keep that away from results.
The last block and the head, which run at few positions, run sequence by sequence. Everything before them runs for the
whole batch, and before a batch of a new shape runs for the first time, it is tried whether it computes the same bits as
its sequences alone. If it does not, sequences of that shape run alone. A trial is evidence and no proof: see `TRIED`.
"""

from collections.abc import Sequence
from contextlib import nullcontext

import torch

from fpmgm.denoiser import Denoiser, evaluating
from fpmgm.randomness import generator
from fpmgm.solvers import Solution, Solver
from fpmgm.types import Features, Hidden, Logits, Places, Positions, Tokens

ITERATIONS = 3
"""Solver iterations of a trial."""
TRIED = ("picard",)
"""Solvers whose batches are tried. With Anderson's, hidden states of sampling runs differed by up to 4e-5 between a
batch and alone, although trials found no difference. The cause was not found, so its sequences always run alone."""


class RowByRow(Denoiser):
    """A denoiser with the weights of another one, whose last block and head run sequence by sequence."""

    def __init__(self, denoiser: Denoiser) -> None:
        super().__init__(denoiser.backbone, denoiser.cost, injection=denoiser.injection)
        self._counts: tuple[int, ...] = ()  # of the places that the last call of `post` was for
        self.eval()

    def memory(self, device: torch.device) -> None:
        """Nothing is remembered from step to step: what changes together would be projected together."""

    def post(self, h_star: Hidden, cond: object, places: Positions | Places) -> Features:
        """The features of `Denoiser.post`, each sequence by itself."""
        places = places if isinstance(places, Places) else Places.of(places)
        self._counts = places.counts
        if len(places.counts) == 1 or not any(places.counts):
            return super().post(h_star, cond, places)
        chosen = torch.zeros(len(h_star) * places.length, dtype=torch.bool, device=places.flat.device)
        chosen = chosen.index_fill(0, places.flat, True).view(len(h_star), places.length)
        return torch.cat([self._post_of(row, h_star, cond, chosen) for row, num in enumerate(places.counts) if num])

    def _post_of(self, row: int, h_star: Hidden, cond: object, chosen: Positions) -> Features:
        index = torch.tensor([row], device=h_star.device)
        return super().post(h_star[row : row + 1], cond.rows(index), Places.of(chosen[row : row + 1]))  # type: ignore[attr-defined]

    def head(self, features: Features) -> Logits:
        """The logits of the features that `post` has just given, each sequence by itself."""
        if sum(self._counts) != len(features):
            raise ValueError(f"{len(features)} features, and `post` gave {sum(self._counts)} the last time")
        return torch.cat([super(RowByRow, self).head(part) for part in features.split(list(self._counts))])


class Trials:
    """Which batches were tried, and whether they compute the same bits as their sequences alone."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], bool] = {}

    def holds(self, denoiser: Denoiser, z: Tokens, solver: Solver, *, name: str, has_tolerance: bool) -> bool:
        """Whether sequences in a batch of this shape have the bits that they have alone; `name` is the solver's."""
        if len(z) == 1 or name not in TRIED:
            return len(z) == 1
        key = (denoiser, z.shape, name, has_tolerance)
        if key not in self._found:
            self._found[key] = is_exact(denoiser, z.shape[1], len(z), solver, has_tolerance=has_tolerance)
        return self._found[key]


@torch.no_grad()
def is_exact(denoiser: Denoiser, length: int, num_rows: int, solver: Solver, *, has_tolerance: bool) -> bool:
    """Whether sequences in a batch have the bits that they have alone, tried on random tokens.

    With a tolerance some sequences stop before others, so smaller batches are tried too, and residuals are compared.
    """
    sizes = range(2, num_rows + 1) if has_tolerance else [num_rows]
    rng = generator(0, length)
    z = torch.randint(denoiser.vocab_size, (num_rows, length), generator=rng)
    z[torch.rand(z.shape, generator=rng) < 0.5] = denoiser.mask_id
    z = z.to(next(denoiser.parameters()).device)
    with evaluating(denoiser), denoiser.injection.folded() if denoiser.injection else nullcontext():
        alone = [_solved(denoiser, z[row : row + 1], solver) for row in range(len(z))]
        batches = [_solved(denoiser, z[:size], solver) for size in sizes]
    return all(_agree(batch, alone, has_tolerance) for batch in batches)


def _solved(denoiser: Denoiser, z: Tokens, solver: Solver) -> Solution:
    cond = denoiser.condition(z, 0.5)
    h_pre = denoiser.pre(z, cond)
    if denoiser.cost.fp:
        return solver(denoiser.fixed_point_map(h_pre, cond), h_pre, ITERATIONS)
    none = torch.zeros(len(h_pre), device=h_pre.device)
    return Solution(h=h_pre, residual=none, num_iters=none.long())


def _agree(batch: Solution, alone: Sequence[Solution], has_tolerance: bool) -> bool:
    for row, one in enumerate(alone[: len(batch.h)]):
        pairs = [(batch.h, one.h), (batch.num_iters, one.num_iters)]
        pairs += [(batch.residual, one.residual)] if has_tolerance else []
        if not all(torch.equal(ours[row], theirs[0]) for ours, theirs in pairs):
            return False
    return True
