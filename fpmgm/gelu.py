"""The MLP of a block, with a tanh GELU that oneDNN computes on the way, where nothing is learned.

torch's own tanh GELU takes as long on the CPU as a matrix product of width 192. oneDNN has one that takes a third of
that, but torch offers it only as what follows a product, without gradients.
"""

import torch
from torch import Tensor, nn

from fpmgm.products import Linear, is_for_onednn


class GeluMLP(nn.Sequential):
    """linear, tanh GELU, linear."""

    def __init__(self, width: int, hidden_width: int) -> None:
        super().__init__(Linear(width, hidden_width), nn.GELU(approximate="tanh"), Linear(hidden_width, width))

    def forward(self, input: Tensor) -> Tensor:
        first, _, second = self
        if type(first) is not Linear or not is_for_onednn(input, first.weight, first.bias, *second.parameters()):
            found: Tensor = super().forward(input)
            return found
        hidden = torch.ops.mkldnn._linear_pointwise(input, first.weight, first.bias, "gelu", [], "tanh")
        return second(hidden)
