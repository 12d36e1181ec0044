"""Figures of the analyses of a sampling run, as PNG and SVG. Time runs from left to right, from all masked to clean."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from fpmgm.analysis.lagged import Lagged
from fpmgm.analysis.solving import Movement, Residuals, Spent, Starts
from fpmgm.evaluation.plots import COLOURS, MARKERS, save
from fpmgm.names import short_names

NOISE = "time t, from all masked (1) to clean (0)"
REUSE_TITLES = {"none": "no reuse", "full": "full reuse", "three-state": "three-state reuse"}


def residual_figure(found: Residuals, file: Path) -> list[Path]:
    """Residual by iteration, averaged over all steps but the first, and by step where the solver starts and stops."""
    figure, (left, right) = _two_panels()
    for index, reuse in enumerate(found.reuses):
        skip = 1 if len(found.times) > 1 else 0  # the first step has nothing to reuse
        values = found.by_iteration(index, skip=skip)
        left.plot(range(len(values)), values, label=REUSE_TITLES[reuse], **_look(index))
        right.plot(found.times, found.first(index), **_look(index))
        right.plot(found.times, found.last(index), **_faint(index))
    left.set(xlabel="solver iterations done", ylabel="relative residual |f(h) - h| / |h|", yscale="log")
    left.set_xticks(range(0, len(found.residuals[0][0]), 2))
    right.set(xlabel=NOISE, yscale="log")
    right.invert_xaxis()
    _legend(left)
    right.legend(handles=_styles(), frameon=False, fontsize=8.5)
    return save(figure, file)


def movement_figure(found: Movement, file: Path) -> list[Path]:
    """How far solutions move from step to step by what happens to a position, against time."""
    figure = Figure(figsize=(6.2, 3.8), layout="constrained", facecolor="white")
    axis = figure.subplots()
    for index, (kind, moved) in enumerate(zip(found.kinds, found.moved, strict=True)):
        if any(each is not None for each in moved):
            axis.plot(found.times, _gapped(moved), label=kind, **_look(index))
    axis.set(xlabel=NOISE, ylabel="distance that the solution moves", ylim=(0, None))
    axis.invert_xaxis()
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    return save(figure, file)


def start_figure(found: Starts, file: Path) -> list[Path]:
    """Distance from where the solver starts to the solution, by step, and by what happened to a position."""
    figure, (left, right) = _two_panels()
    for index in range(len(found.reuses)):
        left.plot(found.times, found.start[index], **_look(index))
        left.plot(found.times, found.stop[index], **_faint(index))
    left.set(xlabel=NOISE, ylabel="relative distance |h - h*| / |h*|", yscale="log")
    left.invert_xaxis()
    left.legend(handles=_styles(), frameon=False, fontsize=8.5)
    kinds = [k for k in range(len(found.kinds)) if found.by_kind[0][k] is not None]
    width = 0.8 / len(found.reuses)
    for index, reuse in enumerate(found.reuses):
        places = np.arange(len(kinds)) + (index - (len(found.reuses) - 1) / 2) * width
        heights = _gapped([found.by_kind[index][k] for k in kinds])
        right.bar(places, heights, width * 0.92, color=COLOURS[index], label=REUSE_TITLES[reuse])
    right.set_xticks(range(len(kinds)), [found.kinds[k].replace(" ", "\n") for k in kinds])
    right.set(ylabel="distance of a position from start to solution")
    right.grid(visible=False, axis="x")
    _legend(right)
    return save(figure, file)


def spent_figure(found: Spent, file: Path) -> list[Path]:
    """Iterations of a sequence against the tolerance, and by step at a tolerance in the middle."""
    figure, (left, right) = _two_panels()
    middle = (len(found.tolerances) - 1) // 2
    for index, reuse in enumerate(found.reuses):
        totals = [found.total(index, place) for place in range(len(found.tolerances))]
        left.plot(found.tolerances, totals, label=REUSE_TITLES[reuse], **_look(index))
        right.plot(found.times, found.spent[index][middle], label=REUSE_TITLES[reuse], **_look(index))
    left.axhline(sum(found.allotted), color="black", linewidth=1, linestyle=":", label="without a tolerance")
    left.set(
        xscale="log", xlabel="tolerance of the relative residual", ylabel="iterations of a sequence", ylim=(0, None)
    )
    left.set_xticks(found.tolerances, [f"{each:g}" for each in found.tolerances])
    left.xaxis.set_minor_locator(NullLocator())
    left.invert_xaxis()
    right.step(found.times, found.allotted, where="mid", color="black", linewidth=1, linestyle=":", label="allotted")
    right.set(xlabel=NOISE, ylabel=f"iterations of a step, tolerance {found.tolerances[middle]:g}", ylim=(0, None))
    right.invert_xaxis()
    _legend(left)
    _legend(right)
    return save(figure, file)


def lagged_figure(found: Lagged, file: Path) -> list[Path]:
    """Head-projected change against steps; lagged KL by lag, or by how much the first model's is lower."""
    figure, (left, right) = _two_panels()
    names = list(short_names(found.models).values())
    for index, change in enumerate(found.change):
        left.plot(found.steps, _gapped(change), label=names[index], **_look(index))
    left.set(
        xlabel="denoising steps", ylabel="change of the logits from a step to the next", xscale="log", ylim=(0, None)
    )
    left.set_xticks(found.steps, [str(each) for each in found.steps])
    left.xaxis.set_minor_locator(NullLocator())
    _legend(left)
    for index, num in enumerate(found.steps):
        look, label = _look(index), f"{num} steps"
        if found.reduction:
            values, low, high = (
                100 * _gapped(each[index]) for each in (found.reduction, found.reduction_low, found.reduction_high)
            )
            lags = np.array(found.lags) + 0.05 * (index - (len(found.steps) - 1) / 2)  # intervals beside each other
            right.errorbar(lags, values, [values - low, high - values], label=label, capsize=2.5, **look)
        else:
            right.plot(found.lags, _gapped(found.kl[0][index]), label=label, **look)
    if found.reduction:
        right.axhline(0, color="black", linewidth=0.8)
        right.set_ylabel(f"reduction of lagged KL, %\n{names[0]} against {names[1]}")
    else:
        kind = "KL(later || step)" if found.kl_over == "later" else "KL(step || later)"
        right.set(ylabel=f"lagged {kind}, nats", ylim=(0, None))
    right.set_xticks(found.lags)
    right.set_xlabel("lag, in steps")
    _legend(right)
    return save(figure, file)


def _two_panels() -> tuple[Figure, tuple[Axes, ...]]:
    figure = Figure(figsize=(11, 3.9), layout="constrained", facecolor="white")
    axes = tuple(figure.subplots(1, 2))
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.set_axisbelow(True)
    return figure, axes


def _look(index: int) -> dict[str, Any]:
    colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
    return {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.5}


def _faint(index: int) -> dict[str, Any]:
    return {**_look(index), "marker": "", "linestyle": "--", "linewidth": 1.2}


def _styles() -> list[Line2D]:
    """What lines of any colour mean."""
    start = Line2D([], [], **{**_look(0), "color": "#555555"}, label="where the solver starts")
    stop = Line2D([], [], **{**_faint(0), "color": "#555555"}, label="where the sampler stops")
    return [start, stop]


def _gapped(values: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if each is None else each for each in values], float)


def _legend(axis: Axes) -> None:
    axis.legend(frameon=False, fontsize=8.5)
