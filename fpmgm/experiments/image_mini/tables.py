"""The tables of the page on images, and grids of samples that nobody chose."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fpmgm.checkpoint import Model
from fpmgm.codecs.images import Picture, as_picture
from fpmgm.data.pixels import load_pixels
from fpmgm.evaluation.images import FRECHET, image_codec, images_of
from fpmgm.evaluation.intervals import Interval
from fpmgm.evaluation.rows import Row
from fpmgm.experiments.image_mini.lines import Table
from fpmgm.experiments.image_mini.page import Found
from fpmgm.files import whole_file
from fpmgm.pictures import grid_png
from fpmgm.training.metrics import read_metrics

FINDINGS = "findings.md"
"""A file beside the report, written by a person, which the report opens with if it is there."""
COLUMNS = 10
"""Of a grid: a class each."""
NUM_ROWS = 4
GRID_BUDGET = 96
NOT_MEASURED = "not measured"


def claims(folder: Path) -> str:
    """What the tables show of the paper's claims, in a person's words; a hint if nobody has written them yet."""
    file = folder / FINDINGS
    if not file.is_file():
        return f"(Nobody has written down yet what these tables show: put it into {FINDINGS} beside this page.)"
    return file.read_text(encoding="utf-8").strip()


def not_here(section: str, what: str = "") -> str:
    """A sentence on what nobody has measured, and the command that does it."""
    return f"Not measured here{what and f': {what}'}. `fpmgm reproduce image-mini --only {section}` does it."


def without_missing(section: str, table: Table, found: Found) -> tuple[Table, str]:
    """The table without lines and budgets that came later and that nobody has measured, and a sentence on these."""
    budgets = [each for each in table.late_budgets if any(each in own for own in found.values())]
    lines = [line for line in table.lines if not line.is_late or found[line.key]]
    missing = [line.name for line in table.lines if line not in lines]
    missing += [f"{each} blocks" for each in table.late_budgets if each not in budgets]
    shown = table._replace(lines=tuple(lines), late_budgets=tuple(budgets))
    return shown, not_here(section, "; ".join(missing)) if missing else ""


def how_many(table: Table) -> str:
    """What a cell is made of, in words."""
    guided = f"guidance of weight {table.cfg_weight:g}" if table.cfg_weight else "without guidance"
    return (
        f"{table.num_samples} samples a cell and seed, {guided}; 95 % intervals over samples, of several seeds all "
        "that they span."
    )


def distances_table(table: Table, found: Found) -> str:
    """Fréchet distances, and below each the label accuracy; the lowest of a column is bold."""

    def cell(rows: Sequence[Row], best: float) -> str:
        accuracy = sum(row.metrics["accuracy"].value for row in rows) / len(rows)
        return f"{_bold(_over(rows, FRECHET.name), best)}<br>{accuracy:.1%}"

    return _table(table, found, min, FRECHET.name, cell)


def scores_table(table: Table, found: Found) -> str:
    """The score by the classifier; the highest of a column is bold."""
    name = "classifier_score"
    return f"{SCORE}\n\n{_table(table, found, max, name, lambda rows, best: _bold(_over(rows, name), best))}"


SCORE = (
    "The score by the classifier stands where the paper has the Inception Score: the same formula with the ten "
    "classes of our classifier, so at most 10. It is not comparable with the paper's. Higher is better."
)


def _table(
    table: Table,
    found: Found,
    choose: Callable[[Sequence[float]], float],
    metric: str,
    cell: Callable[[Sequence[Row], float], str],
) -> str:
    """A line for every network and reuse, a column for every budget, with what `cell` writes of its rows."""
    budgets = sorted((*table.budgets, *table.late_budgets))
    lines = [
        f"| model | reuse | seeds | {' | '.join(f'{budget} blocks' for budget in budgets)} |",
        f"| --- | --- | --- |{' --- |' * len(budgets)}",
    ]
    best = {
        budget: choose([_over(own[budget], metric).value for own in found.values() if budget in own] or [0.0])
        for budget in budgets
    }
    for line in table.lines:
        own = found[line.key]
        cells = [cell(own[budget], best[budget]) if budget in own else NOT_MEASURED for budget in budgets]
        seeds = max(map(len, own.values()), default=0)
        lines.append(f"| {line.name} | {line.reuse} | {seeds or ''} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _over(rows: Sequence[Row], metric: str) -> Interval:
    """The mean over seeds, and all that their intervals span."""
    found = [row.metrics[metric] for row in rows]
    return Interval(
        value=sum(each.value for each in found) / len(found),
        low=min(each.low for each in found),
        high=max(each.high for each in found),
    )


def _bold(own: Interval, best: float) -> str:
    value = f"**{own.value:.2f}**" if own.value == best else f"{own.value:.2f}"
    return f"{value} [{own.low:.2f}, {own.high:.2f}]"


def real_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The same numbers of real images, and of real images through the tokenizer: what samples could reach at best."""
    lines = ["| images | Fréchet distance | label accuracy | score by the classifier |", "| --- | --- | --- | --- |"]
    for name, metrics in found.items():
        distance, accuracy, score = (
            Interval(**metrics[each]) for each in (FRECHET.name, "accuracy", "classifier_score")
        )
        lines.append(f"| {name} | {distance:.2f} | {accuracy.value:.1%} | {score:.2f} |")
    return "\n".join(lines)


def inception_table(table: Table, found: Found) -> str:
    """FID, KID, precision and recall, one seed."""
    lines = [
        "| model | reuse | blocks | FID | KID | precision | recall |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for budget in sorted((*table.budgets, *table.late_budgets)):
        for line in table.lines:
            (row,) = found[line.key].get(budget, [None])
            values = [row.metrics[name] for name in ("fid", "kid", "precision", "recall")] if row else []
            cells = [f"{each:.{digits}f}" for each, digits in zip(values, (1, 4, 3, 3), strict=False)]
            told = " | ".join(cells or [NOT_MEASURED, "", "", ""])
            lines.append(f"| {line.name} | {line.reuse} | {budget} | {told} |")
    return "\n".join(lines)


def trainings_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Updates, minutes and validation of every run, as it counted them on whatever machine was free."""
    lines = ["| model | updates | minutes | validation, nats a masked token |", "| --- | --- | --- | --- |"]
    for name, own in found.items():
        told = "" if own["validation"] is None else f"{own['validation']:.3f}"
        lines.append(f"| {name} | {own['updates']:,} | {own['seconds'] / 60:.0f} | {told} |")
    return "\n".join(lines)


def training_of(run: Path) -> dict[str, Any]:
    """What a run told of itself."""
    rows = read_metrics(run)
    return {
        "updates": rows[-1]["update"],
        "seconds": sum(row.get("seconds", 0.0) for row in rows),
        "validation": next((row["validation"] for row in reversed(rows) if "validation" in row), None),
    }


def draw(file: Path, pictures: Sequence[Picture]) -> str:
    """Write a grid of pictures, a class a column; returns what tells the file from others."""
    with whole_file(file) as scratch:
        scratch.write_bytes(grid_png(list(pictures), columns=COLUMNS, scale=2))
    return digest(file)


def digest(file: Path) -> str:
    """What tells a file from others; empty if it is not there."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.is_file() else ""


def real_pictures(model: Model, num: int) -> list[Picture]:
    """Held-out images, of the classes in turn."""
    pixels, names = load_pixels(images_of(model)), image_codec(model).class_names
    by_class = [pixels.held_out[pixels.labels[pixels.held_out] == index] for index in range(len(names))]
    rows = [by_class[index % len(names)][index // len(names)] for index in range(num)]
    return [as_picture(torch.from_numpy(pixels.images[row].copy())) for row in rows]
