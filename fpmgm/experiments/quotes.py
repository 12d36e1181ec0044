"""The paper's own numbers, as small tables that stand beside ours."""

import json
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from fpmgm.evaluation.tables import Column, markdown

MARK = "*Quoted from the paper, not measured here*"


@cache
def quotes(file: Path) -> dict[str, Any]:
    """All tables of a file, by name."""
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def quoted_table(table: dict[str, Any], cells: str = "") -> str:
    """A table of the paper as Markdown, marked as quoted; `cells` says what is in its cells."""
    columns = [Column(title=title or " ", value=itemgetter(place)) for place, title in enumerate(table["header"])]
    return f"{MARK}: {table['caption']}{cells}.\n\n{markdown(table['rows'], columns)}"
