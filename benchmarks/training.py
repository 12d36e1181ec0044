"""How long an update takes and what it holds in memory: python benchmarks/training.py

MDLM-small (12 blocks, 768 wide, GPT-2's vocabulary) against its 1/1/1 fixed-point form, length 256, batch 4, 2 threads.
Time: a whole update (masks, loss, gradients, clipping, AdamW), contestants interleaved, medians; a fixed point is timed
at 2 iterations without gradients and at 4 and at 5 with, and their mean taken: the mean draw of U(0,4) and U(3,6).
Memory: each case in a fresh process, the peak of its resident size over that before the update, and, beside it, the
bytes that autograd saves. The blocks' multiply-adds a second are compared with the machine's own matrix multiply.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fpmgm import IterationCounts, MaskedCrossEntropy, MDLMConfig, generator, mdlm
from fpmgm.provenance import provenance
from fpmgm.training.optim import OptimConfig, adamw, set_learning_rate

MDLM = MDLMConfig(length=256, dropout=0.0)
FP = replace(MDLM, num_pre=1, num_fp=1, num_post=1)
NETWORKS = {"mdlm": MDLM, "fp": FP, "fp_linear": replace(FP, injection="linear")}
NUM_NO_GRAD = 2
BATCH = 4


class Update:
    """One contestant: a network with its optimiser."""

    def __init__(self, name: str) -> None:
        self.denoiser = mdlm(NETWORKS[name]).train()
        with torch.no_grad():
            for parameter in self.denoiser.parameters():
                if not parameter.any():
                    parameter.normal_(std=0.02)
        self.optimiser = adamw(self.denoiser, OptimConfig(lr=1e-4))
        set_learning_rate(self.optimiser, 1e-4)
        self.x = torch.randint(0, MDLM.mask_id, (BATCH, MDLM.length), generator=generator(0))

    def __call__(self, num_grad: int = 3, update: int = 0) -> None:
        self.gradients(num_grad, update)
        torch.nn.utils.clip_grad_norm_(self.denoiser.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad()

    def gradients(self, num_grad: int, update: int = 0) -> None:
        counts = IterationCounts(no_grad_min=NUM_NO_GRAD, no_grad_max=NUM_NO_GRAD, grad_min=num_grad, grad_max=num_grad)
        MaskedCrossEntropy(counts=counts)(self.denoiser, self.x, rng=generator(0, update)).total.backward()


def seconds_of(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def measure_time(repeats: int) -> dict[str, float]:
    """Median seconds of an update by contestant."""
    updates = {name: Update(name) for name in NETWORKS}
    cases = {"mdlm": [3], "fp": [4, 5], "fp_linear": [4, 5]}
    seconds: dict[str, list[float]] = {name: [] for name in NETWORKS}
    for repeat in range(repeats + 1):
        for name, update in updates.items():
            found = [seconds_of(partial(update, num, repeat)) for num in cases[name]]
            if repeat:  # the first is the warm-up
                seconds[name].append(statistics.mean(found))
    for name, found in seconds.items():
        print(f"{name:10} {statistics.median(found):6.2f} s an update ({min(found):.2f} to {max(found):.2f})")
    return {name: statistics.median(found) for name, found in seconds.items()}


class Peak(threading.Thread):
    """The largest resident size while it runs, sampled every millisecond."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes, self.is_running = 0, True

    def run(self) -> None:
        while self.is_running:
            self.bytes = max(self.bytes, resident())
            time.sleep(0.001)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure_memory(name: str, num_grad: int) -> dict[str, int]:
    """Bytes of one update's forward and backward pass over what was there before: the work of a fresh process."""
    update = Update(name)
    update.denoiser.zero_grad()
    for parameter in update.denoiser.parameters():
        parameter.grad = torch.zeros_like(parameter)  # gradients are the model's size: not what is compared
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    baseline = resident()
    peak = Peak()
    peak.start()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        update.gradients(num_grad)
    peak.is_running = False
    peak.join()
    weights = {parameter.untyped_storage().data_ptr() for parameter in update.denoiser.parameters()}
    held = sum(size for address, size in saved.items() if address not in weights)
    return {"peak": peak.bytes - baseline, "saved": held}


def memory_in_fresh_process(name: str, num_grad: int) -> dict[str, int]:
    command = [sys.executable, __file__, "--memory", name, str(num_grad)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout)
    print(
        f"{name:10} {num_grad} with gradients: peak {found['peak'] / 1e6:.0f} MB, saved {found['saved'] / 1e6:.0f} MB"
    )
    return found


def matmul_fraction(repeats: int) -> float:
    """Multiply-adds a second of one block, forward and backward, as a share of those of a matrix multiply."""
    denoiser = mdlm(MDLM)
    h = torch.randn(BATCH, MDLM.length, MDLM.width, requires_grad=True)
    cond = denoiser.condition(torch.zeros(BATCH, MDLM.length, dtype=torch.long), 0.5)

    def block() -> None:
        out = denoiser.backbone.run_block(0, h, cond)
        torch.autograd.grad(out.sum(), [h, *denoiser.backbone.blocks[0].parameters()], retain_graph=True)

    a, b = torch.randn(BATCH * MDLM.length, MDLM.width), torch.randn(MDLM.width, 4 * MDLM.width)
    block_flops = 3 * BATCH * MDLM.length * (12 * MDLM.width**2 + 2 * MDLM.length * MDLM.width)
    matmul_flops = BATCH * MDLM.length * 4 * MDLM.width**2
    rates = []
    for _ in range(3 * repeats + 1):
        rates.append(
            (block_flops / seconds_of(block), 9 * matmul_flops / seconds_of(lambda: [a @ b for _ in range(9)]))
        )
    return statistics.median(rate for rate, _ in rates[1:]) / statistics.median(rate for _, rate in rates[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory", nargs=2, metavar=("NETWORK", "NUM_GRAD"), help="measure one case and print JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    if arguments.memory:
        print(json.dumps(measure_memory(arguments.memory[0], int(arguments.memory[1]))))
        return
    print(json.dumps(provenance()))
    fraction = matmul_fraction(arguments.repeats)
    seconds = measure_time(arguments.repeats)
    cases = {("mdlm", 3), *((name, num) for name in ("fp", "fp_linear") for num in (4, 5, 6))}
    memory = {case: memory_in_fresh_process(*case)["peak"] for case in sorted(cases)}
    plain = memory["mdlm", 3]

    def at_the_mean(name: str) -> float:
        return round((memory[name, 4] + memory[name, 5]) / 2 / plain, 3)

    result = {
        "time": round(seconds["fp"] / seconds["mdlm"], 3),
        "memory": at_the_mean("fp"),
        "memory_peak": round(memory["fp", 6] / plain, 3),
        "time_linear": round(seconds["fp_linear"] / seconds["mdlm"], 3),
        "memory_linear": at_the_mean("fp_linear"),
        "matmul_fraction": round(fraction, 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
