"""What a stage of consistency or self-distillation could reach at best, without training it.

A student on a noisier input that is drawn to a frozen teacher on cleaner ones has a known optimum: the geometric mean
of what the teacher says for KL(student || teacher), and for squared distances of what a linear head reads; the
arithmetic mean for KL(teacher || student). Both can be drawn from: the model itself makes cleaner inputs, and says what
it says on each.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from fpmgm.denoiser import Denoiser
from fpmgm.draws import categorical
from fpmgm.names import choose
from fpmgm.randomness import Streams
from fpmgm.teachers import log_probabilities
from fpmgm.transitions import Ancestral
from fpmgm.types import Logits, Positions, State, Tokens


def geometric(log_p: Float[Tensor, "K N V"]) -> Logits:
    """The mean of log-probabilities."""
    return log_p.mean(dim=0)


def arithmetic(log_p: Float[Tensor, "K N V"]) -> Logits:
    """The logarithm of the mean (up to a constant) of probabilities."""
    return log_p.logsumexp(dim=0)


MEANS: dict[str, Callable[[Tensor], Tensor]] = {"geometric": geometric, "arithmetic": arithmetic}


@dataclass(frozen=True, kw_only=True)
class Foreseen:
    """The ancestral rule, with tokens drawn from a mean of what the model says on cleaner inputs of its own making."""

    denoiser: Denoiser
    mean: str = "geometric"
    gap: float = 0.3
    """How much earlier the cleaner inputs are. They show other positions than those that the step reveals."""
    num_inputs: int = 8
    num_iters: int = 6
    """Solver iterations of the passes on cleaner inputs. Unused by a plain stack."""
    rule: Ancestral = field(default_factory=Ancestral)

    def __post_init__(self) -> None:
        choose("mean", self.mean, MEANS)
        if not 0 < self.gap <= 1:
            raise ValueError(f"gap is {self.gap}; it must lie above 0 and be at most 1")
        for name in ("num_inputs", "num_iters"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")

    def positions(self, state: State, t: float, t_next: float, *, rng: Streams) -> Positions:
        return self.rule.positions(state, t, t_next, rng=rng)

    def write(
        self, state: State, logits: Logits, positions: Positions, t: float, t_next: float, *, rng: Streams
    ) -> State:
        masked = self._says(state.z, t, state.is_masked)
        said = []
        for _ in range(self.num_inputs):
            reveal, token = (rng.uniform(state.z.shape[1]).to(state.z.device) for _ in range(2))
            shown = state.is_masked & ~positions & (reveal < self.gap / t)
            z = state.z.masked_scatter(shown, categorical(masked[shown[state.is_masked]], token[shown]))
            said.append(self._says(z, max(t - self.gap, 0.0), positions))
        return self.rule.write(state, MEANS[self.mean](torch.stack(said)), positions, t, t_next, rng=rng)

    def _says(self, z: Tokens, t: float, positions: Positions) -> Logits:
        counts = {"num_no_grad": self.num_iters - 1, "num_grad": 1} if self.denoiser.cost.fp else {}
        return log_probabilities(self.denoiser, self.denoiser(z, t, positions, **counts).features).double()
