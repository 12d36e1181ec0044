from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fpmgm.gradients import IterationCounts, gradient_by_name, implicit, jfb, sjfb, sjfb_cut, unrolled
from fpmgm.randomness import generator
from fpmgm.solvers import Solution, anderson, picard
from fpmgm.types import Map


class Contraction:
    """h -> 0.4 tanh(h W) + u V, with parameters W, V and an input u, in float64."""

    def __init__(self) -> None:
        rng = generator(0)
        self.w = (0.5 * torch.randn(4, 4, generator=rng, dtype=torch.float64)).requires_grad_()
        self.v = torch.randn(4, 4, generator=rng, dtype=torch.float64).requires_grad_()
        self.u = torch.randn(2, 3, 4, generator=rng, dtype=torch.float64).requires_grad_()
        self.goal = torch.randn(2, 3, 4, generator=rng, dtype=torch.float64)

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.w, self.v, self.u

    def __call__(self, h: Tensor, rows: Tensor | None = None) -> Tensor:
        u = self.u if rows is None else self.u[rows]
        return 0.4 * torch.tanh(h @ self.w) + u @ self.v

    def loss(self, h: Tensor) -> Tensor:
        return ((h - self.goal) ** 2).sum()

    def gradients(self, rule: Callable[..., Any], **counts: Any) -> tuple[Tensor, ...]:
        solution = rule(self, self.u, **counts)
        return torch.autograd.grad(self.loss(solution.h), self.inputs)


def autograd_after(f: Contraction, num_no_grad: int, num_grad: int) -> tuple[Tensor, ...]:
    """S-JFB written out: a detached start, then plain autograd."""
    h: Tensor = f.u
    for _ in range(num_no_grad):
        h = f(h).detach()
    for _ in range(num_grad):
        h = f(h)
    return torch.autograd.grad(f.loss(h), f.inputs)


@pytest.mark.parametrize("num_grad", [1, 2, 5])
def test_sjfb_without_no_grad_iterations_is_autograd(num_grad: int) -> None:
    f = Contraction()
    torch.testing.assert_close(f.gradients(sjfb, num_no_grad=0, num_grad=num_grad), autograd_after(f, 0, num_grad))


@pytest.mark.parametrize("num_no_grad", [1, 4])
def test_sjfb_cuts_off_the_state_and_the_injection_of_the_no_grad_part(num_no_grad: int) -> None:
    f = Contraction()
    by_rule = f.gradients(sjfb, num_no_grad=num_no_grad, num_grad=3)
    torch.testing.assert_close(by_rule, autograd_after(f, num_no_grad, 3))
    everything = f.gradients(unrolled, num_no_grad=num_no_grad, num_grad=3)
    assert not torch.allclose(by_rule[0], everything[0])


def test_the_no_grad_part_builds_no_graph() -> None:
    f = Contraction()
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        sjfb(f, f.u, num_no_grad=0, num_grad=2)
        alone = len(saved)
        sjfb(f, f.u, num_no_grad=4, num_grad=2)
    assert alone <= len(saved) <= 2 * alone


def test_the_cut_rule_of_fpdm_cuts_off_the_initial_state_where_sjfb_does_not() -> None:
    f = Contraction()
    start = torch.randn(2, 3, 4, dtype=torch.float64, generator=generator(5)).requires_grad_()
    for num_no_grad, reaches in ((0, True), (2, False)):
        for rule, is_reached in ((sjfb, reaches), (sjfb_cut, False)):
            solution = rule(f, start * 1.0, num_no_grad=num_no_grad, num_grad=2)
            found = torch.autograd.grad(solution.h.sum(), start, allow_unused=True)[0]
            assert (found is not None and bool(found.any())) == is_reached
    for num_no_grad in (1, 3):
        same = [f.gradients(rule, num_no_grad=num_no_grad, num_grad=2) for rule in (sjfb, sjfb_cut)]
        torch.testing.assert_close(same[0], same[1])


def test_jfb_is_sjfb_with_one_gradient_iteration() -> None:
    f = Contraction()
    torch.testing.assert_close(
        f.gradients(jfb, num_no_grad=2, num_grad=4), f.gradients(sjfb, num_no_grad=5, num_grad=1)
    )


def test_unrolled_is_autograd_through_all_iterations() -> None:
    f = Contraction()
    torch.testing.assert_close(f.gradients(unrolled, num_no_grad=2, num_grad=4), autograd_after(f, 0, 6))


@pytest.mark.parametrize("solver", [picard, anderson])
def test_implicit_agrees_with_finite_differences(solver: Callable[..., Solution]) -> None:
    f = Contraction()
    by_rule = f.gradients(implicit, num_no_grad=40, num_grad=20, solver=solver)
    step = 1e-6
    for tensor, gradient in zip(f.inputs, by_rule, strict=True):
        direction = torch.randn(tensor.shape, generator=generator(3), dtype=torch.float64)
        with torch.no_grad():
            start = torch.zeros_like(f.goal)
            tensor += step * direction
            above = f.loss(picard(f, start, 80).h)
            tensor -= 2 * step * direction
            below = f.loss(picard(f, start, 80).h)
            tensor += step * direction
        assert float((gradient * direction).sum()) == pytest.approx(float((above - below) / (2 * step)), rel=1e-6)


def test_implicit_differs_from_jfb_where_the_jacobian_matters() -> None:
    f = Contraction()
    exact = f.gradients(implicit, num_no_grad=40, num_grad=20)
    cheap = f.gradients(jfb, num_no_grad=40, num_grad=20)
    assert not torch.allclose(exact[0], cheap[0], rtol=1e-2)


def test_implicit_works_with_a_solver_that_stops_by_itself() -> None:
    f = Contraction()

    def stopping(f: Map, h: Tensor, num_iters: int) -> Solution:
        return picard(f, h, num_iters, tolerance=1e-12)

    torch.testing.assert_close(
        f.gradients(implicit, num_no_grad=60, num_grad=1, solver=stopping),
        f.gradients(implicit, num_no_grad=60, num_grad=1),
    )


@pytest.mark.parametrize("name", ["sjfb", "sjfb-cut", "jfb", "unrolled", "implicit"])
def test_every_rule_gives_the_same_state_for_the_same_iterations(name: str) -> None:
    f = Contraction()
    solution = gradient_by_name(name)(f, f.u, num_no_grad=2, num_grad=3)
    expected = picard(f, f.u, 5)
    torch.testing.assert_close(solution.h, expected.h)
    torch.testing.assert_close(solution.residual, expected.residual)
    assert solution.num_iters.tolist() == [5, 5]


def test_implicit_counts_what_a_stopping_solver_used() -> None:
    f = Contraction()
    calls = 0

    def counted(h: Tensor, rows: Tensor | None = None) -> Tensor:
        nonlocal calls
        calls += len(h)
        return f(h, rows)

    def stopping(f: Map, h: Tensor, num_iters: int) -> Solution:
        return picard(f, h, num_iters, tolerance=1e-3)

    solution = implicit(counted, f.u, num_no_grad=60, num_grad=1, solver=stopping)
    assert int(solution.num_iters.sum()) == calls < 60


def test_implicit_solves_backward_with_its_solver_and_its_own_count() -> None:
    def error(**options: Any) -> float:
        f = Contraction()
        exact = f.gradients(implicit, num_no_grad=60, num_grad=1, num_backward=80)[0]
        return float((f.gradients(implicit, num_no_grad=60, num_grad=1, **options)[0] - exact).norm())

    assert error(num_backward=3) > error(num_backward=6) > error(num_backward=12) > 0
    assert error(num_backward=3, solver=anderson) < error(num_backward=3)


@pytest.mark.parametrize("num_backward", [1, 2, 5])
def test_implicit_sums_one_power_of_the_jacobian_per_backward_iteration(num_backward: int) -> None:
    rng = generator(0)
    a = 0.3 * torch.randn(4, 4, generator=rng, dtype=torch.float64)
    u = torch.randn(1, 1, 4, generator=rng, dtype=torch.float64).requires_grad_()
    v = torch.randn(1, 1, 4, generator=rng, dtype=torch.float64)
    solution = implicit(
        lambda h, rows=None: h @ a + u, torch.zeros_like(u), num_no_grad=3, num_grad=1, num_backward=num_backward
    )
    (found,) = torch.autograd.grad((v * solution.h).sum(), u)
    expected, term = v.clone(), v
    for _ in range(num_backward):
        term = term @ a.mT
        expected = expected + term
    torch.testing.assert_close(found, expected)


def test_implicit_gives_the_starting_point_no_gradient() -> None:
    f = Contraction()
    start = torch.randn(f.u.shape, generator=generator(1), dtype=torch.float64).requires_grad_()
    for num_no_grad in (0, 3):
        loss = f.loss(implicit(f, start, num_no_grad=num_no_grad, num_grad=1).h)
        assert torch.autograd.grad(loss, start, allow_unused=True)[0] is None


@pytest.mark.parametrize("name", ["sjfb", "sjfb-cut", "jfb", "unrolled", "implicit"])
def test_every_rule_uses_the_solver_it_is_given_for_every_part(name: str) -> None:
    calls: list[tuple[int, bool]] = []

    def noted(f: Map, h: Tensor, num_iters: int) -> Solution:
        calls.append((num_iters, torch.is_grad_enabled()))
        return picard(f, h, num_iters)

    f = Contraction()
    gradient_by_name(name)(f, f.u, num_no_grad=2, num_grad=3, solver=noted)
    expected = {
        "sjfb": [(2, False), (3, True)],
        "sjfb-cut": [(2, False), (3, True)],
        "jfb": [(4, False), (1, True)],
        "unrolled": [(5, True)],
        "implicit": [(4, False)],
    }
    assert calls == expected[name]


@pytest.mark.parametrize("name", ["sjfb", "sjfb-cut", "jfb", "unrolled", "implicit"])
def test_counts_without_a_gradient_iteration_are_refused(name: str) -> None:
    f = Contraction()
    with pytest.raises(ValueError, match="2 iterations without and 0 with gradients"):
        gradient_by_name(name)(f, f.u, num_no_grad=2, num_grad=0)
    with pytest.raises(ValueError, match="num_backward is 0"):
        implicit(f, f.u, num_no_grad=0, num_grad=1, num_backward=0)


def test_iteration_counts_are_uniform_over_their_ranges_and_repeat_with_the_key() -> None:
    counts = IterationCounts()
    drawn = [counts(rng=generator(0, update)) for update in range(4000)]
    for index, values in enumerate((range(5), range(3, 7))):
        share = [sum(pair[index] == value for pair in drawn) / len(drawn) for value in values]
        assert sum(share) == pytest.approx(1)
        assert share == pytest.approx([1 / len(values)] * len(values), abs=0.03)
    assert drawn[:50] == [counts(rng=generator(0, update)) for update in range(50)]


def test_counts_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="gradient iterations are 0 to 6"):
        IterationCounts(grad_min=0)
    with pytest.raises(ValueError, match="no-grad iterations are 3 to 2"):
        IterationCounts(no_grad_min=3, no_grad_max=2)
    with pytest.raises(ValueError, match="did you mean 'sjfb'"):
        gradient_by_name("sjbf")
