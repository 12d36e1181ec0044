"""Is attention by plain products faster than torch's own? python benchmarks/attention.py

Both take turns, forward and with gradients, in processor seconds of one thread. A line is a length and a precision; its
numbers are the time of plain products over that of torch's attention, medians over the rounds.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fpmgm.provenance import provenance
from fpmgm.randomness import generator

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BATCH, NUM_HEADS = 8, 6


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As `fpmgm.backbones.attention` computes it, in any precision."""
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype) @ v


def seconds(attend: Callable[..., Tensor], inputs: list[Tensor]) -> tuple[float, float]:
    """Of the pass, and of the pass with gradients."""
    start = time.process_time()
    out = attend(*inputs)
    middle = time.process_time()
    out.backward(torch.ones_like(out))
    return middle - start, time.process_time() - start


def ratios(length: int, head_width: int, dtype: torch.dtype, rounds: int) -> dict[str, float]:
    shape = (BATCH, length, NUM_HEADS, head_width)
    inputs = [
        torch.randn(shape, generator=generator(index)).to(dtype).transpose(1, 2).requires_grad_() for index in range(3)
    ]
    found = [
        [seconds(attend, inputs) for attend in (plain, functional.scaled_dot_product_attention)]
        for _ in range(rounds + 1)
    ]
    names = ("forward", "with_gradients")
    return {
        name: round(statistics.median(ours[i] / theirs[i] for ours, theirs in found[1:]), 3)
        for i, name in enumerate(names)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 256, 512, 1024])
    parser.add_argument("--head-widths", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for head_width in asked.head_widths:
        for name, dtype in DTYPES.items():
            for length in asked.lengths:
                found = ratios(length, head_width, dtype, asked.rounds)
                print(json.dumps({"head_width": head_width, "dtype": name, "length": length, **found}), flush=True)
    print(json.dumps(provenance()))


if __name__ == "__main__":
    main()
