"""Is the MLP of `fpmgm.gelu` faster than linear, GELU, linear of torch? python benchmarks/mlp.py

Both take turns, in processor seconds of one thread, with gradients as in training and without as in sampling. A line is
a part of the network, its width and its rows; the numbers are the time of ours over that of torch's own, medians over
the rounds. The plain form of the injection computes its hidden layer again in the backward pass, as ours does.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fpmgm.gelu import GeluMLP
from fpmgm.injection import MLPInjection
from fpmgm.provenance import provenance
from fpmgm.randomness import generator

Form = Callable[..., Tensor]


def forms_of_mlp(width: int) -> tuple[Form, Form]:
    """Ours and torch's."""
    made = GeluMLP(width, 4 * width)
    return made, lambda x: made[2](functional.gelu(made[0](x), approximate="tanh"))


def forms_of_injection(width: int) -> tuple[Form, Form]:
    """Ours and torch's."""
    made = MLPInjection(width)

    def mix(h: Tensor, constant: Tensor) -> Tensor:
        hidden = functional.linear(h, made.fc1.weight[:, :width]) + constant
        return made.fc2(functional.gelu(hidden, approximate="tanh"))

    def plain(h: Tensor, constant: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return mix(h, constant)
        found: Tensor = checkpoint(mix, h, constant, use_reentrant=False, preserve_rng_state=False)
        return found

    return made, plain


PARTS = {"block": (forms_of_mlp, (1,)), "injection": (forms_of_injection, (1, 2))}
"""How both forms are made, and how many times the width their inputs are wide."""


def seconds(form: Form, inputs: list[Tensor]) -> tuple[float, float]:
    """Of the pass without gradients, and of both passes with them."""
    start = time.process_time()
    with torch.no_grad():
        form(*inputs)
    middle = time.process_time()
    out = form(*inputs)
    out.backward(torch.ones_like(out))
    return middle - start, time.process_time() - middle


def ratios(part: str, width: int, rows: int, rounds: int) -> dict[str, float]:
    made, widths = PARTS[part]
    forms = made(width)
    inputs = [
        torch.randn(rows, times * width, generator=generator(index)).requires_grad_()
        for index, times in enumerate(widths)
    ]
    found = [[seconds(form, inputs) for form in forms] for _ in range(rounds + 1)]
    names = ("without_gradients", "with_gradients")
    return {
        name: round(statistics.median(ours[i] / theirs[i] for ours, theirs in found[1:]), 3)
        for i, name in enumerate(names)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[192, 768])
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 64, 256, 1024, 4096])
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(provenance()))
    for part in PARTS:
        for width in asked.widths:
            for rows in asked.rows:
                found = ratios(part, width, rows, asked.rounds)
                print(json.dumps({"part": part, "width": width, "rows": rows, **found}), flush=True)


if __name__ == "__main__":
    main()
