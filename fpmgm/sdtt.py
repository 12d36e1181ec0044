"""Self-distillation through time (SDTT, Deschenaux and Gulcehre): the baseline that the paper compares with.

A student learns to say in one pass what a frozen teacher says over several small ancestral steps. Every round its
steps become as large as the student's were, and the student becomes the next teacher.
"""

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from fpmgm.denoiser import Denoiser
from fpmgm.draws import categorical
from fpmgm.masking import linear, masked_below
from fpmgm.names import choose
from fpmgm.objectives import LOGITS_AT_ONCE, Losses, MaskedCrossEntropy, Noise, in_parts, not_padding
from fpmgm.teachers import DIVERGENCES, log_probabilities, teacher_features
from fpmgm.types import Chosen, Features, PerChoice, PerSequence, Tokens

SMALLEST_TIME = 1e-5


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
    """The random numbers of a batch and of the teacher's steps from it."""

    reveal: Float[Tensor, "K B L"]
    token: Float[Tensor, "K B L"]
    dt: float

    def rows(self, part: slice) -> "StepsNoise":
        reveal, token = self.reveal[:, part], self.token[:, part]
        return replace(self, t=self.t[part], u=self.u[part], reveal=reveal, token=token)


@dataclass(frozen=True, kw_only=True)
class SelfDistillation:
    """The divergence between the student and what the teacher says on the way, mean over masked tokens."""

    round_updates: int
    """Updates of a round, after which steps grow num_teacher_steps-fold and the student becomes the teacher."""
    first_steps: int = 1024
    """The teacher of the first round takes steps of 1 / first_steps."""
    num_teacher_steps: int = 2
    """Steps of the teacher that one of the student stands for."""
    divergence: str = "kl-bwd"
    """`kl-bwd` KL(student || teacher), `kl-fwd` the other way, `mse` or `tvd` of log-probabilities."""
    times: str = "corrected"
    """Where the teacher's steps are: `corrected`, or `published` as SDTT's code has them."""
    base: MaskedCrossEntropy = field(default_factory=MaskedCrossEntropy)
    """Whose masks, iteration counts, solver and gradient are used; its loss is not."""

    def __post_init__(self) -> None:
        if self.base.schedule is not linear:
            raise ValueError("SDTT's steps reveal tokens as the linear mask schedule does; it takes no other")
        choose("divergence", self.divergence, DIVERGENCES)
        choose("times", self.times, TIMES)
        for name, least in (("round_updates", 1), ("first_steps", 2), ("num_teacher_steps", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")

    def step_size(self, update: int) -> float:
        """The teacher's step in the round of an update."""
        return float(self.num_teacher_steps ** (update // self.round_updates) / self.first_steps)

    def is_round_start(self, update: int) -> bool:
        """Whether the student becomes the teacher before this update."""
        return update > 0 and update % self.round_updates == 0

    def draw(self, denoiser: Denoiser, x: Tokens, *, rng: Generator, update: int = 0) -> StepsNoise:
        """What masked cross entropy draws, and uniform numbers for the teacher's steps."""
        noise = self.base.draw(denoiser, x, rng=rng)
        shape = (self.num_teacher_steps, *x.shape)
        reveal, token = (torch.rand(shape, generator=rng) for _ in range(2))
        return StepsNoise(**vars(noise), reveal=reveal, token=token, dt=self.step_size(update))

    def loss(self, denoiser: Denoiser, x: Tokens, noise: StepsNoise, teacher: Denoiser | None = None) -> Losses:
        """What the rows x of a batch add to its loss."""
        if teacher is None:
            raise ValueError("SDTT needs a teacher")
        z = masked_below(x, noise.u.to(x.device), noise.t.to(x.device), mask_id=denoiser.mask_id)
        asked = (z == denoiser.mask_id) & not_padding(x, self.base.pad_id)
        features, residual = self.base.read(denoiser, z, asked, noise)
        targets = self.teacher_says(teacher, z, noise)[asked]

        def apart(student: Features, targets: Features) -> PerChoice:
            log_p = log_probabilities(teacher, targets).detach()
            return DIVERGENCES[self.divergence](log_p, log_probabilities(denoiser, student), denoiser.mask_id)

        total = in_parts(apart, denoiser.vocab_size, features, targets).sum() / max(noise.num_masked, 1)
        return Losses(total=total, residual=residual)

    @torch.no_grad()
    def teacher_says(self, teacher: Denoiser, z: Tokens, noise: StepsNoise) -> Float[Tensor, "B L D"]:
        """What the teacher's head reads at each masked position: when it is revealed, or at the last step."""
        said: Tensor | None = None
        t = noise.t.to(z.device).double()
        times = TIMES[self.times](t, noise.dt, self.num_teacher_steps).clamp_min(SMALLEST_TIME)
        steps = zip(times, noise.reveal.to(z.device), noise.token.to(z.device), strict=True)
        for index, (t, reveal, token) in enumerate(steps, start=1):
            masked = z == teacher.mask_id
            features = teacher_features(teacher, z, t.float(), masked, noise, self.base.solver)
            if said is None:
                said = features.new_zeros(*z.shape, features.shape[-1])
            said[masked] = features
            if index == self.num_teacher_steps:
                break  # what the last step would write nobody reads
            revealed = masked & (reveal < (noise.dt / t)[:, None])
            z = z.masked_scatter(revealed, _drawn(teacher, features[revealed[masked]], token[revealed]))
        assert said is not None
        return said


def _drawn(teacher: Denoiser, features: Features, u: PerChoice) -> Chosen:
    """Tokens that the teacher draws at chosen positions, some at a time: float64 logits of a large head fill memory."""
    at_once = max(1, LOGITS_AT_ONCE // teacher.vocab_size)
    parts = zip(features.split(at_once), u.double().split(at_once), strict=True)
    return torch.cat([categorical(log_probabilities(teacher, some).double(), of) for some, of in parts])
