"""Which text a model is measured on."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from fpmgm.__main__ import main
from fpmgm.checkpoint import Model
from fpmgm.data import Dataset
from fpmgm.data.text import TextConfig
from fpmgm.evaluation.held_out import data_for, measured_data, measured_on, split_of, text_codec, usual_number

LINE = "the sea and the sky and the old oak\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))


def sequences_of(model: Model, source: str, split: str = "auto", num: int | None = None) -> tuple[Dataset, Tensor, str]:
    """The data, the sequences that are measured, and how they are called."""
    data, words = measured_data(model, source, split)
    batch = data.measured(num or usual_number(source, split) or len(data.held_out))
    return data, batch.x, measured_on(data, batch, words)


def put_asset(tmp_path: Path, name: str, files: dict[str, str]) -> None:
    """A corpus in the cache, as if it had been fetched."""
    folder = tmp_path / "cache" / "assets"
    for file, text in files.items():
        path = folder / name / file if file else folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_all_of_a_file_is_measured(text_model: Model, tmp_path: Path) -> None:
    file = tmp_path / "my.txt"
    file.write_text(LINE * 1000)
    _, x, words = sequences_of(text_model, str(file))
    tokens = np.array(text_codec(text_model).encode(LINE * 1000))
    whole = len(tokens) // 22 * 22
    assert len(x) > 512  # not only so many as of a corpus
    assert x[:, 1:-1].reshape(-1).tolist() == tokens[:whole].tolist()
    assert words == f"all {x.numel():,} tokens of {file}"
    _, some, words = sequences_of(text_model, str(file), num=5)
    assert words == f"5 of {len(x):,} sequences, 120 tokens of {file}"
    assert some.shape == (5, 24)


@pytest.mark.parametrize("packing", ["wrap", "begin"])
def test_other_text_begins_with_what_the_model_is_given(text_model: Model, tmp_path: Path, packing: Any) -> None:
    file = tmp_path / "my.txt"
    file.write_text(LINE * 100)
    model = replace(text_model, data=TextConfig(packing=packing, length=24))
    batch = data_for(model, str(file)).measured(4)
    assert batch.is_real[:, 1:].all()
    assert bool(batch.is_real[:, 0].any()) is (packing == "wrap")


def test_of_a_corpus_what_training_holds_out_is_measured(text_model: Model, tmp_path: Path) -> None:
    put_asset(tmp_path, "poetry", {"": LINE * 3000})
    text, x, words = sequences_of(text_model, "poetry")
    assert 0 < len(text.held_out) < len(text.train) / 50
    assert words == f"all {x.numel():,} tokens of what training holds out of poetry"
    assert len(data_for(text_model, "poetry", "all").held_out) == len(text.rows)


def test_a_standard_split_is_the_file_of_its_name(text_model: Model, tmp_path: Path) -> None:
    put_asset(tmp_path, "wikitext-2", {"train.txt": LINE * 90, "valid.txt": "the oak\n" * 90, "test.txt": "sky " * 90})
    for split, words in (("valid", "the oak\n"), ("test", "sky ")):
        _, x, measured = sequences_of(text_model, "wikitext-2", split)
        assert x[0, 1:-1].tolist() == text_codec(text_model).encode(words * 90)[:22]
        assert measured.endswith(f"tokens of wikitext-2, split {split}")
    folder = tmp_path / "cache" / "assets" / "wikitext-2"
    assert len(data_for(text_model, str(folder), "test").rows) == len(data_for(text_model, "wikitext-2", "test").rows)
    (tmp_path / "my.txt").write_text(LINE)
    with pytest.raises(ValueError, match=r"has no split 'valid': there is no file valid\.txt in it; give --split all"):
        data_for(text_model, str(tmp_path / "my.txt"), "valid")


def test_auto_is_held_out_of_a_corpus_and_all_of_a_file() -> None:
    assert [split_of(source) for source in ("poetry", "hub:owner/name", "my.txt")] == ["held-out", "held-out", "all"]
    assert split_of("my.txt", "held-out") == "held-out"
    with pytest.raises(ValueError, match="unknown split 'vaild'; did you mean 'valid'"):
        split_of("poetry", "vaild")


def test_evaluate_says_which_tokens_it_measured_and_checks_the_text_before_it_samples(
    text_model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text_model.save(tmp_path / "model")
    (tmp_path / "my.txt").write_text(LINE * 20)
    (tmp_path / "binary.txt").write_bytes(b"\0\1" * 99)
    command = ["evaluate", str(tmp_path / "model"), "--judge", "", "--budgets", "6", "--num-samples", "2", "--data"]
    assert main([*command, str(tmp_path / "my.txt"), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["validation"]
    assert row["measured_on"] == f"all {row['num_sequences'] * 24:,} tokens of {tmp_path / 'my.txt'}"
    assert row["num_sequences"] == len(text_codec(text_model).encode(LINE * 20)) // 22
    for wrong in ([str(tmp_path / "binary.txt")], [str(tmp_path / "my.txt"), "--split", "test"], ["nowhere.txt"]):
        assert main([*command, *wrong, "--out", str(tmp_path / "out")]) == 2
        captured = capsys.readouterr()
        assert "cell" not in captured.err
        assert captured.err.count("\n") == 1
    assert not (tmp_path / "out" / "samples.jsonl").exists()
    assert main([*command, str(tmp_path / "my.txt"), "--ngram"]) == 2
    assert "give --split held-out" in capsys.readouterr().err
