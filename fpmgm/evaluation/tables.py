"""Tables of results, in Markdown and LaTeX, with the best cell of each column marked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: its title, the value of a row (a number, an interval or a text), and which end is best."""

    title: str
    value: Callable[[Row], Any]
    digits: int = 1
    best: str = ""
    """`lowest`, `highest`, or empty for a column without a best."""


def metric(name: str, title: str, *, digits: int = 1, best: str = "") -> Column:
    """A column of a measured metric, with its interval."""
    return Column(title=title, value=lambda row: row["metrics"].get(name), digits=digits, best=best)


def markdown(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """A table in Markdown; the best cell of a column is bold."""
    lines = [" | ".join(column.title for column in columns), " | ".join("---" for _ in columns)]
    lines += [" | ".join(cells) for cells in _cells(rows, columns, "**{}**".format)]
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def latex(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """A table in LaTeX (booktabs); the best cell of a column is bold."""

    def escaped(text: str) -> str:
        return "".join(f"\\{letter}" if letter in "_%&#$" else letter for letter in text)

    lines = [f"\\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}", "\\toprule"]
    lines += [" & ".join(escaped(column.title) for column in columns) + " \\\\", "\\midrule"]
    for cells in _cells(rows, columns, lambda cell: f"\\textbf{{{cell}}}", escaped):
        lines.append(" & ".join(cells) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _cells(
    rows: Sequence[Row],
    columns: Sequence[Column],
    mark: Callable[[str], str],
    escaped: Callable[[str], str] = str,
) -> list[list[str]]:
    best = {column.title: _best(rows, column) for column in columns}
    found = []
    for index, row in enumerate(rows):
        cells = [escaped(shown(column.value(row), column.digits)) for column in columns]
        found.append(
            [mark(cell) if best[column.title] == index else cell for cell, column in zip(cells, columns, strict=True)]
        )
    return found


def _best(rows: Sequence[Row], column: Column) -> int | None:
    if not column.best:
        return None
    numbers = {index: number for index, row in enumerate(rows) if (number := _number(column.value(row))) is not None}
    if not numbers:
        return None
    choose = {"lowest": min, "highest": max}[column.best]
    return choose(numbers, key=numbers.__getitem__)


def _number(value: Any) -> float | None:
    if isinstance(value, dict):
        return float(value["value"])
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def shown(value: Any, digits: int) -> str:
    """A number, an interval (with a note, if it has one) or a text, as a table shows it.

    >>> shown({"value": 12.345, "low": 11.9, "high": 12.8}, 1)
    '12.3 [11.9, 12.8]'
    >>> shown(None, 1), shown(96, 1), shown(0.25, 2)
    ('', '96', '0.25')
    """
    if value is None:
        return ""
    if isinstance(value, dict):
        interval = f"{value['value']:.{digits}f} [{value['low']:.{digits}f}, {value['high']:.{digits}f}]"
        return f"{interval} {value['note']}" if "note" in value else interval
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)
