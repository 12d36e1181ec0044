"""The paper's own numbers, as small tables that stand beside ours."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from fpmgm.evaluation.tables import Column, markdown

FILE = Path(__file__).with_name("quoted.json")
SETTING = (
    "*Quoted from the paper, not measured here* (OpenWebText, 1,024 tokens, judged by GPT-2 Large; generative "
    "perplexity, with the entropy in brackets)"
)


@cache
def _tables() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def quoted(name: str) -> str:
    """A table of the paper as Markdown, marked as quoted."""
    table = _tables()[name]
    columns = [
        Column(title=title or " ", value=lambda row, place=place: row[place])
        for place, title in enumerate(table["header"])
    ]
    return f"{SETTING}: {table['caption']}.\n\n{markdown(table['rows'], columns)}"
