"""Injection: how the fixed-point map sees its input again at every iteration.

u = G(h_pre) once, then the blocks read inject(h, u). The part that depends on u alone is computed once per solve.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from fpmgm.names import choose
from fpmgm.types import Hidden

Constant = Float[Tensor, "B L C"]  # what depends on u alone; C is D or 2 D


class MLPInjection(nn.Module):
    """fc2(gelu(fc1([h, u]))): the paper's, 6 D^2 weights besides G."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(2 * width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)

    @property
    def reads(self) -> nn.Linear:
        """The layer that reads h and u."""
        return self.fc1

    def constant(self, u: Hidden) -> Constant:
        return F.linear(u, self.fc1.weight[:, u.shape[-1] :], self.fc1.bias)

    def forward(self, h: Hidden, constant: Constant) -> Hidden:
        if torch.is_grad_enabled():  # what lies between is computed again in the backward pass, not kept: 4 D a token
            mixed: Hidden = checkpoint(self._mix, h, constant, use_reentrant=False, preserve_rng_state=False)
            return mixed
        return self._mix(h, constant)

    def _mix(self, h: Hidden, constant: Constant) -> Hidden:
        hidden = F.linear(h, self.fc1.weight[:, : h.shape[-1]]) + constant
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

    @property
    def reads(self) -> nn.Linear:
        """The layer that reads h and u."""
        return self.fc

    def constant(self, u: Hidden) -> Constant:
        return F.linear(u, self.fc.weight[:, u.shape[-1] :], self.fc.bias)

    def forward(self, h: Hidden, constant: Constant) -> Hidden:
        return F.linear(h, self.fc.weight[:, : h.shape[-1]]) + constant

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


InjectionName = Literal["mlp", "linear", "add"]
INJECTIONS: dict[str, Callable[[int], MLPInjection | LinearInjection | AddInjection]] = {
    "mlp": MLPInjection,
    "linear": LinearInjection,
    "add": AddInjection,
}


MULTIPLY_ADDS = {"mlp": (2, 4), "linear": (1, 1), "add": (0, 0)}
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
        self._folded: tuple[Tensor, Tensor] | None = None

    def constant(self, h_pre: Hidden) -> Constant:
        """All that depends on h_pre alone: once per solve."""
        if self._folded:
            return F.linear(h_pre, *self._folded)
        return self.mix.constant(self.project(h_pre))

    @contextmanager
    def folded(self) -> Iterator[None]:
        """While no weight changes: G and the layer that reads u as one layer, a product less a solve. No gradients."""
        if isinstance(self.project, nn.Linear) and not isinstance(self.mix, AddInjection):
            layer = self.mix.reads
            with torch.no_grad():
                of_u = layer.weight[:, self.project.out_features :]
                self._folded = of_u @ self.project.weight, of_u @ self.project.bias + layer.bias
        try:
            yield
        finally:
            self._folded = None

    def forward(self, h: Hidden, constant: Constant) -> Hidden:
        """What the fixed-point blocks read: once per iteration."""
        return self.mix(h, constant)

    @torch.no_grad()
    def set_exact(self, a: float, b: float) -> None:
        """Set the weights so that the injection returns a h + b h_pre, exactly."""
        if isinstance(self.project, nn.Linear):
            nn.init.eye_(self.project.weight)
            nn.init.zeros_(self.project.bias)
        self.mix.set_exact(a, b)
