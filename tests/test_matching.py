"""Distribution matching: its gradients against enumeration, who learns from what, its masks, its rollouts."""

import copy
import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from fpmgm.denoiser import Denoiser
from fpmgm.gradients import IterationCounts
from fpmgm.objectives import MaskedCrossEntropy, Moment
from fpmgm.post_training.matching import Matching, MatchingNoise, masked_again
from fpmgm.post_training.rollout import Rollout
from fpmgm.post_training.teachers import log_probabilities
from fpmgm.randomness import Streams, generator
from fpmgm.reuse import no_reuse, three_state_reuse
from fpmgm.sampling import Step, even_times, sample
from fpmgm.solvers import picard
from fpmgm.transitions import Ancestral, Halton
from fpmgm.types import Batch, Places
from tests.conftest import Build

PLAIN: dict[str, Any] = {"num_pre": 2, "num_fp": 0, "num_post": 0}
MASK = 3


def tiny(small_model: Build, length: int, seed: int, **fields: Any) -> Denoiser:
    """Three symbols and a mask; a network that prefers some of them."""
    sizes: dict[str, Any] = {"vocab_size": MASK + 1, "mask_id": MASK, "length": length, "std": 0.6}
    return small_model(**{**PLAIN, **sizes, "seed": seed, **fields}).double()


def log_p_of(denoiser: Denoiser, z: torch.Tensor, t: float = 0.5) -> torch.Tensor:
    """Log-probabilities of the three symbols at every position, (sequences, positions, 3)."""
    features = denoiser(z, t, torch.ones_like(z, dtype=torch.bool)).features
    return log_probabilities(denoiser, features)[:, :MASK].view(*z.shape, MASK)


def gradient_of(loss: torch.Tensor, denoiser: Denoiser) -> torch.Tensor:
    found = torch.autograd.grad(loss, list(denoiser.parameters()), allow_unused=True)
    return torch.cat([g.flatten() for g in found if g is not None])


def drawn(objective: Matching, denoiser: Denoiser, x: torch.Tensor, **changes: Any) -> MatchingNoise:
    noise = objective.draw(denoiser, x, rng=generator(1))
    names = ("t", "t_next", "t_again", "token", "reveal", "mask")
    doubles = {name: getattr(noise, name).double() for name in names}
    return replace(noise, **{**doubles, **changes})


def test_with_one_position_the_gradient_is_that_of_the_divergence_from_student_to_teacher(small_model: Build) -> None:
    student, teacher = tiny(small_model, 1, 1), tiny(small_model, 1, 2)
    fake = copy.deepcopy(student)  # a fake that knows the student
    x = torch.tensor([[0], [1]])
    masked, ones = torch.full((2, 1), MASK), torch.ones(2, dtype=torch.float64)
    noise = drawn(Matching(), student, x, z=masked, t=ones, t_again=ones)
    found = gradient_of(Matching().loss(student, x, noise, teacher, fake).total, student)
    log_g, log_p = log_p_of(student, masked), log_p_of(teacher, masked).detach()
    expected = gradient_of((log_g.exp() * (log_g - log_p)).sum(dim=-1).mean(), student)
    assert float(expected.norm()) > 0.01
    torch.testing.assert_close(found, expected)


def test_with_two_positions_the_gradient_is_the_mean_over_all_texts_and_masks(small_model: Build) -> None:
    student, teacher, fake = (tiny(small_model, 2, seed) for seed in (1, 2, 3))
    t_again, num = 0.6, 6000
    masked = torch.full((1, 2), MASK)
    log_g = log_p_of(student, masked)[0]
    expected = torch.zeros((), dtype=torch.float64)
    for tokens in itertools.product(range(MASK), repeat=2):
        for shown in itertools.product((False, True), repeat=2):
            again = torch.tensor([[token if s else MASK for token, s in zip(tokens, shown, strict=True)]])
            chance = math.prod(1 - t_again if s else t_again for s in shown)
            chance *= math.prod(float(log_g[i, token].exp().detach()) for i, token in enumerate(tokens))
            excess = (log_p_of(fake, again) - log_p_of(teacher, again)).detach()[0]
            for i in range(2):
                if not shown[i]:
                    expected = expected + chance / t_again / 2 * (log_g[i].exp() * excess[i]).sum()
    x = torch.zeros(num, 2, dtype=torch.long)
    ones = torch.ones(num, dtype=torch.float64)
    noise = drawn(Matching(), student, x, z=masked.repeat(num, 1), t=ones, t_again=t_again * ones)
    found = gradient_of(Matching().loss(student, x, noise, teacher, fake).total, student)
    wanted = gradient_of(expected, student)
    assert float((found - wanted).norm()) < 0.05 * float(wanted.norm())


def test_with_nested_masks_the_gradient_is_the_mean_over_all_texts_and_what_the_next_step_shows(
    small_model: Build,
) -> None:
    student, teacher, fake = (tiny(small_model, 3, seed) for seed in (1, 2, 3))
    t, t_next, t_again, num = 0.5, 0.25, 0.625, 12000
    start = (1, MASK, MASK)
    masked = torch.tensor([start])
    kept = (1 - t_again) / (1 - t_next)  # of what the next step shows
    log_g = log_p_of(student, masked)[0]
    expected = torch.zeros((), dtype=torch.float64)
    for tokens in itertools.product((1,), range(MASK), range(MASK)):
        for shown in itertools.product((False, True), repeat=3):
            again = torch.tensor([[token if s else MASK for token, s in zip(tokens, shown, strict=True)]])
            seen = [kept if token != MASK else kept * (t - t_next) / t for token in start]
            chance = math.prod(p if s else 1 - p for p, s in zip(seen, shown, strict=True))
            chance *= math.prod(float(log_g[i, tokens[i]].exp().detach()) for i in (1, 2))
            excess = (log_p_of(fake, again) - log_p_of(teacher, again)).detach()[0]
            for i in (1, 2):
                if not shown[i]:
                    expected = expected + chance / t_again / 3 * (log_g[i].exp() * excess[i]).sum()
    x = torch.ones(num, 3, dtype=torch.long)
    objective, times = Matching(steps=(4,), remask="nested"), torch.ones(num, dtype=torch.float64)
    changes = {"t": t * times, "t_next": t_next * times, "t_again": t_again * times}
    noise = drawn(objective, student, x, z=masked.repeat(num, 1), **changes)
    found = gradient_of(objective.loss(student, x, noise, teacher, fake).total, student)
    wanted = gradient_of(expected, student)
    assert float((found - wanted).norm()) < 0.05 * float(wanted.norm())


def test_the_fake_learns_the_students_distribution_as_a_soft_target(small_model: Build) -> None:
    student, teacher, fake = (tiny(small_model, 4, seed) for seed in (1, 2, 3))
    x = torch.randint(0, MASK, (6, 4), generator=generator(0))
    noise = drawn(Matching(), student, x)
    found = gradient_of(Matching().loss(student, x, noise, teacher, fake).total, fake)
    log_g = log_p_of(student, noise.z, 0.5).detach()
    tokens = log_g.exp().cumsum(-1).lt(noise.token[..., None]).sum(-1).clamp_max(MASK - 1)
    written = torch.where(noise.z == MASK, tokens, noise.z)
    again = torch.where(noise.mask < noise.t_again[:, None], MASK, written)
    target = torch.where((noise.z == MASK)[..., None], log_g.exp(), torch.nn.functional.one_hot(written, MASK))
    nll = -(target * log_p_of(fake, again)).sum(-1) * (again == MASK) / noise.t_again[:, None]
    torch.testing.assert_close(found, gradient_of(nll.sum() / x.numel(), fake))


@pytest.mark.parametrize("has_average", [False, True])
def test_gradients_reach_the_student_only_through_its_own_distribution(small_model: Build, has_average: bool) -> None:
    student, teacher, fake, averaged = (tiny(small_model, 4, seed) for seed in (1, 2, 3, 4))
    x = torch.randint(0, MASK, (6, 4), generator=generator(0))
    noise = drawn(Matching(), student, x)
    average = averaged if has_average else None
    losses = Matching().loss(student, x, noise, teacher, fake, average)
    losses.total.backward()
    assert all(p.grad is None for network in (teacher, averaged) for p in network.parameters())
    assert any(p.grad is not None and p.grad.any() for p in student.parameters())
    known = averaged if has_average else fake
    log_g = log_p_of(student, noise.z)
    tokens = log_g.exp().cumsum(-1).lt(noise.token[..., None]).sum(-1).clamp_max(MASK - 1)
    again = torch.where(noise.mask < noise.t_again[:, None], MASK, torch.where(noise.z == MASK, tokens, noise.z))
    excess = (log_p_of(known, again) - log_p_of(teacher, again)).detach()
    is_both = ((again == MASK) & (noise.z == MASK)) / noise.t_again[:, None]
    expected = gradient_of(((log_g.exp() * excess).sum(-1) * is_both).sum() / x.numel(), student)
    found = torch.cat([p.grad.flatten() for p in student.parameters() if p.grad is not None])
    torch.testing.assert_close(found, expected)


def test_an_update_of_the_fake_alone_gives_the_student_no_gradient(small_model: Build) -> None:
    student, teacher, fake = (tiny(small_model, 4, seed) for seed in (1, 2, 3))
    x = torch.randint(0, MASK, (6, 4), generator=generator(0))
    objective = Matching(fake_updates=3)
    learning = [
        objective.draw(student, x, rng=generator(1), moment=Moment(update=u, updates=9)).is_learning for u in range(6)
    ]
    assert learning == [True, False, False, True, False, False]
    noise = drawn(objective, student, x, is_learning=False)
    objective.loss(student, x, noise, teacher, fake).total.backward()
    assert not any(p.grad is not None and p.grad.any() for p in student.parameters())
    assert any(p.grad is not None and p.grad.any() for p in fake.parameters())


@pytest.mark.parametrize("kinds", [*itertools.product((False, True), repeat=3)])
def test_student_fake_and_teacher_may_each_be_plain_or_have_a_fixed_point(
    small_model: Build, kinds: tuple[bool, ...]
) -> None:
    fixed: dict[str, Any] = {"num_pre": 1, "num_fp": 1, "num_post": 1}
    student, fake, teacher = (
        tiny(small_model, 4, seed, **(fixed if is_fixed else {})) for seed, is_fixed in enumerate(kinds)
    )
    x = torch.randint(0, MASK, (6, 4), generator=generator(0))
    objective = Matching(steps=(4,), inputs="own", reuse="three-state")
    losses = objective.loss(student, x, drawn(objective, student, x), teacher, fake)
    losses.total.backward()
    for network in (student, fake):
        assert any(p.grad is not None and p.grad.any() for p in network.parameters())
    assert losses.terms["fake"] > 0


def test_parts_of_a_batch_add_up_to_the_whole(small_model: Build) -> None:
    student, teacher, fake = (tiny(small_model, 4, s, num_pre=1, num_fp=1, num_post=1) for s in (1, 2, 3))
    x = torch.randint(0, MASK, (6, 4), generator=generator(0))
    for objective in (Matching(base_weight=0.5), Matching(steps=(3,), inputs="own", reuse="three-state")):
        noise = drawn(objective, student, x)
        whole = objective.loss(student, x, noise, teacher, fake).total
        parts = [objective.loss(student, x[p], noise.rows(p), teacher, fake).total for p in (slice(2), slice(2, 6))]
        torch.testing.assert_close(whole, parts[0] + parts[1])


def test_the_base_loss_is_added_with_its_weight(small_model: Build) -> None:
    student, teacher, fake = (tiny(small_model, 4, seed) for seed in (1, 2, 3))
    x = torch.randint(0, MASK, (6, 4), generator=generator(0))
    noise = drawn(Matching(), student, x)
    without = Matching().loss(student, x, noise, teacher, fake).total
    both = Matching(base_weight=0.5).loss(student, x, noise, teacher, fake)
    base = MaskedCrossEntropy().loss(student, x, noise).total
    torch.testing.assert_close(both.total, without + 0.5 * base)


def test_inputs_have_the_times_of_a_samplers_steps(small_model: Build) -> None:
    student = tiny(small_model, 4, 1)
    x = torch.zeros(8, 4, dtype=torch.long)
    objective = Matching(steps=(4,))
    times = objective.draw(student, x, rng=generator(0)).t
    assert sorted(times.tolist()) == [0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 1.0, 1.0]
    both = {
        objective.draw(student, x, rng=generator(s)).num_steps
        for s in range(9)
        for objective in [Matching(steps=(2, 5))]
    }
    assert both == {2, 5}


def test_nested_masks_show_no_more_than_the_next_step_of_the_sampler_does(small_model: Build) -> None:
    student = tiny(small_model, 4, 1)
    num = 4000
    x = torch.zeros(num, 4, dtype=torch.long)
    objective = Matching(steps=(4,), remask="nested")
    noise = objective.draw(student, x, rng=generator(0))
    noise = replace(noise, t=torch.full((num,), 0.5), z=torch.tensor([[0, 0, MASK, MASK]]).repeat(num, 1))
    left = torch.full((num,), 0.25)
    noise = replace(noise, t_next=left, t_again=left)  # as much as the sampler's next step masks
    again = masked_again(noise.z, torch.ones_like(x), noise, MASK, is_nested=True)
    share = (again == MASK).double().mean(dim=0)
    torch.testing.assert_close(share, torch.tensor([0, 0, 0.5, 0.5]).double(), atol=0.03, rtol=0)
    more = masked_again(
        noise.z, torch.ones_like(x), replace(noise, t_again=torch.full((num,), 0.625)), MASK, is_nested=True
    )
    share = (more == MASK).double().mean(dim=0)  # half of what can be seen is masked
    torch.testing.assert_close(share, torch.tensor([0.5, 0.5, 0.75, 0.75]).double(), atol=0.03, rtol=0)
    times = objective.draw(student, x, rng=generator(0))
    assert (times.t_again >= times.t - 0.25 - 1e-6).all()


@pytest.mark.parametrize("inputs", ["data", "own"])
def test_in_halton_order_inputs_and_what_can_then_be_seen_are_those_of_that_sampler(
    small_model: Build, inputs: Any
) -> None:
    student, num = tiny(small_model, 16, 1), 8
    x, given = torch.zeros(num, 16, dtype=torch.long), torch.zeros(num, 16, dtype=torch.bool)
    given[:, 0] = True  # the first symbol of a document
    objective = Matching(steps=(4,), order="halton", remask="nested", inputs=inputs)
    noise = objective.draw(student, Batch(x=x, given=given), rng=generator(0))
    start, steps = torch.where(given, x, MASK), list[Step]()
    rng = Streams([generator(9, row) for row in range(num)])
    rules: dict[str, Any] = {"reuse": no_reuse, "iterations": [0] * 4, "times": even_times(4), "solver": picard}
    sample(student, start, transition=Halton(), rng=rng, on_step=steps.append, **rules)
    z, _ = objective._input(student, x, noise)
    seen = masked_again(z, torch.ones_like(x), replace(noise, t_again=noise.t_next), MASK, is_nested=True)
    for row, index in enumerate(noise.index.tolist()):
        assert torch.equal(z[row] == MASK, steps[index].z[row] == MASK)
        assert torch.equal(seen[row] == MASK, steps[index].z_next[row] == MASK)
        assert float(noise.t[row]) == pytest.approx(1 - Halton().shown(4, 16)[index] / 16)


@pytest.mark.parametrize("inputs", ["data", "own"])
def test_the_first_step_can_learn_cross_entropy_while_the_others_are_matched(small_model: Build, inputs: Any) -> None:
    student, teacher, fake = (tiny(small_model, 4, seed) for seed in (1, 2, 3))
    x = torch.randint(0, MASK, (6, 4), generator=generator(0))
    matched = Matching(steps=(3,), remask="nested", inputs=inputs)
    mixed = replace(matched, first="base")
    noise = drawn(mixed, student, x)
    is_first = noise.index == 0
    assert is_first.tolist() == [True, True, False, False, False, False]

    def gradients(objective: Matching, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tensors = {name: value for name, value in vars(noise).items() if isinstance(value, torch.Tensor)}
        own: dict[str, Any] = {name: value[rows] for name, value in tensors.items()}
        part = replace(noise, **own)
        total = objective.loss(student, x[rows], part, teacher, fake).total
        return gradient_of(total, student), gradient_of(
            objective.loss(student, x[rows], part, teacher, fake).total, fake
        )

    for ours, theirs in zip(gradients(mixed, ~is_first), gradients(matched, ~is_first), strict=True):
        torch.testing.assert_close(ours, theirs)
    by_student, by_fake = gradients(mixed, is_first)
    torch.testing.assert_close(by_fake, gradients(matched, is_first)[1])
    log_p = log_p_of(student, torch.full((2, 4), MASK), 1.0)
    nll = -log_p.gather(-1, x[is_first][..., None]).sum() / x.numel()
    torch.testing.assert_close(by_student, gradient_of(nll, student))


def test_runs_of_other_seeds_have_rollouts_of_other_seeds(small_model: Build) -> None:
    student, x = tiny(small_model, 4, 1), torch.zeros(2, 4, dtype=torch.long)
    own = Matching(steps=(3,), inputs="own")
    assert len({own.draw(student, x, rng=generator(seed)).seed for seed in range(3)}) == 3


@pytest.mark.parametrize("remask", ["anew", "nested"])
def test_what_is_given_is_never_masked_again(small_model: Build, remask: Any) -> None:
    student, teacher, fake = (tiny(small_model, 4, seed) for seed in (1, 2, 3))
    x = torch.randint(0, MASK, (50, 4), generator=generator(0))
    given = torch.tensor([[True, True, False, False]]).repeat(50, 1)
    for inputs in ("data", "own"):
        objective = Matching(steps=(3,), remask=remask, inputs=inputs)
        noise = objective.draw(student, Batch(x=x, given=given), rng=generator(1))
        z, _ = objective._input(student, x, noise)
        again = masked_again(z, torch.where(z == MASK, 0, z), noise, MASK, is_nested=remask == "nested")
        for masked in (z, again):
            assert torch.equal(masked[:, :2], x[:, :2])
            assert (masked[:, 2:] == MASK).any()
        losses = objective.loss(student.float(), x, noise, teacher.float(), fake.float())
        assert float(losses.total.detach()) != 0
        student, teacher, fake = student.double(), teacher.double(), fake.double()


def test_a_rollout_meets_what_the_sampler_meets(small_model: Build) -> None:
    denoiser = tiny(small_model, 6, 1, num_pre=1, num_fp=1, num_post=1)
    z = torch.full((4, 6), MASK)
    steps: list[Step] = []
    settings: dict[str, Any] = {"reuse": three_state_reuse, "times": even_times(4), "iterations": [2] * 4}
    streams = Streams([generator(9, row) for row in range(4)])
    sample(denoiser, z, transition=Ancestral(), rng=streams, on_step=steps.append, **settings)
    index = torch.tensor([0, 1, 3, 2])
    rollout = Rollout(num_steps=4, num_iters=2, reuse=three_state_reuse)
    found, last = rollout(denoiser, z, index, key=(9,), rows=torch.arange(4))
    assert last is not None
    for row, done in enumerate(index.tolist()):
        before = steps[done - 1]
        assert torch.equal(found[row], before.z_next[row] if done else z[row])
        if done:
            assert torch.equal(last.z[row], before.z[row])
            torch.testing.assert_close(last.h_star[row], before.solution.h[row])


def test_the_pass_that_learns_starts_where_the_samplers_solver_would(small_model: Build) -> None:
    denoiser = tiny(small_model, 6, 1, num_pre=1, num_fp=1, num_post=1)
    counts = IterationCounts(no_grad_min=0, no_grad_max=0, grad_min=2, grad_max=2)
    objective = Matching(steps=(4,), inputs="own", reuse="three-state", base=MaskedCrossEntropy(iterations=counts))
    x = torch.zeros(4, 6, dtype=torch.long)
    noise = drawn(objective, denoiser, x)
    z, last = objective._input(denoiser, x, noise)
    found = objective._student(denoiser, z, everywhere(z), noise, last)[0]
    steps: list[Step] = []
    settings: dict[str, Any] = {"reuse": three_state_reuse, "times": even_times(4), "iterations": [2] * 4}
    streams = Streams([generator(7, noise.seed, row) for row in range(4)])
    sample(denoiser, torch.full((4, 6), MASK), transition=Ancestral(), rng=streams, on_step=steps.append, **settings)
    for row, done in enumerate(noise.index.tolist()):
        step = steps[done]
        assert torch.equal(z[row], step.z[row])
        cond = denoiser.condition(step.z, step.t)
        expected = denoiser.post(step.solution.h, cond, everywhere(z)).view(4, 6, -1)
        torch.testing.assert_close(found.view(4, 6, -1)[row], expected[row])


def everywhere(z: torch.Tensor) -> Places:
    return Places.of(torch.ones_like(z, dtype=torch.bool))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fake_lr": 0.0}, "fake_lr is 0.0; it must be above 0"),
        ({"fake_lr": math.nan}, "fake_lr is nan"),
        ({"fake_lr": 1.5}, "fake_lr is 1.5; it must be above 0 and at most 1"),
        ({"fake_updates": 0}, "fake_updates"),
        ({"fake_ema": 1.0}, "fake_ema is 1.0; it must be at least 0 and below 1"),
        ({"base_weight": -1.0}, "base_weight is -1.0; it must be 0 to 10000"),
        ({"base_weight": 1e12}, "base_weight is 1000000000000.0; it must be 0 to 10000"),
        ({"first": "base"}, "there are no steps of which one is the first"),
        ({"t_min": 0.0}, "t_min is 0.0; it must lie between 0 and 1"),
        ({"inputs": "own"}, "there are no steps; give some"),
        ({"remask": "nested"}, "there are no steps; give some"),
        ({"order": "halton"}, "there are no steps; give some"),
        ({"order": "halton", "steps": (4,), "base_weight": 1.0}, "a bound for masks by chance only"),
        ({"order": "random"}, "order"),
        ({"reuse": "three-state"}, "only inputs `own` come from a rollout"),
        ({"inputs": "own", "steps": (4,), "base_weight": 1.0}, "of its own samples nobody knows the right tokens"),
        ({"inputs": "mine"}, "mine"),
        ({"steps": (0,)}, "steps"),
        ({"base": MaskedCrossEntropy(schedule="cosine")}, "linear schedule"),
    ],
)
def test_a_wrong_setting_of_the_matching_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Matching(**settings)
