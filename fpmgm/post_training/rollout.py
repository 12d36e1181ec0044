"""Unfinished samples of a network, as its sampler meets them: what a student is to fill in at sampling time."""

from contextlib import suppress
from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor

from fpmgm.denoiser import Denoiser
from fpmgm.randomness import Streams, generator
from fpmgm.reuse import Reuse, no_reuse
from fpmgm.sampling import Step, even_times, sample
from fpmgm.solvers import Solver, picard
from fpmgm.transitions import Ancestral, Transition
from fpmgm.types import Labels, Solved, Tokens


class _EnoughError(Exception):
    """No sequence needs a later step."""


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """The sampler of a network, stopped on the way."""

    num_steps: int
    num_iters: int
    """Solver iterations of a step. A plain stack takes 0."""
    reuse: Reuse = no_reuse
    solver: Solver = picard
    transition: Transition = field(default_factory=Ancestral)

    def __call__(
        self,
        denoiser: Denoiser,
        z: Tokens,
        index: Int[Tensor, " B"],
        *,
        key: tuple[int, ...],
        rows: Int[Tensor, " B"],
        label: Labels | None = None,
    ) -> tuple[Tokens, Solved | None]:
        """Each sequence after its own number of steps, `index`, and what its last step solved, if it has made one.

        Without reuse, or if no sequence makes a step, there is nothing to start from, and None.

        Random numbers come from the key and the number of the sequence in its batch, so that parts of a batch are as
        the whole.
        """
        is_kept = self.reuse is not no_reuse
        found, solved, last = z.clone(), z.clone(), None
        if int(index.max()) == 0:
            return found, None

        def on_step(step: Step) -> None:
            nonlocal last
            last = torch.zeros_like(step.h_pre) if last is None else last
            is_here = index == step.index + 1
            found[is_here], solved[is_here] = step.z_next[is_here], step.z[is_here]
            last[is_here] = step.solution.h[is_here]
            if step.index + 1 >= int(index.max()):
                raise _EnoughError

        streams = Streams([generator(*key, row) for row in rows.tolist()])
        with suppress(_EnoughError):
            sample(
                denoiser,
                z,
                times=even_times(self.num_steps),
                iterations=[self.num_iters if denoiser.cost.fp else 0] * self.num_steps,
                transition=self.transition,
                rng=streams,
                label=label,
                reuse=self.reuse,
                solver=self.solver,
                on_step=on_step,
            )
        assert last is not None
        return found, Solved(z=solved, h_star=last) if is_kept else None
