"""The documentation, followed: its commands and its Python run in the order in which a reader meets them."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fpmgm
from fpmgm.__main__ import main
from fpmgm.codecs.image_tokenizer import TOKENIZERS
from tests.documentation import DOCS, NOT_RUN, ROOT, SHELL, Command, blocks, commands_in, pages

EXAMPLES = sorted((DOCS / "examples").glob("*.py"))
ELSEWHERE = {
    "quickstart": "tests/end_to_end/test_command_line.py::test_quickstart_writes_a_text_and_prints_its_table",
    "test": ".ci/run",
    "frontier": "tests/test_frontier_command.py",
    "serve": "tests/test_serve.py",
    "demo": "tests/test_demo.py",
}
"""Commands that another test runs, by their first word."""
PAGES_ELSEWHERE = {
    "docs/demo.md": "tests/test_demo.py",
    "docs/frontier.md": "tests/test_frontier_command.py",
    "docs/serve.md": "tests/test_serve.py",
    "docs/tasks.md": "tests/test_tasks.py",
}
"""Pages whose commands and Python another test runs, with models of its own."""
SMALLER = {"--minutes": "1", "--updates": "2", "--num-samples": "2"}
"""What settings of the pages are replaced by."""
SHORT = {"--updates": "2", "--batch-size": "2", "--validation-sequences": "4"}
"""What a training command gets besides."""


def is_run(command: Command) -> bool:
    """Whether this file or another test runs the command. `run` installs all extras before the tests begin."""
    return command.arguments is not None or command.page in PAGES_ELSEWHERE or command.text.startswith("pip install")


def smaller(arguments: list[str]) -> list[str]:
    """The command with fewer updates, samples and minutes, so that it takes seconds."""
    made = [SMALLER.get(before, word) for before, word in zip(["", *arguments], arguments, strict=False)]
    if made[:1] == ["train"] and len(made) > 1 and made[1] != "mine" and "--help" not in made:
        made += [word for name, value in SHORT.items() if name not in made for word in (name, value)]
    return made


def write_files(folder: Path) -> None:
    """What a reader is told to have: texts, titles, questions, images."""
    words = ("sea", "sky", "old oak", "grey stone", "river")
    lines = [f"And line {i} is about the {word}, which is old.\n" for i in range(200) for word in words]
    (folder / "my.txt").write_text("".join(lines))
    (folder / "other.txt").write_text("".join(reversed(lines)))
    (folder / "titles.txt").write_text("".join(f"The {word} number {i}\n" for i in range(20) for word in words))
    pairs = [{"prompt": f"Which colour is {word} {i}?", "answer": "Blue."} for i in range(20) for word in words]
    (folder / "questions.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    rng = np.random.default_rng(0)
    for name in ("photos", "pets"):
        for kind in ("cat", "dog"):
            (folder / name / kind).mkdir(parents=True)
            for index in range(20):
                image = Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
                image.save(folder / name / kind / f"{index}.png")
    Image.fromarray(rng.integers(0, 256, (28, 28), dtype=np.uint8)).save(folder / "image.png")
    mask = np.zeros((28, 28), np.uint8)
    mask[:14] = 255
    Image.fromarray(mask).save(folder / "mask.png")


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a reader's files and a model of the first of them."""
    folder = tmp_path_factory.mktemp("reader")
    write_files(folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert main(smaller(["train", "mine", "--data.source", "my.txt", "--minutes", "10"])) == 0
    finally:
        os.chdir(before)
    return folder


def pages_to_follow() -> list[Path]:
    found = [page for page in pages() if any(language in (*SHELL, "python") for language, _ in blocks(page))]
    return [page for page in found if str(page.relative_to(ROOT)) not in PAGES_ELSEWHERE]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", pages_to_follow(), ids=lambda page: page.stem)
def test_a_reader_can_follow_the_page(
    page: Path, followed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "reader"
    shutil.copytree(followed, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    for name in ("PIP_NO_INDEX", "HF_HUB_OFFLINE", "npm_config_offline"):  # a page that downloads must say so
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr("fpmgm.codecs.image_tokenizer.TOKENIZERS", dict(TOKENIZERS))
    scope: dict[str, Any] = {"__name__": "page"}
    for language, content in blocks(page):
        if language == "python" and NOT_RUN not in content:
            exec(re.sub(r"updates=\d+", "updates=2, batch_size=2, validation_sequences=4", content), scope)
        if language in SHELL:
            for command in commands_in(content, page):
                follow(command)


def follow(command: Command) -> None:
    arguments = command.arguments
    if command.reason or not arguments or arguments[0] in ELSEWHERE or command.has_placeholder:
        return
    try:
        code = main(smaller(arguments))
    except SystemExit as end:  # of --help
        code = int(end.code or 0)
    assert code == 0, command


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_a_worked_example_runs(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fpmgm.codecs.CODECS", fpmgm.codecs.CODECS)  # what an example enters is taken back
    runpy.run_path(str(example))


def test_the_python_of_the_readme_runs() -> None:
    found = [content for language, content in blocks(ROOT / "README.md") if language == "python"]
    assert len(found) == 2
    for block in found:
        scope: dict[str, Any] = {}
        exec(block, scope)
        out = scope["out"]
        is_generated = isinstance(out, fpmgm.Generated)
        rows = torch.tensor(out.tokens) if is_generated else out.z
        mask_id = scope["model"].config.mask_id if is_generated else scope["model"].mask_id
        assert len(rows) == 2
        assert torch.as_tensor(out.block_evals).unique().tolist() == [96]
        assert not (rows == mask_id).any()


@pytest.mark.slow
def test_figures_of_the_concepts_are_drawn(tmp_path: Path) -> None:
    from scripts.concept_figures import FOLDER
    from scripts.concept_figures import main as draw

    drawn = draw(tmp_path, with_model=False)
    assert {file.name for file in drawn} == {file.name for file in FOLDER.iterdir()}
    for name in ("masks", "reuse", "allocations", "denoiser"):  # those that no model has a part in
        assert (tmp_path / f"{name}.svg").read_text() == (FOLDER / f"{name}.svg").read_text(), name


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `./run docs` builds it."""
    folder = tmp_path_factory.mktemp("built") / "site"
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(site: Path) -> None:
    assert "fpmgm" in (site / "index.html").read_text()
    loads = re.compile(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"']?(https?://[^\"' >]+)")
    for file in site.rglob("*.html"):
        assert not loads.findall(file.read_text()), file.name


@pytest.mark.slow
def test_the_search_of_the_site_works_from_files(site: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no chromium on the PATH")
    outside: list[str] = []
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.on(
            "request", lambda asked: None if asked.url.startswith(("file:", "data:")) else outside.append(asked.url)
        )
        page.goto((site / "tutorial.html").as_uri())
        page.click("input.md-search__input")
        page.wait_for_selector("text=Type to start searching", state="attached", timeout=120_000)  # the index is read
        page.keyboard.type("three-state")
        page.wait_for_selector(".md-search-result__item a[href]", state="attached", timeout=120_000)
        browser.close()
    assert not outside
