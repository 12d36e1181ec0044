"""The tanh GELU and the linear layers beside it: fast on the CPU, and kept once for the backward pass.

torch's own tanh GELU takes as long on the CPU as a matrix product of width 192. oneDNN has one that takes a third of
that, but torch offers it only as what follows a product or a convolution, without gradients. Autograd would keep both
what the GELU reads and what it returns. Here the second is computed again.
"""

from functools import cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812
from torch.nn.parameter import Parameter
from torch.utils._python_dispatch import _get_current_dispatch_mode

FEWEST = 1 << 16
"""Numbers. Of fewer, torch's own GELU is faster than what is to be set up (benchmarks/mlp.py)."""
FEWEST_KEPT_ONCE = 1 << 18
"""Fewer are kept as autograd keeps them: it is faster, and they are few."""
BLOCK = 16
"""oneDNN's fast convolution takes channels in blocks of so many."""


class GeluMLP(nn.Sequential):
    """linear, tanh GELU, linear."""

    def __init__(self, width: int, hidden_width: int) -> None:
        super().__init__(nn.Linear(width, hidden_width), nn.GELU(approximate="tanh"), nn.Linear(hidden_width, width))

    def forward(self, input: Tensor) -> Tensor:
        first, _, second = self
        if not is_tracked(self, input):
            hidden = _linear_gelu(input, first) if type(first) is nn.Linear else gelu(first(input))
            found: Tensor = second(hidden)
        elif type(second) is nn.Linear and _num_hidden(input, first) >= FEWEST_KEPT_ONCE and is_plain_training(input):
            found = gelu_linear(first(input), second.weight, second.bias)
        else:
            found = super().forward(input)
        return found


def is_plain_training(x: Tensor) -> bool:
    """Whether what follows x is computed in one precision and is not compiled; these have means of their own."""
    device = x.device.type
    is_mixed = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return not is_mixed and not torch.compiler.is_compiling()


def is_tracked(module: nn.Module, *inputs: Tensor) -> bool:
    """Whether autograd follows what the module computes of these."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in chain(inputs, module.parameters()))


def gelu_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """linear(gelu(x)), of which x alone is kept for the backward pass."""
    found: Tensor = _GeluLinear.apply(x, weight, bias)
    return found


def gelu(x: Tensor) -> Tensor:
    """The tanh GELU."""
    width = x.shape[-1]
    if x.numel() < FEWEST or width % BLOCK or not _is_for_onednn(x):
        return F.gelu(x, approximate="tanh")
    image = x.view(1, -1, 1, width).permute(0, 3, 1, 2)  # a channel for each number of a row, times 1
    ones = torch.ones(width, 1, 1, 1)
    found = torch.ops.mkldnn._convolution_pointwise(
        image, ones, None, [0, 0], [1, 1], [1, 1], width, "gelu", [], "tanh"
    )
    return found.permute(0, 2, 3, 1).view(x.shape)


def through_gelu_linear(
    outer: Tensor, x: Tensor, weight: Tensor, needed: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of `gelu_linear` by x, weight and bias, each if it is needed."""
    by_x = by_weight = by_bias = None
    rows = outer.flatten(0, -2)
    if needed[1]:
        by_weight = rows.mT @ gelu(x).flatten(0, -2)
    if needed[0]:
        by_x = outer @ weight
        torch.ops.aten.gelu_backward.grad_input(by_x, x, approximate="tanh", grad_input=by_x)
    if needed[2]:
        by_bias = rows.sum(dim=0)
    return by_x, by_weight, by_bias


class _GeluLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(gelu(x), weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        return through_gelu_linear(outer, *ctx.saved_tensors, ctx.needs_input_grad)


def _linear_gelu(x: Tensor, layer: nn.Linear) -> Tensor:
    """gelu(layer(x)), without gradients."""
    if _num_hidden(x, layer) < FEWEST or not _is_for_onednn(x, layer.weight, layer.bias):
        return gelu(layer(x))
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, layer.weight, layer.bias, "gelu", [], "tanh")
    return found


def _num_hidden(x: Tensor, layer: nn.Linear) -> int:
    """How many numbers the layer gives."""
    return x.numel() // x.shape[-1] * layer.out_features


def _is_for_onednn(*tensors: Tensor) -> bool:
    """Whether oneDNN's kernels are there, and these are what they are fast for.

    A tensor of another class, or a mode of torch, may want to see operations that it knows: to compute shapes or to
    count. With an odd layout oneDNN takes a thousand times as long.
    """
    if not _has_onednn() or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    return _get_current_dispatch_mode() is None and all(map(_is_plain, tensors))


def _is_plain(tensor: Tensor) -> bool:
    return (
        type(tensor) in (Tensor, Parameter)
        and tensor.device.type == "cpu"
        and tensor.dtype == torch.float32
        and tensor.is_contiguous()
        and not (tensor.requires_grad and torch.is_grad_enabled())
    )


@cache
def _has_onednn() -> bool:
    """Whether this torch has the two operations, which are private, on a processor on which they are faster."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        return False
    return all(hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_convolution_pointwise"))
