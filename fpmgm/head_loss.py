"""The cross entropy of a linear head, differentiated as it is computed.

With a large vocabulary logits are the largest thing in training. Here they exist for a part of the positions at a time,
once: their gradients are taken on the spot, so that none is kept, and none is computed again.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from fpmgm.devices import no_autocast
from fpmgm.types import Chosen, Features, PerChoice

LOGITS_AT_ONCE = 1 << 23
"""34 MB in float32."""

Scalar = Float[Tensor, ""]


def weighted_nll(
    features: Features,
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, " V"],
    tokens: Chosen,
    weights: PerChoice,
    *,
    mask_id: int | None,
) -> Scalar:
    """The sum of weights * -log p(tokens), where logits are weight @ features + bias and the mask has no probability.

    `mask_id` is None where nothing is forbidden.
    """
    found: Scalar = _WeightedNll.apply(features, weight, bias, tokens, weights, mask_id)
    return found


class _WeightedNll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, tokens: Tensor, weights: Tensor, mask_id: int | None
    ) -> Tensor:
        device = features.device.type
        is_mixed = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if is_mixed else features.dtype
        with no_autocast(features.device):
            total, gradients = _by_parts(features, weight, bias, tokens, weights.float(), mask_id, dtype)
        ctx.gradients = gradients
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        gradients = [gradient.mul_(outer.to(gradient)) for gradient in ctx.gradients]  # in place: one is V x D
        del ctx.gradients
        return (*gradients, None, None, None)


def _by_parts(
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    tokens: Tensor,
    weights: Tensor,
    mask_id: int | None,
    dtype: torch.dtype,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """The sum, and its gradients by features, weight and bias; matrix products in `dtype`, the rest in float32."""
    exact = torch.promote_types(features.dtype, torch.float32)
    cast = weight.to(dtype)
    by_features, by_weight, by_bias = torch.zeros_like(features), torch.zeros_like(weight), torch.zeros_like(bias)
    total = torch.zeros((), dtype=exact, device=features.device)
    at_once = max(1, LOGITS_AT_ONCE // len(weight))
    for start in range(0, len(features), at_once):
        rows = slice(start, start + at_once)
        part, own, w = features[rows].to(dtype), tokens[rows, None], weights[rows, None].to(exact)
        logits = (part @ cast.T).to(exact).add_(bias)
        if mask_id is not None:
            logits[:, mask_id] = -torch.inf
        highest, said = logits.amax(dim=-1, keepdim=True), logits.gather(1, own)
        p = logits.sub_(highest).exp_()  # in place from here on: nothing else as large is made
        mass = p.sum(dim=-1, keepdim=True)
        total += (w * (mass.log() + highest - said)).sum()
        slope = p.mul_(w / mass).scatter_add_(1, own, -w).to(dtype)  # w (softmax - one-hot)
        by_features[rows] = slope @ cast
        if dtype == weight.dtype:
            by_weight.addmm_(slope.T, part)
        else:
            by_weight += slope.T @ part
        by_bias += slope.sum(dim=0)
        del logits, p, slope  # else the next logits are made beside these
    return total, (by_features, by_weight, by_bias)
