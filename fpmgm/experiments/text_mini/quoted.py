"""The paper's own numbers, as small tables that stand beside ours."""

import json
import re
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from fpmgm.evaluation.tables import Column, markdown

FILE = Path(__file__).with_name("quoted.json")
MARK = "*Quoted from the paper, not measured here*"
JUDGED = "; cells are generative perplexities by GPT-2 Large, with the entropy in brackets"


@cache
def _tables() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def quoted(name: str) -> str:
    """A table of the paper as Markdown, marked as quoted."""
    table = _tables()[name]
    columns = [Column(title=title or " ", value=itemgetter(place)) for place, title in enumerate(table["header"])]
    judged = JUDGED if any(re.search(r"\d \(\d", cell) for row in table["rows"] for cell in row) else ""
    return f"{MARK}: {table['caption']}{judged}.\n\n{markdown(table['rows'], columns)}"
