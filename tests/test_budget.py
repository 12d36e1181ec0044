import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpmgm.budget import ALLOCATIONS, Cost, allocate, block_evals, plan

costs = st.builds(Cost, st.integers(0, 6), st.integers(1, 4), st.integers(0, 6))
names = st.sampled_from(sorted(ALLOCATIONS))


@given(cost=costs, num_steps=st.integers(1, 60), extra=st.integers(0, 400), allocation=names)
def test_a_budget_is_never_exceeded_and_spent_to_the_last_feasible_evaluation(
    cost: Cost, num_steps: int, extra: int, allocation: str
) -> None:
    budget = num_steps * cost.smallest_step + extra
    spending = plan(budget, cost, num_steps=num_steps, allocation=allocation)
    assert spending.spent == block_evals(spending.iterations, cost) <= budget
    assert budget - spending.spent < cost.fp
    assert spending.num_steps == num_steps
    assert min(spending.iterations) >= 1


@given(budget=st.integers(12, 2000), num_blocks=st.integers(1, 12))
def test_a_plain_stack_takes_as_many_steps_as_fit(budget: int, num_blocks: int) -> None:
    spending = plan(budget, Cost(num_blocks, 0, 0))
    assert set(spending.iterations) == {0}
    assert spending.spent == num_blocks * spending.num_steps <= budget < spending.spent + num_blocks


@given(num_steps=st.integers(1, 200), extra=st.integers(0, 2000), allocation=names)
def test_allocations_add_up_exactly_with_one_iteration_at_least(num_steps: int, extra: int, allocation: str) -> None:
    iterations = allocate(num_steps + extra, num_steps, allocation)
    assert len(iterations) == num_steps
    assert sum(iterations) == num_steps + extra
    assert min(iterations) >= 1


@given(num_steps=st.integers(1, 200), extra=st.integers(0, 2000))
def test_allocations_are_monotone_where_their_name_says_so(num_steps: int, extra: int) -> None:
    total = num_steps + extra
    for falling in ("decreasing", "front-loaded"):
        iterations = allocate(total, num_steps, falling)
        assert list(iterations) == sorted(iterations, reverse=True)
    for rising in ("increasing", "cosine"):
        iterations = allocate(total, num_steps, rising)
        assert list(iterations) == sorted(iterations)
    fixed = allocate(total, num_steps, "fixed")
    assert max(fixed) - min(fixed) <= 1


def test_decreasing_runs_more_iterations_early_in_sampling_order() -> None:
    iterations = allocate(64, 16, "decreasing")
    assert iterations[0] > iterations[-1]
    assert iterations == tuple(reversed(allocate(64, 16, "increasing")))


def test_front_loaded_gives_the_first_quarter_three_times_the_weight() -> None:
    assert allocate(8 + 60, 8, "front-loaded") == (16, 16, 6, 6, 6, 6, 6, 6)
    assert allocate(6 + 100, 6, "front-loaded") == (31, 31, 11, 11, 11, 11)  # a quarter of 6 is 2


def test_cosine_rises_like_half_a_cosine_wave_and_decreasing_falls_from_three_halves_to_one_half() -> None:
    many = 1_000_000
    cosine = [(count - 1) / many * 5 for count in allocate(10 + many, 10, "cosine")]  # the weights add up to 5
    assert cosine == pytest.approx([(1 - math.cos(math.pi * (i + 0.5) / 10)) / 2 for i in range(10)], abs=1e-4)
    falling = [(count - 1) / many * 5 for count in allocate(5 + many, 5, "decreasing")]
    assert falling == pytest.approx([1.5, 1.25, 1.0, 0.75, 0.5], abs=1e-4)


@pytest.mark.parametrize(
    ("budget", "num_steps", "num_iters"), [(96, 16, 4), (192, 24, 6), (384, 128, 1), (768, 64, 10)]
)
def test_equal_iterations_of_a_1_1_1_model_solve_the_papers_budgets(
    budget: int, num_steps: int, num_iters: int
) -> None:
    spending = plan(budget, Cost(1, 1, 1), num_steps=num_steps, allocation="fixed")
    assert spending.iterations == (num_iters,) * num_steps
    assert spending.spent == budget


def test_without_steps_a_budget_buys_four_iterations_a_step_on_average() -> None:
    spending = plan(96, Cost(1, 1, 1))
    assert (spending.num_steps, sum(spending.iterations)) == (16, 64)
    assert spending.iterations == allocate(64, 16, "decreasing")


def test_an_infeasible_budget_names_the_smallest_feasible_one() -> None:
    with pytest.raises(ValueError, match=r"budget of 2 .* 1/1/1 blocks; the smallest feasible budget is 3$"):
        plan(2, Cost(1, 1, 1))
    with pytest.raises(ValueError, match=r"10 denoising steps .* smallest feasible budget is 30, or take at most 6"):
        plan(20, Cost(1, 1, 1), num_steps=10)
    with pytest.raises(ValueError, match=r"12 blocks; the smallest feasible budget is 12$"):
        plan(11, Cost(12, 0, 0))
    assert plan(30, Cost(1, 1, 1), num_steps=10).spent == 30


def test_wrong_names_and_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown allocation 'decresing'; did you mean 'decreasing'"):
        plan(96, Cost(1, 1, 1), allocation="decresing")
    with pytest.raises(ValueError, match="num_steps is 0"):
        plan(96, Cost(1, 1, 1), num_steps=0)
    with pytest.raises(ValueError, match="num_steps 4 and iters_per_step 2 are both set"):
        plan(96, Cost(1, 1, 1), num_steps=4, iters_per_step=2)
    with pytest.raises(ValueError, match="3 iterations for 4 steps"):
        allocate(3, 4)
    with pytest.raises(ValueError, match="blocks are 1/-1/0"):
        Cost(1, -1, 0)
