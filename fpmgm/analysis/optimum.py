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
from fpmgm.draws import categorical, exact
from fpmgm.names import choose
from fpmgm.post_training.teachers import log_probabilities
from fpmgm.randomness import Streams
from fpmgm.schema import MAX_ITERATIONS, require
from fpmgm.transitions import Ancestral
from fpmgm.types import Logits, Places, Positions, State, Tokens


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
            require(name, getattr(self, name), 1, MAX_ITERATIONS)

    def positions(self, state: State, t: float, t_next: float, *, rng: Streams) -> Positions:
        return self.rule.positions(state, t, t_next, rng=rng)

    def write(self, state: State, logits: Logits, places: Places, t: float, t_next: float, *, rng: Streams) -> State:
        is_masked = state.is_masked
        masked = self._says(state.z, t, is_masked)
        is_chosen = places.put(torch.zeros_like(is_masked), torch.ones_like(places.flat))
        said = []
        for _ in range(self.num_inputs):
            reveal, token = (rng.uniform(state.length).to(masked) for _ in range(2))
            shown = is_masked & ~is_chosen & (reveal < self.gap / t).to(state.device)
            z = state.z.masked_scatter(shown, categorical(masked[shown[is_masked]], token[shown]))
            said.append(self._says(z, max(t - self.gap, 0.0), places))
        return self.rule.write(state, MEANS[self.mean](torch.stack(said)), places, t, t_next, rng=rng)

    def _says(self, z: Tokens, t: float, places: Positions | Places) -> Logits:
        counts = {"num_no_grad": self.num_iters - 1, "num_grad": 1} if self.denoiser.cost.fp else {}
        return exact(log_probabilities(self.denoiser, self.denoiser(z, t, places, **counts).features))
