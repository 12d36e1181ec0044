"""h + gate branch, a sum that knows its parts, so that whoever needs it again need not keep it.

A block keeps these parts for its own backward pass. Making the sum again from them takes one pass over its numbers.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def added(h: Tensor, gate: Tensor, branch: Tensor) -> Tensor:
    """h + gate branch; the gate is as large as h or is broadcast to it."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return torch.addcmul(h, gate, branch)
    found: Tensor = _Added.apply(h, gate, branch)
    return found


def run_again(run: Callable[[Tensor, Tensor], Tensor], h: Tensor, constant: Tensor) -> Tensor:
    """run(h, constant), which keeps nothing in between but computes it again in the backward pass.

    If h is a sum that `added` made, its parts are kept for that, which others keep too, and not h.
    """
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    parts = _parts_of(h)
    found: Tensor = (
        checkpoint(run, h, constant, **options)
        if parts is None
        else checkpoint(_FirstWith(run, h), constant, *parts, **options)
    )
    return found


class _FirstWith:
    """A function of a sum and a constant that has the sum when it first runs, and then only the parts."""

    def __init__(self, run: Callable[[Tensor, Tensor], Tensor], h: Tensor) -> None:
        self.run = run
        self.h: Tensor | None = h

    def __call__(self, constant: Tensor, *parts: Tensor) -> Tensor:
        h, self.h = self.h, None
        if h is None:
            with torch.no_grad():
                h = torch.addcmul(*parts)
            h.requires_grad_()  # as the first time, so that as much is kept
        return self.run(h, constant)


class _Added(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, gate: Tensor, branch: Tensor) -> Tensor:
        ctx.save_for_backward(h, gate, branch)
        return torch.addcmul(h, gate, branch)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        _, gate, branch = ctx.saved_tensors
        by_gate = (outer * branch).sum_to_size(gate.shape).to(gate.dtype)
        return outer, by_gate, (outer * gate).to(branch.dtype)


def _parts_of(h: Tensor) -> tuple[Tensor, ...] | None:
    """What `added` made h of; None if h comes from elsewhere."""
    node: Any = h.grad_fn
    return node.saved_tensors if isinstance(node, _Added._backward_cls) else None
