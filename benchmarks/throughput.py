"""Tokens per second against batch size, in every precision: python benchmarks/throughput.py

The fixed-point form of MDLM-small (1/1/1 blocks, 768 wide, GPT-2's vocabulary), random weights, length 256, 2 threads.
Contestants are the network in float32, in bfloat16, with weights of 8 bits, and in float32 with compiled blocks. They
take turns. Writes throughput.json and a curve.
"""

import argparse
import json
from functools import partial
from pathlib import Path

import torch
from matplotlib.figure import Figure

from fpmgm import Denoiser
from fpmgm.backbones import NetworkConfig
from fpmgm.evaluation.latency import interleave
from fpmgm.evaluation.plots import line_style, save
from fpmgm.experiments.benchmark import config_of
from fpmgm.experiments.workloads import draw, random_denoiser
from fpmgm.files import write_text
from fpmgm.int8 import in_precision
from fpmgm.provenance import provenance

BATCHES = (1, 2, 4, 8, 16, 32, 64)
PRECISIONS = ("float32", "bfloat16", "int8")
COMPILED = "compiled"


def contestant(config: NetworkConfig, name: str) -> Denoiser:
    """A random network in the precision of that name, or with compiled blocks."""
    denoiser = random_denoiser(config)
    if name == COMPILED:
        for block in denoiser.backbone.blocks:
            block.compile()
        return denoiser
    return in_precision(denoiser, torch.device("cpu"), name)


def curve(found: dict[int, dict[str, float]], length: int, file: Path) -> None:
    """Tokens per second by batch size."""
    figure = Figure(figsize=(6.5, 3.6), layout="constrained", facecolor="white")
    axis = figure.subplots()
    for index, name in enumerate(next(iter(found.values()))):
        axis.plot(list(found), [rates[name] for rates in found.values()], label=name, **line_style(index))
    axis.set_xscale("log", base=2)
    axis.set_xticks(list(found), [str(batch) for batch in found])
    axis.set(xlabel="sequences in a batch", ylabel=f"tokens per second, length {length}", ylim=(0, None))
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)
    save(figure, file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="owt", help="a recipe or a model; its shape is timed")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--budget", type=int, default=96)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--contestants", nargs="+", default=(*PRECISIONS, COMPILED), choices=(*PRECISIONS, COMPILED))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/results/throughput"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    config = config_of(arguments.name, arguments.length)
    networks = {name: contestant(config, name) for name in arguments.contestants}
    found: dict[int, dict[str, float]] = {}
    ratios: dict[int, dict[str, float]] = {}
    for batch in arguments.batches:
        runs = {name: partial(draw, network, batch, arguments.budget) for name, network in networks.items()}
        timings = interleave(runs, arguments.repeats)
        first = timings[arguments.contestants[0]]
        found[batch] = {name: round(batch * arguments.length / each.median, 1) for name, each in timings.items()}
        ratios[batch] = {name: round(each.against(first), 3) for name, each in timings.items()}
        print(f"batch {batch:3} tokens per second {json.dumps(found[batch])}", flush=True)
    settings = {name: value for name, value in vars(arguments).items() if name != "out"}
    report = {"settings": settings, "tokens_per_second": found, "time_over_first": ratios, **provenance()}
    write_text(arguments.out / "throughput.json", json.dumps(report, indent=1) + "\n")
    curve(found, arguments.length, arguments.out / "throughput")
    print(f"wrote {arguments.out / 'throughput.json'}")


if __name__ == "__main__":
    main()
