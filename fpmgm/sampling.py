"""Sampling: Algorithm 1, once, for text and images, for fixed points and plain stacks."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fpmgm.budget import Cost
from fpmgm.denoiser import Denoiser, evaluating
from fpmgm.devices import has_float64
from fpmgm.draws import Draw, exact
from fpmgm.guidance import Asked, Guidance
from fpmgm.masking import without_mask
from fpmgm.positionwise import Resting, Seen, Where
from fpmgm.randomness import Streams
from fpmgm.reuse import Reuse, no_reuse
from fpmgm.solvers import PositionSolver, Solution, Solver, picard
from fpmgm.transitions import Transition
from fpmgm.types import Counts, Hidden, Labels, Logits, Places, Solved, State, Tokens

NO_GUIDANCE = Guidance()
Passed = Float[Tensor, "R S D"]  # hidden states of a pass, of R sequences: B, or twice as many in a guided step


@dataclass(frozen=True, kw_only=True)
class Step:
    """One denoising step as `on_step` sees it.

    In a guided step `places`, `h_pre`, `h_init` and `solution` are those of the doubled batch: all sequences with their
    classes, then all without one. What the step computed is told by these. `z`, `z_next` and `logits` are never
    doubled.
    """

    index: int
    t: float
    t_next: float
    z: Tokens  # before the step: what `solution` was solved for
    z_next: Tokens  # after it
    weight: float  # of guidance
    places: Places  # where logits were computed
    logits: Logits  # what tokens were drawn from, before temperature, top-k and top-p; of both halves already mixed
    h_pre: Passed
    h_init: Passed  # where the solver started
    solution: Solution  # of a plain stack: h_pre, after 0 iterations


class Timed:
    """An `on_step` that counts the seconds it takes: an animation is no part of sampling."""

    def __init__(self, on_step: Callable[[Step], None]) -> None:
        self.on_step, self.seconds = on_step, 0.0

    def __call__(self, step: Step) -> None:
        begin = time.perf_counter()
        self.on_step(step)
        self.seconds += time.perf_counter() - begin


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """Finished sequences and what they cost."""

    z: Tokens
    block_evals: Counts  # by sequence
    unspent: Counts  # block evaluations that a tolerance or resting saved, by sequence
    position_blocks: Counts  # blocks times the positions they ran at, by sequence; keys and values alone do not count


def even_times(num_steps: int) -> tuple[float, ...]:
    """num_steps + 1 times from 1 down to 0, evenly spaced."""
    if num_steps < 1:
        raise ValueError(f"num_steps is {num_steps}; at least 1 is needed")
    return tuple(1 - i / num_steps for i in range(num_steps + 1))


def masked_start(denoiser: Denoiser, prompts: Sequence[Sequence[int]], length: int | None = None) -> Tokens:
    """One row per prompt, filled up with masks to `length` (the model's if None).

    A prompt may itself hold masks: whatever is not a mask is given, at any position. An empty prompt gives a
    sequence of masks.
    """
    length = denoiser.max_length if length is None else length
    if not prompts:
        raise ValueError("no prompts; give one per sequence, [] for an empty one")
    for index, prompt in enumerate(prompts):
        if len(prompt) > length:
            raise ValueError(f"prompt {index} has {len(prompt)} tokens, but there is room for {length}")
    rows = [[*prompt, *[denoiser.mask_id] * (length - len(prompt))] for prompt in prompts]
    return torch.tensor(rows, dtype=torch.long, device=next(denoiser.parameters()).device)


@torch.no_grad()
def sample(
    denoiser: Denoiser,
    z: Tokens,
    *,
    times: Sequence[float],
    iterations: Sequence[int],
    transition: Transition,
    rng: Streams,
    label: Labels | None = None,
    reuse: Reuse = no_reuse,
    solver: Solver = picard,
    where: Where | None = None,
    guidance: Guidance = NO_GUIDANCE,
    on_step: Callable[[Step], None] | None = None,
) -> Sampled:
    """Denoise z along times[0] > ... > times[-1] = 0, with iterations[i] solver iterations at step i.

    Tokens of z that are not masks are given, and stay. `label` is the class of each sequence, for networks that have
    classes. A plain stack takes iterations of 0 and no reuse. `where` says which positions the solver runs at; None:
    all of them. Guidance doubles the batch, not the block evaluations of a sequence: each half spends them.
    """
    if denoiser.is_causal:
        raise ValueError("this model is causal, made to judge text; sample a masked model, or use `left_to_right`")
    _check_tokens(denoiser, z, rng)
    _check_steps(denoiser, times, iterations, reuse, solver)
    _check_where(denoiser, z, where)
    _check_labels(label, len(z), guidance)
    num_steps, is_kept = len(iterations), reuse is not no_reuse or where is not None
    weights, runs_both = guidance.weights(num_steps), guidance.runs_both(num_steps, is_kept=is_kept)
    state = _first_state(z, denoiser.mask_id)
    spent = torch.zeros(len(z), dtype=torch.long, device=z.device)
    worked = torch.zeros_like(spent)
    last, seen = None, Seen()
    memory = denoiser.memory(z.device)
    with evaluating(denoiser), denoiser.injection.folded() if denoiser.injection else nullcontext():
        for index, (num_iters, (t, t_next)) in enumerate(zip(iterations, pairwise(times), strict=True)):
            places = Places.of(transition.positions(state, t, t_next, rng=rng))  # chosen before a logit is seen
            asked = Asked(z=state.z, label=label, places=places)
            asked = asked.doubled(weights[index]) if runs_both[index] else asked
            cond = denoiser.condition(asked.z, t, asked.label)
            h_pre = denoiser.pre(asked.z, cond, memory)
            h_init = reuse(h_pre, asked.z, last, mask_id=denoiser.mask_id)
            resting = None
            if where is not None:
                is_given = state.is_given.repeat(len(asked.z) // len(z), 1)  # twice in a guided step
                resting = where.resting(
                    asked.z,
                    last,
                    index=index,
                    is_given=is_given,
                    num_hidden=h_pre.shape[1],
                    mask_id=denoiser.mask_id,
                    seen=seen,
                )
                h_init = h_init if last is None else torch.where(resting.known[..., None], last.h_star, h_init)
            solution = _solve(denoiser, h_pre, h_init, cond, solver, num_iters, resting)
            logits = _logits(denoiser, solution.h, cond, asked)
            last = Solved(z=asked.z, h_star=solution.h)  # before z moves: the tokens it was solved for
            before, state = state, transition.write(state, logits, places, t, t_next, rng=rng)
            spent += denoiser.cost.pre + denoiser.cost.post + _most(solution.num_iters, z) * denoiser.cost.fp
            worked += _most(position_blocks(denoiser.cost, solution, asked.places), z)
            if on_step is not None:
                on_step(
                    Step(
                        index=index,
                        t=t,
                        t_next=t_next,
                        z=before.z,
                        z_next=state.z,
                        weight=asked.weight,
                        places=asked.places,
                        logits=logits,
                        h_pre=h_pre,
                        h_init=h_init,
                        solution=solution,
                    )
                )
    allotted = sum(denoiser.cost.step(num_iters) for num_iters in iterations)
    return Sampled(z=state.z, block_evals=spent, unspent=allotted - spent, position_blocks=worked)


def position_blocks(cost: Cost, solution: Solution, places: Places) -> Counts:
    """Blocks times the positions they ran at in one step, by sequence. The last block runs where logits are needed."""
    num_hidden, num_iters = solution.h.shape[1], solution.num_iters
    updates = num_iters * num_hidden if solution.updates is None else solution.updates
    solved = updates + num_iters * num_hidden * (cost.fp - 1) if cost.fp else 0 * num_iters
    if cost.fp and not cost.post:
        return solved + cost.pre * num_hidden
    at_places = torch.tensor(places.counts, device=num_iters.device)
    return solved + (cost.pre + cost.post - 1) * num_hidden + at_places


@torch.no_grad()
def left_to_right(denoiser: Denoiser, z: Tokens, *, draw: Draw, rng: Streams) -> Sampled:
    """Fill the masks of z with a causal model, one position after the other, each in a whole pass.

    Meant for looking at what a judge has learned; nothing is cached between passes. The first token must be given.
    """
    if not denoiser.is_causal:
        raise ValueError("left_to_right is for causal models; a masked one is sampled with `sample`")
    _check_tokens(denoiser, z, rng)
    if (z[:, 0] == denoiser.mask_id).any():
        raise ValueError("a causal model needs a first token in every sequence, such as end-of-text")
    spent = torch.zeros(len(z), dtype=torch.long, device=z.device)
    worked = torch.zeros_like(spent)
    with evaluating(denoiser):
        for index in range(1, z.shape[1]):
            u = rng.uniform(1)[:, 0].to(z.device)
            is_masked = z[:, index] == denoiser.mask_id
            if not is_masked.any():
                continue
            before = z[is_masked, :index]
            last = torch.zeros_like(before, dtype=torch.bool)
            last[:, -1] = True
            logits = exact(denoiser.head(denoiser(before, 0.0, last).features))
            z = z.clone()
            z[is_masked, index] = draw(without_mask(logits, mask_id=denoiser.mask_id), u[is_masked]).to(z.device)
            spent += is_masked * denoiser.cost.pre
            worked += is_masked * ((denoiser.cost.pre - 1) * index + 1)
    return Sampled(z=z, block_evals=spent, unspent=torch.zeros_like(spent), position_blocks=worked)


def _first_state(z: Tokens, mask_id: int) -> State:
    """What is not a mask is given."""
    dtype = torch.float64 if has_float64(z.device) else torch.float32
    nothing = torch.zeros(z.shape, dtype=dtype, device=z.device)
    return State(z=z, mask_id=mask_id, is_given=z != mask_id, confidence=nothing)


def _solve(
    denoiser: Denoiser,
    h_pre: Hidden,
    h_init: Hidden,
    cond: Any,
    solver: Solver,
    num_iters: int,
    resting: Resting | None,
) -> Solution:
    if resting is not None:
        in_parts = cast(PositionSolver, solver)
        return in_parts(denoiser.fixed_point_map(h_pre, cond), h_init, num_iters, where=resting)
    if denoiser.cost.fp:
        return solver(denoiser.fixed_point_map(h_pre, cond), h_init, num_iters)
    none = torch.zeros(len(h_pre), device=h_pre.device)
    return Solution(h=h_pre, residual=none, num_iters=none.long())


def _logits(denoiser: Denoiser, h_star: Hidden, cond: Any, asked: Asked) -> Logits:
    """What the transition draws from, in float64 (docs/numerics.md): mixed by guidance, and never the mask."""
    logits = asked.mixed(exact(denoiser.head(denoiser.post(h_star, cond, asked.places))))
    logits[:, denoiser.mask_id] = -torch.inf  # in place: they are nobody else's
    return logits


def _most(counts: Int[Tensor, " R"], z: Tokens) -> Counts:
    """What each sequence has spent; of one that ran in two halves, what the half did that spent more."""
    return counts.view(-1, len(z)).amax(dim=0)


def _check_where(denoiser: Denoiser, z: Tokens, where: Where | None) -> None:
    """A ValueError if positions cannot rest in this network, or if nothing would be left to iterate."""
    if where is None:
        return
    if not denoiser.cost.fp:
        raise ValueError("a plain stack leaves nothing to iterate, so no position can rest; solve all")
    where.check(z, denoiser.mask_id)
    assert denoiser.keeping_backbone is not None  # says which backbone cannot let positions rest


def _check_labels(label: Labels | None, num_sequences: int, guidance: Guidance) -> None:
    if label is not None and len(label) != num_sequences:
        raise ValueError(f"{len(label)} labels for {num_sequences} sequences; give one each")
    if guidance.weight and label is None:
        raise ValueError(
            f"guidance of weight {guidance.weight} moves towards a class, and no classes are given; "
            "give a label for each sequence, or a weight of 0"
        )


def _check_tokens(denoiser: Denoiser, z: Tokens, rng: Streams) -> None:
    if z.dtype != torch.long:
        raise ValueError(f"tokens are {z.dtype}; give torch.long")
    if z.numel() == 0:
        raise ValueError(f"tokens have shape {tuple(z.shape)}; give at least one sequence of one token")
    if int(z.min()) < 0 or int(z.max()) >= denoiser.vocab_size:
        raise ValueError(
            f"tokens run from {int(z.min())} to {int(z.max())}; the model knows 0 to {denoiser.vocab_size - 1}"
        )
    if z.shape[1] > denoiser.max_length:
        raise ValueError(f"sequences of {z.shape[1]} tokens; the model takes at most {denoiser.max_length}")
    if len(rng) != len(z):
        raise ValueError(f"{len(rng)} random streams for {len(z)} sequences; give one each")


def _check_steps(
    denoiser: Denoiser, times: Sequence[float], iterations: Sequence[int], reuse: Reuse, solver: Solver
) -> None:
    if len(iterations) != len(times) - 1:
        raise ValueError(
            f"{len(times)} times make {len(times) - 1} steps, but there are iterations for {len(iterations)}"
        )
    if not iterations:
        raise ValueError("no denoising step; give at least two times, such as (1, 0)")
    for t, t_next in pairwise(times):
        if not t_next < t:
            raise ValueError(f"times must fall, but {t_next} follows {t}")
    if times[0] > 1 or times[-1] != 0:
        raise ValueError(f"times run from {times[0]} to {times[-1]}; they must start at 1 or below and end at 0")
    if denoiser.cost.fp and min(iterations) < 1:
        raise ValueError(
            f"iterations are {tuple(iterations)}; a model with a fixed point needs at least 1 at every step"
        )
    if not denoiser.cost.fp and (any(iterations) or reuse is not no_reuse or solver is not picard):
        raise ValueError("a plain stack has nothing to solve or reuse; give iterations of 0, no reuse and no solver")
