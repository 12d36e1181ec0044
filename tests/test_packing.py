"""How documents become rows, and how texts are shown up to their ends."""

import json
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies
from rich.console import Console
from tokenizers import Tokenizer

from fpmgm.checkpoint import Model, load
from fpmgm.codecs import TextCodec
from fpmgm.data.packing import without_shared
from fpmgm.data.stories_text import StoriesConfig, packed
from fpmgm.data.text import TextConfig, load_text, row_sizes
from fpmgm.data.tokenizing import train_bpe
from fpmgm.generation import Generated, Sampling, generate, until_end
from fpmgm.masking import masked_below
from fpmgm.objectives import MaskedCrossEntropy, Moment
from fpmgm.randomness import generator
from fpmgm.replay import Replay
from fpmgm.symbols import symbols_of

WORDS = ("sea", "sky", "old oak", "quiet shore", "long land")
DOCUMENTS = [f"{i} the {WORDS[i % 5]}" + f" and {i}" * (i % 4) for i in range(40)]


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text("\n".join(DOCUMENTS) + "\n\n")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))


def config_of(**changes: Any) -> TextConfig:
    return replace(TextConfig(source="lines.txt", tokenizer="bpe-280", length=16), **changes)


def documents_of(tokenizer: Tokenizer) -> list[np.ndarray]:
    return [np.array(tokenizer.encode(text).ids) for text in DOCUMENTS]


@pytest.mark.parametrize("source", ["lines.txt", "rows.jsonl"])
@pytest.mark.parametrize("length", [8, 16, 300])
def test_every_row_of_begin_begins_with_a_document_and_goes_on_with_the_next(source: str, length: int) -> None:
    config = config_of(source=source, length=length, packing="begin", validation_share=0.03)
    if length == 300:  # every row holds so many documents that none is left to train on
        with pytest.raises(ValueError, match=r"shares documents with held-out ones.* or --data.packing end"):
            load_text(config)
        return
    data = load_text(config)
    tokenizer = data.codec.tokenizer
    as_stories = packed(documents_of(tokenizer), symbols_of(tokenizer), length=length, packing="begin")
    assert np.array_equal(data.rows, as_stories)
    stream = [token for ids in documents_of(tokenizer)[1:] for token in [*ids, data.codec.last]]
    assert data.rows[1].tolist() == [data.codec.first, *stream][:length]
    assert data.codec.show(data.rows[-1].tolist()).startswith("39 the long land")


def test_no_document_of_begin_is_both_trained_on_and_held_out() -> None:
    for changes in ({"validation_share": 0.1}, {"validation_documents": 5}):
        data = load_text(config_of(packing="begin", length=24, **changes))
        spans = np.load(data.place / "spans.npy") if data.place else np.arange(0)
        trained, held = (
            {(row + step) % len(spans) for row in rows.tolist() for step in range(spans[row])}
            for rows in (data.train, data.held_out)
        )
        assert trained
        assert trained.isdisjoint(held)
        assert set(data.held_out.tolist()) <= held


@settings(max_examples=30)
@given(
    spans=strategies.lists(strategies.integers(1, 9), min_size=2, max_size=12),
    held=strategies.sets(strategies.integers(0, 11), min_size=1),
)
def test_rows_that_share_documents_with_held_out_ones_are_found(spans: list[int], held: set[int]) -> None:
    num = len(spans)
    held_out = np.array(sorted(each % num for each in held))
    train = np.setdiff1d(np.arange(num), held_out)
    holds = [{(row + step) % num for step in range(spans[row])} for row in range(num)]
    kept_back = set().union(*(holds[row] for row in held_out))
    expected = [row for row in train.tolist() if holds[row].isdisjoint(kept_back)]
    assert without_shared(train, np.unique(held_out), np.array(spans)).tolist() == expected


@pytest.mark.parametrize("source", ["lines.txt", "rows.jsonl"])
def test_a_row_of_end_is_a_document_and_ends_that_count(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = load_text(config_of(source=source, packing="end"))
    codec = data.codec
    num_cut = 0
    for row, ids in zip(data.rows.tolist(), documents_of(codec.tokenizer), strict=True):
        begun = [codec.first, *ids.tolist()][:16]
        assert row == [*begun, *[codec.last] * (16 - len(begun))]
        num_cut += row[-1] != codec.last or len(begun) == 16
    assert 0 < num_cut < 40
    told = f"{source}: {num_cut} of 40 documents have more than 14 tokens: they are cut and have no end"
    assert told in capsys.readouterr().err
    batch = data.batch(np.arange(3))
    assert batch.is_real[:, 1:].all()  # the ends are learned
    assert batch.given is not None
    assert batch.given.sum() == 3  # only the first symbol of each is given
    assert row_sizes(config_of(source=source, packing="end")) == [2 + len(ids) for ids in documents_of(codec.tokenizer)]


def test_a_document_of_several_pieces_begins_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fpmgm.data.sources.PIECE_BYTES", 5)
    for packing in ("begin", "end"):
        assert len(load_text(config_of(source="rows.jsonl", packing=packing)).rows) == 40


def test_a_tokenizer_can_be_that_of_a_model_by_its_folder_its_run_or_its_name(
    text_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text_model.save(tmp_path / "run" / "model")
    monkeypatch.setattr("fpmgm.data.tokenizing.BUNDLED", tmp_path / "bundled")
    text_model.save(tmp_path / "bundled" / "small")
    assert isinstance(text_model.codec, TextCodec)
    for name in ("run", "run/model", "run/model/tokenizer.json", "small"):
        config = config_of(tokenizer=name)
        assert load_text(config).codec.is_alike(text_model.codec)
        assert config.vocabulary.size == text_model.codec.symbols.size
        assert (config.placed().tokenizer == name) == (name == "small")
    with pytest.raises(
        ValueError, match=r"tokenizer is 'nobody'; give gpt2, bert, bpe-N, words-N, a tokenizer.json or a model"
    ):
        load_text(config_of(tokenizer="nobody"))


# Texts up to their ends


def codec_of() -> TextCodec:
    return TextCodec(train_bpe(iter(["the sea and the sky\n" * 50]), 270).to_str())


def test_a_text_goes_up_to_the_first_end_after_some_text_and_after_what_is_given() -> None:
    codec = codec_of()
    end, sea, sky = codec.last, codec.encode("the sea"), codec.encode(" and the sky")
    row = [end, *sea, end, *sky, end, end]
    assert until_end(row, codec) == [end, *sea]
    assert until_end([end, *row], codec) == [end, end, *sea]  # an end before any text ends nothing
    assert until_end(row, codec, num_given=len(sea) + 3) == row[:-2]
    assert until_end(row, codec, num_given=len(row)) == row  # as in a text with blanks, whose end is given
    assert until_end([end, *sea], codec) == [end, *sea]
    assert until_end([end, end], codec) == [end, end]


def test_samples_show_their_ends_only_where_the_model_has_learned_them() -> None:
    codec = codec_of()
    end, sea, sky = codec.last, codec.encode("the sea"), codec.encode(" and the sky")
    rows = [[end, *sea, *sky, end, *sea, end], [end, *sea, end, *sky, *sea, end]]
    about: dict[str, Any] = {"codec": codec, "tokens": rows, "given": [1 + len(sea), 0], "labels": None}
    about |= {"block_evals": 3, "seconds": 0.1, "iterations": (1,), "sampling": Sampling()}
    out = Generated(has_ends=True, **about)
    assert out.texts == ["the sea and the sky", "the sea"]
    assert out.continuations == [" and the sky", "the sea"]
    assert out.whole == ["the sea and the skythe sea", "the sea and the skythe sea"]
    assert out.tokens == rows
    before = Generated(has_ends=False, **about)
    assert before.texts == before.shown == out.whole


@pytest.mark.parametrize(("packing", "has_ends"), [("wrap", False), ("pad", True), ("begin", True), ("end", True)])
def test_a_model_folder_tells_whether_its_texts_end(
    text_model: Model, tmp_path: Path, packing: Any, has_ends: bool
) -> None:
    configs: list[Any] = [TextConfig(packing=packing, length=24)]
    if packing != "end":
        configs.append(StoriesConfig(packing=packing, length=24))
    for data in configs:
        replace(text_model, data=data).save(tmp_path / "model")
        model = load(tmp_path / "model")
        assert model.has_ends is has_ends
        out = generate(model, budget=6, num_samples=2, prompts=["the sea"])
        assert out.has_ends is has_ends
        assert out.given == [1 + len(model.speech.encode("the sea"))] * 2  # type: ignore[attr-defined]
        assert [len(row) for row in out.tokens] == [24, 24]


@pytest.mark.parametrize(("packing", "is_begun"), [("wrap", False), ("pad", False), ("begin", True), ("end", True)])
def test_the_first_symbol_of_documents_is_given_in_training_and_in_sampling(
    text_model: Model, packing: Any, is_begun: bool
) -> None:
    data = load_text(config_of(packing=packing))
    batch = data.batch(data.train[:4])
    assert (batch.given is not None) is is_begun
    noise = MaskedCrossEntropy().draw(text_model.denoiser, batch, rng=generator(0), moment=Moment())
    fully = masked_below(
        batch.x, batch.sparing(torch.zeros(batch.x.shape)), torch.ones(4), mask_id=text_model.denoiser.mask_id
    )
    assert ((fully == text_model.denoiser.mask_id).sum(dim=1) == 16 - is_begun).all()
    assert noise.num_tokens == int(batch.is_real.sum()) <= 4 * (16 - is_begun)
    assert batch.is_real[:, 0].all() == (not is_begun)
    model = replace(text_model, data=config_of(packing=packing, length=24))
    seen: list[Any] = []
    out = generate(model, budget=6, steps=2, num_samples=2, on_step=seen.append)
    starts = seen[0].z
    assert (starts[:, 0] == (model.speech.first if is_begun else model.denoiser.mask_id)).all()
    assert (starts[:, 1:] == model.denoiser.mask_id).all()
    assert out.given == [int(is_begun)] * 2


def test_a_finished_replay_shows_the_text_up_to_its_end(text_model: Model) -> None:
    with torch.no_grad():
        text_model.denoiser.backbone.head_weights()[1][0] += 4
    for packing, is_shorter in (("end", True), ("wrap", False)):
        model = replace(text_model, data=TextConfig(packing=packing, length=24))  # type: ignore[arg-type]
        printed = StringIO()
        with Replay(model, Console(file=printed, width=200), steps={1}) as replay:
            out = generate(model, budget=6, steps=2, prompts=["the sea"], on_step=replay)
        assert model.speech.last in out.tokens[0][out.given[0] :]
        shown = printed.getvalue().split("\n", 1)[1]
        assert "".join(shown.split()) == "".join(out.texts[0].split())
        assert (len(out.texts[0]) < len(out.whole[0])) is is_shorter


def test_folders_from_before_packing_by_pairs_still_load(text_model: Model, tmp_path: Path) -> None:
    replace(text_model, data=TextConfig(length=24)).save(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    settings = json.loads(file.read_text())
    for name in ("prompt_field", "answer_field", "between"):
        del settings["data"][name]
    file.write_text(json.dumps(settings))
    model = load(tmp_path / "model")
    assert model.data is not None
    assert asdict(model.data) == asdict(TextConfig(length=24))  # type: ignore[call-overload]
    assert not model.has_ends
