"""Plots of analyses, as PNG and SVG, in the style of `evaluation/plots.py`."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from fpmgm.analysis.cka import LayerSimilarity, strongest_boundary
from fpmgm.evaluation.plots import COLOURS, line_style, save
from fpmgm.evaluation.rows import Row


class Snapshot(NamedTuple):
    """What was measured of a run after some updates."""

    update: int
    row: Row
    validation: float | None
    """If it was measured then."""


MOST_NUMBERS = 16
"""With more layers than this, the numbers in the cells of a heat map would not be readable."""


def similarity_heat_map(found: LayerSimilarity, file: Path) -> list[Path]:
    """CKA between all layers, averaged over times, with the strongest boundary drawn in."""
    mean, num = found.mean.numpy(), len(found.layers)
    size = 2.2 + 0.4 * num
    figure = Figure(figsize=(size + 0.9, size), layout="constrained", facecolor="white")
    axis = figure.subplots()
    image = axis.imshow(mean, cmap="cividis", vmin=0, vmax=1)
    for line in range(num if num <= MOST_NUMBERS else 0):
        for column in range(num):
            value = mean[line, column]
            colour = "black" if value > 0.5 else "white"
            axis.text(column, line, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)
    edge = strongest_boundary(found.mean).after - 0.5
    for colour, width in (("white", 4), (COLOURS[1], 2)):  # a white rim: the lines show on every colour of the map
        axis.axhline(edge, color=colour, linewidth=width)
        axis.axvline(edge, color=colour, linewidth=width)
    axis.set_xticks(range(num), found.layers, rotation=_rotation(found))
    axis.set_yticks(range(num), found.layers)
    axis.set(xlabel="layer", ylabel="layer")
    figure.colorbar(image, label="linear CKA, mean over t", shrink=0.85)
    return save(figure, file)


def consecutive_plot(found: LayerSimilarity, file: Path) -> list[Path]:
    """CKA of each layer with the next, at every time and averaged, with the strongest boundary marked."""
    num = len(found.layers) - 1
    height = 3.6 if _rotation(found) == 0 else 5.0
    figure = Figure(figsize=(max(5.0, 2.5 + 0.45 * num), height), layout="constrained", facecolor="white")
    axis = figure.subplots()
    after = strongest_boundary(found.mean).after
    axis.axvspan(after - 1.4, after - 0.6, color=COLOURS[1], alpha=0.15, linewidth=0)
    for index, (t, similarity) in enumerate(zip(found.times, found.by_time, strict=True)):
        values = similarity.diagonal(1).numpy()
        axis.plot(range(num), values, linewidth=1, markersize=4, label=f"t = {t:g}", **line_style(index))
    axis.plot(range(num), found.mean.diagonal(1).numpy(), color="black", linewidth=2.2, label="mean")
    axis.set_xticks(range(num), [" - ".join(pair) for pair in pairwise(found.layers)], rotation=_rotation(found))
    axis.set(xlabel="layers", ylabel="linear CKA", ylim=(-0.02, 1.04), xlim=(-0.5, num - 0.5))
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, ncols=2)
    return save(figure, file)


def dynamics_plot(
    snapshots: Sequence[Snapshot], validation: Mapping[int, float], limit: float | None, file: Path
) -> list[Path]:
    """Quality and entropy of snapshots by update, a line a budget, and validation perplexity with the limit, if any."""
    figure = Figure(figsize=(11, 3.6), layout="constrained", facecolor="white")
    quality, entropy, held_out = figure.subplots(1, 3)
    for index, budget in enumerate(dict.fromkeys(each.row.budget for each in snapshots)):
        own = [each for each in snapshots if each.row.budget == budget]
        for axis, name in ((quality, "perplexity_per_sample"), (entropy, "entropy")):
            points = [(each.update, each.row.metrics[name]) for each in own if name in each.row.metrics]
            values = np.array([[m.value, m.low, m.high] for _, m in points]).reshape(-1, 3)
            errors = np.abs(values[:, 1:] - values[:, :1]).T
            updates = [update for update, _ in points]
            axis.errorbar(
                updates, values[:, 0], errors, label=f"{budget} blocks", markersize=4, capsize=2, **line_style(index)
            )
    held_out.plot(list(validation), list(validation.values()), color="black", marker="o", markersize=4)
    if limit is not None:
        held_out.axhline(limit, color=COLOURS[1], linestyle="--", label="limit of the stopping rule")
        held_out.legend(frameon=False)
    titles = ("generative perplexity", "unigram entropy", "validation perplexity")
    for axis, title in zip((quality, entropy, held_out), titles, strict=True):
        axis.set(xlabel="update", ylabel=title)
        axis.grid(alpha=0.3)
    entropy.legend(frameon=False)
    return save(figure, file)


def _rotation(found: LayerSimilarity) -> int:
    """Numbers stand upright on an axis, names lie along it."""
    return 0 if found.layers[0].isdigit() else 90
