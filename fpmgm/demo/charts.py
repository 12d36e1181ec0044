"""Small line charts as SVG, drawn in the colours of the page, light or dark, with a point for each number."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 420, 200
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 26, 36
Number = int | float
MARKS = ("circle", "square", "diamond", "cross")
"""Lines differ by their marks, not only by their colours."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a chart."""

    name: str
    points: tuple[tuple[Number, Number], ...]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """The range of an axis, and where its marks stand."""

    low: Number
    high: Number
    ticks: tuple[Number, ...]
    is_log: bool = False

    def at(self, value: Number) -> float:
        """Where a value stands, from 0 to 1."""
        low, high, value = (math.log10(each) if self.is_log else each for each in (self.low, self.high, value))
        return (value - low) / (high - low)


def axis_of(values: Sequence[Number], *, is_log: bool = False, from_zero: bool = False) -> Axis:
    """An axis that holds all values, with round numbers as marks.

    >>> axis_of([0, 16]).ticks
    (0.0, 5.0, 10.0, 15.0)
    >>> axis_of([0.002, 0.3], is_log=True).ticks
    (0.001, 0.01, 0.1, 1.0)
    >>> axis_of([0.02, 0.03], is_log=True).ticks
    (0.01, 0.02, 0.05, 0.1)
    """
    low, high = min(values), max(values)
    if is_log:
        first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
        last = max(last, first + 1)
        parts = (1, 2, 5) if last - first == 1 else (1,)
        ticks = [float(f"{part}e{each}") for each in range(first, last) for part in parts]
        return Axis(low=10.0**first, high=10.0**last, ticks=(*ticks, float(f"1e{last}")), is_log=True)
    low = min(low, 0.0) if from_zero else low
    if high <= low:
        high = low + max(1.0, abs(low))
    step = _round_step((high - low) / 4)
    first = math.ceil(low / step - 1e-9)
    return Axis(
        low=low, high=high, ticks=tuple(step * each for each in range(first, math.floor(high / step + 1e-9) + 1))
    )


def _round_step(rough: Number) -> float:
    size = 10.0 ** math.floor(math.log10(rough))
    return size * next(each for each in (1, 2, 5, 10) if each * size >= rough - 1e-9 * size)


def chart(
    lines: Sequence[Line],
    *,
    title: str,
    x_title: str,
    is_log: bool = False,
    from_zero: bool = False,
    marked: Sequence[Number] = (),
    x_range: Sequence[Number] = (),
) -> str:
    """An SVG of some lines. `marked` are places on the x axis to point at; `x_range` holds places it must show."""
    points = [point for line in lines for point in line.points if not is_log or point[1] > 0]
    if not points:
        return f'<figure class="fp-chart"><figcaption>{escape(title)}: nothing to show yet.</figcaption></figure>'
    x = axis_of([*(point[0] for point in points), *x_range])
    y = axis_of([point[1] for point in points], is_log=is_log, from_zero=from_zero)
    told = "; ".join(f"{line.name}, from {line.points[0][1]:.3g} to {line.points[-1][1]:.3g}" for line in lines)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(f"{title}: {told}")}">',
        f'<text class="fp-title" x="{LEFT}" y="15">{escape(title)}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_title)}</text>',
        *(_tick_y(y, tick) for tick in y.ticks),
        *(_tick_x(x, tick) for tick in x.ticks),
        *(_mark_at(x, place) for place in marked),
        *(_line(line, index, x, y) for index, line in enumerate(lines)),
    ]
    return f'<figure class="fp-chart">{"".join(parts)}</svg>{_names(lines)}</figure>'


def _place(x: Axis, y: Axis, point: tuple[Number, Number]) -> tuple[float, float]:
    across, up = x.at(point[0]), y.at(point[1])
    return round(LEFT + across * (WIDTH - LEFT - RIGHT), 1), round(HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM), 1)


def _tick_y(y: Axis, tick: Number) -> str:
    place = _place(Axis(low=0, high=1, ticks=()), y, (0, tick))[1]
    return (
        f'<line class="fp-grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{place}" y2="{place}"/>'
        f'<text x="{LEFT - 6}" y="{place + 4}" text-anchor="end">{tick:g}</text>'
    )


def _tick_x(x: Axis, tick: Number) -> str:
    place = _place(x, Axis(low=0, high=1, ticks=()), (tick, 0))[0]
    return f'<text x="{place}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{tick:g}</text>'


def _mark_at(x: Axis, value: Number) -> str:
    place = _place(x, Axis(low=0, high=1, ticks=()), (value, 0))[0]
    return f'<line class="fp-here" x1="{place}" x2="{place}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'


def _line(line: Line, index: int, x: Axis, y: Axis) -> str:
    shown = [point for point in line.points if not y.is_log or point[1] > 0]
    places = [_place(x, y, point) for point in shown]
    path = " ".join(f"{across},{down}" for across, down in places)
    marks = "".join(
        f"<g>{_mark(MARKS[index % len(MARKS)], *place)}"
        f"<title>{escape(line.name)}: {point[0]:g}, {point[1]:.3g}</title></g>"
        for place, point in zip(places, shown, strict=True)
    )
    return f'<g class="fp-line fp-line-{index % len(MARKS)}"><polyline points="{path}"/>{marks}</g>'


def _mark(kind: str, x: Number, y: Number) -> str:
    if kind == "circle":
        return f'<circle cx="{x}" cy="{y}" r="3"/>'
    if kind == "square":
        return f'<rect x="{x - 3}" y="{y - 3}" width="6" height="6"/>'
    if kind == "diamond":
        return f'<path d="M{x} {y - 4}L{x + 4} {y}L{x} {y + 4}L{x - 4} {y}Z"/>'
    return f'<path d="M{x - 3} {y - 3}L{x + 3} {y + 3}M{x - 3} {y + 3}L{x + 3} {y - 3}"/>'


def _names(lines: Sequence[Line]) -> str:
    """The names of the lines, if there are several."""
    if len(lines) < 2:
        return ""
    items = "".join(
        f'<li><svg viewBox="0 0 22 10" aria-hidden="true"><g class="fp-line fp-line-{index % len(MARKS)}">'
        f'<polyline points="0,5 22,5"/>{_mark(MARKS[index % len(MARKS)], 11, 5)}</g></svg> {escape(line.name)}</li>'
        for index, line in enumerate(lines)
    )
    return f'<ul class="fp-legend">{items}</ul>'
