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
    """Generative perplexity against entropy, a line for each budget."""
    rows = [
        row
        for row in _objects(report.get("frontier"))
        if all(isinstance(row.get(name), int | float) for name in ("budget", "entropy", "perplexity"))
    ]
    budgets = sorted({row["budget"] for row in rows})
    if not budgets:
        return '<p class="fp-note">The frontier of entropy and perplexity was not measured.</p>' if report else ""
    lines = [
        Line(
            name=f"{budget:g} block evaluations",
            points=tuple(sorted((row["entropy"], row["perplexity"]) for row in rows if row["budget"] == budget)),
        )
        for budget in budgets[-LINES:]
    ]
    drawn = chart(lines, title="generative perplexity", x_title="unigram entropy, nats")
    head = ("block evaluations", "temperature", "entropy, nats", "generative perplexity")
    cells = [[_number(row.get(name)) for name in ("budget", "temperature", "entropy", "perplexity")] for row in rows]
    return _charts([drawn]) + _table("Frontier", head, cells)


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
