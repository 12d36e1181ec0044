"""The paper's own numbers on text, as small tables that stand beside ours."""

import re
from pathlib import Path

from fpmgm.experiments.quotes import quoted_table, quotes

FILE = Path(__file__).with_name("quoted.json")
JUDGED = "; cells are generative perplexities by GPT-2 Large, with the entropy in brackets"


def quoted(name: str) -> str:
    """A table of the paper as Markdown, marked as quoted."""
    table = quotes(FILE)[name]
    is_judged = any(re.search(r"\d \(\d", cell) for row in table["rows"] for cell in row)
    return quoted_table(table, JUDGED if is_judged else "")
