"""Tables of results, in Markdown, LaTeX (with the best cell of each column marked) and on a terminal of any width."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from fpmgm.evaluation.intervals import Interval
from fpmgm.names import short_names

Record = Any
"""What a row of a table is made from: a `Row`, or any record whose columns know it."""


@dataclass(frozen=True, kw_only=True)
class Noted(Interval):
    """An interval with a word beside it."""

    note: str


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: its title, the value of a row (a number, an interval or a text), and which end is best."""

    title: str
    value: Callable[[Record], Any]
    digits: int = 1
    best: str = ""
    """`lowest`, `highest`, or empty for a column without a best."""
    rank: int = 0
    """On a narrow terminal, columns of the highest rank are left out first; those of rank 0 never."""


def metric(name: str, title: str, *, digits: int = 1, best: str = "", rank: int = 0) -> Column:
    """A column of a measured metric, with its interval."""
    return Column(title=title, value=lambda row: row.metrics.get(name), digits=digits, best=best, rank=rank)


def model_column(rows: Sequence[Record]) -> Column:
    """The column of the models' names, each as long as it must be to tell it from the others."""
    names = short_names(row.model for row in rows)
    return Column(title="model", value=lambda row: names[row.model])


def terminal_table(rows: Sequence[Record], columns: Sequence[Column], width: int, **options: Any) -> Table:
    """A table for a terminal of that width: no word is cut, and a caption names the columns there is no room for.

    Columns that have no value in any row are left out.
    """
    columns = [column for column in columns if any(column.value(row) is not None for row in rows)]
    cells = {column.title: [shown(column.value(row), column.digits) for row in rows] for column in columns}
    kept, widths = _fitting(columns, cells, width)
    left_out = [column.title for column in columns if column not in kept]
    table = Table(**options)
    if left_out:
        table.caption = " ".join(
            filter(None, [str(table.caption or ""), f"Not shown at this width: {', '.join(left_out)}."])
        )
    for column, size in zip(kept, widths, strict=True):
        is_text = not any(cell[:1].isdigit() for cell in cells[column.title])
        table.add_column(column.title, justify="left" if is_text else "right", min_width=size, max_width=size)
    for index in range(len(rows)):
        table.add_row(*(cells[column.title][index] for column in kept))
    return table


def _fitting(
    columns: Sequence[Column], cells: dict[str, list[str]], width: int
) -> tuple[Sequence[Column], Sequence[int]]:
    """The columns that fit with their widths: cells in one line where there is room, else broken between words."""
    least_wanted = sorted((column for column in columns if column.rank), key=lambda column: -column.rank)
    for num in range(len(least_wanted) + 1):
        kept = [column for column in columns if column not in least_wanted[:num]]
        widths = [max(_in_words([column.title]), _in_words(cells[column.title])) for column in kept]
        room = width - sum(widths) - 3 * len(kept) - 1
        if room >= 0:
            break
    wanted = [max(0, _in_one_line(cells[column.title]) - size) for column, size in zip(kept, widths, strict=True)]
    for index in sorted(range(len(kept)), key=wanted.__getitem__):
        more = max(0, min(room, wanted[index]))
        widths[index], room = widths[index] + more, room - more
    return kept, widths


def _in_one_line(texts: Sequence[str]) -> int:
    return max(map(len, texts), default=0)


def _in_words(texts: Sequence[str]) -> int:
    return max((len(word) for text in texts for word in text.split()), default=0)


def markdown(rows: Sequence[Record], columns: Sequence[Column]) -> str:
    """A table in Markdown; the best cell of a column is bold."""
    lines = [" | ".join(column.title for column in columns), " | ".join("---" for _ in columns)]
    lines += [" | ".join(cells) for cells in _cells(rows, columns, "**{}**".format)]
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def latex(rows: Sequence[Record], columns: Sequence[Column]) -> str:
    """A table in LaTeX (booktabs); the best cell of a column is bold."""

    def escaped(text: str) -> str:
        return "".join(f"\\{letter}" if letter in "_%&#$" else letter for letter in text)

    lines = [f"\\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}", "\\toprule"]
    lines += [" & ".join(escaped(column.title) for column in columns) + " \\\\", "\\midrule"]
    for cells in _cells(rows, columns, lambda cell: f"\\textbf{{{cell}}}", escaped):
        lines.append(" & ".join(cells) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _cells(
    rows: Sequence[Record],
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


def _best(rows: Sequence[Record], column: Column) -> int | None:
    if not column.best:
        return None
    numbers = {index: number for index, row in enumerate(rows) if (number := _number(column.value(row))) is not None}
    if not numbers:
        return None
    choose = {"lowest": min, "highest": max}[column.best]
    return choose(numbers, key=numbers.__getitem__)


def _number(value: Any) -> float | None:
    if isinstance(value, Interval):
        return value.value
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def shown(value: Any, digits: int) -> str:
    """A number, an interval (with a note, if it has one) or a text, as a table shows it.

    >>> shown(Interval(value=12.345, low=11.9, high=12.8), 1)
    '12.3 [11.9, 12.8]'
    >>> shown(None, 1), shown(96, 1), shown(0.25, 2)
    ('', '96', '0.25')
    """
    if value is None:
        return ""
    if isinstance(value, Interval):
        interval = format(value, f".{digits}f")
        return f"{interval} {value.note}" if isinstance(value, Noted) else interval
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)
