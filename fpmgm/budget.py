"""Budget: block evaluations, and how a sampler spends them.

A denoising step costs K_pre + N K_fp + K_post block evaluations; a block run at a subset of positions counts as one.
Allocations are named in sampling order: `decreasing` runs more solver iterations early.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import torch

from fpmgm.masking import arccos, mask_schedule_by_name
from fpmgm.names import choose
from fpmgm.schema import MAX_BUDGET, shortened


@dataclass(frozen=True)
class Cost:
    """Blocks before, inside and after the fixed point; a plain stack of L blocks is (L, 0, 0)."""

    pre: int
    fp: int
    post: int

    def __post_init__(self) -> None:
        if min(self.pre, self.fp, self.post) < 0 or self.pre + self.fp + self.post < 1:
            raise ValueError(f"blocks are {self.pre}/{self.fp}/{self.post}; none may be negative, nor all 0")

    def step(self, num_iters: int) -> int:
        """Block evaluations of one denoising step with that many solver iterations."""
        return self.pre + num_iters * self.fp + self.post

    def __str__(self) -> str:
        """Blocks as people write them: 1/1/1, or 12 for a plain stack."""
        return f"{self.pre}/{self.fp}/{self.post}" if self.fp else str(self.pre)

    @property
    def smallest_step(self) -> int:
        return self.step(1 if self.fp else 0)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a budget buys: the solver iterations of each denoising step, and what they cost together."""

    budget: int
    spent: int
    iterations: tuple[int, ...]

    @property
    def num_steps(self) -> int:
        return len(self.iterations)


def _weight_fixed(i: int, num_steps: int) -> float:
    return 1.0


def _weight_decreasing(i: int, num_steps: int) -> float:
    return 1.5 - i / max(num_steps - 1, 1)


def _weight_increasing(i: int, num_steps: int) -> float:
    return _weight_decreasing(num_steps - 1 - i, num_steps)


def _weight_cosine(i: int, num_steps: int) -> float:
    return (1 - math.cos(math.pi * (i + 0.5) / num_steps)) / 2


def _weight_front_loaded(i: int, num_steps: int) -> float:
    return 3.0 if i < math.ceil(num_steps / 4) else 1.0


AllocationName = Literal["fixed", "decreasing", "increasing", "cosine", "front-loaded"]
ALLOCATIONS: dict[str, Callable[[int, int], float]] = {
    "fixed": _weight_fixed,
    "decreasing": _weight_decreasing,
    "increasing": _weight_increasing,
    "cosine": _weight_cosine,
    "front-loaded": _weight_front_loaded,
}
"""The weight of step i of num_steps: even; 1.5 falling to 0.5; the reverse; a rising half cosine; the first quarter
of the steps three times the rest. The paper names these allocations and gives no formula: all shapes but `fixed` are
ours."""


def allocate(total: int, num_steps: int, allocation: str = "decreasing") -> tuple[int, ...]:
    """Share `total` solver iterations out over the steps: one each, the rest by weight and largest remainder.

    >>> allocate(16, 4)
    (6, 5, 3, 2)
    """
    weight = choose("allocation", allocation, ALLOCATIONS)
    if num_steps < 1:
        raise ValueError(f"num_steps is {num_steps}; at least 1 is needed")
    if total < num_steps:
        raise ValueError(f"{total} iterations for {num_steps} steps; every step needs one: give at least {num_steps}")
    weights = [weight(i, num_steps) for i in range(num_steps)]
    quotas = [(total - num_steps) * w / sum(weights) for w in weights]
    counts = [math.floor(quota) for quota in quotas]
    # Equal remainders (up to rounding) favour the heavier step, so that decreasing mirrors increasing.
    by_remainder = sorted(range(num_steps), key=lambda i: (round(counts[i] - quotas[i], 9), -weights[i]))
    for i in by_remainder[: total - num_steps - sum(counts)]:
        counts[i] += 1
    return tuple(1 + count for count in counts)


def plan(
    budget: int,
    cost: Cost,
    *,
    num_steps: int | None = None,
    allocation: str = "decreasing",
    iters_per_step: int | None = None,
) -> Plan:
    """Spend as many block evaluations of the budget as can be spent.

    Without `num_steps`, as many steps as the budget allows at `iters_per_step` iterations each on average (4 if None).

    >>> plan(96, Cost(1, 1, 1)).iterations
    (6, 5, 5, 5, 5, 5, 4, 4, 4, 4, 3, 3, 3, 3, 3, 2)
    >>> plan(100, Cost(12, 0, 0))
    Plan(budget=100, spent=96, iterations=(0, 0, 0, 0, 0, 0, 0, 0))
    """
    choose("allocation", allocation, ALLOCATIONS)
    if budget > MAX_BUDGET:
        raise ValueError(
            f"a budget of {shortened(budget)} block evaluations is beyond reason; give at most {MAX_BUDGET}"
        )
    if iters_per_step is not None and num_steps is not None:
        raise ValueError(f"num_steps {num_steps} and iters_per_step {iters_per_step} are both set; give one of them")
    if iters_per_step is not None and iters_per_step < 1:
        raise ValueError(f"iters_per_step is {iters_per_step}; at least 1 is needed")
    if num_steps is None:
        num_steps = max(budget // cost.step(iters_per_step or 4), 1)
    if num_steps < 1:
        raise ValueError(f"num_steps is {shortened(num_steps)}; at least 1 is needed")
    smallest = num_steps * cost.smallest_step
    if budget < smallest:
        raise ValueError(_infeasible(budget, cost, num_steps, smallest))
    if cost.fp == 0:
        return Plan(budget=budget, spent=smallest, iterations=(0,) * num_steps)
    total = (budget - num_steps * (cost.pre + cost.post)) // cost.fp
    iterations = allocate(total, num_steps, allocation)
    return Plan(budget=budget, spent=block_evals(iterations, cost), iterations=iterations)


def even_plan(budget: int, cost: Cost, num_iters: int, num_steps: int | None = None) -> Plan:
    """So many solver iterations at every step, and so many steps, or as many as the budget allows.

    >>> even_plan(100, Cost(1, 1, 1), 4).iterations
    (4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4)
    """
    if not cost.fp:
        raise ValueError(f"iterations are {num_iters}, and a plain stack has no solver; leave them out")
    if num_iters < 1:
        raise ValueError(f"iterations are {num_iters}; at least 1 is needed")
    num_steps = max(budget // cost.step(num_iters), 1) if num_steps is None else num_steps
    found = plan(max(num_steps * cost.step(num_iters), 1), cost, num_steps=num_steps, allocation="fixed")
    if found.spent > budget:
        raise ValueError(
            f"{num_steps} steps of {num_iters} iterations cost {found.spent} block evaluations, and the budget is "
            f"{budget}; give --budget {found.spent}, or fewer steps or iterations"
        )
    return replace(found, budget=budget)


@runtime_checkable
class Asked(Protocol):
    """The settings of sampling that a plan depends on."""

    @property
    def budget(self) -> int: ...
    @property
    def steps(self) -> int | None: ...
    @property
    def iterations(self) -> int | None: ...
    @property
    def allocation(self) -> str: ...
    @property
    def transition(self) -> str: ...
    @property
    def schedule(self) -> str: ...
    @property
    def solve(self) -> str: ...
    @property
    def whole_first(self) -> bool: ...
    @property
    def whole_every(self) -> int: ...
    @property
    def budget_in(self) -> str: ...


def spending_of(asked: Asked, cost: Cost, given: Collection[float] = (0.0,)) -> Plan:
    """The plan of these settings, whether their budget counts blocks or positions.

    With a budget in positions, it is the plan of the largest number of blocks whose expected work is at most that of
    `budget` blocks that run everywhere. Its `spent` are block evaluations, and may be more than the budget. `given` are
    the shares of tokens that are given of the sequences, as `shares_given` finds them. A ValueError if they differ: a
    sample must not depend on what else is asked for.
    """
    if asked.iterations is not None:
        return _even(asked, asked.iterations, cost)
    found = plan(asked.budget, cost, num_steps=asked.steps, allocation=asked.allocation)
    choose("budget_in", asked.budget_in, dict.fromkeys(("blocks", "positions")))
    if asked.budget_in == "blocks":
        return found
    share = _masked_share(asked)
    if len(set(given)) > 1:
        raise ValueError(
            f"budget_in is positions, and {min(given):.0%} to {max(given):.0%} of the tokens of a sequence are given, "
            "so that no plan is right for all; ask for them one by one, or plan in blocks"
        )
    low, high = asked.budget, MAX_BUDGET + 1  # the work of `low` blocks fits, that of `high` does not
    while high - low > 1:
        middle = (low + high) // 2 if high <= MAX_BUDGET else min(2 * low, MAX_BUDGET)
        tried = plan(middle, cost, num_steps=asked.steps, allocation=asked.allocation)
        every = asked.whole_every if asked.whole_first else 0
        if expected_work(tried, cost, share, whole_every=every, given=max(given)) <= asked.budget + 1e-9:
            low, found = middle, tried
        else:
            high = middle
        if low == MAX_BUDGET:
            break
    return replace(found, budget=asked.budget)


def _even(asked: Asked, num_iters: int, cost: Cost) -> Plan:
    for name, value, usual in (
        ("allocation", asked.allocation, ("auto", "fixed")),
        ("budget_in", asked.budget_in, ("blocks",)),
    ):
        if value not in usual:
            raise ValueError(
                f"iterations are {num_iters} at every step, and {name} is {value}; leave one of the two out"
            )
    return even_plan(asked.budget, cost, num_iters, asked.steps)


def shares_given(starts: Iterable[Sequence[int]], mask_id: int) -> set[float]:
    """The shares of tokens that are given of some sequences."""
    return {1 - start.count(mask_id) / len(start) for start in starts}


def expected_work(
    spending: Plan, cost: Cost, masked: Callable[[float], float], *, whole_every: int, given: float = 0.0
) -> float:
    """What a plan costs with `changed-and-masked`, in blocks that run everywhere.

    `masked` is the share of tokens that is masked at a time, of those that were not `given`. The first step runs
    everywhere, and after it what is given rests. A step runs at what was masked before the last one: at what still is,
    and at what the last step revealed. Of several blocks in the fixed point only the last lets positions rest. Blocks
    before and after the fixed point count as whole ones. Of `whole_every` steps one has a whole first iteration; with 0
    only the first step of all.
    """
    total = 0.0
    for index, num_iters in enumerate(spending.iterations):
        whole = 1 - given if index else 1.0
        share = whole * masked(1 - max(index - 1, 0) / spending.num_steps)
        first = whole if index == 0 or (whole_every > 0 and index % whole_every == 0) else share
        total += cost.pre + cost.post + (cost.fp - 1) * num_iters + first + (num_iters - 1) * share
    return total


def _masked_share(asked: Asked) -> Callable[[float], float]:
    """The share of tokens that is masked at a time; a ValueError if the work of the settings cannot be foreseen."""
    if asked.solve != "changed-and-masked":
        why = "every position runs" if asked.solve == "all" else "a tolerance saves what nobody can foresee"
        raise ValueError(f"budget_in is positions, and with solve {asked.solve} {why}; solve changed-and-masked")
    if asked.transition.startswith("remdm"):
        raise ValueError(f"budget_in is positions, and {asked.transition} masks tokens again by chance; plan in blocks")
    schedule = arccos if asked.transition == "halton" else mask_schedule_by_name(asked.schedule)
    return lambda t: float(schedule.masked(torch.tensor(t, dtype=torch.float64)))


def block_evals(iterations: Sequence[int], cost: Cost) -> int:
    """Block evaluations of a run with these solver iterations."""
    return sum(cost.step(num_iters) for num_iters in iterations)


def _infeasible(budget: int, cost: Cost, num_steps: int, smallest: int) -> str:
    steps = "1 denoising step" if num_steps == 1 else f"{shortened(num_steps)} denoising steps"
    blocks = f"{cost.pre}/{cost.fp}/{cost.post}" if cost.fp else f"{cost.pre + cost.post}"
    message = (
        f"a budget of {shortened(budget)} block evaluations is too small for {steps} of a model of {blocks} blocks; "
        f"the smallest feasible budget is {shortened(smallest)}"
    )
    fewer = budget // cost.smallest_step
    return f"{message}, or take at most {fewer} steps" if fewer and num_steps > 1 else message
