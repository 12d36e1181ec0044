"""What the documentation says: its pages, the commands in them and their Python."""

import re
import shlex
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
GENERATED = DOCS / "results"
SHELL = ("sh", "bash", "shell", "console")
NOT_RUN = "# not run:"


@dataclass(frozen=True)
class Command:
    """A line that a reader may type."""

    page: str
    text: str
    reason: str
    """Why no test runs it; empty if one does."""

    @property
    def arguments(self) -> list[str] | None:
        """The arguments of fpmgm, or None if it is another program."""
        words = shlex.split(self.text, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        return words[1:] if words and words[0] in ("fpmgm", "./run") else None

    @property
    def has_placeholder(self) -> bool:
        """Whether it shows a form, with MODEL or the like where the reader puts a name."""
        return any(re.fullmatch(r"[A-Z]{3,}|\.\.\.", word) for word in self.arguments or ())

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


@lru_cache
def pages() -> list[Path]:
    """The README and every page that a person writes; reports are written by commands."""
    return [ROOT / "README.md", *sorted(page for page in DOCS.rglob("*.md") if GENERATED not in page.parents)]


def blocks(page: Path) -> list[tuple[str, str]]:
    """The code blocks of a page in their order: language and content."""
    fenced = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
    return fenced.findall(page.read_text(encoding="utf-8"))


def commands_in(content: str, page: Path) -> list[Command]:
    """Every command of a shell block; lines that end with a backslash or inside quotes go on."""
    found, open_lines = [], ""
    for line in content.replace("\\\n", " ").splitlines():
        open_lines += line
        text, _, reason = open_lines.partition(NOT_RUN)
        if _is_quoted_whole(text):
            if text.split("#")[0].strip():
                found.append(Command(str(page.relative_to(ROOT)), text.strip(), reason.strip()))
            open_lines = ""
    return found


def _is_quoted_whole(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True


def commands(page: Path) -> list[Command]:
    """Every command of a page: in blocks of a shell, and where a line of another block begins like one of ours."""
    fenced = [each for language, content in blocks(page) if language in SHELL for each in commands_in(content, page)]
    others = "\n".join(content for language, content in blocks(page) if not language)
    ours = re.findall(r"^ *((?:\./run|fpmgm) .*(?:\\\n.*)*)", others + "\n" + _indented(page), flags=re.MULTILINE)
    return [*fenced, *(command for text in ours for command in commands_in(text, page))]


def _indented(page: Path) -> str:
    """The lines of a page's indented blocks."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return "\n".join(line for line in text.splitlines() if line.startswith("    "))
