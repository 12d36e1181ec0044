"""How long an update takes and what it holds in memory: python benchmarks/training.py

MDLM-small (12 blocks, 768 wide, GPT-2's vocabulary) against its 1/1/1 fixed-point form, length 256, batch 4, 2 threads.
Time: a whole update (masks, loss, gradients, clipping, AdamW), contestants interleaved, medians; a fixed point is timed
at 2 iterations without gradients and at 4 and at 5 with, and their mean taken: the mean draw of U(0,4) and U(3,6).
Names that end in `_short` have 1 iteration without and 3 with gradients, the mean draw of U(0,2) and U(2,4).
Names that end in `_rest` train as sampled: visible positions rest after the first iteration.
Memory: each case in a fresh process whose allocator gives freed memory back, the peak of its resident size in the
forward and backward pass over that before (activations and gradients) and, beside it, the bytes that autograd saves.
The blocks' multiply-adds a second are compared with the machine's own matrix multiply.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace

import torch

from fpmgm import MaskedCrossEntropy, MDLMConfig, mdlm
from fpmgm.denoiser import Denoiser
from fpmgm.evaluation.latency import Timing, interleave
from fpmgm.experiments.workloads import MEAN_DRAW, SHORT_DRAW, Updater, random_denoiser, two_updates, update_memory
from fpmgm.provenance import provenance

MDLM = MDLMConfig(length=256, dropout=0.0)
FP = replace(MDLM, num_pre=1, num_fp=1, num_post=1)
NETWORKS = {
    "mdlm": MDLM,
    "fp": FP,
    "fp_linear": replace(FP, injection="linear"),
    "fp_diagonal": replace(FP, injection="diagonal"),
}
SHORT, REST = "_short", "_rest"
CONTESTANTS = (*NETWORKS, f"fp{REST}", f"fp_diagonal{REST}")
NUM_NO_GRAD = 2
BATCH = 4


def made(name: str) -> tuple[Denoiser, MaskedCrossEntropy]:
    """The network and the objective of a contestant."""
    return random_denoiser(NETWORKS[name.removesuffix(REST)]), MaskedCrossEntropy(rest=name.endswith(REST))


def measure_time(repeats: int) -> dict[str, Timing]:
    """Seconds of an update by contestant."""
    pairs = {}
    for name in CONTESTANTS:
        denoiser, objective = made(name)
        pairs[name] = two_updates(denoiser, BATCH, objective)
    short = random_denoiser(NETWORKS["fp_diagonal"])
    pairs[f"fp_diagonal{SHORT}"] = two_updates(short, BATCH, counts=SHORT_DRAW)
    timings = {name: timing.over(2) for name, timing in interleave(pairs, repeats).items()}
    for name, timing in timings.items():
        print(f"{name:17} an update: {timing}")
    return timings


def measure_memory(name: str, num_grad: int) -> dict[str, int]:
    """Bytes of an update over what was there before, the weights, gradients included: the work of a fresh process."""
    denoiser, objective = made(name)
    return update_memory(Updater(denoiser, BATCH, objective), NUM_NO_GRAD, num_grad)


def memory_in_fresh_process(name: str, num_grad: int) -> dict[str, int]:
    command = [sys.executable, __file__, "--memory", name, str(num_grad)]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}  # else glibc keeps what was freed
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, int] = json.loads(done.stdout)
    print(
        f"{name:17} {num_grad} with gradients: peak {found['peak'] / 1e6:.0f} MB, saved {found['saved'] / 1e6:.0f} MB"
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
    timings = interleave({"block": block, "matmul": lambda: [a @ b for _ in range(9)]}, 3 * repeats)
    return block_flops / (9 * matmul_flops) * timings["matmul"].against(timings["block"])


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
    timings = measure_time(arguments.repeats)
    cases = {("mdlm", 3), ("fp_diagonal", 3)}
    cases |= {(name, num) for name in CONTESTANTS if name != "mdlm" for num in (4, 5, 6)}
    memory = {case: memory_in_fresh_process(*case)["peak"] for case in sorted(cases)}
    plain = memory["mdlm", 3]

    def at_the_mean(name: str, counts: tuple[tuple[int, int], ...] = MEAN_DRAW) -> float:
        return round(sum(memory[name, num_grad] for _, num_grad in counts) / len(counts) / plain, 3)

    result = {
        "time": round(timings["fp"].against(timings["mdlm"]), 3),
        "memory": at_the_mean("fp"),
        "memory_peak": round(memory["fp", 6] / plain, 3),
        "time_linear": round(timings["fp_linear"].against(timings["mdlm"]), 3),
        "memory_linear": at_the_mean("fp_linear"),
        "time_diagonal": round(timings["fp_diagonal"].against(timings["mdlm"]), 3),
        "memory_diagonal": at_the_mean("fp_diagonal"),
        "time_diagonal_short": round(timings[f"fp_diagonal{SHORT}"].against(timings["mdlm"]), 3),
        "memory_diagonal_short": at_the_mean("fp_diagonal", SHORT_DRAW),
        "time_rest": round(timings[f"fp{REST}"].against(timings["mdlm"]), 3),
        "memory_rest": at_the_mean(f"fp{REST}"),
        "time_diagonal_rest": round(timings[f"fp_diagonal{REST}"].against(timings["mdlm"]), 3),
        "memory_diagonal_rest": at_the_mean(f"fp_diagonal{REST}"),
        "matmul_fraction": round(fraction, 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
