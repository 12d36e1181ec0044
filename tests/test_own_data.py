"""The data that a model was trained on travels with it, so that it is measured on what it has not seen."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fpmgm.__main__ import main
from fpmgm.backbones.dit import Network
from fpmgm.checkpoint import BUNDLED, Model, load, read_settings
from fpmgm.codecs import TextCodec
from fpmgm.data import Dataset, stories, stories_text
from fpmgm.data.stories import Plan
from fpmgm.data.stories_text import StoriesConfig
from fpmgm.data.text import TextConfig
from fpmgm.evaluation.held_out import OWN, data_for, measured_data, measured_on
from fpmgm.evaluation.mauve import reference_texts
from fpmgm.evaluation.text import TextEvaluator
from fpmgm.recipes import RECIPES
from fpmgm.training import loop
from fpmgm.training.config import Training
from fpmgm.training.loop import train
from fpmgm.training.optim import OptimConfig
from fpmgm.types import Batch
from tests.conftest import Build, text_of
from tests.small_source import write_source

WORDS = ("sea", "sky", "old oak", "quiet shore", "long land")
KINDS: dict[str, dict[str, Any]] = {
    "wrap, share": {"packing": "wrap", "validation_share": 0.1},
    "pad, share": {"packing": "pad", "validation_share": 0.1},
    "wrap, documents": {"packing": "wrap", "validation_documents": 14},
    "pad, documents": {"packing": "pad", "validation_documents": 14},
}
FAST = {"wrap, share", "pad, documents"}


def document(index: int) -> str:
    """No two are alike, and some are longer than a sequence."""
    return f"{index} of a poem about the {WORDS[index % 5]}" + f" and number {index}" * (index % 4)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    rows = [json.dumps({"text": document(index)}) + "\n" for index in range(120)]
    (place / "poems.jsonl").write_text("".join(rows))
    return place


def trained(monkeypatch: pytest.MonkeyPatch, **data: Any) -> tuple[Path, set[tuple[int, ...]], Dataset]:
    """The model folder of a tiny run, the sequences that its updates saw, and its data."""
    seen: set[tuple[int, ...]] = set()
    runs: list[loop.Run] = []
    original = loop.Learner.forward

    def watched(self: loop.Learner, x: torch.Tensor, noise: Any) -> Any:
        seen.update(map(tuple, x.tolist()))
        return original(self, x, noise)

    def kept(self: loop.Run) -> None:
        runs.append(self)
        resume(self)

    resume = loop.Run.resume
    monkeypatch.setattr(loop.Learner, "forward", watched)
    monkeypatch.setattr(loop.Run, "resume", kept)
    config = Training(
        out="run",
        model=Network(width=8, num_heads=1, num_pre=3, cond_width=4, dropout=0.0),
        data=TextConfig(source="poems.jsonl", tokenizer="bpe-300", length=24, **data),
        optim=OptimConfig(lr=1e-3, warmup=0, ema=0.5),
        updates=40,
        batch_size=16,
        validation_sequences=4,
        trackers=(),
    )
    folder = train(config, "test", card_samples=1)
    return folder, seen, runs[0].data


def rows_of(data: Dataset) -> set[tuple[int, ...]]:
    return set(map(tuple, data.batch(data.held_out).x.tolist()))


@pytest.mark.parametrize(
    "kind", [kind if kind in FAST else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_a_model_is_measured_on_exactly_what_its_training_held_out(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    folder, seen, data = trained(monkeypatch, **KINDS[kind])
    folder = folder.resolve()
    assert len(seen) == len(data.train)  # every training sequence was seen, so that nothing else is left but held out
    monkeypatch.chdir(tmp_path)  # evaluation starts elsewhere
    model = load(folder)
    own = data_for(model)
    assert np.array_equal(own.held_out, data.held_out)
    assert np.array_equal(own.rows, data.rows)
    assert rows_of(own).isdisjoint(seen)
    assert own.pad_id == data.pad_id
    for source in ("poems.jsonl", str(place / "poems.jsonl"), "../here/poems.jsonl"):
        monkeypatch.chdir(place)
        named = data_for(model, source)  # the same file by any path is the same data
        assert np.array_equal(named.held_out, data.held_out)
    used: list[Dataset] = []
    monkeypatch.chdir(tmp_path)
    original = Dataset.measured

    def watched(self: Dataset, num: int) -> Batch:
        used.append(self)
        return original(self, num)

    monkeypatch.setattr(Dataset, "measured", watched)
    for command in (
        ["evaluate", str(folder), "--budgets", "--judge", ""],
        ["analyse", str(folder), "cka"],
        ["convert", str(folder), str(tmp_path / "fp"), "--map", "auto"],
    ):
        assert main(command) == 0, capsys.readouterr().err
    assert len(used) == 3
    for found in used:
        assert rows_of(found) == rows_of(data)
    texts: list[str] = []  # what MAUVE of `evaluate` and `sweep` compares samples with

    def read(*given: Any) -> np.ndarray:
        texts.extend(given[-1])
        return np.zeros((1, 1), np.float32)

    monkeypatch.setattr("fpmgm.evaluation.text._reference_features", read)
    TextEvaluator(judge="a judge", mauve=OWN)._real_features(model, 8)
    assert sorted(texts) == sorted(own.codec.show(own.tokens(row)) for row in data.held_out.tolist())
    assert load(tmp_path / "fp").data == model.data


def test_padding_does_not_count_in_what_is_measured(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _, data = trained(monkeypatch, packing="pad", validation_share=0.07)
    model = load(folder)
    own, words = measured_data(model)
    batch = own.measured(1000)
    assert data.pad_id is not None
    real = int(batch.x.ne(data.pad_id).sum())
    assert 0 < real < batch.x.numel()
    assert measured_on(own, batch, words) == f"all {real:,} tokens of what training holds out of {place}/poems.jsonl"
    assert main(["analyse", str(folder), "cka", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_tokens"] == real
    assert main(["evaluate", str(folder), "--judge", "", "--budgets", "--ngram"]) == 2
    assert "is padded, and n-gram models would count the padding" in capsys.readouterr().err
    texts = reference_texts(own, len(own.held_out))
    kept = [document(index) for index in range(120)]
    assert all(any(text.startswith(one[:10]) or one.startswith(text) for one in kept) for text in texts)
    assert not any("·" in text for text in texts)


@pytest.mark.slow
def test_a_stage_says_so_if_its_start_has_seen_what_it_holds_out(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _, _ = trained(monkeypatch)
    config = tiny_stage(str(folder))
    warning = "was trained on {} too, but with another split or packing".format(place / "poems.jsonl")
    capsys.readouterr()
    train(config, "test", card_samples=1)
    assert warning not in capsys.readouterr().err
    other = replace(config, data=replace(text_of(config), validation_share=0.2), out="other")
    train(other, "test", card_samples=1)
    assert capsys.readouterr().err.count(warning) == 1


def tiny_stage(init: str) -> Training:
    """A run of one update from a model of `trained`."""
    return Training(
        out="stage",
        init=init,
        model=Network(width=8, num_heads=1, num_pre=3, cond_width=4, dropout=0.0),
        data=TextConfig(source="poems.jsonl", tokenizer="bpe-300", length=24),
        updates=1,
        batch_size=4,
        validation_sequences=4,
        trackers=(),
    )


def test_other_data_is_said_to_be_other_data_and_asked_for_if_the_models_own_is_gone(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _, _ = trained(monkeypatch)
    (place / "other.txt").write_text("the sea and the sky\n" * 90)
    model = load(folder)
    data, words = measured_data(model, "other.txt")
    assert words == f"other.txt (the model was trained on {place}/poems.jsonl)"
    assert len(data.held_out) == len(data.rows)
    assert measured_data(model, "poems.jsonl")[1] == f"what training holds out of {place}/poems.jsonl"
    assert measured_data(model, "poems.jsonl", "all")[1] == f"{place}/poems.jsonl"
    with open(place / "poems.jsonl", "a") as file:
        file.write(json.dumps({"text": "one more"}) + "\n")
    for source in ("auto", "poems.jsonl"):  # its rows would be split otherwise
        with pytest.raises(ValueError, match=r"has changed since then\); give --data FILE to measure on"):
            data_for(model, source)
    assert len(data_for(model, "poems.jsonl", "all").held_out) > 0  # asked for outright
    (place / "poems.jsonl").unlink()
    capsys.readouterr()
    converted = ["convert", "run", "fp", "--map", "auto"]
    for command in (["evaluate", "run", "--judge", ""], ["analyse", "run", "cka"], converted):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert f"the model was trained on {place}/poems.jsonl, which cannot be read" in said
        assert "give --data FILE to measure on" in said
    assert main(["evaluate", "run", "--judge", "", "--budgets", "--data", "other.txt"]) == 0
    printed = " ".join(capsys.readouterr().err.split())
    assert f"other.txt (the model was trained on {place}/poems.jsonl)" in printed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"data_type": "sound"}}, "unknown data_type 'sound'"),
        ({"data": {"source": "poetry"}}, "data: data_type is None; it must be a text"),
        (
            {"data": {"data_type": "text", "packing": "wrapp"}},
            "data: packing is 'wrapp'; it must be one of 'wrap', 'pad'",
        ),
        ({"data": {"data_type": "text", "sauce": "poetry"}}, "data has unknown settings: 'sauce'"),
        ({"data": "poetry"}, "data is 'poetry'; it must be an object"),
        ({"model_type": "fpmgm-sound"}, "has model_type 'fpmgm-sound'; fpmgm knows fpmgm-mdlm"),
        ({"model_type": ["fpmgm-mdlm"]}, "has model_type ['fpmgm-mdlm']; fpmgm knows fpmgm-mdlm"),
    ],
)
def test_kinds_of_data_and_models_that_nobody_knows_get_one_line(
    text_model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], message: str
) -> None:
    text_model.save(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    for command in ("sample", "info", "push", "analyse"):
        assert main([command, str(tmp_path / "model"), *(["owner/name"] if command == "push" else [])]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert message in said


def test_a_model_that_does_not_tell_its_data_asks_for_some(
    text_model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text_model.save(tmp_path / "model")
    assert main(["evaluate", str(tmp_path / "model"), "--judge", "", "--budgets", "6"]) == 2
    assert "does not tell what it was trained on; give --data FILE" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(file.parent.name for file in BUNDLED.glob("*/tokenizer.json")))
def test_a_bundled_model_names_its_data_and_is_measured_on_what_was_held_out(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    write_source(tmp_path / "cache" / "assets" / "stories15m", begin=3.0)
    small = replace(stories.workshop(), plan=Plan(num_held_out=40, stories_per_shard=20, num_rows=200, batch_size=16))
    monkeypatch.setattr(stories_text, "workshop", lambda: small)
    settings, data = read_settings(BUNDLED / name)
    assert isinstance(data, StoriesConfig)
    recipe = RECIPES["stories-match" if name == "stories" else name].data
    assert isinstance(recipe, StoriesConfig)
    assert data.held_out_only() == recipe.held_out_only()
    told = json.loads((BUNDLED / name / "config.json").read_text())["data"]
    assert told.items() <= {"data_type": "stories", **asdict(data)}.items()
    found, words = measured_data(load(name))
    assert "stories" in words
    assert 0 < len(found.held_out) == len(found.rows)
    assert settings.vocabulary.length == 256


def test_a_converted_model_keeps_its_data_unless_its_tokenizer_is_another(
    text_model: Model, small_model: Build, tmp_path: Path
) -> None:
    from tokenizers.normalizers import Lowercase

    data = TextConfig(source=str(tmp_path / "x.txt"), length=24)
    replace(text_model, data=data).save(tmp_path / "model")
    codec = text_model.codec
    assert isinstance(codec, TextCodec)
    (tmp_path / "same.json").write_text(codec.content)
    other = codec.tokenizer.__class__.from_str(codec.content)
    other.normalizer = Lowercase()
    other.save(str(tmp_path / "other.json"))
    for name, expected in (("same", data), ("other", None)):
        words = ["--map", "none", "--tokenizer", str(tmp_path / f"{name}.json")]
        assert main(["convert", str(tmp_path / "model"), str(tmp_path / name), *words]) == 0
        assert load(tmp_path / name).data == expected


def test_paths_become_whole_and_names_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    placed = TextConfig(source="a/b.txt", tokenizer="t.json").placed()
    assert (placed.source, placed.tokenizer) == (f"{os.getcwd()}/a/b.txt", f"{os.getcwd()}/t.json")
    for config in (TextConfig(), TextConfig(source="hub:owner/name", tokenizer="gpt2")):
        assert config.placed() == config
