"""A report as one HTML page that opens from disk: its figures are inside, and nothing is loaded from elsewhere."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from fpmgm.analysis.observed import Observation

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a;
  background: #fff; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
img { max-width: 100%; height: auto; } figure { margin: 0.8rem 0; }
table { border-collapse: collapse; } th { font-weight: 600; }
td, th { text-align: left; vertical-align: top; padding: 0.15rem 1rem 0.15rem 0; border-bottom: 1px solid #ddd; }
.yes { color: #00714f; font-weight: 600; } .no { color: #b04a00; font-weight: 600; }
code { font-size: 0.9em; }
"""


@dataclass(frozen=True, kw_only=True)
class Section:
    """An analysis on the page."""

    name: str
    title: str
    text: str
    figures: tuple[Path, ...]
    """Of each figure, its SVG file."""


def page(
    title: str,
    protocol: Mapping[str, Any],
    seen: Sequence[Observation],
    sections: Sequence[Section],
    left_out: Sequence[str],
) -> str:
    """The whole page."""
    parts = [f"<h1>{escape(title)}</h1>"]
    if seen:
        parts += ["<h2>The paper's observations</h2>", _observations(seen)]
    parts += [_section(section) for section in sections]
    if left_out:
        lines = "".join(f"<li>{escape(line)}</li>" for line in left_out)
        parts.append(f"<h2>What is left out</h2><ul>{lines}</ul>")
    parts += ["<h2>Protocol</h2>", _table(protocol)]
    body = "\n".join(parts)
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _observations(seen: Sequence[Observation]) -> str:
    rows = (
        f'<tr><td class="{"yes" if each.is_shown else "no"}">{"shown" if each.is_shown else "not shown"}</td>'
        f"<td>{escape(each.claim[0].upper() + each.claim[1:])}.</td><td>{escape(each.numbers)}</td></tr>"
        for each in seen
    )
    return f"<table>{''.join(rows)}</table>"


def _section(section: Section) -> str:
    figures = "".join(
        f'<figure><img alt="{escape(section.title)}" src="data:image/svg+xml;base64,{_encoded(file)}"></figure>'
        for file in section.figures
    )
    text = f"<p>{escape(section.text)} The numbers are in <code>{section.name}.json</code>.</p>"
    return f'<section id="{section.name}"><h2>{escape(section.title)}</h2>{text}{figures}</section>'


def _encoded(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def _table(protocol: Mapping[str, Any]) -> str:
    rows = (f"<tr><th>{escape(name)}</th><td>{escape(_shown(value))}</td></tr>" for name, value in protocol.items())
    return f"<table>{''.join(rows)}</table>"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items() if each != "")
    if isinstance(value, list | tuple):
        return ", ".join(_shown(each) for each in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
