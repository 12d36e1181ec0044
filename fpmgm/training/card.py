"""Model cards: the exact command, the curves, the validation perplexity and uncurated samples of a run."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from fpmgm.checkpoint import CURVES, MODEL_FILES, Model
from fpmgm.draws import Draw
from fpmgm.evaluation.evaluator import Metric, evaluator_for
from fpmgm.files import whole_folder
from fpmgm.generation import Sampling, generate
from fpmgm.provenance import provenance
from fpmgm.randomness import Streams
from fpmgm.sampling import left_to_right, masked_start
from fpmgm.training.config import Training
from fpmgm.training.metrics import Row, read_metrics

NUM_SAMPLES = 20


def write_model(
    folder: Path,
    model: Model,
    config: Training,
    recipe: Training,
    name: str,
    last: Row,
    extended: Sequence[str] = (),
    num_samples: int = NUM_SAMPLES,
) -> None:
    """Write the model folder of the run in `folder`, with card and curves. `last` is the row of the last update."""
    metrics = [row for row in read_metrics(folder) if row["update"] < last["update"]]
    metrics.append(last)
    card = model_card(model, config, recipe, name, metrics, extended, num_samples)
    with whole_folder(folder / "model", MODEL_FILES) as scratch:
        replace(model, card=card).write(scratch)
        plot_curves(scratch / CURVES, metrics)


def model_card(
    model: Model,
    config: Training,
    recipe: Training,
    name: str,
    metrics: list[Row],
    extended: Sequence[str] = (),
    num_samples: int = NUM_SAMPLES,
) -> str:
    """The README.md of a model folder, as the hub shows it. The last row of metrics has a validation."""
    network, made = model.config, provenance()
    last = metrics[-1]
    size = sum(parameter.numel() for parameter in model.denoiser.parameters())
    exact = "exact" if network.is_causal else "a bound, Monte Carlo over masks"
    iters = f", {config.validation_iters} solver iterations" if network.cost.fp else ""
    metric, vocabulary = evaluator_for(model.speech.kind).validated, network.vocabulary
    tag = "causal" if network.is_causal else "masked-diffusion"
    lines = (
        "---",
        "library_name: fpmgm",
        f"pipeline_tag: {model.speech.pipeline}",
        f"tags: [fpmgm, {tag}]",
        "---",
        f"# {Path(config.out).name or name}",
        "",
        f"{network.kind}: {network.cost} blocks, {network.width} wide, {size:,} parameters,",
        f"{vocabulary.size:,} symbols, sequences of {vocabulary.length} tokens.",
        "",
        "## How it was trained",
        "",
        f"    {command_of(config, recipe, name)}",
        "",
        f"{last['update']:,} updates of {config.batch_size} sequences of {_named(config)}, {_hours(metrics)} of",
        f"updates on {made['hardware']}. Card written by fpmgm {made['fpmgm']}, commit {made['commit'] or 'unknown'},",
        f"torch {made['torch']}. The weights are the moving average.{_stopped(config, last, metric)}",
        *(f"\nThis run was {text}." for text in extended),
        "",
        f"![Loss by update, and {metric.title}]({CURVES})",
        "",
        f"## {metric.title.capitalize()}",
        "",
        f"{last['validation']:.2f} ± {last['validation_error']:.2f} per token, one standard error",
        f"({exact}{iters}; up to {config.validation_sequences} held-out sequences).",
        "",
        f"## {num_samples} samples, uncurated",
        "",
        _samples(model, num_samples),
    )
    return "\n".join(lines)


def _named(config: Training) -> str:
    note = f" ({config.data.note})" if config.data.note else ""
    return f"`{config.data.name}`{note}"


def _stopped(config: Training, last: Row, metric: Metric) -> str:
    if "stopped" not in last:
        return ""
    return (
        f"\nStopped before its {config.updates:,} updates, at the first {metric.title} beyond "
        f"{last['stopped']:.2f}, which is {config.stop_above:.0%} worse than at the start."
    )


def command_of(config: Training, recipe: Training, name: str) -> str:
    """What to type to repeat a run: the recipe and every field that differs from it."""
    theirs, ours = flat(asdict(recipe)), flat(asdict(config))
    changes = {key: value for key, value in ours.items() if value != theirs[key]}
    return " ".join([f"fpmgm train {name}", *(_option(key, value) for key, value in changes.items())])


def _option(key: str, value: Any) -> str:
    flag = key.replace("_", "-")
    if isinstance(value, bool):
        head, _, tail = flag.rpartition(".")
        return f"--{flag}" if value else f"--{head + '.' if head else ''}no-{tail}"
    words = [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)]
    return shlex.join([f"--{flag}", *words])


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as on the command line: data.source and so on."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def _hours(metrics: list[Row]) -> str:
    timed = [row["seconds"] for row in metrics if "seconds" in row]
    minutes = sum(timed) / 60
    text = f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"
    num_updates = metrics[-1]["update"]
    return text if len(timed) == num_updates else f"{text} (of {len(timed):,} updates; the other rows were lost)"


def _samples(model: Model, num: int) -> str:
    """Seed 0, the first indices, whatever they are."""
    if model.config.is_causal:
        assert model.speech.first is not None
        start = masked_start(model.denoiser, [[model.speech.first]] * num)
        rows = left_to_right(model.denoiser, start, draw=Draw(), rng=Streams.of(0, range(num))).z.tolist()
        shown, how = [model.speech.show(row) for row in rows], "Left to right, temperature 1, seed 0."
    else:
        budget = max(Sampling.budget, model.denoiser.cost.step(1))
        out = generate(model, num_samples=num, budget=budget, seed=0)
        shown = out.shown
        how = f"{out.block_evals} block evaluations in {out.steps} steps, ancestral, temperature 1, seed 0."
    return f"{how}\n\n" + "\n".join(model.speech.in_card(each) for each in shown) + "\n"


def plot_curves(file: Path, metrics: list[Row]) -> None:
    """Loss and validation perplexity by update, as a picture."""
    from matplotlib.figure import Figure

    validated = [row for row in metrics if 0 < row.get("validation", 0) < math.inf]
    metrics = [row for row in metrics if "loss" in row]
    losses = np.array([row.get("base", row["loss"]) for row in metrics] or [math.nan])  # without consistency
    window = max(1, len(losses) // 100)
    smooth = np.convolve(losses, np.ones(window) / window, mode="valid")
    updates = np.array([row["update"] for row in metrics] or [0])[window - 1 :]
    nats = [math.log(row["validation"]) for row in validated]
    figure = Figure(figsize=(7, 3.2), layout="constrained", facecolor="white")
    axis = figure.subplots()
    axis.plot(updates, smooth, color="#0072b2", linewidth=1.2, label=f"training, mean of {window}")
    axis.plot([row["update"] for row in validated], nats, "o--", color="#d55e00", markersize=5, label="held out")
    for row, value in zip(validated, nats, strict=True):
        text = f"{row['validation']:.0f}"
        axis.annotate(text, (row["update"], value), (0, 7), textcoords="offset points", ha="center", fontsize=8)
    axis.set(xlabel="update", ylabel="nats a token\n(held out: with perplexity)")
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)
    figure.savefig(file, dpi=110)
