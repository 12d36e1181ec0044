"""Objectives: losses on a batch.

An objective draws its random numbers for the whole batch at once (`draw`), then computes the loss of any part of it:
parts add up to the loss of the whole, whether they are processes, accumulation steps or one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from fpmgm.denoiser import Denoised, Denoiser, evaluating
from fpmgm.gradients import GradientName, IterationCounts, gradient_by_name
from fpmgm.head_loss import weighted_nll
from fpmgm.masking import (
    ScheduleName,
    cleaner_times,
    mask_schedule_by_name,
    masked_below,
    stratified_times,
    without_mask,
)
from fpmgm.names import choose
from fpmgm.reuse import three_state_reuse
from fpmgm.solvers import SolverName, solver_by_name
from fpmgm.types import (
    NO_CLASS,
    Batch,
    Chosen,
    Features,
    Hidden,
    Labels,
    PerChoice,
    PerSequence,
    Places,
    Positions,
    Solved,
    Tokens,
    Uniforms,
)

Scalar = Float[Tensor, ""]
Shaped = Float[Tensor, "M *rest"]
Own = TypeVar("Own", bound="Noise")

LOGITS_AT_ONCE = 1 << 26
"""How many logits a loss holds at a time: a quarter of a gigabyte in float32."""


@dataclass(frozen=True, kw_only=True)
class Losses:
    """What a part of a batch adds to the loss of the whole."""

    total: Scalar  # what the optimiser minimises
    residual: PerSequence  # of the fixed point; 0 for a plain stack
    terms: dict[str, Scalar] = field(default_factory=dict)  # what `total` is made of, if of several things


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What was drawn for a batch, or for some rows of it, on the CPU."""

    t: PerSequence
    z: Tokens  # the masked input
    asked: Positions  # where the loss asks for a token: masked (or anywhere), neither padding nor given
    label: Labels | None  # what the network is told of each sequence
    num_no_grad: int
    num_grad: int
    num_tokens: int  # of the whole batch, without padding and what is given
    num_masked: int  # positions of the whole batch that the loss asks for
    t_noisier: PerSequence | None = None  # of the input below
    noisier: Tokens | None = None  # its solution is where the solver starts; None: the solver starts at h_pre

    def rows(self: Own, part: slice) -> Own:
        """What was drawn for some rows; the totals stay those of the whole batch."""
        changes: dict[str, Any] = {name: tensor[part] for name, tensor in self._tensors.items()}
        return replace(self, **changes)

    def to(self: Own, device: torch.device) -> Own:
        """The same on another device."""
        changes: dict[str, Any] = {name: tensor.to(device) for name, tensor in self._tensors.items()}
        return replace(self, **changes)

    @property
    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Where a run is: `update` updates of `updates` are done."""

    update: int = 0
    updates: int = 1


WHOLE = Moment()
"""The only update of a run of one."""


@runtime_checkable
class Objective(Protocol):
    """What a run minimises. It is its own configuration: every field can be set on the command line."""

    @property
    def teacher_source(self) -> str:
        """Who else has a say: nobody (empty), `ema`, `start` (a copy of the weights before the first update), `init`
        (the model that the run starts from), or the name of a model."""
        ...

    @property
    def is_in_nats(self) -> bool:
        """Whether the loss is in nats a token, so that a run that has gone bad can be told by it."""
        ...

    @property
    def is_cut_by_updates(self) -> bool:
        """Whether parts of the objective are shares of the run, so that a run cannot be made longer."""
        ...

    def check(self, *, updates: int, has_init: bool, is_causal: bool) -> None:
        """A ValueError if such a run cannot minimise this."""
        ...

    def next_teacher_at(self, moment: Moment) -> str:
        """What becomes the teacher before this update: nothing (empty), the student's `weights`, or their `ema`."""
        ...

    def draw(self, denoiser: Denoiser, batch: Tokens | Batch, *, rng: Generator, moment: Moment = ...) -> Any:
        """What is random for a whole batch, such as `Noise`; its `rows` gives that of some rows."""
        ...

    def loss(self, denoiser: Denoiser, x: Tokens, noise: Any, teacher: Denoiser | None = None) -> Losses: ...


class WithoutTeacher:
    """What an objective without a teacher says of one."""

    teacher_source = ""
    is_in_nats = True
    is_cut_by_updates = False

    def check(self, *, updates: int, has_init: bool, is_causal: bool) -> None:
        if is_causal:
            raise ValueError(f"{type(self).__name__} is for masked models, and model.is_causal is set")

    def next_teacher_at(self, moment: Moment) -> str:
        return ""


@dataclass(frozen=True, kw_only=True)
class MaskedCrossEntropy(WithoutTeacher):
    """The paper's base objective: cross entropy at masked positions, weighted by w(t) (Eq. 1)."""

    weighting: Literal["bound", "masked", "all"] = "bound"
    """How the cross entropy of tokens is averaged. `bound` weighs masked tokens by w(t) and averages over all tokens,
    which bounds their negative log-likelihood, in nats (MDLM). `masked` averages over masked tokens (MaskGIT). `all`
    averages over all tokens, visible ones too (the public code of Halton-MaskGIT)."""
    schedule: ScheduleName = "linear"
    """How many tokens are masked at time t: `linear` (a share of t), `log-linear` (0.999 t, as in the public code of
    MDLM), `cosine` (MaskGIT), `arccos` (Halton-MaskGIT), `exponential` (eMIGM)."""
    label_dropout: float = 0.0
    """The share of sequences whose class is hidden from the network, so that it can be guided later. Data without
    classes does not need it."""
    iterations: IterationCounts = field(default_factory=IterationCounts)
    """The solver iterations of an update, without and with gradients. A plain stack has none."""
    gradient: GradientName = "sjfb"
    """How the fixed point is differentiated: `sjfb` (the paper's), `sjfb-cut` (as in FPDM's code: the initial state is
    cut off in every update), `jfb`, `unrolled` or `implicit`. A plain stack does not need it."""
    solver: SolverName = "picard"
    """What solves the fixed point. A plain stack does not need it."""
    warm_start: float = 0.0
    """The share of updates in which the solver starts as the sampler's does: from the three-state mix of h_pre with
    the solution of a noisier input. That input is solved without gradients, with as many iterations. It is masked
    where the other is and in more places, 0.05 to 0.3 later in time. A plain stack has no solver and takes 0."""
    rest: bool = False
    """Whether visible positions rest after the first iteration of an update, as `--solve changed-and-masked` lets them
    in sampling. The paper's solver iterates everywhere. Validation in the run follows it. Updates are
    faster, and models of equal time are worse (docs/results/resting)."""

    def __post_init__(self) -> None:
        choose("weighting", self.weighting, dict.fromkeys(("bound", "masked", "all")))
        if not 0 <= self.label_dropout <= 1:
            raise ValueError(f"label_dropout is {self.label_dropout}; it must be a share, 0 to 1")
        if not 0 <= self.warm_start <= 1:
            raise ValueError(f"warm_start is {self.warm_start}; it must be a share of the updates, 0 to 1")
        mask_schedule_by_name(self.schedule)
        gradient_by_name(self.gradient)
        solver_by_name(self.solver)
        if self.rest and (self.gradient == "implicit" or self.solver != "picard"):
            raise ValueError(
                f"rest is set, gradient is {self.gradient} and solver is {self.solver}; positions rest with the "
                "solver picard and the gradients sjfb, sjfb-cut, jfb and unrolled"
            )

    def __call__(self, denoiser: Denoiser, x: Tokens | Batch, *, rng: Generator) -> Losses:
        """The loss of a whole batch."""
        return self.loss(denoiser, Batch.of(x).x, self.draw(denoiser, x, rng=rng))

    def draw(self, denoiser: Denoiser, batch: Tokens | Batch, *, rng: Generator, moment: Moment = WHOLE) -> Noise:
        """Times, masks and iteration counts for a whole batch."""
        noise, _ = self.draw_uniforms(denoiser, Batch.of(batch), rng=rng)
        return noise

    def draw_uniforms(
        self, denoiser: Denoiser, batch: Batch, *, rng: Generator, t: PerSequence | None = None
    ) -> tuple[Noise, Uniforms]:
        """The noise of a batch, at times `t` if they are given, and the uniform numbers that its masks were made of."""
        x, is_real = batch.x.cpu(), batch.is_real.cpu()
        num_no_grad, num_grad = self.iterations(rng=rng) if denoiser.cost.fp else (0, 0)
        t = stratified_times(len(x), rng=rng) if t is None else t
        u = batch.sparing(torch.rand(x.shape, generator=rng))
        z = masked_below(x, u, t, mask_id=denoiser.mask_id, schedule=mask_schedule_by_name(self.schedule))
        asked = is_real if self.weighting == "all" else (z == denoiser.mask_id) & is_real
        noise = Noise(
            t=t,
            z=z,
            asked=asked,
            label=self._told(batch.label, rng),
            num_no_grad=num_no_grad,
            num_grad=num_grad,
            num_tokens=int(is_real.sum()),
            num_masked=int(asked.sum()),
        )
        return self._with_noisier(noise, x, u, denoiser, rng), u

    def _with_noisier(self, noise: Noise, x: Tokens, u: Uniforms, denoiser: Denoiser, rng: Generator) -> Noise:
        """With probability `warm_start`, the noise with a noisier input beside its own."""
        if not self.warm_start:
            return noise
        check_has_solver(self, num_fp=denoiser.cost.fp)
        if float(torch.rand((), generator=rng)) >= self.warm_start:
            return noise
        t = 1 - cleaner_times(1 - noise.t, rng=rng)  # the gaps of consistency, towards the noise
        schedule = mask_schedule_by_name(self.schedule)
        noisier = masked_below(x, u, t, mask_id=denoiser.mask_id, schedule=schedule)
        return replace(noise, t_noisier=t, noisier=noisier)

    def _told(self, label: Labels | None, rng: Generator) -> Labels | None:
        """The classes that the network is told: of some sequences none."""
        if label is None or not self.label_dropout:
            return label
        is_dropped = torch.rand(len(label), generator=rng) < self.label_dropout
        return torch.where(is_dropped, NO_CLASS, label.cpu())

    def loss(self, denoiser: Denoiser, x: Tokens, noise: Noise, teacher: Denoiser | None = None) -> Losses:
        """What the rows x of a batch, with their part of its noise, add to its loss."""
        places = Places.of(noise.asked).to(x.device)
        noise = noise.to(x.device)
        features, residual = self.read(denoiser, noise.z, places, noise)
        return Losses(total=self.score(denoiser, features, x, places, noise), residual=residual)

    def read(
        self,
        denoiser: Denoiser,
        z: Tokens,
        places: Places,
        noise: Noise,
        start: Callable[[Hidden], Hidden] | None = None,
    ) -> Denoised:
        """The pass that learns, with the iterations that were drawn, from h_pre on, or from `start` of it.

        If the noise has a noisier input, z is its own, and `start` is the mix with the solution of the noisier one.
        """
        if noise.noisier is not None:
            start = partial(self._mixed, denoiser, noise)
        found: Denoised = denoiser(
            z,
            noise.t,
            places,
            label=noise.label,
            num_no_grad=noise.num_no_grad,
            num_grad=noise.num_grad,
            gradient=gradient_by_name(self.gradient),
            solver=solver_by_name(self.solver),
            start=start,
            rest=self.rests(denoiser),
        )
        return found

    def rests(self, denoiser: Denoiser) -> bool:
        """Whether visible positions of this network rest: a plain stack, which a teacher may be, has no solver."""
        return self.rest and denoiser.cost.fp > 0

    @torch.no_grad()
    def _mixed(self, denoiser: Denoiser, noise: Noise, h_pre: Hidden) -> Hidden:
        """Where the sampler starts if its last step solved the noisier input. No gradient passes through it."""
        assert noise.noisier is not None
        assert noise.t_noisier is not None
        with evaluating(denoiser):
            cond = denoiser.condition(noise.noisier, noise.t_noisier, noise.label)
            h = denoiser.pre(noise.noisier, cond)
            f = denoiser.fixed_point_map(h, cond)
            solve = partial(solver_by_name(self.solver), num_iters=noise.num_no_grad + noise.num_grad)
            h_star, _ = denoiser.solve(solve, f, h, noise.noisier, rest=self.rest)
        return three_state_reuse(h_pre, noise.z, Solved(z=noise.noisier, h_star=h_star), mask_id=denoiser.mask_id)

    def score(self, denoiser: Denoiser, features: Features, x: Tokens, places: Places, noise: Noise) -> Scalar:
        """The weighted cross entropy of what was asked for, from the features there."""
        tokens = places.take(x)
        if self.weighting != "bound":
            weights = torch.full_like(tokens, 1 / max(noise.num_masked, 1), dtype=torch.float32)
        else:
            weights = mask_schedule_by_name(self.schedule).weight(noise.t)[places.sequences] / noise.num_tokens
        return weighted_nll(features, *denoiser.backbone.head_weights(), tokens, weights, mask_id=denoiser.mask_id)


def check_has_solver(objective: Any, *, num_fp: int) -> None:
    """A ValueError if an objective, or the masked cross entropy in it, has a use for a solver that a network lacks."""
    base = getattr(objective, "base", objective)
    if not isinstance(base, MaskedCrossEntropy) or num_fp:
        return
    if base.rest:
        raise ValueError(
            "rest is set, and a plain stack has no solver whose iterations positions could leave out; leave it out, or "
            "give the network a fixed point"
        )
    if base.warm_start:
        raise ValueError(
            f"warm_start is {base.warm_start}, and a plain stack has no solver to start; leave it out, or give the "
            "network a fixed point"
        )


def token_nll(denoiser: Denoiser, features: Features, tokens: Chosen) -> PerChoice:
    """-log p of each token under SUBS at masked positions (a causal model has no mask to forbid)."""

    def nll(features: Features, tokens: Chosen) -> PerChoice:
        logits = denoiser.head(features)
        if not denoiser.is_causal:
            logits = without_mask(logits, mask_id=denoiser.mask_id)
        return F.cross_entropy(logits, tokens, reduction="none")

    return in_parts(nll, denoiser.vocab_size, features, tokens)


def in_parts(of_rows: Callable[..., Shaped], vocab_size: int, *rows: Tensor) -> Shaped:
    """A function of chosen positions that makes logits, for all of them.

    More logits than LOGITS_AT_ONCE are computed in parts, and again in the backward pass, so that few are held.
    """
    at_once = max(1, LOGITS_AT_ONCE // vocab_size)
    if len(rows[0]) <= at_once:
        return of_rows(*rows)
    parts = zip(*(tensor.split(at_once) for tensor in rows), strict=True)
    return torch.cat([checkpoint(of_rows, *part, use_reentrant=False) for part in parts])


@dataclass(frozen=True, kw_only=True)
class NextToken(WithoutTeacher):
    """Cross entropy of the next token: for causal models of the same blocks."""

    def check(self, *, updates: int, has_init: bool, is_causal: bool) -> None:
        if not is_causal:
            raise ValueError("the next token is for causal models to learn; set --model.is-causal")

    def draw(self, denoiser: Denoiser, batch: Tokens | Batch, *, rng: Generator, moment: Moment = WHOLE) -> Noise:
        """Nothing is random here but dropout."""
        batch = Batch.of(batch)
        asked = batch.is_real.cpu().roll(-1, dims=1)
        asked[:, -1] = False
        return Noise(
            t=torch.zeros(len(asked)),
            z=batch.x.cpu(),
            asked=asked,
            label=batch.label,
            num_no_grad=0,
            num_grad=0,
            num_tokens=int(asked.sum()),
            num_masked=0,
        )

    def loss(self, denoiser: Denoiser, x: Tokens, noise: Noise, teacher: Denoiser | None = None) -> Losses:
        """What the rows x of a batch add to its mean over tokens."""
        places = Places.of(noise.asked).to(x.device)
        tokens = places.take(x.roll(-1, dims=1))
        weights = torch.full_like(tokens, 1 / max(noise.num_tokens, 1), dtype=torch.float32)
        features = denoiser(x, 0.0, places).features
        total = weighted_nll(features, *denoiser.backbone.head_weights(), tokens, weights, mask_id=None)
        return Losses(total=total, residual=torch.zeros(len(x), device=x.device))


def next_token_nll(model: Denoiser, x: Tokens) -> Float[Tensor, "B N"]:
    """-log p(x_i | x_<i) under a causal model, for every token but the first."""
    positions = torch.ones_like(x, dtype=torch.bool)
    positions[:, -1] = False
    features = model(x, 0.0, positions).features
    return token_nll(model, features, x[:, 1:].flatten()).view(len(x), -1)
