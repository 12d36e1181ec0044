"""The documentation: every command in it is understood, every page is in the navigation, and the README is short."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import fpmgm
from fpmgm import __main__ as command_line
from fpmgm.checkpoint import BUNDLED, DEFAULT
from fpmgm.commands import prepare
from fpmgm.experiments.book import PARTS
from tests.documentation import DOCS, ROOT, Command, commands, pages
from tests.end_to_end.test_docs import ELSEWHERE, PAGES_ELSEWHERE, is_run

PACKAGE = Path(fpmgm.__file__).parent
HEADINGS = ["Start", "What it gives", "Five commands", "Python", "Links"]


class UnderstoodError(BaseException):
    """Raised where a command would begin its work: its arguments are fine."""


@pytest.fixture
def parse_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands end where their work would begin. The folder has the one model that readers are told to make."""
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "model").symlink_to(BUNDLED / DEFAULT)
    monkeypatch.chdir(tmp_path)
    parse = command_line._parse

    def parsed(*arguments: Any, **options: Any) -> None:
        parse(*arguments, **options)
        raise UnderstoodError

    def begin(*arguments: Any) -> None:
        raise UnderstoodError

    monkeypatch.setattr(command_line, "_parse", parsed)
    monkeypatch.setattr(prepare, "run_prepare_asset", begin)


@pytest.mark.parametrize("page", [page for page in pages() if commands(page)], ids=lambda page: page.stem)
def test_every_command_in_the_docs_is_understood(
    page: Path, parse_only: None, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in commands(page):
        arguments = command.arguments
        if arguments is None or arguments[0] in ("test", "lint", "docs"):
            continue
        named = [f"{word}-{index}" if word.isupper() else word for index, word in enumerate(arguments)]  # MODEL MODEL
        try:
            code = command_line.main([word for word in named if word != "..."])
        except (UnderstoodError, SystemExit):
            continue
        assert code == 0, f"{command}: {capsys.readouterr().err}"


@pytest.mark.parametrize("page", [page for page in pages() if commands(page)], ids=lambda page: page.stem)
def test_every_command_in_the_docs_is_run_by_a_test_or_says_why_not(page: Path) -> None:
    def is_accounted_for(command: Command) -> bool:
        return bool(command.reason) or is_run(command)

    assert not [str(command) for command in commands(page) if not is_accounted_for(command)]


def test_tests_that_run_commands_elsewhere_exist() -> None:
    for name in (*ELSEWHERE.values(), *PAGES_ELSEWHERE.values()):
        file, _, function = name.partition("::")
        assert (ROOT / file).is_file(), name
        assert not function or f"def {function}(" in (ROOT / file).read_text(), name


def test_every_page_is_in_the_navigation_and_there() -> None:
    site = (ROOT / "mkdocs.yml").read_text()
    named = re.findall(r"^ +- .*: (\S+\.md)$", site, flags=re.MULTILINE)
    excluded = site.partition("exclude_docs: |\n")[2].split()
    written = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - set(excluded)
    assert sorted(named) == sorted(written)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_lines_of_pages_are_at_most_120_characters_long_but_for_tables(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if len(line) > 120 and not line.startswith("|")]


def test_the_architecture_page_shows_every_file_of_the_method_and_every_folder() -> None:
    page = (DOCS / "architecture.md").read_text()
    folders = {path.parent.name + "/" for path in PACKAGE.glob("*/*.py")}
    for name in [*(path.name for path in PACKAGE.glob("*.py")), *folders, "models/"]:
        assert f"| `{name}` |" in page, name


def test_the_python_reference_has_every_public_name() -> None:
    page = (DOCS / "api.md").read_text()
    shown = {name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)$", page, flags=re.MULTILINE)}
    assert set(fpmgm.__all__) <= shown


def test_the_readme_has_its_parts_in_order_and_a_small_table() -> None:
    readme = (ROOT / "README.md").read_text()
    assert re.findall(r"^## (.*)", readme, flags=re.MULTILINE) == HEADINGS
    numbers = readme.partition("## What it gives")[2].partition("## Five commands")[0]
    rows = [line for line in numbers.splitlines() if line.startswith("|")]
    assert len(rows) - 2 <= 8
    five = [command for command in commands(ROOT / "README.md") if command.arguments not in (["quickstart"], ["test"])]
    assert len(five) == 5
    for link in re.findall(r"\]\(([^)]+)\)", readme):
        assert (ROOT / link).exists(), link


def test_the_readme_opens_with_exactly_two_commands_and_ci_runs_the_second() -> None:
    first, second, *_ = commands(ROOT / "README.md")
    assert [first.arguments, second.arguments] == [["quickstart"], ["test"]]
    assert 'run" test' in (ROOT / ".ci" / "run").read_text()


def test_sections_of_text_mini_that_the_map_names_are_made() -> None:
    there = set(json.loads((DOCS / "results" / "text-mini" / PARTS).read_text())["parts"])
    rows = [line for line in (DOCS / "map.md").read_text().splitlines() if "`fpmgm reproduce text-mini`" in line]
    assert len(rows) > 20
    for row in rows:
        named = set(re.findall(r"\[([a-z-]+)\]\(results/text-mini/README\.md#\1\)", row))
        assert named, row
        assert named <= there, row
