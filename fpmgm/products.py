"""Linear layers in float32 on the CPU, where nothing is learned: by oneDNN on processors on which it is faster.

torch multiplies float32 by MKL, which has its best kernels for Intel's processors only. On an AMD EPYC with AVX-512 one
product of oneDNN takes 0.44 to 0.52 of its time from 2,048 rows on (benchmarks/mlp.py). torch offers it as an
operation without gradients. Results differ by rounding.
"""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import Parameter
from torch.utils._python_dispatch import _get_current_dispatch_mode

FEWEST = 1 << 16
"""Numbers of a result. With fewer, torch's own form is as fast."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b."""
    if is_for_onednn(x, weight, bias) and is_slow_here():
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return found
    return functional.linear(x, weight, bias)


class Linear(nn.Linear):
    """torch's layer, by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def quicken(network: nn.Module) -> None:
    """Let the plain linear layers of somebody else's network multiply by `linear`."""
    for part in network.modules():
        if type(part) is nn.Linear:
            part.__class__ = Linear


def is_for_onednn(x: Tensor, weight: Tensor, *others: Tensor | None) -> bool:
    """Whether nothing is learned, oneDNN's kernel is there, and these tensors are what it is fast for.

    A tensor of another class, or a mode of torch, may want to see operations that it knows: to compute shapes or to
    count. With an odd layout oneDNN takes a thousand times as long.
    """
    if torch.compiler.is_compiling() or not has_onednn() or torch.is_autocast_enabled("cpu"):
        return False
    if x.numel() // x.shape[-1] * len(weight) < FEWEST:
        return False
    tensors = [x, weight, *(each for each in others if each is not None)]
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        return False
    return _get_current_dispatch_mode() is None and all(map(_is_plain, tensors))


def _is_plain(tensor: Tensor) -> bool:
    is_known = type(tensor) in (Tensor, Parameter) and tensor.device.type == "cpu"
    return is_known and tensor.dtype == torch.float32 and tensor.is_contiguous()


@cache
def has_onednn() -> bool:
    """Whether this torch has the operation, which is private, on a processor with AVX-512."""
    is_fast = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return is_fast and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@cache
def is_slow_here() -> bool:
    """Whether torch's own products in float32 are slower on this processor: MKL on one that is not Intel's."""
    file = Path("/proc/cpuinfo")
    return torch.backends.mkl.is_available() and file.is_file() and "AuthenticAMD" in file.read_text()
