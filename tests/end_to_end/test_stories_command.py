"""`prepare stories`, training on them and judging by their source, with a small source in the place of the asset."""

import json
from pathlib import Path

import pytest

from fpmgm.__main__ import main
from fpmgm.checkpoint import Model, load
from fpmgm.data.stories import read_shard
from fpmgm.data.stories_text import StoriesConfig
from tests.small_source import write_source

NETWORK = "--model.width 16 --model.num-heads 2 --model.num-pre 1 --model.num-fp 1 --model.num-post 1"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_source(tmp_path / "cache" / "assets" / "stories15m", begin=3.0)
    return tmp_path / "cache"


@pytest.mark.slow
def test_stories_are_prepared_trained_on_and_judged_by_their_source(
    cache: Path, text_model: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", "stories", "--size", "2000", "--workers", "2"]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == str(cache / "stories")
    assert "held-out stories 2000/2000" in err
    assert "s left" in err
    assert len(read_shard(cache / "stories" / "train-00000")) == 2000
    data = "--data.size 2000 --data.tokenizer source-265 --data.length 16 --data.packing pad"
    settings = f"{NETWORK} {data} --updates 2 --batch-size 4 --validation-sequences 8 --out run"
    assert main(["train", "stories-fp", *settings.split()]) == 0
    assert main(["train", "stories-fp", *settings.split()]) == 0  # a finished run is known by its settings
    assert load("run").data == StoriesConfig(size=2000, tokenizer="source-265", length=16, packing="pad")
    assert "`stories` (synthetic)" in load("run").card
    asked = "evaluate run --budgets 6 --num-samples 2 --out results --judge"
    assert main([*asked.split(), "stories-source-ids"]) == 0
    rows = [json.loads(line) for file in Path("results").rglob("*.jsonl") for line in file.read_text().splitlines()]
    protocols = [row["protocol"] for row in rows if "protocol" in row]
    assert [(protocol["judge"], protocol["judged_by"]) for protocol in protocols] == [("stories-source", "ids")]
    capsys.readouterr()
    text_model.save("other")
    assert main(["evaluate", "other", "--budgets", "6", "--num-samples", "2", "--judge", "stories-source-ids"]) == 2
    assert "reads only models that write the source's own ids" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("prepare storeis", "did you mean 'stories'"),
        ("prepare stories --size -1", "size is -1; it must be 0 to"),
        ("prepare shakespeare --size 5", "an asset has no settings, and --size is given"),
        ("train poetry --data.source stories", "it has recipes of its own, as in fpmgm train stories-fp"),
        ("train stories-fp --data.tokenizer source-12", "can be cut to 259 to 32000"),
        ("train stories-fp --data.source poetry", "Unrecognized options: --data.source"),
        ("evaluate --data stories --split test", "measured on held-out stories only"),
    ],
)
def test_wrong_settings_are_answered_in_one_line(
    arguments: str, message: str, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1


def test_an_asset_that_is_there_is_named(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "stories15m"]) == 0
    assert capsys.readouterr().out.strip() == str(cache / "assets" / "stories15m")
