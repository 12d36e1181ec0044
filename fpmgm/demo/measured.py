"""What was measured of a model, as HTML: validation, quality against budget, and its frontier."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fpmgm.demo.charts import Line, chart
from fpmgm.demo.offers import Offer

NOTHING = "Nothing was measured of this model yet. <code>fpmgm evaluate {name} --out FOLDER</code> measures it."
LINES = 4
"""Budgets of a frontier that are drawn."""


def measured_of(offer: Offer) -> str:
    """All that the report of a model tells, or a sentence that there is nothing."""
    parts = [_validation(offer.report), _quality(offer.report), _frontier(offer.report)]
    shown = "".join(part for part in parts if part)
    nothing = f'<p class="fp-note">{NOTHING.format(name=escape(offer.name))}</p>'
    return f'<div class="fp-stage"><p class="fp-note">{escape(offer.described)}.</p>{shown or nothing}</div>'


def card_of(offer: Offer) -> str:
    """The card of a model as Markdown, without its header and its pictures, which lie in the model folder."""
    card = re.sub(r"\A---\n.*?\n---\n", "", offer.model.card, flags=re.DOTALL)
    return re.sub(r"^!\[[^\]]*\]\([^)]*\)\s*$", "", card, flags=re.MULTILINE) or "This model has no card."


def _validation(report: Mapping[str, Any]) -> str:
    rows = []
    for found in _objects(report.get("validation")):
        if not isinstance(found.get("value"), int | float):
            continue
        metric = str(found.get("metric", "perplexity"))
        rows.append([metric, _number(found["value"]), _number(found.get("error")), f"{found.get('num_sequences', '')}"])
        for iters, value in (found.get("by_iterations") or {}).items():
            rows.append([f"{metric}, {iters} solver iterations", _number(value), "", ""])
    head = ("held-out data", "value", "standard error", "sequences")
    return _table("Validation", head, rows) if rows else ""


def _quality(report: Mapping[str, Any]) -> str:
    """A table of the samples at each budget, and a chart of each metric."""
    rows = [row for row in _objects(report.get("samples")) if isinstance(row.get("metrics"), dict) and _budget(row)]
    if not rows:
        return ""
    names = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    head = ("block evaluations", *(name.replace("_", " ") for name in names))
    cells = [[f"{_budget(row)}", *(_interval(row["metrics"].get(name)) for name in names)] for row in rows]
    charts = [
        chart([Line(name=name, points=points)], title=name.replace("_", " "), x_title="budget, block evaluations")
        for name in names
        if len(points := _points(rows, name)) > 1
    ]
    return _table("Quality at each budget, 95 % intervals", head, cells) + _charts(charts)


def _points(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[tuple[float, float], ...]:
    found = [(float(_budget(row)), float(row["metrics"][name]["value"])) for row in rows if name in row["metrics"]]
    return tuple(sorted(found))


def _frontier(report: Mapping[str, Any]) -> str:
    """Generative perplexity against entropy, a line for each budget, with real text beside them."""
    rows, real = frontier_rows(report.get("frontier"))
    if not rows:
        return '<p class="fp-note">The frontier of entropy and perplexity was not measured.</p>' if report else ""
    lines = [
        Line(
            name=f"{budget:g} block evaluations",
            points=tuple(sorted((row["entropy"], row["perplexity"]) for row in rows if row["budget"] == budget)),
        )
        for budget in sorted({row["budget"] for row in rows})[-LINES:]
    ]
    if real:
        lines.append(Line(name="real text", points=(real,)))
    drawn = chart(lines, title="Generative perplexity by a judge", x_title="unigram entropy, nats", is_log=True)
    head = ("block evaluations", "setting", "entropy, nats", "generative perplexity")
    cells = [
        [_number(row["budget"]), _setting(row), _number(row["entropy"]), _number(row["perplexity"])] for row in rows
    ]
    return _charts([drawn]) + _table("Frontier", head, cells)


def frontier_rows(found: Any) -> tuple[list[Mapping[str, Any]], tuple[float, float] | None]:
    """Rows with budget, entropy and perplexity, and the place of real text.

    `found` is what `fpmgm frontier` keeps in report.json, or a list of such rows. What is no row is left out.
    """
    real = None
    if isinstance(found, dict):
        points = _objects(found.get("points"))
        told = found.get("real")
        real = _place(told.get("metrics")) if isinstance(told, dict) else None
        rows = [{**point, **_told(_place(point.get("metrics")))} for point in points]
    else:
        rows = [dict(row) for row in _objects(found)]
    needed = ("budget", "entropy", "perplexity")
    return [row for row in rows if all(isinstance(row.get(name), int | float) for name in needed)], real


def _place(metrics: Any) -> tuple[float, float] | None:
    """Entropy and generative perplexity of some metrics."""
    names = ("entropy", "perplexity_per_sample")
    values = [metrics.get(name) for name in names] if isinstance(metrics, dict) else []
    found = [each["value"] for each in values if isinstance(each, dict) and isinstance(each.get("value"), int | float)]
    return (float(found[0]), float(found[1])) if len(found) == len(names) else None


def _told(place: tuple[float, float] | None) -> dict[str, float]:
    return {} if place is None else {"entropy": place[0], "perplexity": place[1]}


def _setting(row: Mapping[str, Any]) -> str:
    """What a point of the frontier differs in from others."""
    if "knob" in row:
        return f"{str(row['knob']).replace('_', ' ')} {_number(row.get('setting'))}"
    return f"temperature {_number(row.get('temperature'))}" if "temperature" in row else ""


def _budget(row: Mapping[str, Any]) -> int:
    sampling = row.get("sampling")
    budget = sampling.get("budget") if isinstance(sampling, dict) else row.get("budget")
    return budget if isinstance(budget, int) else 0


def _objects(found: Any) -> list[Mapping[str, Any]]:
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _interval(metric: Any) -> str:
    if not isinstance(metric, dict) or not isinstance(metric.get("value"), int | float):
        return ""
    low, high = metric.get("low"), metric.get("high")
    around = f" [{_number(low)}, {_number(high)}]" if isinstance(low, int | float) else ""
    return f"{_number(metric['value'])}{around}"


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.4g}"


def _charts(charts: Sequence[str]) -> str:
    return f'<div class="fp-charts">{"".join(charts)}</div>' if charts else ""


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{escape(each)}</th>' for each in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(each)}</td>' for each in row)}</tr>" for row in rows)
    return (
        f'<div class="fp-table"><table><caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
