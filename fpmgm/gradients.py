"""How training differentiates Fix(F): a choice apart from the solver.

Every rule runs the same num_no_grad + num_grad iterations and differs in what the backward pass sees.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor

from fpmgm.names import choose
from fpmgm.schema import MAX_ITERATIONS, shortened
from fpmgm.solvers import Solution, Solver, picard
from fpmgm.types import Hidden, Map, Rows


@runtime_checkable
class Gradient(Protocol):
    def __call__(self, f: Map, h: Hidden, *, num_no_grad: int, num_grad: int, solver: Solver = picard) -> Solution: ...


def sjfb(f: Map, h: Hidden, *, num_no_grad: int, num_grad: int, solver: Solver = picard) -> Solution:
    """Stochastic Jacobian-free backpropagation: iterate without gradients, then with (appendix A.1).

    In the first part the state and the injection inside f are both cut off. With num_no_grad = 0 nothing is,
    and the result is plain autograd.
    """
    _require_iterations(num_no_grad, num_grad)
    if num_no_grad == 0:
        return solver(f, h, num_grad)
    with torch.no_grad():
        first = solver(f, h, num_no_grad)
    second = solver(f, first.h, num_grad)
    return replace(second, num_iters=first.num_iters + second.num_iters)


def sjfb_cut(f: Map, h: Hidden, *, num_no_grad: int, num_grad: int, solver: Solver = picard) -> Solution:
    """`sjfb`, with the initial state cut off in every update, as the public code of FPDM has it.

    The two differ only in updates without no-grad iterations. There the gradient does not reach P through h_init; it
    still does through the injection.
    """
    return sjfb(f, h.detach(), num_no_grad=num_no_grad, num_grad=num_grad, solver=solver)


def jfb(f: Map, h: Hidden, *, num_no_grad: int, num_grad: int, solver: Solver = picard) -> Solution:
    """Jacobian-free backpropagation: only the last iteration has gradients."""
    _require_iterations(num_no_grad, num_grad)
    return sjfb(f, h, num_no_grad=num_no_grad + num_grad - 1, num_grad=1, solver=solver)


def unrolled(f: Map, h: Hidden, *, num_no_grad: int, num_grad: int, solver: Solver = picard) -> Solution:
    """Autograd through every iteration."""
    _require_iterations(num_no_grad, num_grad)
    return sjfb(f, h, num_no_grad=0, num_grad=num_no_grad + num_grad, solver=solver)


def implicit(
    f: Map,
    h: Hidden,
    *,
    num_no_grad: int,
    num_grad: int,
    solver: Solver = picard,
    num_backward: int | None = None,
) -> Solution:
    """The implicit function theorem: the backward pass solves g = J^T g + dL/dh for as many iterations.

    Exact at a fixed point. `num_backward` sets the iterations of the backward solve, each one
    vector-Jacobian product.
    """
    _require_iterations(num_no_grad, num_grad)
    if num_backward is not None and num_backward < 1:
        raise ValueError(f"num_backward is {num_backward}; it must be at least 1, or None for as many as forward")
    num_iters = num_no_grad + num_grad
    start, spent = h, torch.zeros(len(h), dtype=torch.long, device=h.device)
    if num_iters > 1:
        with torch.no_grad():
            first = solver(f, h, num_iters - 1)
        start, spent = first.h, first.num_iters
    point = start.detach().requires_grad_()
    last = picard(f, point, 1)
    h_star = last.h.clone()  # the hook sits behind the clone, so that `adjoint` does not call it again

    def solve_adjoint(incoming: Tensor) -> Tensor:
        def backward_map(g: Hidden, rows: Rows | None = None) -> Hidden:
            whole = g if rows is None else torch.zeros_like(incoming).index_copy(0, rows, g)
            (image,) = torch.autograd.grad(last.h, point, whole, retain_graph=True)
            image = image + incoming
            return image if rows is None else image[rows]

        return solver(backward_map, incoming, num_backward or num_iters).h

    if h_star.requires_grad:
        h_star.register_hook(solve_adjoint)
    return replace(last, h=h_star, num_iters=last.num_iters + spent)


def _require_iterations(num_no_grad: int, num_grad: int) -> None:
    if num_no_grad < 0 or num_grad < 1:
        raise ValueError(
            f"{num_no_grad} iterations without and {num_grad} with gradients; a fixed point needs at least 0 and 1"
        )


GradientName = Literal["sjfb", "sjfb-cut", "jfb", "unrolled", "implicit"]
GRADIENTS: dict[str, Callable[..., Solution]] = {
    "sjfb": sjfb,
    "sjfb-cut": sjfb_cut,
    "jfb": jfb,
    "unrolled": unrolled,
    "implicit": implicit,
}


def gradient_by_name(name: str) -> Callable[..., Solution]:
    """The gradient rule of that name: `sjfb`, `sjfb-cut` (FPDM's), `jfb`, `unrolled` or `implicit`."""
    return choose("gradient", name, GRADIENTS)


@dataclass(frozen=True, kw_only=True)
class IterationCounts:
    """How many iterations an update runs without and with gradients, each drawn uniformly (section 3.2)."""

    no_grad_min: int = 0
    """The fewest iterations without gradients."""
    no_grad_max: int = 4
    """The most iterations without gradients."""
    grad_min: int = 3
    """The fewest iterations with gradients."""
    grad_max: int = 6
    """The most iterations with gradients."""

    def __post_init__(self) -> None:
        if not 0 <= self.no_grad_min <= self.no_grad_max <= MAX_ITERATIONS:
            raise ValueError(
                f"no-grad iterations are {shortened(self.no_grad_min)} to {shortened(self.no_grad_max)}; "
                f"they must satisfy 0 <= no_grad_min <= no_grad_max <= {MAX_ITERATIONS}"
            )
        if not 1 <= self.grad_min <= self.grad_max <= MAX_ITERATIONS:
            raise ValueError(
                f"gradient iterations are {shortened(self.grad_min)} to {shortened(self.grad_max)}; "
                f"they must satisfy 1 <= grad_min <= grad_max <= {MAX_ITERATIONS}"
            )

    def __call__(self, *, rng: Generator) -> tuple[int, int]:
        """(num_no_grad, num_grad). Give every process a generator of the same (seed, update)."""
        num_no_grad = torch.randint(self.no_grad_min, self.no_grad_max + 1, (), generator=rng)
        num_grad = torch.randint(self.grad_min, self.grad_max + 1, (), generator=rng)
        return int(num_no_grad), int(num_grad)
