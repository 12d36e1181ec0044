"""Model cards: the exact command, the curves, the validation perplexity and uncurated samples of a run."""

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from fpmgm.checkpoint import Model
from fpmgm.draws import Draw
from fpmgm.generation import Sampling, decode, first_token, generate
from fpmgm.provenance import provenance
from fpmgm.randomness import Streams
from fpmgm.sampling import left_to_right, masked_start
from fpmgm.training.config import Training
from fpmgm.training.state import read_metrics

CURVES = "curves.png"
NUM_SAMPLES = 20


def write_model(folder: Path, model: Model, config: Training, recipe: Training, name: str) -> None:
    """Write the model folder of the run in `folder`, with card and curves."""
    metrics = read_metrics(folder)
    replace(model, card=model_card(model, config, recipe, name, metrics)).save(folder / "model")
    plot_curves(folder / "model" / CURVES, metrics)


def model_card(model: Model, config: Training, recipe: Training, name: str, metrics: list[dict[str, Any]]) -> str:
    """The README.md of a model folder, as the hub shows it."""
    network, made = model.config, provenance()
    last = [row for row in metrics if "validation_perplexity" in row][-1]  # the last update always has one
    blocks = f"{network.num_pre}/{network.num_fp}/{network.num_post}" if network.num_fp else str(network.num_pre)
    kind = "Causal" if network.is_causal else "FP-MDLM" if network.num_fp else "MDLM"
    size = sum(parameter.numel() for parameter in model.denoiser.parameters())
    exact = "exact" if network.is_causal else "a bound, Monte Carlo over masks"
    iters = f", {config.validation_iters} solver iterations" if network.num_fp else ""
    tag = "causal" if network.is_causal else "masked-diffusion"
    lines = (
        "---",
        "library_name: fpmgm",
        "pipeline_tag: text-generation",
        f"tags: [fpmgm, {tag}]",
        "---",
        f"# {name}",
        "",
        f"{kind}: {blocks} blocks, {network.width} wide, {size:,} parameters, {network.vocab_size:,} symbols,",
        f"sequences of {network.length} tokens.",
        "",
        "## How it was trained",
        "",
        f"    {command_of(config, recipe, name)}",
        "",
        f"{last['update']:,} updates of {config.batch_size} sequences of `{config.data.source}`, {_hours(metrics)} of",
        f"updates on {made['hardware']}. Card written by fpmgm {made['fpmgm']}, commit {made['commit'] or 'unknown'},",
        f"torch {made['torch']}. The weights are the moving average.{_stopped(config, last)}",
        "",
        f"![Loss by update, and validation perplexity]({CURVES})",
        "",
        "## Validation perplexity",
        "",
        f"{last['validation_perplexity']:.2f} ± {last['validation_error']:.2f} per token, one standard error",
        f"({exact}{iters}; up to {config.validation_sequences} sequences of held-out regions).",
        "",
        f"## {NUM_SAMPLES} samples, uncurated",
        "",
        _samples(model),
    )
    return "\n".join(lines)


def _stopped(config: Training, last: dict[str, Any]) -> str:
    if "stopped" not in last:
        return ""
    return (
        f"\nStopped before its {config.updates:,} updates, at the first validation perplexity above "
        f"{last['stopped']:.2f}: that of the start and {config.stop_above:.0%} more."
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
    return " ".join([f"--{flag}", *words])


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as on the command line: data.source and so on."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def _hours(metrics: list[dict[str, Any]]) -> str:
    minutes = sum(row["seconds"] for row in metrics) / 60
    return f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"


def _samples(model: Model) -> str:
    """Seed 0, indices 0 to 19, whatever they are."""
    if model.config.is_causal:
        start = masked_start(model.denoiser, [[first_token(model)]] * NUM_SAMPLES)
        rows = left_to_right(model.denoiser, start, draw=Draw(), rng=Streams.of(0, range(NUM_SAMPLES))).z.tolist()
        texts, how = [decode(model, row) for row in rows], "Left to right, temperature 1, seed 0."
    else:
        budget = max(Sampling.budget, model.denoiser.cost.step(1))
        out = generate(model, num_samples=NUM_SAMPLES, budget=budget, seed=0)
        texts = out.texts
        how = f"{out.block_evals} block evaluations in {out.steps} steps, ancestral, temperature 1, seed 0."
    fence = "`" * 4
    return f"{how}\n\n" + "\n".join(f"{fence}text\n{text.strip()}\n{fence}" for text in texts) + "\n"


def plot_curves(file: Path, metrics: list[dict[str, Any]]) -> None:
    """Loss and validation perplexity by update, as a picture."""
    from matplotlib.figure import Figure

    losses = np.array([row.get("base", row["loss"]) for row in metrics])  # without consistency, as held out
    window = max(1, len(losses) // 100)
    smooth = np.convolve(losses, np.ones(window) / window, mode="valid")
    updates = np.array([row["update"] for row in metrics])[window - 1 :]
    validated = [row for row in metrics if "validation_perplexity" in row]
    nats = [math.log(row["validation_perplexity"]) for row in validated]
    figure = Figure(figsize=(7, 3.2), layout="constrained", facecolor="white")
    axis = figure.subplots()
    axis.plot(updates, smooth, color="#0072b2", linewidth=1.2, label=f"training, mean of {window}")
    axis.plot([row["update"] for row in validated], nats, "o--", color="#d55e00", markersize=5, label="held out")
    for row, value in zip(validated, nats, strict=True):
        text = f"{row['validation_perplexity']:.0f}"
        axis.annotate(text, (row["update"], value), (0, 7), textcoords="offset points", ha="center", fontsize=8)
    axis.set(xlabel="update", ylabel="nats a token\n(held out: with perplexity)")
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)
    figure.savefig(file, dpi=110)
