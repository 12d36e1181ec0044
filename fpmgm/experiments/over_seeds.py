"""Lines of a table whose cells are numbers over seeds."""

from collections.abc import Sequence
from typing import NamedTuple

from fpmgm.evaluation.intervals import Interval
from fpmgm.evaluation.rows import Row
from fpmgm.evaluation.tables import Column, Noted
from fpmgm.reuse import ReuseName

REUSES: tuple[ReuseName, ...] = ("none", "full", "three-state")


class TableLine(NamedTuple):
    """A line as the table shows it."""

    name: str
    reuse: str
    cells: dict[int, Noted]
    """By budget."""


def over_seeds(rows: Sequence[Row], name: str) -> Noted:
    """A metric with its interval, or the mean over seeds and all that their intervals span; the entropy beside it."""
    values: list[Interval] = [row.metrics[name] for row in rows]
    entropy = sum(row.metrics["entropy"].value for row in rows) / len(rows)
    return Noted(
        value=sum(each.value for each in values) / len(values),
        low=min(each.low for each in values),
        high=max(each.high for each in values),
        note=f"({entropy:.2f})",
    )


def budget_column(budget: int) -> Column:
    """The cells of a budget; the lowest is the best."""
    return Column(title=f"{budget} blocks", value=lambda line: line.cells[budget], best="lowest")
