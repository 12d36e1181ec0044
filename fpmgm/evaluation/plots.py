"""Plots of results, as PNG and SVG: on white, in colours and markers that print and screens of any mode tell apart."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from fpmgm.evaluation.rows import Row
from fpmgm.names import short_names

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito's, for all eyes
MARKERS = "osD^vP"
MOST_INSIDE = 4
"""With more lines than this, the legend lies below the plot."""
COSTS: dict[str, Callable[[Row], float]] = {
    "block evaluations a sequence": lambda row: float(row.block_evals),
    "multiply-adds a sequence, billions": lambda row: float(row.multiply_adds * 1e-9),
    "seconds a sequence": lambda row: float(row.seconds / row.protocol.num_samples),
}
COUNTED = tuple(COSTS)[:2]
"""Those that do not depend on what else the machine does."""
WIDE = 10
"""Values that span more than this factor have a logarithmic axis."""


def quality_against_cost(
    rows: Sequence[Row], name: str, title: str, file: Path, costs: Sequence[str] = tuple(COSTS)
) -> list[Path]:
    """A metric of every model against block evaluations, multiply-adds and seconds, side by side."""
    figure = Figure(figsize=(3.6 * len(costs), 3.6), layout="constrained", facecolor="white")
    axes = figure.subplots(1, len(costs), sharey=True)
    models = short_names(row.model for row in rows)
    for axis, label in zip(axes, costs, strict=True):
        cost = COSTS[label]
        for index, (model, shown) in enumerate(models.items()):
            _line(axis, [row for row in rows if row.model == model], name, cost, index, shown)
        axis.set_xlabel(label)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
        axis.grid(alpha=0.3)
    axes[0].set_xticks(sorted({row.block_evals for row in rows}))
    axes[0].set_ylabel(title)
    values = [row.metrics[name].value for row in rows if name in row.metrics]
    if values and 0 < WIDE * min(values) < max(values):
        axes[0].set_yscale("log")
        axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if len(models) <= MOST_INSIDE:
        axes[0].legend(frameon=False)
    else:
        figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=len(costs))
    return save(figure, file)


def line_style(index: int) -> dict[str, Any]:
    """How the line of that number looks: a colour and a marker, dashed with the next marker when colours run out."""
    turn, colour = divmod(index, len(COLOURS))
    marker = MARKERS[(index + turn) % len(MARKERS)]
    return {"color": COLOURS[colour], "marker": marker, "linestyle": "--" if turn % 2 else "-"}


def _line(axis: Axes, rows: Sequence[Row], name: str, cost: Callable[[Row], float], index: int, label: str) -> None:
    points = sorted(((cost(row), row.metrics[name]) for row in rows if name in row.metrics), key=itemgetter(0))
    x = [point for point, _ in points]
    y = np.array([[m.value, m.low, m.high] for _, m in points]).reshape(-1, 3)
    errors = np.abs(y[:, 1:] - y[:, :1]).T
    axis.errorbar(x, y[:, 0], errors, label=label, linewidth=1.4, markersize=5, capsize=2.5, **line_style(index))


def heat_map(
    rows: Sequence[Row],
    across: Callable[[Row], Any],
    down: Callable[[Row], Any],
    name: str,
    titles: tuple[str, str, str],
    file: Path,
) -> list[Path]:
    """A metric over two settings, each cell with its number; `titles` are those of the columns, rows and the metric."""
    columns, lines = (_in_order(map(of, rows)) for of in (across, down))
    values = np.full((len(lines), len(columns)), np.nan)
    for row in rows:
        values[lines.index(down(row)), columns.index(across(row))] = row.metrics[name].value
    figure = Figure(figsize=(1.6 + 0.9 * len(columns), 1.3 + 0.5 * len(lines)), layout="constrained", facecolor="white")
    axis = figure.subplots()
    low, high = np.nanmin(values), np.nanmax(values)
    is_wide = low > 0 and high > 10 * low  # with even steps of colour, most cells would look alike
    image = axis.imshow(values, cmap="cividis", aspect="auto", norm="log" if is_wide else "linear")
    middle = np.sqrt(low * high) if is_wide else (low + high) / 2
    for (line, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            number = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
            axis.text(column, line, number, ha="center", va="center", color="black" if value > middle else "white")
    axis.set_xticks(range(len(columns)), [str(column) for column in columns])
    axis.set_yticks(range(len(lines)), [str(line) for line in lines])
    axis.set(xlabel=titles[0], ylabel=titles[1])
    figure.colorbar(image, label=titles[2])
    return save(figure, file)


def _in_order(values: Iterable[Any]) -> list[Any]:
    """Each value once: numbers from the least on, anything else as it came."""
    once = list(dict.fromkeys(values))
    return sorted(once) if all(isinstance(value, int | float) for value in once) else once


def lines_by_update(series: Mapping[str, Sequence[tuple[int, float]]], title: str, file: Path) -> list[Path]:
    """A number of some runs by update, smoothed where there are many."""
    figure = Figure(figsize=(6.5, 3.6), layout="constrained", facecolor="white")
    axis = figure.subplots()
    for index, (name, points) in enumerate(series.items()):
        updates, values = (np.array(column, float) for column in zip(*points, strict=True))
        window = max(1, len(values) // 60)
        smooth = np.convolve(values, np.ones(window) / window, mode="valid")
        axis.plot(updates[window - 1 :], smooth, color=COLOURS[index % len(COLOURS)], linewidth=1.4, label=name)
    axis.set(xlabel="update", ylabel=title)
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)
    return save(figure, file)


def save(figure: Figure, file: Path) -> list[Path]:
    """Write file.png and file.svg, the same bytes whenever the same is drawn."""
    file.parent.mkdir(parents=True, exist_ok=True)
    files = [file.with_suffix(suffix) for suffix in (".png", ".svg")]
    with rc_context({"svg.hashsalt": "fpmgm"}):
        figure.savefig(files[0], dpi=130)
        figure.savefig(files[1], metadata={"Date": None})
    return files
