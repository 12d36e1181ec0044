"""Self-distillation through time (SDTT, Deschenaux and Gulcehre): the baseline that the paper compares with.

A student learns to say in one pass what a frozen teacher says over several small ancestral steps. Every round its
steps become as large as the student's were, and the student becomes the next teacher.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from fpmgm.denoiser import Denoiser
from fpmgm.devices import has_float64
from fpmgm.names import choose
from fpmgm.objectives import WHOLE, Losses, MaskedCrossEntropy, Moment, Noise, in_parts
from fpmgm.post_training.teachers import (
    DIVERGENCES,
    drawn_tokens,
    log_probabilities,
    teacher_features,
    with_mask_column,
)
from fpmgm.schema import require
from fpmgm.types import Batch, Features, PerChoice, PerSequence, Places, Tokens

SMALLEST_TIME = 1e-5
MAX_ROUNDS = 64
MAX_STEPS = 1_000_000


def published_times(t: PerSequence, dt: float, num: int) -> Float[Tensor, "K B"]:
    """As SDTT's code interpolates: w t + (1 - t) t_end instead of w t + (1 - w) t_end, w from 1 to 0.

    For t = 0.5 and two steps these are 0.75 and 0.25. Only the probability of revealing a token, dt / t, depends on it.
    """
    w = torch.linspace(1, 0, num, dtype=t.dtype, device=t.device)[:, None]
    return w * t + (1 - t) * (t - num * dt)


def corrected_times(t: PerSequence, dt: float, num: int) -> Float[Tensor, "K B"]:
    """t, t - dt, t - 2 dt and so on: where steps of dt begin."""
    return t - dt * torch.arange(num, dtype=t.dtype, device=t.device)[:, None]


TIMES = {"corrected": corrected_times, "published": published_times}


@dataclass(frozen=True, kw_only=True)
class StepsNoise(Noise):
    """What was drawn for a batch and for the teacher's steps from it."""

    reveal: Float[Tensor, "B K L"]
    token: Float[Tensor, "B K L"]
    dt: float


@dataclass(frozen=True, kw_only=True)
class SelfDistillation:
    """The divergence between the student and what the teacher says on the way, mean over masked tokens."""

    rounds: int = 1
    """The run is cut into so many rounds of equal length. After each round, steps grow num_teacher_steps-fold and the
    student becomes the teacher."""
    first_steps: int = 1024
    """The teacher of the first round takes steps of 1 / first_steps."""
    num_teacher_steps: int = 2
    """The number of steps of the teacher that one step of the student replaces."""
    divergence: Literal["kl-bwd", "kl-fwd", "mse", "tvd", "mse-with-mask", "tvd-with-mask"] = "kl-bwd"
    """`kl-bwd` is KL(student || teacher), `kl-fwd` is the other way round, `mse` and `tvd` compare log-probabilities of
    all symbols but the mask. `mse-with-mask` and `tvd-with-mask` compare the column of the mask too, as SDTT's code
    does."""
    times: Literal["corrected", "published"] = "corrected"
    """Where the teacher's steps are: `corrected`, or `published` as SDTT's code has them."""
    next_teacher: Literal["weights", "ema"] = "weights"
    """What becomes the teacher of the next round: the student's weights, or their moving average (`ema`)."""
    base: MaskedCrossEntropy = field(default_factory=MaskedCrossEntropy)
    """Its masks, iteration counts, solver and gradient are used. Its loss is not."""

    teacher_source = "start"
    is_cut_by_updates = True

    def __post_init__(self) -> None:
        if self.base.schedule not in ("linear", "log-linear"):
            raise ValueError(
                f"SDTT's steps reveal tokens as linear mask schedules do, and schedule is {self.base.schedule}; give "
                "linear or log-linear"
            )
        choose("divergence", self.divergence, DIVERGENCES)
        choose("times", self.times, TIMES)
        choose("next_teacher", self.next_teacher, {"weights": None, "ema": None})
        require("rounds", self.rounds, 1, MAX_ROUNDS)
        require("first_steps", self.first_steps, 2, MAX_STEPS)
        require("num_teacher_steps", self.num_teacher_steps, 2, MAX_STEPS)
        if self.rounds * math.log(self.num_teacher_steps) > math.log(self.first_steps) + 1e-9:
            raise ValueError(
                f"there are {self.rounds} rounds and the first step is 1/{self.first_steps}: the last teacher's steps "
                "would go past the end of the text; give fewer rounds or more first_steps"
            )

    @property
    def is_in_nats(self) -> bool:
        return self.divergence.startswith("kl")

    def check(self, *, updates: int, has_init: bool, is_causal: bool) -> None:
        if is_causal:
            raise ValueError("SDTT is for masked models, and model.is_causal is set")
        if not has_init:
            raise ValueError("SDTT distils a trained model into itself, and there is no init; give --init")
        if -(-updates // self._round_updates(updates)) != self.rounds:
            raise ValueError(
                f"{updates} updates cannot be cut into {self.rounds} rounds; give a multiple of {self.rounds}"
            )

    def _round_updates(self, updates: int) -> int:
        """Updates of a round; the last may have fewer."""
        return max(1, -(-updates // self.rounds))

    def step_size(self, moment: Moment) -> float:
        """The teacher's step in the round of an update."""
        index = moment.update // self._round_updates(moment.updates)
        return float(self.num_teacher_steps**index / self.first_steps)

    def next_teacher_at(self, moment: Moment) -> str:
        is_start = moment.update > 0 and moment.update % self._round_updates(moment.updates) == 0
        return self.next_teacher if is_start else ""

    def draw(self, denoiser: Denoiser, batch: Tokens | Batch, *, rng: Generator, moment: Moment = WHOLE) -> StepsNoise:
        """What masked cross entropy draws, and uniform numbers for the teacher's steps."""
        noise = self.base.draw(denoiser, batch, rng=rng)
        shape = (self.num_teacher_steps, *noise.z.shape)
        reveal, token = (torch.rand(shape, generator=rng).transpose(0, 1) for _ in range(2))
        return StepsNoise(**vars(noise), reveal=reveal, token=token, dt=self.step_size(moment))

    def loss(self, denoiser: Denoiser, x: Tokens, noise: StepsNoise, teacher: Denoiser | None = None) -> Losses:
        """What the rows x of a batch add to its loss."""
        if teacher is None:
            raise ValueError("SDTT needs a teacher")
        places = Places.of(noise.asked).to(x.device)
        noise = noise.to(x.device)
        features, residual = self.base.read(denoiser, noise.z, places, noise)
        targets = places.take(self.teacher_says(teacher, noise.z, noise))

        def distance(student: Features, targets: Features) -> PerChoice:
            says = with_mask_column if self.divergence.endswith("-with-mask") else log_probabilities
            log_p = says(teacher, targets).detach()
            return DIVERGENCES[self.divergence](log_p, says(denoiser, student), denoiser.mask_id)

        total = in_parts(distance, denoiser.vocab_size, features, targets).sum() / max(noise.num_masked, 1)
        return Losses(total=total, residual=residual)

    @torch.no_grad()
    def teacher_says(self, teacher: Denoiser, z: Tokens, noise: StepsNoise) -> Float[Tensor, "B L D"]:
        """What the teacher's head reads at each masked position: when it is revealed, or at the last step."""
        said: Tensor | None = None
        t = noise.t.double() if has_float64(z.device) else noise.t
        times = TIMES[self.times](t, noise.dt, self.num_teacher_steps).clamp_min(SMALLEST_TIME)
        steps = zip(times, noise.reveal.unbind(1), noise.token.unbind(1), strict=True)
        for index, (t, reveal, token) in enumerate(steps, start=1):
            masked = z == teacher.mask_id
            features = teacher_features(teacher, z, t.float(), masked, noise, self.base)
            if said is None:
                said = features.new_zeros(*z.shape, features.shape[-1])
            said[masked] = features
            if index == self.num_teacher_steps:
                break  # what the last step would write nobody reads
            revealed = masked & (reveal < (noise.dt / t)[:, None])
            z = z.masked_scatter(revealed, drawn_tokens(teacher, features[revealed[masked]], token[revealed]))
        assert said is not None
        return said
