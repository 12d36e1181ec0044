from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from fpmgm.randomness import generator
from fpmgm.solvers import Solution, anderson, picard, solver_by_name


class Linear:
    """h -> A h + b per position, with its own contraction rate per sequence; counts the rows it computes."""

    def __init__(self, rates: list[float], length: int = 3, width: int = 6) -> None:
        rng = generator(0)
        batch = len(rates)
        q = torch.linalg.qr(torch.randn(batch, width, width, generator=rng, dtype=torch.float64)).Q
        spectrum = torch.linspace(0.2, 1.0, width, dtype=torch.float64)
        self.a = torch.tensor(rates, dtype=torch.float64)[:, None, None] * (q * spectrum) @ q.mT
        self.b = torch.randn(batch, length, width, generator=rng, dtype=torch.float64)
        self.rows_computed = 0

    def __call__(self, h: Tensor, rows: Tensor | None = None) -> Tensor:
        a, b = (self.a, self.b) if rows is None else (self.a[rows], self.b[rows])
        assert len(h) == len(a)
        self.rows_computed += len(h)
        return h @ a.mT + b

    @property
    def start(self) -> Tensor:
        return torch.zeros_like(self.b)

    @property
    def fixed_point(self) -> Tensor:
        return torch.linalg.solve(torch.eye(self.a.shape[-1]) - self.a, self.b.mT).mT


def error(solution: Solution, f: Linear) -> Tensor:
    return (solution.h - f.fixed_point).flatten(1).norm(dim=1)


@pytest.mark.parametrize("solver", [picard, anderson])
def test_one_iteration_is_one_application_of_f(solver: Callable[..., Solution]) -> None:
    f = Linear([0.5, 0.9])
    h = torch.randn(f.b.shape, generator=generator(1), dtype=torch.float64)
    torch.testing.assert_close(solver(f, h, 1).h, f(h))


def test_picard_iterates_f() -> None:
    f = Linear([0.5, 0.9])
    torch.testing.assert_close(picard(f, f.start, 3).h, f(f(f(f.start))))


def test_anderson_with_two_iterations_minimises_the_mixed_residual() -> None:
    f = Linear([0.9])
    h0 = torch.randn(f.b.shape, generator=generator(1), dtype=torch.float64)
    h1 = f(h0)
    h2 = f(h1)
    r0, r1 = h1 - h0, h2 - h1
    weight = -(r0 * (r1 - r0)).sum() / ((r1 - r0) ** 2).sum()  # least squares, by hand
    expected = (1 - weight) * h1 + weight * h2
    torch.testing.assert_close(anderson(f, h0, 2, ridge=0.0).h, expected)
    assert not torch.allclose(expected, h2)


def test_anderson_with_memory_one_is_picard() -> None:
    f = Linear([0.5, 0.9])
    torch.testing.assert_close(anderson(f, f.start, 7, memory=1).h, picard(f, f.start, 7).h)


@pytest.mark.parametrize("num_iters", [2, 3, 5, 8])
def test_anderson_beats_picard_on_a_linear_contraction(num_iters: int) -> None:
    f = Linear([0.95, 0.8, 0.99])
    by_picard, by_anderson = picard(f, f.start, num_iters), anderson(f, f.start, num_iters)
    assert (error(by_anderson, f) < error(by_picard, f)).all()


def test_anderson_stays_at_a_fixed_point_it_has_reached() -> None:
    def halve(h: Tensor) -> Tensor:
        return 0.5 * h

    zero = torch.zeros(2, 3, 4)
    assert torch.equal(anderson(halve, zero, 9).h, zero)


@pytest.mark.parametrize("solver", [picard, anderson])
def test_the_residual_is_relative_and_per_sequence(solver: Callable[..., Solution]) -> None:
    f = Linear([0.3, 0.9])
    h = torch.randn(f.b.shape, generator=generator(1), dtype=torch.float64)
    expected = (f(h) - h).flatten(1).norm(dim=1) / h.flatten(1).norm(dim=1)
    torch.testing.assert_close(solver(f, h, 1).residual, expected)


@pytest.mark.parametrize("solver", [picard, anderson])
def test_a_tolerance_stops_each_sequence_by_itself_and_saves_its_rows(solver: Callable[..., Solution]) -> None:
    f = Linear([0.1, 0.8, 0.5])
    solution = solver(f, f.start, 60, tolerance=1e-4)
    assert f.rows_computed == solution.row_evals == int(solution.num_iters.sum())
    assert solution.row_evals < 3 * 60
    assert solution.num_iters[0] < solution.num_iters[2] < solution.num_iters[1]
    assert (solution.residual <= 1e-4).all()


@pytest.mark.parametrize("solver", [picard, anderson])
def test_a_tolerance_gives_the_answer_of_running_on_within_the_tolerance(solver: Callable[..., Solution]) -> None:
    rates = [0.1, 0.9, 0.5]
    tolerance = 1e-6
    f, g = Linear(rates), Linear(rates)
    stopped, ran_on = solver(f, f.start, 400, tolerance=tolerance), solver(g, g.start, 400)
    distance = (stopped.h - ran_on.h).flatten(1).norm(dim=1) / ran_on.h.flatten(1).norm(dim=1)
    # The last move is within the tolerance, so what is left is at most rate / (1 - rate) times that.
    left = torch.tensor([rate / (1 - rate) for rate in rates], dtype=torch.float64)
    assert (distance <= tolerance * left.clamp_min(1)).all()
    assert f.rows_computed < g.rows_computed / 2


@pytest.mark.parametrize("solver", [picard, anderson])
def test_a_sequence_does_not_depend_on_when_the_others_stop(solver: Callable[..., Solution]) -> None:
    f, alone = Linear([0.1, 0.95, 0.5]), Linear([0.1, 0.95, 0.5])
    together = solver(f, f.start, 30, tolerance=1e-5)
    one = solver(lambda h, rows=None: alone(h, torch.tensor([1])), alone.start[1:2], 30, tolerance=1e-5)
    torch.testing.assert_close(together.h[1:2], one.h)
    assert together.num_iters[1] == one.num_iters[0]


def test_without_convergence_the_residual_is_reported_and_nothing_is_raised() -> None:
    solution = picard(lambda h: -2 * h, torch.ones(1, 1, 1), 3, tolerance=1e-3)
    assert solution.residual.item() == pytest.approx(3)
    assert solution.num_iters.tolist() == [3]


def test_a_tolerance_of_zero_stops_at_an_exact_fixed_point() -> None:
    solution = picard(lambda h: h, torch.ones(2, 1, 1), 9, tolerance=0.0)
    assert solution.num_iters.tolist() == [1, 1]


def test_the_residual_at_zero_is_a_number_and_carries_no_gradient() -> None:
    h = torch.zeros(1, 2, 2, requires_grad=True)
    solution = picard(lambda h: 0.5 * h, h, 2)
    assert solution.residual.item() == 0
    assert not solution.residual.requires_grad


def test_no_iterations_a_negative_tolerance_and_an_empty_memory_are_refused() -> None:
    h = torch.ones(1, 1, 1)
    with pytest.raises(ValueError, match="num_iters is 0; a solver needs at least 1"):
        picard(torch.neg, h, 0)
    with pytest.raises(ValueError, match=r"tolerance is -0\.1"):
        picard(torch.neg, h, 1, tolerance=-0.1)
    with pytest.raises(ValueError, match="memory is 0"):
        anderson(torch.neg, h, 1, memory=0)


def test_a_misspelt_solver_is_answered_with_the_nearest() -> None:
    assert solver_by_name("anderson") is anderson
    with pytest.raises(ValueError, match="did you mean 'anderson'"):
        solver_by_name("andersen")


def test_a_solver_with_settings_is_still_a_solver() -> None:
    f = Linear([0.5])
    assert partial(picard, tolerance=1e-3)(f, f.start, 50).num_iters.item() < 50
