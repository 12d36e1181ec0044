"""Pages made of sections: each is made by itself and kept, and the page is written anew after it."""

import json
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from fpmgm.experiments.parts import Part
from fpmgm.experiments.report import Report
from fpmgm.files import write_json, write_text
from fpmgm.names import choose

README, PARTS = "README.md", "sections.json"
P = TypeVar("P", bound=Report)


@dataclass(frozen=True, kw_only=True)
class SectionOf(Generic[P]):
    """A part of a page."""

    name: str
    title: str
    of_paper: str = ""
    """The tables and figures of the paper that it stands for."""
    run: Callable[[P], Part]
    minutes: float = 0.0
    """An estimate of what else it does, in minutes of one core."""


@dataclass(frozen=True, kw_only=True)
class Book(Generic[P]):
    """A page, the sections that it may have in their order, and what stands above them."""

    name: str
    """That of the report."""
    page: P
    sections: Mapping[str, SectionOf[P]]
    settings: Mapping[str, Any]
    """What all sections must have in common. Precision and sizes may differ, and each section tells them."""
    heading: Callable[[Mapping[str, Part]], list[str]]
    """The blocks above the sections."""

    def parts(self) -> dict[str, Part]:
        """The sections that were made before with the same settings."""
        file = self.page.folder / PARTS
        kept = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if {name: kept.get("settings", {}).get(name) for name in self.settings} != dict(self.settings):
            return {}
        return {name: Part.of(found) for name, found in kept["parts"].items() if name in self.sections}

    def write(self, only: Sequence[str] = ()) -> Path:
        """Run all sections, or some, and write the page after each; sections that were made before stay on it."""
        check_only(only, self.sections)
        parts = self.parts()
        for name, section in self.sections.items():
            if only and name not in only:
                continue
            print(f"section {name}: {section.title}", file=sys.stderr)
            self.page.sources.clear()
            part = section.run(self.page)
            parts[name] = replace(part, sources=tuple(sorted(self.page.sources)))
            self._put(parts)
        return self.page.folder / README

    def _put(self, parts: Mapping[str, Part]) -> None:
        ordered = {name: parts[name] for name in self.sections if name in parts}
        found = {name: part.as_json() for name, part in ordered.items()}
        write_json(self.page.folder / PARTS, {"settings": dict(self.settings), "parts": found})
        blocks = self.heading(ordered)
        for name, part in ordered.items():
            section = self.sections[name]
            told = f"In the paper: {section.of_paper}." if section.of_paper else ""
            blocks += [f'<a id="{name}"></a>', f"## {section.title}", *filter(None, [part.measured, told]), part.text]
        missing = [name for name in self.sections if name not in parts]
        if missing:
            command = f"`fpmgm reproduce {self.name} --only NAME` makes one."
            blocks += ["## Not made yet", f"{', '.join(missing)}: {command}"]
        write_text(self.page.folder / README, "\n\n".join(filled("\n\n".join(blocks))) + "\n")


def check_only(only: Sequence[str], sections: Mapping[str, Any]) -> None:
    """A ValueError with the nearest name if there is no such section."""
    for name in only:
        choose("section", name, sections)


def filled(text: str) -> Iterator[str]:
    """The blocks of a page, paragraphs and lists broken into lines of 120 letters; tables and code stay."""
    for block in text.split("\n\n"):
        first = block[:1]
        if first in ("", "|", "#", "!", "<") or block.startswith("    "):
            yield block.strip("\n")
        elif first == ">":
            yield textwrap.fill(block[2:], 120, initial_indent="> ", subsequent_indent="> ", break_on_hyphens=False)
        elif block.startswith("* "):
            yield "\n".join(
                textwrap.fill(line, 120, subsequent_indent="  ", break_on_hyphens=False) for line in block.split("\n")
            )
        else:
            yield textwrap.fill(block, 120, break_long_words=False, break_on_hyphens=False)
