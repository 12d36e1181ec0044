"""Distribution matching: a student of few steps learns to write what its teacher takes for real text (IDLM).

Three networks take part. The *student* fills in a masked text in one pass. Tokens are drawn from it and masked again.
The *fake* learns to fill these in, so it knows what the student writes. The frozen *teacher* knows real text. Where
the fake finds a symbol more probable than the teacher does, the student writes it too often, and its probability is
lowered. For one position this is the gradient of KL(student || teacher). With more positions the masked text is taken
as given: no gradient passes through the tokens that were drawn.
"""

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from fpmgm.denoiser import Denoised, Denoiser
from fpmgm.masking import linear
from fpmgm.names import choose
from fpmgm.objectives import WHOLE, Losses, MaskedCrossEntropy, Moment, Noise, in_parts, token_nll
from fpmgm.post_training.rollout import Rollout
from fpmgm.post_training.teachers import difference, drawn_tokens, log_probabilities, teacher_features
from fpmgm.reuse import ReuseName, reuse_by_name
from fpmgm.schema import LARGEST_RATE, LARGEST_WEIGHT, require, require_above
from fpmgm.solvers import solver_by_name
from fpmgm.transitions import Ancestral, Halton, halton_rank
from fpmgm.types import Batch, Features, Hidden, PerSequence, Places, Positions, Solved, Tokens, Uniforms

MAX_STEPS = 4096
MAX_FAKE_UPDATES = 1000
TEACHER = "teacher"
START_SEED = 7
"""Keeps the random numbers of rollouts apart from all others of an update."""

Terms = Float[Tensor, "M 2"]


@dataclass(frozen=True, kw_only=True)
class MatchingNoise(Noise):
    """What was drawn for a batch, for the tokens that the student writes and for their new masks."""

    is_real: Positions  # where tokens count
    num_steps: int  # of the sampler that the student's input belongs to; 0 if it belongs to none
    index: Int[Tensor, " B"]  # how many steps of that sampler are done, by sequence
    t_next: PerSequence  # the time, or with Halton order the share of masks, after the sampler's next step
    row: Int[Tensor, " B"]  # the number of each sequence in the batch
    seed: int  # of the rollout
    token: Uniforms  # which tokens are drawn
    reveal: Uniforms  # which of them the next step of the sampler shows
    mask: Uniforms  # where the new masks are
    t_again: PerSequence  # how much is masked again
    fake_no_grad: int
    fake_grad: int
    is_learning: bool  # whether the student learns at this update; the fake always does


@dataclass(frozen=True, kw_only=True)
class Matching:
    """The student's distribution is drawn to the teacher's by the difference between the fake and the teacher."""

    teacher: str = "init"
    """The frozen model that knows real text: `init` (the one that the run starts from), a bundled model, a folder or a
    hub id. It needs the student's symbols, and may be plain or have a fixed point."""
    fake: str = TEACHER
    """What the fake starts from: `teacher`, `init` or a model, plain or with a fixed point."""
    fake_lr: float = 1e-4
    """The learning rate of the fake. Its warm-up and decay are those of the student."""
    fake_updates: int = 1
    """How many updates the fake makes for each update of the student."""
    fake_ema: float = 0.0
    """The decay of a moving average of the fake, which the student is compared with. With 0, it is compared with the
    fake itself."""
    steps: tuple[int, ...] = ()
    """The numbers of denoising steps of the samplers that the student learns for. At each update, its inputs have the
    times at which one of these samplers runs the network. If it is empty, all times are alike."""
    inputs: Literal["data", "own"] = "data"
    """What the student fills in: real text with masks (`data`), or its own unfinished samples (`own`)."""
    reuse: ReuseName = "none"
    """For inputs `own`: where the solver of its own samples starts, in the rollout and in the pass that learns."""
    remask: Literal["anew", "nested"] = "anew"
    """`anew`: the filled-in text is masked everywhere by chance (IDLM). `nested`: only what the next step of the
    sampler shows can be seen, and of that some is masked again."""
    order: Literal["chance", "halton"] = "chance"
    """How that sampler chooses the tokens that a step reveals: each by `chance` (ancestral), or those that lie far
    apart (`halton`; a text is one row)."""
    first: Literal["match", "base"] = "match"
    """What the student learns for the first step of a sampler. All samples have the same input there, so matching draws
    them to the same opening. With `base` it learns masked cross entropy there, and openings stay as various as text."""
    t_min: float = 0.02
    """The least share of tokens that is masked again. The loss is weighted by one over this share."""
    base_weight: float = 0.0
    """For inputs `data`: the weight of masked cross entropy beside the matching."""
    base: MaskedCrossEntropy = field(default_factory=MaskedCrossEntropy)
    """The iteration counts, solver and gradient of the student and of the fake."""

    is_in_nats = True
    is_cut_by_updates = False

    def __post_init__(self) -> None:
        if self.base.schedule != "linear" or self.base.weighting != "bound":
            raise ValueError("matching masks by the linear schedule and weights by its bound; it takes no other")
        choose("inputs", self.inputs, {"data": None, "own": None})
        choose("remask", self.remask, {"anew": None, "nested": None})
        choose("order", self.order, {"chance": None, "halton": None})
        choose("first", self.first, {"match": None, "base": None})
        reuse_by_name(self.reuse)
        require("fake_updates", self.fake_updates, 1, MAX_FAKE_UPDATES)
        for num_steps in self.steps:
            require("steps", num_steps, 1, MAX_STEPS)
        self._check_numbers()
        self._check_used()

    def _check_numbers(self) -> None:
        require_above("fake_lr", self.fake_lr, LARGEST_RATE)
        if not 0 <= self.fake_ema < 1:
            raise ValueError(f"fake_ema is {self.fake_ema}; it must be at least 0 and below 1")
        if not 0 < self.t_min < 1:
            raise ValueError(f"t_min is {self.t_min}; it must lie between 0 and 1, such as 0.02")
        require("base_weight", self.base_weight, 0, LARGEST_WEIGHT)

    def _check_used(self) -> None:
        """A ValueError if a setting would do nothing, or lacks what it needs."""
        if not self.steps and (self.inputs == "own" or self.remask == "nested" or self.order == "halton"):
            raise ValueError(
                f"inputs are {self.inputs}, remask is {self.remask}, order is {self.order}: these follow the steps "
                "of a sampler, and there are no steps; give some, as in --objective.steps 4 8 16"
            )
        if self.reuse != "none" and self.inputs != "own":
            raise ValueError(
                f"reuse is {self.reuse}, and only inputs `own` come from a rollout; give --objective.inputs own"
            )
        if self.base.warm_start:
            raise ValueError(
                f"base.warm_start is {self.base.warm_start}, and matching starts its solver by inputs `own` and reuse; "
                "leave it out"
            )
        if self.base_weight and self.inputs == "own":
            raise ValueError("base_weight is for inputs `data`: of its own samples nobody knows the right tokens")
        if self.base_weight and self.order == "halton":
            raise ValueError("base_weight is for order `chance`: cross entropy is a bound for masks by chance only")
        if self.first == "base" and not self.steps:
            raise ValueError("first is base, and there are no steps of which one is the first; give --objective.steps")

    @property
    def teacher_source(self) -> str:
        return self.teacher

    def check(self, *, updates: int, has_init: bool, is_causal: bool) -> None:
        if is_causal:
            raise ValueError("matching is for masked models, and model.is_causal is set")
        if not has_init:
            raise ValueError("matching starts from a trained model, and there is no init; give --init")

    def next_teacher_at(self, moment: Moment) -> str:
        return ""

    def draw(
        self, denoiser: Denoiser, batch: Tokens | Batch, *, rng: Generator, moment: Moment = WHOLE
    ) -> MatchingNoise:
        """Times, masks and uniform numbers for a whole batch."""
        batch = Batch.of(batch)
        num, shape = len(batch.x), batch.x.shape
        num_steps, index, t = self._times(num, rng)
        noise, _ = self.base.draw_uniforms(denoiser, batch, rng=rng, t=t)
        fake_no_grad, fake_grad = self.base.iterations(rng=rng)
        token, reveal, mask = (torch.rand(shape, generator=rng) for _ in range(3))
        t_next = (noise.t - 1 / num_steps).clamp_min(0) if num_steps else torch.zeros(num)
        if self.order == "halton":
            noise, t_next, reveal = _in_halton_order(noise, batch, num_steps, index, denoiser.mask_id)
        least = t_next if self.remask == "nested" else torch.zeros(num)
        share = (torch.arange(num) + torch.rand(num, generator=rng))[torch.randperm(num, generator=rng)] / num
        return MatchingNoise(
            **vars(noise),
            is_real=batch.is_real.cpu(),
            num_steps=num_steps,
            index=index,
            t_next=t_next,
            row=torch.arange(num),
            seed=int(torch.randint(1 << 31, (), generator=rng)) if self.inputs == "own" else 0,
            token=token,
            reveal=reveal,
            mask=batch.sparing(mask),
            t_again=(1 - (1 - least) * share).clamp_min(self.t_min),
            fake_no_grad=fake_no_grad,
            fake_grad=fake_grad,
            is_learning=moment.update % self.fake_updates == 0,
        )

    def _times(self, num: int, rng: Generator) -> tuple[int, Int[Tensor, " B"], PerSequence | None]:
        """The sampler of this update and how far each sequence has come in it; no times if all are alike."""
        if not self.steps:
            return 0, torch.zeros(num, dtype=torch.long), None
        num_steps = self.steps[int(torch.randint(len(self.steps), (), generator=rng))]
        share = (torch.arange(num) + torch.rand((), generator=rng, dtype=torch.float64)) / num
        index = (share * num_steps).long()  # spread evenly over the steps
        return num_steps, index, 1 - index / num_steps

    def loss(
        self,
        denoiser: Denoiser,
        x: Tokens,
        noise: MatchingNoise,
        teacher: Denoiser | None = None,
        fake: Denoiser | None = None,
        averaged: Denoiser | None = None,
    ) -> Losses:
        """What the rows x of a batch add to the losses of the student and of the fake.

        Each has gradients for its own network only, so their sum is minimised by one backward pass. `averaged` is the
        moving average of the fake, if the student is compared with that.
        """
        if teacher is None or fake is None:
            raise ValueError("matching needs a teacher and a fake")
        noise = noise.to(x.device)
        z, last = self._input(denoiser, x, noise)
        places = Places.of((z == denoiser.mask_id) & noise.is_real)
        with nullcontext() if noise.is_learning else torch.no_grad():
            features, residual = self._student(denoiser, z, places, noise, last)
        tokens = drawn_tokens(denoiser, features.detach(), places.take(noise.token))
        written = places.put(z, tokens)
        again = masked_again(z, written, noise, denoiser.mask_id, is_nested=self.remask == "nested")
        student, learned = self._terms(denoiser, teacher, fake, averaged, places, features, written, again, noise)
        terms = {"matching": student.detach(), "fake": learned.detach()}
        if not noise.is_learning:  # several processes wait for the gradient of every weight
            student = torch.stack([0 * parameter.sum() for parameter in denoiser.parameters()]).sum()
        total = learned + student
        if self.base_weight and noise.is_learning:
            base = self.base.score(denoiser, features, x, places, noise)
            total, terms = total + self.base_weight * base, {**terms, "base": base.detach()}
        if self.first == "base" and noise.is_learning:
            begun = (noise.index == 0)[:, None] & (z == denoiser.mask_id) & noise.is_real
            own = features[(noise.index == 0)[places.sequences]]
            first = self.base.score(denoiser, own, x, Places.of(begun), noise)
            total, terms = total + first, {**terms, "first": first.detach()}
        return Losses(total=total, residual=residual.detach(), terms=terms)

    def _input(self, denoiser: Denoiser, x: Tokens, noise: MatchingNoise) -> tuple[Tokens, Solved | None]:
        """What the student fills in, and the solution of the step before, if there is one to start from."""
        if self.inputs == "data":
            return noise.z, None
        rollout = Rollout(
            num_steps=noise.num_steps,
            num_iters=noise.num_no_grad + noise.num_grad,
            reuse=reuse_by_name(self.reuse if denoiser.cost.fp else "none"),
            solver=solver_by_name(self.base.solver),
            transition=Halton() if self.order == "halton" else Ancestral(),
        )
        start = torch.where(noise.is_real, denoiser.mask_id, x)
        return rollout(denoiser, start, noise.index, key=(START_SEED, noise.seed), rows=noise.row, label=noise.label)

    def _student(
        self, denoiser: Denoiser, z: Tokens, places: Places, noise: MatchingNoise, last: Solved | None
    ) -> Denoised:
        def warm(h_pre: Hidden) -> Hidden:
            h_init = reuse_by_name(self.reuse)(h_pre, z, last, mask_id=denoiser.mask_id)
            return torch.where((noise.index == 0)[:, None, None], h_pre, h_init)

        return self.base.read(denoiser, z, places, noise, start=warm if last else None)

    def _terms(
        self,
        denoiser: Denoiser,
        teacher: Denoiser,
        fake: Denoiser,
        averaged: Denoiser | None,
        places: Places,
        features: Features,
        written: Tokens,
        again: Tokens,
        noise: MatchingNoise,
    ) -> tuple[Tensor, Tensor]:
        """The losses of the student and of the fake, where the text that was written is masked again."""
        asked = Places.of((again == denoiser.mask_id) & noise.is_real)
        counted = replace(noise, t=noise.t_again, num_no_grad=noise.fake_no_grad, num_grad=noise.fake_grad)
        learning = counted if fake.cost.fp else replace(counted, num_no_grad=0, num_grad=0)
        of_fake = self.base.read(fake, again, asked, learning).features
        of_teacher = teacher_features(teacher, again, noise.t_again, asked, counted, self.base)
        of_average = of_fake
        if averaged is not None:
            of_average = teacher_features(averaged, again, noise.t_again, asked, counted, self.base)
        weights = linear.weight(noise.t_again)[asked.sequences] / noise.num_tokens
        from_student = asked.take(_numbered(places, again))  # which row of `features` each position is, or -1
        is_soft = from_student >= 0

        def compare(student: Features, of_fake: Features, of_average: Features, of_teacher: Features) -> Terms:
            g = log_probabilities(denoiser, student).exp()
            log_f = log_probabilities(fake, of_fake)
            known = log_f if averaged is None else log_probabilities(averaged, of_average)
            log_t = log_probabilities(teacher, of_teacher)
            excess = difference(known, log_t, denoiser.mask_id).detach()
            nothing = torch.zeros_like(log_f)
            learned = difference(nothing, log_f, denoiser.mask_id)
            return torch.stack([(g * excess).sum(dim=-1), (g.detach() * learned).sum(dim=-1)], dim=1)

        chosen = (features[from_student[is_soft]], of_fake[is_soft], of_average[is_soft], of_teacher[is_soft])
        compared = weights[is_soft, None] * in_parts(compare, denoiser.vocab_size, *chosen)
        matched, learned = compared.unbind(dim=1)
        if self.first == "base":
            matched = matched * (noise.index > 0)[asked.sequences[is_soft]]
        nll = token_nll(fake, of_fake[~is_soft], asked.take(written)[~is_soft])  # tokens that the student was given
        return matched.sum(), learned.sum() + (weights[~is_soft] * nll).sum()


def masked_again(z: Tokens, written: Tokens, noise: MatchingNoise, mask_id: int, *, is_nested: bool) -> Tokens:
    """The text that the student has written, with new masks.

    Nested: a sampler's next step shows each token with probability 1 - t_next / t, or those whose turn it is. Of all
    that can then be seen, each is masked with the probability that leaves a share t' masked on the whole.
    """
    if not is_nested:
        return torch.where(noise.mask < noise.t_again[:, None], mask_id, written)
    is_shown = (z != mask_id) | (noise.reveal < (1 - noise.t_next / noise.t)[:, None])
    hidden = 1 - (1 - noise.t_again) / (1 - noise.t_next).clamp_min(1e-6)
    return torch.where(is_shown & (noise.mask >= hidden[:, None]), written, mask_id)


def _in_halton_order(
    noise: Noise, batch: Batch, num_steps: int, index: Int[Tensor, " B"], mask_id: int
) -> tuple[Noise, PerSequence, Uniforms]:
    """The noise with the masks that a Halton sampler has left after `index` steps; the share of masks after its next
    step; and zeros where that step reveals a token."""
    length = batch.x.shape[1]
    rank, shown = halton_rank(1, length), torch.tensor(Halton().shown(num_steps, length))
    hidden = batch.sparing((rank < shown[index][:, None]).float()) < 0.5
    z = batch.x.cpu().masked_fill(hidden, mask_id)
    asked = hidden & batch.is_real.cpu()
    t, t_next = (1 - shown[at] / length for at in (index, index + 1))
    masked = replace(noise, t=t, z=z, asked=asked, num_masked=int(asked.sum()))
    return masked, t_next, (rank >= shown[index + 1][:, None]).float()


def _numbered(places: Places, like: Tokens) -> Int[Tensor, "B L"]:
    """The number of each place in row-major order; -1 where there is none."""
    return places.put(torch.full_like(like, -1), torch.arange(len(places.flat), device=like.device))
