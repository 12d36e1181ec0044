"""The paper's own numbers on images, as small tables that stand beside ours."""

from pathlib import Path

from fpmgm.experiments.quotes import quoted_table, quotes

FILE = Path(__file__).with_name("quoted.json")


def quoted(name: str) -> str:
    """A table of the paper as Markdown, marked as quoted."""
    return quoted_table(quotes(FILE)[name])
