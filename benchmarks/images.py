"""What a fixed point saves on images: python benchmarks/images.py [--width 512] [--batch 8]

MaskGIT of 24 blocks against its 4/1/4 fixed-point form, with the paper's injection and with `linear`: 16 x 16 cells,
4096 codes, 10 classes, random weights, 2 threads; width 256 unless told otherwise. One run measures three things.
Time of a whole update (masks, loss, gradients, clipping, AdamW): a fixed point is timed at 2 iterations without
gradients and at 4 and at 5 with, and their mean taken: the mean draw of U(0,4) and U(3,6).
Memory: each case in a fresh process whose allocator gives freed memory back, the peak of its resident size in the
forward and backward pass over that before (activations and gradients) and, beside it, the bytes that autograd saves.
Sampling at equal block budgets by the Halton order, without guidance.
Contestants are interleaved; each ratio is the median over rounds of the ratio within a round, and is to the 24 blocks.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial

import torch

from fpmgm.backbones.maskgit import MaskGITConfig, maskgit
from fpmgm.evaluation.latency import Timing, interleave
from fpmgm.experiments.workloads import Updater, draw, random_denoiser, two_updates, update_memory
from fpmgm.objectives import MaskedCrossEntropy
from fpmgm.provenance import provenance
from fpmgm.transitions import Halton

PLAIN = "maskgit"
NUM_NO_GRAD = 2
NUM_GRAD = (4, 5, 6)
OBJECTIVE = MaskedCrossEntropy(weighting="masked", schedule="arccos")


def networks(width: int, side: int, num_codes: int) -> dict[str, MaskGITConfig]:
    """The contestants."""
    plain = MaskGITConfig(
        width=width,
        num_heads=max(1, width // 64),
        num_pre=24,
        vocab_size=num_codes + 1,
        mask_id=num_codes,
        length=side * side,
        dropout=0.0,
    )
    fp = replace(plain, num_pre=4, num_fp=1, num_post=4)
    return {PLAIN: plain, "fp": fp, "fp_linear": replace(fp, injection="linear")}


def update_times(configs: dict[str, MaskGITConfig], batch: int, repeats: int) -> dict[str, Timing]:
    """Seconds of an update."""
    pairs = {name: two_updates(random_denoiser(config), batch, OBJECTIVE) for name, config in configs.items()}
    timings = {name: timing.over(2) for name, timing in interleave(pairs, repeats).items()}
    for name, timing in timings.items():
        print(f"{name:10} an update: {timing}", flush=True)
    return timings


def sampling_times(
    configs: dict[str, MaskGITConfig], batch: int, budget: int, repeats: int, side: int
) -> dict[str, Timing]:
    """Seconds of a batch of samples."""
    rule = Halton(height=side, width=side)
    runs = {name: partial(draw, random_denoiser(config), batch, budget, rule) for name, config in configs.items()}
    timings = interleave(runs, repeats)
    for name, timing in timings.items():
        print(f"{name:10} sampling, budget {budget}: {timing}", flush=True)
    return timings


def memory_in_fresh_process(arguments: argparse.Namespace, name: str, num_grad: int) -> int:
    """The peak bytes of an update."""
    sizes = {name: getattr(arguments, name) for name in ("width", "batch", "side", "codes", "threads")}
    command = [sys.executable, __file__, *(f"--{option}={value}" for option, value in sizes.items())]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}  # else glibc keeps what was freed
    asked = ["--memory", name, str(num_grad)]
    done = subprocess.run([*command, *asked], capture_output=True, text=True, check=True, env=environment)
    found: dict[str, int] = json.loads(done.stdout)
    peak, saved = found["peak"] / 1e6, found["saved"] / 1e6
    print(f"{name:10} {num_grad} with gradients: peak {peak:.0f} MB, saved {saved:.0f} MB", flush=True)
    return found["peak"]


def matmul_fraction(config: MaskGITConfig, batch: int, repeats: int) -> float:
    """Multiply-adds a second of one block, forward and backward, as a share of those of a matrix multiply."""
    denoiser = maskgit(config)
    length, width = config.length + config.num_registers, config.width
    h = torch.randn(batch, length, width, requires_grad=True)
    cond = denoiser.condition(torch.zeros(batch, config.length, dtype=torch.long), 0.5)

    def block() -> None:
        out = denoiser.backbone.run_block(0, h, cond)
        torch.autograd.grad(out.sum(), [h, *denoiser.backbone.blocks[0].parameters()], retain_graph=True)

    a, b = torch.randn(batch * length, width), torch.randn(width, 4 * width)
    inside = 4 * width * config.attention_width + 2 * length * config.attention_width + 3 * width * config.mlp_width
    timings = interleave({"block": block, "matmul": lambda: [a @ b for _ in range(9)]}, 3 * repeats)
    return 3 * inside / (9 * 4 * width**2) * timings["matmul"].against(timings["block"])


def measured(arguments: argparse.Namespace) -> dict[str, object]:
    """All ratios to the 24 blocks."""
    configs = networks(arguments.width, arguments.side, arguments.codes)
    fraction = matmul_fraction(configs[PLAIN], arguments.batch, arguments.repeats)
    times = update_times(configs, arguments.batch, arguments.repeats)
    samples = {
        budget: sampling_times(configs, arguments.batch, budget, arguments.repeats, arguments.side)
        for budget in arguments.budgets
    }
    plain = memory_in_fresh_process(arguments, PLAIN, NUM_GRAD[0])
    result: dict[str, object] = {"width": arguments.width, "matmul_fraction": round(fraction, 3)}
    for name in ("fp", "fp_linear"):
        memory = [memory_in_fresh_process(arguments, name, num) / plain for num in NUM_GRAD]
        result |= {
            f"{name}_time": round(times[name].against(times[PLAIN]), 3),
            f"{name}_memory": round((memory[0] + memory[1]) / 2, 3),
            f"{name}_memory_at_most": round(memory[2], 3),
            f"{name}_sampling": {str(b): round(each[name].against(each[PLAIN]), 3) for b, each in samples.items()},
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--budgets", type=int, nargs="+", default=(96, 192))
    parser.add_argument("--side", type=int, default=16, help="rows and columns of codes")
    parser.add_argument("--codes", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", nargs=2, metavar=("NETWORK", "NUM_GRAD"), help="measure one case and print JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.memory:
        name, num_grad = arguments.memory
        config = networks(arguments.width, arguments.side, arguments.codes)[name]
        update = Updater(random_denoiser(config), arguments.batch, OBJECTIVE)
        print(json.dumps(update_memory(update, NUM_NO_GRAD, int(num_grad))))
        return
    print(json.dumps(provenance()))
    print(json.dumps(measured(arguments)))


if __name__ == "__main__":
    main()
