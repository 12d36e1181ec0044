"""Attention of queries to keys: torch's own, or plain products where these are faster."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

MOST_POSITIONS = 257
"""Up to so many, 256 and a register, plain products are faster."""

ByHead = Float[Tensor, "B H _ d"]


def attend(
    q: ByHead, k: ByHead, v: ByHead, sees: Bool[Tensor, "B 1 #N L"] | None = None, *, is_causal: bool = False
) -> ByHead:
    """softmax(q k^T / sqrt(d)) v, where a position sees all keys, or those that `sees` or `is_causal` leave."""
    if sees is None and not is_causal and _is_faster_plain(q, k):
        scores = (q * q.shape[-1] ** -0.5) @ k.mT
        return _shares(scores) @ v.to(scores.dtype)
    return F.scaled_dot_product_attention(q, k, v, sees, is_causal=is_causal)


def _shares(scores: ByHead) -> ByHead:
    """softmax in float32, rounded. Without gradients torch rounds as it goes, to the same bits: no copy in float32 is
    made, which takes longer than the softmax where it is too large to be kept for the next one."""
    if scores.requires_grad:
        return torch.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)
    return torch.softmax(scores, dim=-1)


def _is_faster_plain(q: ByHead, k: ByHead) -> bool:
    """In bfloat16 on the CPU, torch's own attention takes twice to four times as long (benchmarks/attention.py)."""
    if q.device.type != "cpu" or k.shape[2] > MOST_POSITIONS:
        return False
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else q.dtype
    return dtype == torch.bfloat16
