"""How frontiers are shown: a plot, tables, a page, and lines for the card of a model."""

import json
import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fpmgm.evaluation.frontier import Pair
from fpmgm.evaluation.frontier_asked import Frontiers
from fpmgm.evaluation.frontier_found import Found, Point, RealText, apart
from fpmgm.evaluation.frontier_plot import draw_frontiers
from fpmgm.evaluation.intervals import Interval
from fpmgm.evaluation.layout import Reference
from fpmgm.evaluation.tables import Column, markdown, metric
from fpmgm.files import write_json, write_text
from fpmgm.schema import read_object

PAGE, RESULTS = "README.md", "frontier.json"
HEADING = "## Frontier"
"""Of the part of a model card."""


def _interval(value: float | None, low: float | None, high: float | None) -> Interval | None:
    if value is None or low is None or high is None:
        return None
    return Interval(value=value, low=low, high=high)


def _range(low: float | None, high: float | None, digits: int) -> str | None:
    return None if low is None or high is None else f"{low:.{digits}f} to {high:.{digits}f}"


def _remark(pair: Pair) -> str | None:
    """What a reader must know of a comparison."""
    if pair.ratio is None:
        return f"No shared entropies: {apart(pair)}."
    return "outside the entropies of real text" if pair.in_band is False else None


PAIRS = (
    Column(title="model", value=lambda pair: pair.model),
    Column(title="against", value=lambda pair: pair.against),
    Column(title="blocks", value=lambda pair: pair.budget),
    Column(title="ratio of perplexities", digits=2, value=lambda pair: _interval(pair.ratio, pair.low, pair.high)),
    Column(title="at entropies", value=lambda pair: _range(pair.entropy_low, pair.entropy_high, 2)),
    Column(
        title="difference of entropies",
        digits=3,
        rank=2,
        value=lambda pair: _interval(pair.entropy_difference, pair.difference_low, pair.difference_high),
    ),
    Column(title="at perplexities", rank=3, value=lambda pair: _range(pair.perplexity_low, pair.perplexity_high, 0)),
    Column(title="remark", rank=1, value=_remark),
)
"""Columns of a table of pairs."""
MEASURED = (
    metric("perplexity_per_sample", "generative perplexity"),
    metric("entropy", "entropy", digits=3),
    metric("set_distinct_4", "distinct 4-grams of all", digits=3, rank=2),
    metric("overlap_4", "shared 4-grams", digits=3, rank=1),
    metric("shared_openings", "shared openings", digits=3, rank=1),
    metric("repetition_4", "repetition", digits=3, rank=3),
)
READING = (
    "The ratio is that of generative perplexities at equal unigram entropy, as a geometric mean over the entropies "
    "that both frontiers reach. Below 1, `model` is the better one. The difference is that of entropies at equal "
    "perplexity. Above 0, `model` is the better one."
)


def point_columns(points: Sequence[Point]) -> tuple[Column, ...]:
    """Columns of a table of points."""
    knob = points[0].knob.replace("_", "-")
    return (
        Column(title="model", value=lambda point: point.model),
        Column(title="blocks", value=lambda point: point.budget),
        Column(title=knob, digits=2, value=lambda point: point.setting),
        *MEASURED,
    )


def how_measured(found: Found) -> str:
    """What a reader must know of all numbers, as one paragraph."""
    asked = found.asked
    seeds = f"{len(asked.seeds)} seeds of " if len(asked.seeds) > 1 else ""
    return (
        f"Each point has {seeds}{asked.num_samples} samples. The judge is {found.judge}, by the convention "
        f"`{found.rows[0].protocol.convention}`. {_revealed(found)} Tokens are drawn in {asked.dtype}, networks "
        f"compute in {asked.compute}. Intervals are of 95 %, those of pairs by a paired bootstrap over samples"
        f"{' and training runs' if any(len(line.models) > 1 for line in asked.lines) else ''}."
    )


def _revealed(found: Found) -> str:
    """By which rule steps reveal tokens, as a sentence."""
    lines, by_rule = found.asked.lines, dict[str, list[str]]()
    points = len(found.rows) // len(lines)
    for line, row in zip(lines, found.rows[::points], strict=True):
        by_rule.setdefault(row.sampling.transition, []).append(line.name)
    if len(by_rule) == 1:
        return f"The rule by which steps reveal tokens is `{next(iter(by_rule))}`."
    told = (f"`{rule}` in {', '.join(names)}" for rule, names in by_rule.items())
    return f"The rules by which steps reveal tokens are {'; '.join(told)}."


def about_real(real: RealText | None) -> str:
    """Real text, as one paragraph; empty if there is none."""
    if real is None:
        return ""
    perplexity, entropy = real.metrics["perplexity_per_sample"], real.metrics["entropy"]
    low, high = real.band
    return (
        f"Real text ({real.num_sequences:,} sequences of {real.words}) has perplexity {perplexity:.1f} and entropy "
        f"{entropy:.3f}. 5 % of its sequences lie below an entropy of {low:.2f} and 5 % above {high:.2f}: pairs are "
        "compared between these where both frontiers reach there."
    )


def write_page(found: Found, folder: Path) -> list[Path]:
    """The page with its plot and the JSON; the same bytes for the same rows."""
    plots = draw_frontiers(found, folder / "frontier")
    lines = [
        "# Frontiers",
        "",
        f"    {command_of(found.asked)}",
        "",
        _filled(how_measured(found)),
        *(["", _filled(about_real(found.real))] if found.real else []),
        "",
        f"![Entropy against generative perplexity, a panel a budget]({plots[0].name})",
        "",
        _filled(_marks(found)),
        "",
    ]
    if found.pairs:
        columns = [column for column in PAIRS if any(column.value(pair) is not None for pair in found.shown)]
        lines += ["## At equal entropy", "", _filled(READING), "", markdown(found.shown, columns)]
    lines += ["## All points", "", markdown(found.points, point_columns(found.points))]
    if found.real:
        real = [Reference("real text", found.real.metrics)]
        lines += [markdown(real, (Column(title="for comparison", value=lambda row: row.model), *MEASURED))]
    write_text(folder / PAGE, "\n".join(lines))
    files = [folder / PAGE, folder / RESULTS, *plots]
    write_json(folder / RESULTS, {**found.as_json(), "files": [file.name for file in files]})
    return files


def _filled(text: str) -> str:
    """A paragraph in lines of a page."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _marks(found: Found) -> str:
    has_one = found.asked.knob == "temperature" and 1.0 in found.asked.settings
    full = " The filled point of a line is temperature 1." if has_one else ""
    band = " The star is real text, and the grey band holds 90 % of its sequences." if found.real else ""
    return f"Lower is better, at the same entropy.{full}{band}"


def command_of(asked: Frontiers) -> str:
    """What to type to make the same page."""
    words = ["fpmgm", "frontier", *asked.models]
    for each in fields(Frontiers):
        value = getattr(asked, each.name)
        if each.name in ("models", "device") or value == each.default:
            continue
        texts = map(str, value) if isinstance(value, tuple) else [str(value)]
        words += [f"--{each.name.replace('_', '-')}", *texts]
    return shlex.join(words)


KEPT = ("judge", "judged_by", "convention", "dtype", "compute", "num_samples", "seeds", "real")


def report_of(whole: Mapping[str, Any], line: str) -> dict[str, Any]:
    """What the report.json of a model keeps of frontier.json: its own points and pairs, and real text."""
    points = [point for point in whole["points"] if point["model"] == line]
    if not points:
        known = ", ".join(dict.fromkeys(point["model"] for point in whole["points"]))
        raise ValueError(f"line is {line!r}, and the frontiers are those of {known}")
    pairs = [pair for pair in whole["pairs"] if pair["model"] == line]
    kept = {"compute": "float32", **{name: whole[name] for name in KEPT if name in whole}}
    return {**kept, "points": points, "pairs": pairs}


def card_lines(report: Mapping[str, Any]) -> list[str]:
    """The frontier of a model as its card shows it, from what `report_of` kept; nothing if nothing was kept."""
    kept = report.get("frontier")
    if not kept:
        return []
    pairs = [read_object(Pair, pair, "frontier.pairs") for pair in kept["pairs"]]
    points = [Point(**{**point, "metrics": _intervals(point["metrics"])}) for point in kept["points"]]
    judge = f"{kept['judge']}, convention {kept.get('convention', 'paper')}"
    precision = f"sampled in {kept.get('compute', 'float32')}"
    lines = [HEADING, "", f"Judge: {judge}; {kept['num_samples']} samples a point and seed, {precision}.", ""]
    if pairs:
        columns = [column for column in PAIRS if any(column.value(pair) is not None for pair in pairs)]
        lines += [_filled(READING), "", markdown(pairs, columns)]
    columns = list(point_columns(points)[1:]) if points else []
    return [*lines, *([markdown(points, columns)] if points else [])]


def store_report(folder: Path, whole: Mapping[str, Any], line: str) -> None:
    """Put the frontier of a model, out of frontier.json, into its report.json and, before all else, into its card."""
    report, card = folder / "report.json", folder / "README.md"
    kept = json.loads(report.read_text(encoding="utf-8")) if report.is_file() else {}
    kept["frontier"] = report_of(whole, line)
    write_json(report, kept)
    parts = re.split(r"(?m)^(?=## )", card.read_text(encoding="utf-8"))
    parts = [part for part in parts if not part.startswith(HEADING)]
    own = "\n".join(card_lines(kept)).rstrip("\n") + "\n\n"
    write_text(card, "".join([*parts[:1], own, *parts[1:]]))


def _intervals(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, Interval]:
    return {name: Interval(**values) for name, values in metrics.items()}
