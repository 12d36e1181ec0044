"""The analyse command: looks inside a model."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from fpmgm.analysis.cka import layer_similarity, summary
from fpmgm.analysis.plots import consecutive_plot, similarity_heat_map
from fpmgm.checkpoint import Model, load
from fpmgm.commands import open_console
from fpmgm.devices import OnDevice
from fpmgm.evaluation.held_out import AUTO, OWN, check_split, measured_data, measured_on
from fpmgm.evaluation.threads import use_threads
from fpmgm.files import write_json
from fpmgm.names import choose
from fpmgm.provenance import provenance
from fpmgm.randomness import generator


@dataclass(frozen=True, kw_only=True)
class AnalyseCommand(OnDevice):
    """Compare the layers of a model: CKA at five times, and the boundary where they change most."""

    model: Annotated[str, tyro.conf.Positional]
    """A bundled model, a model folder, or a hub id owner/name."""
    analysis: Annotated[str, tyro.conf.Positional] = "cka"
    """cka compares the layers. `analyse MODEL optimum --help` and `analyse RUN dynamics --help` describe the others."""
    data: str = OWN
    """The data that layers are compared on: a corpus by name, a file or a folder. With auto, it is what the model was
    trained on, split as in training."""
    split: str = AUTO
    """Which part of `data` is used: all, held-out (as in training), or train, valid or test. With auto, it is held-out
    for a corpus and for what the model was trained on, and all for another file."""
    num_sequences: int = 128
    """The number of sequences that are read."""
    seed: int = 0
    """Every random number follows from this number."""
    out: str = ""
    """The folder for results and plots. If it is empty, nothing is written."""
    json: bool = False
    """Print one JSON object."""

    def __post_init__(self) -> None:
        self.check_device()
        choose("analysis", self.analysis, ANALYSES)
        check_split(self.split)
        if Path(self.out).is_file():
            raise ValueError(f"out is {self.out}, which is a file; give a folder")


def run_analyse(command: AnalyseCommand) -> None:
    """Print what was found, and write it with its plots if a folder is given."""
    ANALYSES[command.analysis](command, load(command.model, device=command.device, dtype=command.dtype))


def analyse_cka(command: AnalyseCommand, model: Model) -> None:
    """Linear CKA between all layers, the strongest boundary, and the layer map that follows from it."""
    data, words = measured_data(model, command.data, command.split)
    batch = data.measured(command.num_sequences)
    use_threads(model.config, len(batch.x))
    similarity = layer_similarity(
        model.denoiser, batch.to(model.device), rng=generator(command.seed), on_time=announce_time
    )
    found = {
        "model": command.model,
        "data": command.data,
        "measured_on": measured_on(data, batch, words),
        "seed": command.seed,
        "num_sequences": len(batch.x),
        "num_tokens": int(batch.is_real.sum()),
        **summary(similarity, is_plain=model.denoiser.cost.fp == 0),
        "provenance": provenance(),
    }
    files: list[Path] = []
    if command.out:
        folder = Path(command.out)
        files += similarity_heat_map(similarity, folder / "cka-layers")
        files += consecutive_plot(similarity, folder / "cka-consecutive")
        files.insert(0, folder / "cka.json")
        write_json(files[0], found)
    if command.json:
        print(json.dumps(found))
        return
    console = open_console()
    for line in (*describe_cka(found), *(f"wrote {file}" for file in files)):
        console.print(line, soft_wrap=True)


def announce_time(t: float) -> None:
    """Say at which time layers are being compared."""
    print(f"comparing layers at t = {t}", file=sys.stderr)


def describe_cka(found: dict[str, Any]) -> list[str]:
    """The same in words."""
    layers, boundary = found["layers"], found["boundary"]
    after = boundary["after"]
    agreeing = found["boundary_by_time"].count(after)
    lines = [
        f"{len(layers)} layers on {found['measured_on']}, at t = {', '.join(map(str, found['times']))}",
        f"strongest boundary: between {layers[after - 1]} and {layers[after]}, CKA {boundary['cka']:.3f}; "
        f"the same at {agreeing} of {len(found['times'])} times",
        f"mean CKA: {boundary['early']:.3f} before, {boundary['late']:.3f} after, {boundary['across']:.3f} across it",
    ]
    if found["map"]:
        lines.append(f"layer map: {found['map']}")
    return lines


ANALYSES: dict[str, Callable[[AnalyseCommand, Model], None]] = {"cka": analyse_cka}
