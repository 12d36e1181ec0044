"""Model cards: the exact command, the curves, the validation perplexity and uncurated samples of a run."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from fpmgm.backbones import NetworkConfig
from fpmgm.backbones.network import Vocabulary
from fpmgm.checkpoint import CURVES, MODEL_FILES, Model
from fpmgm.data import Dataset
from fpmgm.denoiser import Denoiser
from fpmgm.evaluation.evaluator import Metric, evaluator_of, lets_rest
from fpmgm.files import whole_folder
from fpmgm.names import slug
from fpmgm.provenance import provenance
from fpmgm.training.config import Training
from fpmgm.training.metrics import Row, read_metrics
from fpmgm.training.sharding import mixed_precision

NUM_SAMPLES = 20
KINDS = ("model", "objective", "data")
"""Parts of a run of which there are several kinds."""


def write_model(
    folder: Path,
    model: Model,
    data: Dataset,
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
    card, files = model_card(model, data, config, recipe, name, metrics, extended, num_samples)
    with whole_folder(folder / "model", MODEL_FILES) as scratch:
        replace(model, card=card).write(scratch)
        plot_curves(scratch / CURVES, metrics, evaluator_of(model.config, model.speech).validated)
        for file, content in files.items():
            (scratch / file).write_bytes(content)


def model_card(
    model: Model,
    data: Dataset,
    config: Training,
    recipe: Training,
    name: str,
    metrics: list[Row],
    extended: Sequence[str] = (),
    num_samples: int = NUM_SAMPLES,
) -> tuple[str, dict[str, bytes]]:
    """The README.md of a model folder, as the hub shows it, and pictures in it. The last row has a validation."""
    network, made = model.config, provenance()
    last = metrics[-1]
    size = sum(parameter.numel() for parameter in model.denoiser.parameters())
    iters = f", {config.validation_iters} solver iterations" if network.cost.fp else ""
    iters += ", visible positions at rest after the first" if lets_rest(config.objective) else ""
    evaluator, vocabulary = evaluator_of(network, model.speech), network.vocabulary
    metric = evaluator.validated
    is_sampled = isinstance(model.denoiser, Denoiser)
    tag = "causal" if network.is_causal else "masked-diffusion" if is_sampled else slug(network.kind)
    how, shown = evaluator.shown(model, data, num_samples)
    pictured, files = model.speech.in_card(shown)
    measured = evaluator.in_card(model, data) if num_samples >= NUM_SAMPLES else []
    lines = (
        "---",
        "library_name: fpmgm",
        f"pipeline_tag: {model.speech.pipeline}",
        f"tags: [fpmgm, {tag}]",
        "---",
        f"# {Path(config.out).name or name}",
        "",
        f"{network.kind}: {network.cost} blocks, {network.width} wide, {size:,} parameters,",
        f"{_reads(vocabulary)}.",
        "",
        "## How it was trained",
        "",
        f"    {command_of(config, recipe, name)}",
        "",
        f"{last['update']:,} updates of {config.batch_size} sequences of {_named(config)}, {_hours(metrics)} of",
        f"updates on {made['hardware']}. Card written by fpmgm {made['fpmgm']}, commit {made['commit'] or 'unknown'},",
        f"torch {made['torch']}. {_averaged(config)}{_mixed(config)}{_stopped(config, last, metric)}",
        *(f"\nThis run was {text}." for text in extended),
        "",
        f"![Loss by update, and {metric.title}]({CURVES})",
        "",
        f"## {metric.title.capitalize()}",
        "",
        f"{_value(last['validation'], last['validation_error'])} {_unit(metric)}, one standard error",
        f"({_exactness(network, metric)}{iters}; up to {config.validation_sequences} held-out sequences).",
        *(["", *measured] if measured else []),
        "",
        f"## {num_samples} samples, uncurated",
        "",
        f"{how}\n\n{pictured}\n",
    )
    return "\n".join(lines), files


def _reads(vocabulary: Vocabulary) -> str:
    """What its sequences are."""
    if vocabulary.shape is not None:
        channels, height, width = vocabulary.shape
        return f"images of {width} x {height} pixels, {'grey' if channels == 1 else 'in colour'}"
    classes = f", {vocabulary.num_classes} classes" if vocabulary.num_classes else ""
    return f"{vocabulary.size:,} symbols, sequences of {vocabulary.length} tokens{classes}"


def _value(number: float, error: float) -> str:
    """Both with two decimals, or three digits of what is small."""
    return f"{number:.2f} ± {error:.2f}" if number >= 1 else f"{number:.3g} ± {error:.2g}"


def _unit(metric: Metric) -> str:
    return "per token" if metric.name == "perplexity" else "on average"


def _exactness(network: NetworkConfig, metric: Metric) -> str:
    if metric.name != "perplexity":
        return "on held-out data"
    return "exact" if network.is_causal else "a bound, Monte Carlo over masks"


def _mixed(config: Training) -> str:
    return "\nPasses were computed in bfloat16." if mixed_precision(config) == "bf16" else ""


def _averaged(config: Training) -> str:
    return "The weights are the moving average." if config.optim.ema else "The weights are those of the last update."


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
    """What to type to repeat a run: the recipe and every field that differs from it.

    A part of another kind, such as another objective, cannot be typed: it is told as Python has it.
    """
    others = [part for part in KINDS if type(getattr(config, part)) is not type(getattr(recipe, part))]
    theirs, ours = flat(asdict(recipe)), flat(asdict(config))
    changes = {key: value for key, value in ours.items() if key.split(".")[0] not in others and value != theirs[key]}
    words = [f"fpmgm train {name}", *(_option(key, value) for key, value in changes.items())]
    return " ".join([*words, *(f"# in Python: {part}={getattr(config, part)!r}" for part in others)])


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


def plot_curves(file: Path, metrics: list[Row], metric: Metric) -> None:
    """Loss and validation by update, as a picture. A perplexity is drawn as its nats, beside which it stands."""
    from matplotlib.figure import Figure

    validated = [row for row in metrics if 0 < row.get("validation", 0) < math.inf]
    metrics = [row for row in metrics if "loss" in row]
    losses = np.array([row.get("base", row["loss"]) for row in metrics] or [math.nan])  # without consistency
    window = max(1, len(losses) // 100)
    smooth = np.convolve(losses, np.ones(window) / window, mode="valid")
    updates = np.array([row["update"] for row in metrics] or [0])[window - 1 :]
    is_perplexity = metric.name == "perplexity"
    nats = [math.log(row["validation"]) if is_perplexity else row["validation"] for row in validated]
    figure = Figure(figsize=(7, 3.2), layout="constrained", facecolor="white")
    axis = figure.subplots()
    axis.plot(updates, smooth, color="#0072b2", linewidth=1.2, label=f"training, mean of {window}")
    axis.plot([row["update"] for row in validated], nats, "o--", color="#d55e00", markersize=5, label="held out")
    for row, value in zip(validated, nats, strict=True):
        text = f"{row['validation']:.0f}" if is_perplexity else f"{row['validation']:.3g}"
        axis.annotate(text, (row["update"], value), (0, 7), textcoords="offset points", ha="center", fontsize=8)
    words = "nats a token\n(held out: with perplexity)" if is_perplexity else f"loss\n(held out: {metric.title})"
    axis.set(xlabel="update", ylabel=words)
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)
    figure.savefig(file, dpi=110)
