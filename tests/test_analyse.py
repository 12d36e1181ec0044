"""What analyses measure along a sampling run, each against a slow reference or a known answer."""

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import fpmgm
from fpmgm.analysis.fitting import Errors, Fit, boxed, largest_tolerance
from fpmgm.analysis.lagged import Reader, lagged
from fpmgm.analysis.solving import Watch, solving, spent_under
from fpmgm.analysis.trace import KINDS, Course, Following, Solve
from fpmgm.checkpoint import Model
from fpmgm.denoiser import Denoiser
from fpmgm.generation import Sampling, generate
from fpmgm.randomness import Streams
from fpmgm.remasking import Remasking, ReMDMCap
from fpmgm.reuse import full_reuse, no_reuse, three_state_reuse
from fpmgm.sampling import Step, even_times, sample
from fpmgm.solvers import picard
from fpmgm.types import Places
from tests.conftest import Build
from tests.given import LENGTH, MASK, NUM_SYMBOLS, given_fixed_point, table_of
from tests.images import small_image_model

RATE = 0.05


def doubling() -> Denoiser:
    """F(h) = 0.05 h + 1.9 log p: the solver starts at log p, and the fixed point is twice that."""
    denoiser = given_fixed_point()
    assert denoiser.injection is not None
    with torch.no_grad():
        denoiser.injection.set_exact(RATE, 1.9)
    return denoiser


def watched(
    denoiser: Denoiser, z: Tensor, *, num_steps: int = 4, **rules: Any
) -> tuple[Watch, list[Step], list[Solve]]:
    """A run with a watch, and all that it saw."""
    following = Following(14)
    watch, steps, solves = Watch(following, num_steps, denoiser.mask_id), [], []

    def on_step(step: Step) -> None:
        watch(step, None)
        steps.append(step)
        assert following.last is not None
        solves.append(following.last)

    settings: dict[str, Any] = {"transition": fpmgm.Ancestral(), **rules}
    sample(
        denoiser,
        z,
        times=even_times(num_steps),
        iterations=(3,) * num_steps,
        rng=Streams.of(0, range(len(z))),
        solver=following,
        on_step=on_step,
        **settings,
    )
    return watch, steps, solves


def masks(num: int) -> Tensor:
    return torch.full((num, LENGTH), MASK)


def test_residuals_fall_by_the_rate_of_a_known_fixed_point() -> None:
    watch, _, solves = watched(doubling(), masks(8), reuse=full_reuse)
    for solve in solves:
        sizes = torch.stack([h.flatten(1).norm(dim=1) for h in solve.path], dim=1)
        moved = solve.residuals[:, : sizes.shape[1]] * sizes  # |f(h) - h|
        torch.testing.assert_close(moved[:, 1:3], RATE * moved[:, :2], rtol=1e-3, atol=1e-5)
    assert bool((watch.residuals[0, :5].diff() < 0).all())
    assert float(watch.residuals[0, -1]) < 1e-5


def test_full_reuse_starts_at_distance_0_when_nothing_changes_and_no_reuse_where_it_always_does() -> None:
    given = torch.randint(0, NUM_SYMBOLS, (5, LENGTH), generator=fpmgm.generator(3))
    for reuse, starts in ((no_reuse, 0.5), (full_reuse, 0.0)):
        watch, _, _ = watched(doubling(), given, reuse=reuse)
        found = watch.start / watch.rows
        assert float(found[0]) == pytest.approx(0.5)
        assert found[1:].tolist() == pytest.approx([starts] * 3, abs=RATE**3)  # the last solve has 3 iterations
        assert watch.counts.sum(dim=1).tolist() == [5 * LENGTH * 3, 0, 0, 0, 0]


@pytest.mark.parametrize("reuse", [no_reuse, full_reuse, three_state_reuse])
def test_positions_are_counted_and_measured_by_what_happened_to_them_remasking_included(reuse: Any) -> None:
    transition = Remasking(rule=ReMDMCap(eta=0.9))
    watch, steps, solves = watched(doubling(), masks(40), num_steps=6, reuse=reuse, transition=transition)
    counts, moved, started = (torch.zeros(len(KINDS), 6) for _ in range(3))
    for index, (before, after) in enumerate(pairwise(range(6)), 1):
        for row in range(40):
            for place in range(LENGTH):
                old, new = int(steps[before].z[row, place]), int(steps[after].z[row, place])
                if old == new:
                    kind = "still masked" if new == MASK else "unchanged visible"
                else:
                    kind = "newly revealed" if old == MASK else "remasked" if new == MASK else "replaced"
                h_star = solves[after].h_star[row, place]
                counts[KINDS.index(kind), index] += 1
                moved[KINDS.index(kind), index] += (h_star - solves[before].h_star[row, place]).norm()
                started[KINDS.index(kind), index] += (steps[after].h_init[row, place] - h_star).norm()
    assert torch.equal(watch.counts.float(), counts)
    assert int(counts[3].sum()) > 0
    torch.testing.assert_close(watch.moved.float(), moved, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(watch.started.float(), started, rtol=1e-4, atol=1e-4)


def keep_iterations(into: list[list[int]], step: Step) -> None:
    into.append(step.solution.num_iters.tolist())


@pytest.mark.parametrize("tolerance", [None, 0.5])
def test_the_sampler_gets_from_a_followed_solve_what_picard_gives(small_model: Build, tolerance: float | None) -> None:
    denoiser = small_model()
    z = torch.full((3, 16), denoiser.mask_id)
    rules: dict[str, Any] = {"times": even_times(4), "iterations": (4, 3, 3, 2), "transition": fpmgm.Ancestral()}
    spent: list[list[list[int]]] = [[], []]
    solvers: list[Any] = [partial(picard, tolerance=tolerance), Following(6, tolerance)]
    found = [
        sample(
            denoiser,
            z,
            rng=Streams.of(0, range(3)),
            reuse=three_state_reuse,
            solver=solver,
            on_step=partial(keep_iterations, own),
            **rules,
        )
        for solver, own in zip(solvers, spent, strict=True)
    ]
    assert torch.equal(found[0].z, found[1].z)
    assert spent[0] == spent[1]
    assert (spent[0] == [[4] * 3, [3] * 3, [3] * 3, [2] * 3]) is (tolerance is None)


def test_a_course_draws_what_generate_draws(text_model: Model) -> None:
    course = Course.of(text_model, Sampling(budget=24, seed=5, batch_size=2), 3)
    tokens = course.run(lambda step, label: None, what="", solver=Following(7))
    assert tokens.tolist() == generate(text_model, num_samples=3, budget=24, seed=5).tokens


@pytest.mark.parametrize(("rule", "begin", "rows"), [("constant", 0.5, [4, 4, 4]), ("late", 0.75, [2, 2, 2])])
def test_guided_steps_count_both_halves_if_both_steps_have_them(rule: Any, begin: float, rows: list[int]) -> None:
    model = small_image_model()
    sampling = Sampling(budget=12, steps=4, cfg_weight=1.0, guidance=rule, guidance_begin=begin)
    residuals, movement, starts = solving(Course.of(model, sampling, 2), depth=3, reuses=("none",))
    assert [sum(row[step] for row in movement.counts) for step in range(3)] == [16 * each for each in rows]
    assert len(residuals.residuals[0]) == 4
    assert all(math.isfinite(each) for each in starts.start[0])


@pytest.mark.parametrize("over", ["later", "earlier"])
def test_lagged_kl_and_change_of_logits_are_those_of_the_tables_rows(over: Any) -> None:
    denoiser = given_fixed_point()
    reader, seen = Reader(denoiser, 8, (1, 2, 3), over), []

    def on_step(step: Step) -> None:
        reader(step, None)
        seen.append(step.z)

    times = even_times(5)
    rules: dict[str, Any] = {"times": times, "iterations": (8,) * 5, "transition": fpmgm.Ancestral()}
    sample(denoiser, masks(30), rng=Streams.of(1, range(30)), on_step=on_step, **rules)
    table = table_of(denoiser, 8)
    sums, changes, counts = torch.zeros(30, 3), torch.zeros(30), torch.zeros(30, 3)
    for place, lag in enumerate((1, 2, 3)):
        for before, after in zip(seen, seen[lag:], strict=False):
            for row in range(30):
                for position in range(LENGTH):
                    if before[row, position] == MASK == after[row, position]:
                        q, p = (table[tuple(z[row].tolist())][position] for z in (before, after))
                        q, p = (q, p) if over == "later" else (p, q)
                        counts[row, place] += 1
                        sums[row, place] += float((p * (p.log() - q.log())).sum())
                        changes[row] += float((p.log() - q.log()).std(correction=0)) if lag == 1 else 0.0
    found = reader.sums
    assert torch.equal(torch.tensor(found.counts).float(), counts)
    torch.testing.assert_close(torch.tensor(found.kl).float(), sums, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(torch.tensor(found.change).float(), changes, rtol=1e-3, atol=1e-4)


def test_a_model_has_the_lagged_kl_that_it_has_itself(text_model: Model) -> None:
    course = Course.of(text_model, Sampling(budget=24), 3)
    found = lagged([course, course], ["a", "b"], steps=(3, 6), num_iters=2, lags=(1, 2))
    assert found.kl[0] == found.kl[1]
    assert found.reduction == found.reduction_low == found.reduction_high == ((0.0, 0.0), (0.0, 0.0))
    assert len(found.change[0]) == 2
    alone = lagged([course], ["a"], steps=(3,), num_iters=2, lags=(1, 4))
    assert alone.kl[0][0][1] is None  # three steps have no lag of 4
    assert alone.reduction == ()


def test_iterations_under_a_tolerance_are_those_that_sampling_with_it_spends(text_model: Model) -> None:
    course = Course.of(text_model, Sampling(budget=24), 2)
    found = spent_under(course, reuses=("full",), tolerances=(1e9, 0.3, 1e-9))
    assert found.spent[0][0] == (1.0,) * len(course.iterations)
    assert found.spent[0][2] == tuple(map(float, course.iterations))
    out = [generate(text_model, num_samples=2, budget=24, reuse="full", tolerance=0.3, batch_size=1)]
    assert found.total(0, 1) <= out[0].block_evals - 2 * out[0].steps


def seen_step(z: Tensor, h_pre: Tensor, h_last: Tensor, index: int) -> Step:
    """A step of which only what a fit reads is real."""
    solution = fpmgm.Solution(h=h_last, residual=torch.zeros(len(z)), num_iters=torch.ones(len(z), dtype=torch.long))
    places, logits = Places.of(z == MASK), torch.zeros(0, NUM_SYMBOLS)
    rest: dict[str, Any] = {"t": 1.0, "t_next": 0.5, "weight": 0.0, "places": places, "logits": logits}
    return Step(index=index, z=z, z_next=z, h_pre=h_pre, h_init=h_pre, solution=solution, **rest)


def test_a_fit_finds_the_coefficients_that_made_the_fixed_points() -> None:
    rng = fpmgm.generator(0)
    following = Following(2)
    fit = Fit(following, MASK)
    for _ in range(3):
        h_last, h_pre = (torch.randn(6, 8, 5, generator=rng, dtype=torch.float64) for _ in range(2))
        z_last = torch.randint(0, MASK + 1, (6, 8), generator=rng)
        z = torch.where(
            torch.rand(6, 8, generator=rng) < 0.5, z_last, torch.randint(0, MASK + 1, (6, 8), generator=rng)
        )
        visible = (z != MASK).double().mean(dim=1, keepdim=True)
        gamma = torch.where(z == MASK, 0.3 + 0.4 * visible, 1.0)
        gamma = torch.where(z == z_last, gamma, 0.15)[..., None]
        h_star = h_pre + gamma * (h_last - h_pre)
        none: Any = {"cond": None, "path": (h_pre,), "residuals": torch.zeros(6, 1), "stops": torch.ones(6).long()}
        following.last = Solve(h_star=h_last, **none)
        fit(seen_step(z_last, h_pre, h_last, 0), None)
        following.last = Solve(h_star=h_star, **none)
        fit(seen_step(z, h_pre, h_last, 1), None)
    assert fit.shares == ((0.3, 0.7), (0.15, 0.15))


def test_a_fit_that_would_leave_the_box_ends_at_its_best_point_inside() -> None:
    gram = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    towards = torch.tensor([3.0, 0.2], dtype=torch.float64)
    steps = torch.linspace(0, 1, 201, dtype=torch.float64)
    grid = torch.cartesian_prod(steps, steps)
    costs = ((grid @ gram) * grid).sum(dim=1) - 2 * grid @ towards
    assert boxed(gram, towards) == pytest.approx(grid[costs.argmin()].tolist(), abs=0.006)


def errors_of(denoiser: Denoiser, tolerance: float | None = None) -> tuple[Errors, list[Step]]:
    following, steps = Following(14, tolerance), []
    found = Errors(denoiser, following)

    def on_step(step: Step) -> None:
        found(step, None)
        steps.append(step)

    rules: dict[str, Any] = {"times": even_times(4), "iterations": (3, 3, 2, 2), "transition": fpmgm.Ancestral()}
    sample(denoiser, masks(6), rng=Streams.of(0, range(6)), solver=following, on_step=on_step, **rules)
    return found, steps


def test_errors_are_the_kl_of_what_is_drawn_from_against_what_the_fixed_point_says() -> None:
    denoiser = doubling()
    for tolerance in (None, 0.1):
        found, steps = errors_of(denoiser, tolerance)
        lost, counts = torch.zeros(6, dtype=torch.float64), torch.zeros(6)
        for step in steps:
            for place, sequence, logits in zip(step.places.flat, step.places.sequences, step.logits, strict=True):
                exact = 2 * denoiser.backbone.embed(step.z)[sequence, place % LENGTH, :NUM_SYMBOLS]
                log_p, log_q = exact.double().log_softmax(-1), logits[:NUM_SYMBOLS].log_softmax(-1)
                lost[sequence] += (log_p.exp() * (log_p - log_q)).sum()
                counts[sequence] += 1
        torch.testing.assert_close(torch.tensor(found.stopped()[0]), lost / counts, rtol=1e-2, atol=1e-6)
        spent = torch.stack([step.solution.num_iters for step in steps]).sum(dim=0)
        assert found.stopped()[1].tolist() == spent.tolist()


def test_the_tolerance_is_the_largest_that_loses_little_and_none_if_it_saves_little() -> None:
    found, _ = errors_of(doubling())
    chosen = largest_tolerance(found, slack=1e-4, tried=(0.9, 0.3, 0.05, 0.003, 1e-9))
    lost, spent = found.at(None)
    assert chosen is not None
    assert found.at(chosen)[0] <= lost + 1e-4
    assert found.at(chosen)[1] < spent == 10
    larger = [each for each in (0.9, 0.3, 0.05, 0.003) if each > chosen]
    assert all(found.at(each)[0] > lost + 1e-4 for each in larger)
    assert largest_tolerance(found, slack=0.0, tried=(1e-9,)) is None


def test_a_followed_run_of_three_reuses_says_that_the_first_step_is_the_same(text_model: Model) -> None:
    course = Course.of(text_model, Sampling(budget=24), 2)
    residuals, movement, starts = solving(course, depth=5)
    first = [each[0] for each in residuals.residuals]
    assert first[0] == first[1] == first[2]
    assert starts.start[0][0] == starts.start[1][0]
    assert movement.times == course.times[1:]
    assert residuals.first(0) == [step[0] for step in residuals.residuals[0]]
    assert residuals.last(0)[0] == residuals.residuals[0][0][min(course.iterations[0], 4)]
    assert sum(map(sum, movement.counts)) == 2 * 24 * (len(course.iterations) - 1)
    assert replace(course, num_samples=1).times == course.times
