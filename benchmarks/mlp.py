"""Are a layer of `fpmgm.products` and the MLP of `fpmgm.gelu` faster than torch's own? python benchmarks/mlp.py

Ours and torch's take turns without gradients, as in sampling, in float32, in processor seconds of one thread. A line is
a width and a number of rows; the numbers are the time of ours over that of torch's own, for one layer that is four
times as wide as its input and for linear, GELU, linear. They are medians over the rounds.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fpmgm.gelu import GeluMLP
from fpmgm.products import linear
from fpmgm.provenance import provenance
from fpmgm.randomness import generator


def seconds(form: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Of one call."""
    start = time.process_time()
    form(x)
    return time.process_time() - start


@torch.no_grad()
def ratios(width: int, rows: int, rounds: int) -> dict[str, float]:
    """Of the layer and of the MLP."""
    mlp = GeluMLP(width, 4 * width)
    weight, bias, *last = mlp.parameters()
    x = torch.randn(rows, width, generator=generator(0))

    def plain(x: Tensor) -> Tensor:
        return functional.linear(functional.gelu(functional.linear(x, weight, bias), approximate="tanh"), *last)

    pairs: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
        "layer": (lambda x: linear(x, weight, bias), lambda x: functional.linear(x, weight, bias)),
        "mlp": (mlp, plain),
    }
    found = {
        name: [seconds(ours, x) / seconds(theirs, x) for _ in range(rounds + 1)]
        for name, (ours, theirs) in pairs.items()
    }
    return {name: round(statistics.median(each[1:]), 3) for name, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[192, 768])
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 256, 1024, 2048, 8192])
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(provenance()))
    for width in asked.widths:
        for rows in asked.rows:
            print(json.dumps({"width": width, "rows": rows, **ratios(width, rows, asked.rounds)}), flush=True)


if __name__ == "__main__":
    main()
