"""`prepare`: data is made once, by one process, before anything waits for it."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fpmgm.__main__ import main
from fpmgm.data import text
from fpmgm.data.assets import fetch, making
from fpmgm.data.text import TextConfig, load_text
from tests.processes import VERSE


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "verse.txt").write_text(VERSE)


def test_prepare_packs_what_training_then_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(tmp_path / "verse.txt")
    words = ["--data.source", source, "--data.tokenizer", "bpe-300", "--data.length", "16"]
    assert main(["prepare", "poetry", *words]) == 0
    about, place = capsys.readouterr().out.splitlines()
    monkeypatch.setattr(text, "_write_packed", lambda *_: pytest.fail("packed again"))
    data = load_text(TextConfig(source=source, tokenizer="bpe-300", length=16))
    assert data.place == Path(place)
    assert (data.place / "rows.bin").is_file()
    counts = f"{len(data.train):,} sequences of 16 tokens to train on, {len(data.held_out):,} held out, 300 symbols"
    assert about == f"{source}: {counts}"


def test_prepare_says_where_an_asset_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cache" / "assets" / "shakespeare"
    path.parent.mkdir(parents=True)
    path.write_text("to be\n")  # as if it had been fetched
    assert main(["prepare", "shakespeare"]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert fetch("shakespeare") == path


def test_processes_that_want_the_same_data_at_once_make_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = []
    pack = text._write_packed

    def slow(*given: Any) -> None:
        made.append(1)
        time.sleep(0.5)
        pack(*given)

    config = TextConfig(source=str(tmp_path / "verse.txt"), tokenizer="bpe-300", length=16)
    load_text(TextConfig(source=config.source, tokenizer=config.tokenizer, length=24))  # makes the tokenizer
    monkeypatch.setattr(text, "_write_packed", slow)
    with ThreadPoolExecutor(3) as pool:
        found = [job.result() for job in [pool.submit(load_text, config) for _ in range(3)]]
    assert len(made) == 1
    assert {data.place for data in found} == {found[0].place}
    assert capsys.readouterr().err.count("; waiting for it") == 2


def test_who_fails_to_make_data_leaves_it_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "made"
    with pytest.raises(OSError, match="full"), making(path):
        raise OSError("the disk is full")
    with making(path) as is_missing:
        assert is_missing
        path.write_text("whole")
    with making(path) as is_missing:
        assert not is_missing


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mine"], "train mine prepares its text by itself"),
        (["poetri"], "unknown recipe or asset 'poetri'; did you mean 'poetry'?"),
        (["shakespeare", "--data.length", "3"], "an asset has no settings, and --data.length is given"),
        (["poetry", "--updates", "3"], "Unrecognized options: --updates"),
        (["poetry", "--data.source", "nowhere.txt"], "no data at 'nowhere.txt'"),
    ],
)
def test_what_cannot_be_prepared_gets_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert message in said
