"""RMSNorm, modulation and SwiGLU's product with backward passes of their own, which keep little and read it seldom.

Autograd would keep every product on the way. Of a block that is a quarter of all that it keeps.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812

EPS = 1e-5
"""Of every RMSNorm."""


def unit(x: Tensor) -> Tensor:
    """RMSNorm without a weight, over the last dimension."""
    found: Tensor = _Unit.apply(x) if torch.is_grad_enabled() else x * _inverse_size(x)
    return found


def modulated(x: Tensor, shift: Tensor, gain: Tensor) -> Tensor:
    """RMSNorm, times the gain, plus the shift; both are as large as x or are broadcast to it."""
    if not torch.is_grad_enabled():
        return torch.addcmul(shift, x * _inverse_size(x), gain)
    found: Tensor = _Modulated.apply(x, shift, gain)
    return found


def gated(gate: Tensor, x: Tensor) -> Tensor:
    """silu(gate) x: the hidden product of SwiGLU."""
    found: Tensor = _Gated.apply(gate, x) if torch.is_grad_enabled() else F.silu(gate).mul_(x)
    return found


def _inverse_size(x: Tensor) -> Tensor:
    """1 over the root mean square of every row, found in float32 or better."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=dtype)
    return torch.rsqrt(norm.square_().div_(x.shape[-1]).add_(EPS)).to(x.dtype)


def _through_norm(grad: Tensor, normed: Tensor, inverse: Tensor) -> Tensor:
    """The gradient before an RMSNorm from the one after it."""
    along = torch.linalg.vecdot(grad, normed).unsqueeze(-1).div_(grad.shape[-1])
    return torch.addcmul(grad, normed, along, value=-1).mul_(inverse)


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        inverse = _inverse_size(x)
        normed = x * inverse
        ctx.save_for_backward(normed, inverse)
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        normed, inverse = ctx.saved_tensors
        return _through_norm(grad, normed, inverse)


class _Modulated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: Tensor, gain: Tensor) -> Tensor:
        inverse = _inverse_size(x)
        ctx.save_for_backward(x, inverse, gain)
        ctx.shift_shape, ctx.shift_dtype = shift.shape, shift.dtype
        return torch.addcmul(shift, x * inverse, gain)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, inverse, gain = ctx.saved_tensors
        normed = x * inverse
        of_gain = (grad * normed).sum_to_size(gain.shape).to(gain.dtype)
        of_shift = grad.sum_to_size(ctx.shift_shape).to(ctx.shift_dtype)
        return _through_norm((grad * gain).to(x.dtype), normed, inverse), of_shift, of_gain


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(gate, x)
        return F.silu(gate).mul_(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, x = ctx.saved_tensors
        of_gate = torch.ops.aten.silu_backward(grad * x, gate)
        return of_gate, F.silu(gate).mul_(grad)
