"""Injection: how the fixed-point map sees its input again at every iteration.

u = G(h_pre) once, then the blocks read inject(h, u). The part that depends on u alone is computed once per solve.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812

from fpmgm.names import choose
from fpmgm.products import Linear, linear
from fpmgm.sums import run_again
from fpmgm.types import Hidden

Constant = Float[Tensor, "B L C"]  # what depends on u alone; C is D or 2 D


class MLPInjection(nn.Module):
    """fc2(gelu(fc1([h, u]))): the paper's, 6 D^2 weights besides G."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(2 * width, 2 * width)
        self.fc2 = Linear(2 * width, width)
        self.of_h: Tensor | None = None  # the part of fc1 that reads h, in one piece, while no weight changes

    @property
    def reads(self) -> nn.Linear:
        """The layer that reads h and u."""
        return self.fc1

    def constant(self, u: Hidden) -> Constant:
        return F.linear(u, self.fc1.weight[:, u.shape[-1] :], self.fc1.bias)

    def forward(self, h: Hidden, constant: Constant) -> Hidden:
        # Of what lies between, 4 D a token, nothing is kept; nor is h, if it can be made again.
        return run_again(self._mix, h, constant) if torch.is_grad_enabled() else self._mix(h, constant)

    def _mix(self, h: Hidden, constant: Constant) -> Hidden:
        of_h = self.fc1.weight[:, : h.shape[-1]] if self.of_h is None else self.of_h
        hidden = linear(h, of_h) + constant
        return self.fc2(F.gelu(hidden, approximate="tanh"))

    def set_exact(self, a: float, b: float) -> None:
        width = self.fc2.out_features
        eye = torch.eye(width)
        half = torch.cat([a * eye, b * eye], dim=1)
        self.fc1.weight.copy_(torch.cat([half, -half]))  # gelu(x) - gelu(-x) = x
        self.fc2.weight.copy_(torch.cat([eye, -eye], dim=1))
        self.fc1.bias.zero_()
        self.fc2.bias.zero_()


class LinearInjection(nn.Module):
    """fc([h, u]): 2 D^2 weights besides G."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * width, width)
        self.of_h: Tensor | None = None  # the part of fc that reads h, in one piece, while no weight changes

    @property
    def reads(self) -> nn.Linear:
        """The layer that reads h and u."""
        return self.fc

    def constant(self, u: Hidden) -> Constant:
        return F.linear(u, self.fc.weight[:, u.shape[-1] :], self.fc.bias)

    def forward(self, h: Hidden, constant: Constant) -> Hidden:
        of_h = self.fc.weight[:, : h.shape[-1]] if self.of_h is None else self.of_h
        return linear(h, of_h) + constant

    def set_exact(self, a: float, b: float) -> None:
        eye = torch.eye(self.fc.out_features)
        self.fc.weight.copy_(torch.cat([a * eye, b * eye], dim=1))
        self.fc.bias.zero_()


class AddInjection(nn.Module):
    """a h + b u, half and half at first: one learned number each, besides G."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5, 0.5]))

    def constant(self, u: Hidden) -> Constant:
        return self.scale[1] * u

    def forward(self, h: Hidden, constant: Constant) -> Hidden:
        return self.scale[0] * h + constant

    def set_exact(self, a: float, b: float) -> None:
        self.scale.copy_(torch.tensor([a, b]))


class DiagonalInjection(nn.Module):
    """a h + b e by channel, with e = u / rms(u) at each position: 2 D numbers besides G (Parcae's).

    a = exp(-exp(A)) lies between 0 and 1 whatever is learned, so the mix is a contraction in h by construction.
    Parcae's delta is a part of A here: delta exp(A) = exp(A + log delta). A fresh one has nothing random: a is the root
    of 1/5, and b is 1.
    """

    SMALLEST, LARGEST = 1e-6, 0.999
    """What a is held between, so that no rounding of float32 makes it 0 or 1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.log_rate = nn.Parameter(torch.full((width,), _log_rate(math.sqrt(1 / 5))))  # A
        self.scale = nn.Parameter(torch.ones(width))  # b

    @property
    def log_decay(self) -> Float[Tensor, " D"]:
        """log a, channel by channel."""
        return -self.log_rate.clamp(_log_rate(self.LARGEST), _log_rate(self.SMALLEST)).exp()

    @property
    def decay(self) -> Float[Tensor, " D"]:
        """a, channel by channel."""
        return self.log_decay.exp()

    def constant(self, u: Hidden) -> Constant:
        return self.scale * F.rms_norm(u, u.shape[-1:])

    def forward(self, h: Hidden, constant: Constant) -> Hidden:
        if torch.is_grad_enabled():
            mixed: Hidden = _Decayed.apply(h, constant, self.log_decay)
            return mixed
        return torch.addcmul(constant, self.decay.to(h.dtype), h)

    def set_exact(self, a: float, b: float) -> None:
        if not self.SMALLEST <= a <= self.LARGEST:
            raise ValueError(
                f"a is {a:g}, and the injection diagonal always shrinks h; a must lie between {self.SMALLEST} and "
                f"{self.LARGEST}, or take another injection"
            )
        self.log_rate.fill_(_log_rate(a))
        self.scale.fill_(b)


class _Decayed(torch.autograd.Function):
    """exp(log_a) h + constant, which keeps its output for the backward pass and not h.

    The output is kept by the block that reads it anyway, and exp(log_a) h is what it has above the constant.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, constant: Tensor, log_a: Tensor) -> Tensor:
        a = log_a.exp().to(h.dtype)
        out = torch.addcmul(constant, a, h)
        ctx.save_for_backward(out, constant, a)
        ctx.dtype = log_a.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        out, constant, a = ctx.saved_tensors
        by_log_a = None
        if ctx.needs_input_grad[2]:
            by_log_a = (outer * (out - constant)).flatten(0, -2).sum(dim=0).to(ctx.dtype)
        return outer * a, outer, by_log_a


def _log_rate(a: float) -> float:
    """A such that a = exp(-exp(A))."""
    return math.log(-math.log(a))


InjectionName = Literal["mlp", "linear", "add", "diagonal"]
INJECTIONS: dict[str, Callable[[int], MLPInjection | LinearInjection | AddInjection | DiagonalInjection]] = {
    "mlp": MLPInjection,
    "linear": LinearInjection,
    "add": AddInjection,
    "diagonal": DiagonalInjection,
}


MULTIPLY_ADDS = {"mlp": (2, 4), "linear": (1, 1), "add": (0, 0), "diagonal": (0, 0)}
"""Products of D x D a token, once a solve (G is folded into the layer that reads it) and once an iteration."""


def injection_multiply_adds(kind: str, width: int, *, num_iters: int, has_projection: bool) -> int:
    """Of a solve of so many iterations, a token."""
    once, each = MULTIPLY_ADDS[kind]
    return width**2 * ((once or int(has_projection)) + num_iters * each)


class Injection(nn.Module):
    """G and the mix of h with u = G(h_pre)."""

    def __init__(self, kind: str, width: int, *, has_projection: bool = True) -> None:
        super().__init__()
        self.project = nn.Linear(width, width) if has_projection else nn.Identity()
        self.mix = choose("injection", kind, INJECTIONS)(width)
        if isinstance(self.mix, DiagonalInjection):  # as published it has no G, so a fresh G does nothing
            self._forget_projection()
        self._folded: tuple[Tensor, Tensor] | None = None

    def constant(self, h_pre: Hidden) -> Constant:
        """All that depends on h_pre alone: once per solve."""
        if self._folded:
            return linear(h_pre, *self._folded)
        return self.mix.constant(self.project(h_pre))

    @contextmanager
    def folded(self) -> Iterator[None]:
        """While no weight changes: G and the layer that reads u as one layer, a product less a solve, and what reads h
        in one piece. No gradients."""
        if isinstance(self.project, nn.Linear) and isinstance(self.mix, MLPInjection | LinearInjection):
            layer = self.mix.reads
            with torch.no_grad():
                of_u = layer.weight[:, self.project.out_features :]
                self._folded = of_u @ self.project.weight, of_u @ self.project.bias + layer.bias
                of_h = layer.weight[:, : self.project.out_features]
                self.mix.of_h = of_h.clone(memory_format=torch.contiguous_format)
        try:
            yield
        finally:
            self._folded = None
            if isinstance(self.mix, MLPInjection | LinearInjection):
                self.mix.of_h = None

    def forward(self, h: Hidden, constant: Constant) -> Hidden:
        """What the fixed-point blocks read: once per iteration."""
        return self.mix(h, constant)

    @torch.no_grad()
    def set_exact(self, a: float, b: float) -> None:
        """Set the weights so that the injection returns a h + b h_pre, exactly.

        `diagonal` returns a h + b h_pre / rms(h_pre), because it brings h_pre to one size at every position. A
        ValueError if a is not one that it can have.
        """
        self.mix.set_exact(a, b)
        self._forget_projection()

    def _forget_projection(self) -> None:
        """Make G the identity."""
        if isinstance(self.project, nn.Linear):
            nn.init.eye_(self.project.weight)
            nn.init.zeros_(self.project.bias)
