"""Muon: the weights of linear layers move by the orthogonal part of their momentum, all others as in AdamW.

Keller Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024). The step is scaled by
0.2 sqrt(the longer side), as Liu et al. (2025) do, so that it is about as large as one of AdamW at the same rate.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

Matrix = Float[Tensor, "m n"]

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the odd polynomial that is iterated: steep at 0, and between 0.7 and 1.2 after five rounds."""
NUM_ROUNDS = 5
RMS_OF_ADAMW = 0.2


def orthogonal(matrix: Matrix, dtype: torch.dtype = torch.float32) -> Matrix:
    """Nearly U V^T of the matrix U S V^T: all its singular values are brought near 1, by products in `dtype`."""
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = (x / (x.norm() + 1e-7)).to(dtype)
    for _ in range(NUM_ROUNDS):
        gram = x @ x.T
        x = a * x + torch.addmm(gram, gram, gram, beta=b, alpha=c) @ x
    return (x.T if is_tall else x).to(matrix)


class Muon(torch.optim.AdamW):
    """AdamW, but for groups with `is_matrix`, whose parameters are matrices."""

    def __init__(
        self, groups: list[dict[str, Any]], *, momentum: float, dtype: torch.dtype = torch.float32, **adamw: Any
    ) -> None:
        super().__init__(groups, **adamw)
        self.momentum, self.dtype = momentum, dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            if group["is_matrix"]:
                for parameter in group["params"]:
                    self._move(parameter, group)
        return super().step(closure)  # which passes over parameters without a gradient

    def _move(self, parameter: Tensor, group: dict[str, Any]) -> None:
        """One step of a matrix, whose gradient is used up."""
        from fpmgm.training.sharding import placed, whole  # which takes long to import

        if parameter.grad is None:
            return
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].lerp_(parameter.grad, 1 - self.momentum)
        ahead = parameter.grad.lerp(state["momentum"], self.momentum)  # Nesterov's
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        scale = RMS_OF_ADAMW * math.sqrt(max(parameter.shape))
        move = placed(
            orthogonal(whole(ahead), self.dtype), parameter
        )  # a matrix in shards is put together, in every process
        parameter.sub_(move, alpha=group["lr"] * scale)
        parameter.grad = None
