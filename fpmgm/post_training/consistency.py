"""Cross-step consistency: what the network finds in a noisier input is drawn to what a teacher finds in a cleaner one.

The teacher is the network itself (the paper's L_CONS), its moving average, or a frozen model (the paper's adaptation).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Bool
from torch import Generator, Tensor
from torch.nn import functional as F  # noqa: N812

from fpmgm.denoiser import Denoiser
from fpmgm.masking import cleaner_times, mask_schedule_by_name, nested_below
from fpmgm.names import choose
from fpmgm.objectives import WHOLE, Losses, MaskedCrossEntropy, Moment, Noise, in_parts
from fpmgm.post_training.teachers import divergence, kl_backward, log_probabilities, teacher_features
from fpmgm.schema import LARGEST_WEIGHT, require_above
from fpmgm.types import Batch, Chosen, Features, Logits, PerChoice, PerSequence, Places, Positions, Tokens

SELF, EMA, INIT = "self", "ema", "init"


@dataclass(frozen=True, kw_only=True)
class PairNoise(Noise):
    """What was drawn for a batch of nested pairs."""

    t_cleaner: PerSequence
    cleaner: Tokens  # the cleaner input
    aligned: Positions  # where the distance is measured, a part of `asked`
    num_aligned: int  # of the whole batch
    weight: float  # of the distance, at this update


def mse(student: Features, teacher: Features) -> PerChoice:
    """The mean over hidden dimensions of the squared difference."""
    return (student - teacher).square().mean(dim=-1)


def squared_norm(student: Features, teacher: Features) -> PerChoice:
    """The squared norm of the difference: `mse` times the width, as the paper prints it."""
    return (student - teacher).square().sum(dim=-1)


def cosine(student: Features | Logits, teacher: Features | Logits) -> PerChoice:
    """1 - the cosine of the angle."""
    return 1 - F.cosine_similarity(student, teacher, dim=-1)


DISTANCES: dict[str, Callable[[Features, Features], PerChoice] | None] = {
    "mse": mse,
    "squared-norm": squared_norm,
    "cosine": cosine,
    "projected-cosine": None,
    "kl": None,
    "kl-bwd": None,
}
"""Of hidden states; the last three compare what the head makes of them."""


@dataclass(frozen=True, kw_only=True)
class Consistency:
    """Masked cross entropy on the noisier input plus `weight` times a distance to the cleaner one's."""

    base: MaskedCrossEntropy = field(default_factory=MaskedCrossEntropy)
    """The masked cross entropy of the noisier input."""
    weight: float = 0.1
    """The weight of the distance beside the cross entropy."""
    warmup: float = 1 / 6
    """The share of the run over which the weight rises from 0."""
    teacher: str = SELF
    """Who reads the cleaner input: the network itself (`self`, as in L_CONS), its moving average (`ema`), or a frozen
    model: the one that the run starts from (`init`), a bundled model, a folder or a hub id."""
    distance: Literal["mse", "squared-norm", "cosine", "projected-cosine", "kl", "kl-bwd"] = "mse"
    """Of what the head reads: `mse` (the mean over hidden dimensions), `squared-norm` (their sum, as the paper prints
    it), `cosine`. Of logits: `projected-cosine`, `kl` (teacher || student), `kl-bwd`."""
    positions: Literal["student-masked", "both-masked"] = "student-masked"
    """Where states are compared: where the noisier input is masked (`student-masked`, the paper), or where the cleaner
    one is masked too (`both-masked`)."""
    targets: Literal["subs", "raw"] = "subs"
    """What `kl` aims at where the teacher sees the token: that token (`subs`), or the logits of the teacher (`raw`)."""
    temperature: float = 1.0
    """For `kl`: the logits of both are divided by this, and the distance is multiplied by its square."""
    gap_min: float = 0.05
    """The smallest gap in time between the two inputs."""
    gap_max: float = 0.30
    """The largest gap in time between the two inputs."""

    is_in_nats = True
    is_cut_by_updates = False

    def __post_init__(self) -> None:
        choose("distance", self.distance, DISTANCES)
        choose("positions", self.positions, {"student-masked": None, "both-masked": None})
        choose("targets", self.targets, {"subs": None, "raw": None})
        for name in ("weight", "temperature"):
            require_above(f"the {name} of the consistency", getattr(self, name), LARGEST_WEIGHT)
        if not 0 <= self.warmup <= 1:
            raise ValueError(f"the warmup of the consistency is {self.warmup}; it must be a share of the run, 0 to 1")
        if self.temperature != 1 and self.distance not in ("kl", "kl-bwd"):
            raise ValueError(f"temperature is for distance kl or kl-bwd, and distance is {self.distance}")
        if self.targets != "subs" and self.distance not in ("kl", "kl-bwd"):
            raise ValueError(f"targets are for distance kl or kl-bwd, and distance is {self.distance}")
        if not 0 < self.gap_min <= self.gap_max <= 1:
            raise ValueError(
                f"gaps are {self.gap_min} to {self.gap_max}; they must satisfy 0 < gap_min <= gap_max <= 1"
            )

    @property
    def teacher_source(self) -> str:
        return "" if self.teacher == SELF else self.teacher

    def check(self, *, updates: int, has_init: bool, is_causal: bool) -> None:
        if is_causal:
            raise ValueError("consistency is for masked models, and model.is_causal is set")
        if self.teacher == INIT and not has_init:
            raise ValueError("the teacher is init, and there is no init; give --init, or another teacher")

    def next_teacher_at(self, moment: Moment) -> str:
        return ""

    def __call__(
        self, denoiser: Denoiser, x: Tokens | Batch, *, rng: Generator, teacher: Denoiser | None = None
    ) -> Losses:
        """The loss of a whole batch, at full weight."""
        return self.loss(denoiser, Batch.of(x).x, self.draw(denoiser, x, rng=rng), teacher)

    def draw(self, denoiser: Denoiser, batch: Tokens | Batch, *, rng: Generator, moment: Moment = WHOLE) -> PairNoise:
        """What the base objective draws, and the cleaner inputs."""
        batch = Batch.of(batch)
        noise, u = self.base.draw_uniforms(denoiser, batch, rng=rng)
        t_cleaner = cleaner_times(noise.t, rng=rng, gap_min=self.gap_min, gap_max=self.gap_max)
        schedule = mask_schedule_by_name(self.base.schedule)
        _, cleaner = nested_below(batch.x.cpu(), u, noise.t, t_cleaner, mask_id=denoiser.mask_id, schedule=schedule)
        is_aligned = noise.asked & (noise.z == denoiser.mask_id)
        if self.positions == "both-masked":
            is_aligned &= cleaner == denoiser.mask_id
        rise = max(round(self.warmup * moment.updates), 1)
        return PairNoise(
            **vars(noise),
            t_cleaner=t_cleaner,
            cleaner=cleaner,
            aligned=is_aligned,
            num_aligned=int(is_aligned.sum()),
            weight=self.weight * min(1.0, (moment.update + 1) / rise),
        )

    def loss(self, denoiser: Denoiser, x: Tokens, noise: PairNoise, teacher: Denoiser | None = None) -> Losses:
        """What the rows x of a batch add to its loss. Without a teacher the network is its own, gradients cut off."""
        asked, aligned = (Places.of(each).to(x.device) for each in (noise.asked, noise.aligned))
        is_aligned = noise.aligned[noise.asked].nonzero()[:, 0].to(x.device)  # which of those that were asked for
        visible = (noise.cleaner != denoiser.mask_id)[noise.aligned].to(x.device)
        noise = noise.to(x.device)
        features, residual = self.base.read(denoiser, noise.z, asked, noise)
        base = self.base.score(denoiser, features, x, asked, noise)
        teacher = teacher or denoiser
        targets = teacher_features(teacher, noise.cleaner, noise.t_cleaner, aligned, noise, self.base)
        apart = self._distance(denoiser, teacher, features[is_aligned], targets, visible, aligned.take(x))
        distance = apart.sum() / max(noise.num_aligned, 1)
        terms = {"base": base.detach(), "consistency": distance.detach()}
        return Losses(total=base + noise.weight * distance, residual=residual, terms=terms)

    def _distance(
        self,
        denoiser: Denoiser,
        teacher: Denoiser,
        student: Features,
        targets: Features,
        visible: Bool[Tensor, " M"],
        tokens: Chosen,
    ) -> PerChoice:
        of_states = DISTANCES[self.distance]
        if of_states is not None:
            return of_states(student, targets)

        def projected(student: Features, targets: Features) -> PerChoice:
            return cosine(denoiser.head(student), teacher.head(targets).detach())

        def kl(student: Features, targets: Features, visible: Bool[Tensor, " M"], tokens: Chosen) -> PerChoice:
            log_q = log_probabilities(denoiser, student, self.temperature)
            log_p = log_probabilities(teacher, targets, self.temperature).detach()
            found = (kl_backward if self.distance == "kl-bwd" else divergence)(log_p, log_q, denoiser.mask_id)
            if self.targets == "raw":
                return found
            return torch.where(visible, -log_q.gather(1, tokens[:, None])[:, 0], found)

        if self.distance == "projected-cosine":
            return in_parts(projected, denoiser.vocab_size, student, targets)
        return self.temperature**2 * in_parts(kl, denoiser.vocab_size, student, targets, visible, tokens)
