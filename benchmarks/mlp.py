"""Is the MLP of `fpmgm.gelu` faster than linear, GELU, linear of torch? python benchmarks/mlp.py

Both take turns without gradients, as in sampling, in processor seconds of one thread. A line is a width and a number of
rows; the number is the time of ours over that of torch's own, the median over the rounds.
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
from fpmgm.provenance import provenance
from fpmgm.randomness import generator


def seconds(form: Callable[[Tensor], Tensor], x: Tensor) -> float:
    start = time.process_time()
    form(x)
    return time.process_time() - start


@torch.no_grad()
def ratio(width: int, rows: int, rounds: int) -> float:
    ours = GeluMLP(width, 4 * width)
    x = torch.randn(rows, width, generator=generator(0))

    def plain(x: Tensor) -> Tensor:
        found: Tensor = ours[2](functional.gelu(ours[0](x), approximate="tanh"))
        return found

    found = [seconds(ours, x) / seconds(plain, x) for _ in range(rounds + 1)]
    return round(statistics.median(found[1:]), 3)


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
            print(json.dumps({"width": width, "rows": rows, "ratio": ratio(width, rows, asked.rounds)}), flush=True)


if __name__ == "__main__":
    main()
