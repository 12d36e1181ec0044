"""The MLP of a block, with a tanh GELU that oneDNN computes on the way, where nothing is learned.

torch's own tanh GELU takes as long on the CPU as a matrix product of width 192. oneDNN has one that takes a third of
that, but torch offers it only as what follows a product, without gradients.
"""

from functools import cache
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.parameter import Parameter
from torch.utils._python_dispatch import _get_current_dispatch_mode

FEWEST = 1 << 16
"""Hidden numbers. With fewer, torch's own form is as fast (benchmarks/mlp.py)."""


class GeluMLP(nn.Sequential):
    """linear, tanh GELU, linear."""

    def __init__(self, width: int, hidden_width: int) -> None:
        super().__init__(nn.Linear(width, hidden_width), nn.GELU(approximate="tanh"), nn.Linear(hidden_width, width))

    def forward(self, input: Tensor) -> Tensor:
        first, _, second = self
        if not self._is_for_onednn(input, first):
            found: Tensor = super().forward(input)
            return found
        hidden = torch.ops.mkldnn._linear_pointwise(input, first.weight, first.bias, "gelu", [], "tanh")
        return second(hidden)

    def _is_for_onednn(self, x: Tensor, first: nn.Module) -> bool:
        """Whether nothing is learned, oneDNN's kernel is there, and these tensors are what it is fast for.

        A tensor of another class, or a mode of torch, may want to see operations that it knows: to compute shapes or
        to count. With an odd layout oneDNN takes a thousand times as long.
        """
        if torch.compiler.is_compiling() or not _has_onednn():
            return False
        if type(first) is not nn.Linear or torch.is_autocast_enabled("cpu"):
            return False
        if x.numel() // x.shape[-1] * first.out_features < FEWEST:
            return False
        if torch.is_grad_enabled() and any(each.requires_grad for each in chain([x], self.parameters())):
            return False
        if _get_current_dispatch_mode() is not None:
            return False
        return all(map(_is_plain, (x, first.weight, first.bias)))


def _is_plain(tensor: Tensor) -> bool:
    is_known = type(tensor) in (Tensor, Parameter) and tensor.device.type == "cpu"
    return is_known and tensor.dtype == torch.float32 and tensor.is_contiguous()


@cache
def _has_onednn() -> bool:
    """Whether this torch has the operation, which is private, on a processor on which it is faster."""
    is_fast = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return is_fast and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
