"""The plot of frontiers: entropy against generative perplexity, a panel a budget."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fpmgm.evaluation.frontier_found import Found, Point, RealText
from fpmgm.evaluation.plots import line_style, save

ACROSS = 3
"""Panels in a row."""
LONG = 24
"""With longer names than this, the legend has a column less."""


def draw_frontiers(found: Found, file: Path) -> list[Path]:
    """Write file.png and file.svg."""
    budgets = found.asked.budgets
    across = len(budgets) if len(budgets) <= ACROSS + 1 else ACROSS
    down = -(-len(budgets) // across)
    figure = Figure(figsize=(1.2 + 3.1 * across, 0.9 + 3.0 * down), layout="constrained", facecolor="white")
    axes = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for index, axis in enumerate(axes.flat):
        if index >= len(budgets):
            axis.remove()
            continue
        _panel(axis, found, budgets[index])
        if index + across >= len(budgets):
            axis.set_xlabel("unigram entropy, nats")
            axis.xaxis.set_tick_params(labelbottom=True)
        if index % across == 0:
            axis.set_ylabel("generative perplexity")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    columns = across if max(map(len, labels)) > LONG else across + 1
    figure.legend(handles, labels, frameon=False, loc="outside lower center", ncols=min(columns, len(labels)))
    return save(figure, file)


def _panel(axis: Axes, found: Found, budget: int) -> None:
    """The frontiers at one budget, and real text."""
    axis.set_title(f"{budget} block evaluations", fontsize=10)
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.grid(alpha=0.3)
    for index, line in enumerate(found.asked.lines):
        own = [point for point in found.points if (point.model, point.budget) == (line.name, budget)]
        _line(axis, own, index, line.name)
    if found.real:
        _real(axis, found.real)


def _real(axis: Axes, real: RealText) -> None:
    axis.axvspan(*real.band, color="0.92", zorder=0, linewidth=0)
    place = real.metrics["entropy"].value, real.metrics["perplexity_per_sample"].value
    axis.plot(*place, "*", color="black", markersize=11, linestyle="none", label="real text", zorder=4)


def _line(axis: Axes, points: Sequence[Point], index: int, label: str) -> None:
    """Points in the order of what was swept; hollow, but for temperature 1."""
    x = [point.metrics["entropy"].value for point in points]
    found = [point.metrics["perplexity_per_sample"] for point in points]
    y = np.array([[each.value, each.low, each.high] for each in found])
    style = line_style(index)
    colour, marker = style["color"], style.pop("marker")
    axis.errorbar(x, y[:, 0], np.abs(y[:, 1:] - y[:, :1]).T, linewidth=1.4, elinewidth=0.8, capsize=2, **style)
    axis.plot(x, y[:, 0], marker, color=colour, markersize=5, markerfacecolor="white")
    full = [place for place, point in enumerate(points) if point.knob == "temperature" and point.setting == 1]
    axis.plot([x[place] for place in full], y[full, 0], marker, color=colour, markersize=6)
    axis.plot([], [], marker=marker, markersize=5, linewidth=1.4, label=label, **style)
