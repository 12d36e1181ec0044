"""The page on own data: its commands and its Python run as they are written, on small data and in less time."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import fpmgm
from fpmgm.__main__ import main

PAGE = Path(fpmgm.__file__).parent.parent / "docs" / "own-data.md"
COLOURS = ("red", "blue", "green", "yellow", "white", "black", "grey", "brown")
THINGS = ("the sea", "a rose", "the old oak", "the quiet shore", "a long road")
SHORTER = {"--minutes": "1", "--updates": "2"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def commands() -> list[list[str]]:
    return [shlex.split(line)[1:] for block in blocks("bash") for line in block.splitlines()]


def write_data() -> None:
    lines = [f"{thing} is {colour} today" for thing in THINGS for colour in COLOURS]
    Path("my.txt").write_text("".join(f"{i}. {line}\n" for i in range(20) for line in lines))
    Path("titles.txt").write_text("\n".join(lines))
    asked = [f"Which colour is {thing} on day {day}?" for day in range(8) for thing in THINGS]
    pairs = [{"prompt": prompt, "answer": f"{COLOURS[i % 8]}."} for i, prompt in enumerate(asked)]
    Path("questions.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))


@pytest.mark.slow
@pytest.mark.timeout(1500)  # each of its trainings takes the minute that it is given
def test_the_commands_and_the_python_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    write_data()
    found = commands()
    assert {words[0] for words in found} == {"train", "sample", "evaluate"}
    for words in found:
        places = range(1, len(words))
        run = [words[0], *(SHORTER.get(words[i - 1], words[i]) for i in places)]
        if words[1] == "poetry":
            run += ["--batch-size", "2", "--model.width", "32", "--model.num-heads", "2", "--validation-sequences", "2"]
        assert main(run) == 0, (words, capsys.readouterr().err)
    for block in blocks("python"):
        scope: dict[str, Any] = {}
        exec(block.replace("updates=100", "updates=2, batch_size=2"), scope)
    faster = fpmgm.load("runs/faster")
    assert faster.data is not None
    assert faster.data.has_ends


def test_the_page_shows_pairs_as_they_must_be(tmp_path: Path) -> None:
    from fpmgm.data.pairs import Fields, read_pairs

    [block] = blocks("json")
    (tmp_path / "pairs.jsonl").write_text(block)
    pairs = list(read_pairs(str(tmp_path / "pairs.jsonl"), Fields()))
    assert len(pairs) == 2
    assert all(prompt.endswith("?") and answer.startswith("\n") for prompt, answer, _ in pairs)
