"""Cross-step consistency: what the network finds in a noisier input is drawn to what a teacher finds in a cleaner one.

The teacher is the network itself (the paper's L_CONS), its moving average, or a frozen model (the paper's adaptation).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool
from torch import Generator, Tensor
from torch.nn import functional as F  # noqa: N812

from fpmgm.denoiser import Denoiser
from fpmgm.masking import cleaner_times, nested_below
from fpmgm.names import choose
from fpmgm.objectives import Losses, MaskedCrossEntropy, Noise, in_parts, not_padding
from fpmgm.teachers import divergence, kl_backward, log_probabilities, teacher_features
from fpmgm.types import Chosen, Features, Logits, PerChoice, PerSequence, Tokens


@dataclass(frozen=True, kw_only=True)
class PairNoise(Noise):
    """The random numbers of a batch of nested pairs."""

    t_cleaner: PerSequence
    num_aligned: int  # positions of the whole batch that the distance is a mean over
    weight: float  # of the distance, at this update

    def rows(self, part: slice) -> "PairNoise":
        return replace(self, t=self.t[part], u=self.u[part], t_cleaner=self.t_cleaner[part])


def mse(student: Features, teacher: Features) -> PerChoice:
    """The mean over hidden dimensions of the squared difference."""
    return (student - teacher).square().mean(dim=-1)


def cosine(student: Features | Logits, teacher: Features | Logits) -> PerChoice:
    """1 - the cosine of the angle."""
    return 1 - F.cosine_similarity(student, teacher, dim=-1)


DISTANCES: dict[str, Callable[[Features, Features], PerChoice] | None] = {
    "mse": mse,
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
    weight: float = 0.1
    warmup: int = 0
    """Updates over which the weight rises from 0."""
    distance: str = "mse"
    """Of what the head reads: `mse`, `cosine`. Of logits: `projected-cosine`, `kl` (teacher || student), `kl-bwd`."""
    positions: str = "student-masked"
    """Where: masked in the noisier input (`student-masked`, the paper), or in the cleaner one too (`both-masked`)."""
    targets: str = "subs"
    """What `kl` aims at where the teacher sees the token: that token (`subs`), or the teacher's logits (`raw`)."""
    temperature: float = 1.0
    """Divides the logits of both in `kl`, which is then multiplied by its square."""
    gap_min: float = 0.05
    gap_max: float = 0.30
    """The cleaner input is that of a time earlier by a gap drawn from this range."""

    def __post_init__(self) -> None:
        choose("distance", self.distance, DISTANCES)
        choose("positions", self.positions, {"student-masked": None, "both-masked": None})
        choose("targets", self.targets, {"subs": None, "raw": None})
        for name in ("weight", "temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"the {name} of the consistency is {getattr(self, name)}; it must be above 0, and finite"
                )
        if self.temperature != 1 and self.distance not in ("kl", "kl-bwd"):
            raise ValueError(f"temperature is for distance kl or kl-bwd, and distance is {self.distance}")
        if self.targets != "subs" and self.distance not in ("kl", "kl-bwd"):
            raise ValueError(f"targets are for distance kl or kl-bwd, and distance is {self.distance}")
        if not 0 < self.gap_min <= self.gap_max <= 1:
            raise ValueError(
                f"gaps are {self.gap_min} to {self.gap_max}; they must satisfy 0 < gap_min <= gap_max <= 1"
            )

    def __call__(self, denoiser: Denoiser, x: Tokens, *, rng: Generator, teacher: Denoiser | None = None) -> Losses:
        """The loss of a whole batch, at full weight."""
        return self.loss(denoiser, x, self.draw(denoiser, x, rng=rng, update=self.warmup), teacher)

    def draw(self, denoiser: Denoiser, x: Tokens, *, rng: Generator, update: int = 0) -> PairNoise:
        """What the base objective draws, and the times of the cleaner inputs."""
        noise = self.base.draw(denoiser, x, rng=rng)
        t_cleaner = cleaner_times(noise.t, rng=rng, gap_min=self.gap_min, gap_max=self.gap_max)
        _, cleaner = nested_below(
            x.cpu(), noise.u, noise.t, t_cleaner, mask_id=denoiser.mask_id, schedule=self.base.schedule
        )
        counts = (cleaner == denoiser.mask_id) & not_padding(x, self.base.pad_id).cpu()
        return PairNoise(
            **vars(noise),
            t_cleaner=t_cleaner,
            num_aligned=noise.num_masked if self.positions == "student-masked" else int(counts.sum()),
            weight=self.weight * min(1.0, (update + 1) / max(self.warmup, 1)),
        )

    def loss(self, denoiser: Denoiser, x: Tokens, noise: PairNoise, teacher: Denoiser | None = None) -> Losses:
        """What the rows x of a batch add to its loss. Without a teacher the network is its own, gradients cut off."""
        t, t_cleaner = noise.t.to(x.device), noise.t_cleaner.to(x.device)
        noisier, cleaner = nested_below(
            x, noise.u.to(x.device), t, t_cleaner, mask_id=denoiser.mask_id, schedule=self.base.schedule
        )
        asked = (noisier == denoiser.mask_id) & not_padding(x, self.base.pad_id)
        aligned = asked if self.positions == "student-masked" else asked & (cleaner == denoiser.mask_id)
        features, residual = self.base.read(denoiser, noisier, asked, noise)
        base = self.base.score(denoiser, features, x, asked, noise)
        teacher = teacher or denoiser
        targets = teacher_features(teacher, cleaner, t_cleaner, aligned, noise, self.base.solver)
        visible = (cleaner != denoiser.mask_id)[aligned]
        apart = self._distance(denoiser, teacher, features[aligned[asked]], targets, visible, x[aligned])
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
