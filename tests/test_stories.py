"""The corpus `stories`, made by a small source with random weights."""

import json
import multiprocessing
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fpmgm.backbones.network import Vocabulary
from fpmgm.checkpoint import Model
from fpmgm.data import DataConfig, data_config, stories_text
from fpmgm.data.stories import HELD_OUT, HELD_OUT_SEED, TRAIN_SEED, Plan, Workshop, cut_mass
from fpmgm.data.stories_sampler import Head, sample_stories
from fpmgm.data.stories_source import BEGIN, read_source
from fpmgm.data.stories_symbols import Spelling, cut_tokenizer, kept_pieces, to_source
from fpmgm.data.stories_text import StoriesConfig, load_stories
from fpmgm.data.stories_tokenizer import read_tokenizer
from fpmgm.data.tokenizing import train_bpe
from fpmgm.evaluation.held_out import data_for, measured_data
from tests.small_source import SYMBOLS, write_source

PLAN = Plan(num_held_out=40, stories_per_shard=10, num_rows=200, batch_size=8)


def workshop_in(folder: Path) -> Workshop:
    write_source(folder / "source", begin=5.0)
    source = read_source(folder / "source" / "model.bin")
    tokenizer = read_tokenizer(folder / "source" / "tokenizer.bin")
    return Workshop(folder=folder / "stories", source=source, tokenizer=tokenizer, plan=PLAN)


@pytest.fixture
def making(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    return workshop_in(tmp_path)


def times_of(folder: Path) -> dict[str, int]:
    return {str(file): file.stat().st_mtime_ns for file in folder.rglob("*.npy")}


def test_shards_hold_the_stories_of_their_streams_as_ids_and_as_text(making: Workshop) -> None:
    shards = making.train(size=300)
    rows = torch.from_numpy(np.load(making.folder / HELD_OUT / "rows.npy"))
    num = len(shards) * PLAN.stories_per_shard
    (expected,) = sample_stories(making.source, Head.of(making.source, rows), seed=TRAIN_SEED, indices=range(num))
    found = [shard.story(index) for shard in shards for index in range(len(shard))]
    texts = [text for shard in shards for text in shard.texts()]
    assert len(found) == len(texts) == num >= 20
    for story, other, text in zip(found, expected, texts, strict=True):
        np.testing.assert_array_equal(story, other)
        assert text == making.tokenizer.decode(story.tolist())


def test_there_are_as_many_tokens_as_asked_for(making: Workshop) -> None:
    for size in (1, 150, 700):
        shards = making.train(size)
        total = sum(len(shard.ids) for shard in shards)
        assert total >= size
        assert total - len(shards[-1].ids) < size or len(shards) == making.num_shards(size)


def test_held_out_stories_have_seeds_of_their_own_and_need_no_training_story(making: Workshop) -> None:
    held_out = making.held_out()
    assert len(held_out) == PLAN.num_held_out
    assert not list(making.folder.glob("train-*"))
    assert HELD_OUT_SEED != TRAIN_SEED
    indices, head = range(len(held_out)), Head.of(making.source)
    (expected,) = sample_stories(making.source, head, seed=HELD_OUT_SEED, indices=indices)
    for index in indices:
        np.testing.assert_array_equal(held_out.story(index), expected[index])


def test_the_rows_that_are_cut_are_never_drawn_and_their_mass_is_measured_on_other_stories(making: Workshop) -> None:
    held_out = making.held_out()
    rows, mass = (np.load(held_out.folder / f"{name}.npy") for name in ("rows", "mass"))
    assert len(rows) == PLAN.num_rows
    assert set(making.train(200)[0].ids.tolist()) <= set(rows.tolist())
    about = json.loads((held_out.folder / "about.json").read_text())
    others = np.setdiff1d(np.arange(SYMBOLS), rows)
    assert about["cut_mass_of_train"] == pytest.approx(mass[1][others].sum())
    assert mass[0][others].max() <= mass[0][rows].min()
    assert cut_mass(mass[1], np.arange(SYMBOLS)) == pytest.approx(0)


class KilledError(Exception):
    pass


def test_a_kill_costs_the_shard_it_was_on_and_no_other(making: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [shard.ids.tolist() for shard in replace(making, folder=making.folder / "whole").train(500)]
    calls = iter(range(100))

    def report(num_stories: int, note: str) -> None:
        if next(calls) == 6:
            raise KilledError

    with pytest.raises(KilledError):
        making.reporting(report).train(500)
    done = times_of(making.folder)
    assert not list(making.folder.glob(".*"))
    assert [shard.ids.tolist() for shard in making.train(500)] == whole
    assert done.items() <= times_of(making.folder).items()


def test_a_shard_that_a_kill_left_half_written_is_made_again(making: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [shard.ids.tolist() for shard in replace(making, folder=making.folder / "whole").train(1)]
    making.held_out()
    original = np.save

    def save(file: Path, array: np.ndarray) -> None:
        original(file, array)
        raise KilledError

    monkeypatch.setattr(np, "save", save)
    with pytest.raises(KilledError):
        making.train(1)
    monkeypatch.setattr(np, "save", original)
    assert [shard.ids.tolist() for shard in making.train(1)] == whole


def make(folder: Path) -> None:
    torch.set_num_threads(1)
    workshop_in(folder).train(600)


@pytest.mark.slow
def test_two_processes_share_the_shards(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=make, args=(tmp_path,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    together = [shard.ids.tolist() for shard in workshop_in(tmp_path).train(600)]
    alone = workshop_in(tmp_path / "alone")
    assert together == [shard.ids.tolist() for shard in alone.train(600)]


def config_of(**fields: object) -> StoriesConfig:
    settings = {"tokenizer": "source-265", "length": 12, "size": 400, **fields}
    return StoriesConfig(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("packing", ["wrap", "pad"])
def test_sequences_in_the_sources_symbols_are_its_own_ids(making: Workshop, packing: str) -> None:
    packed = load_stories(config_of(packing=packing, length=30), making=making)
    own = to_source(packed.codec.tokenizer, making.tokenizer)
    assert own is not None
    shards = [making.held_out()]
    whole = [shard.story(index) for shard in shards for index in range(len(shard)) if shard.story(index)[-1] == BEGIN]
    texts = [making.tokenizer.decode(story.tolist()) for story in whole if len(story) > 1]
    assert len(texts) > 3
    rows = packed.rows[packed.held_out].astype(np.int64)
    assert len(rows)
    if packing == "pad":
        assert len(rows) == len(texts)
        for row, text in zip(rows, texts, strict=True):
            assert row[0] == packed.codec.symbols.first
            ids = row[row != packed.codec.symbols.pad_id]
            assert ids[-1] == packed.codec.symbols.last
            assert making.tokenizer.decode(own[ids].tolist()) == text
    else:
        stream = own[rows[:, 1:-1].ravel()]
        expected = [making.tokenizer.pieces[i] for story in whole if len(story) > 1 for i in story]
        found = [making.tokenizer.pieces[i] for i in stream]
        assert b"".join(found) == b"".join(expected)[: len(b"".join(found))]


def test_a_packed_sequence_begins_with_a_story_and_goes_on_with_the_next_ones(making: Workshop) -> None:
    packed = load_stories(config_of(packing="begin", length=30), making=making)
    alone = load_stories(config_of(packing="pad", length=200), making=making)
    symbols = packed.codec.symbols
    rows, stories = (data.rows[data.held_out].astype(np.int64) for data in (packed, alone))
    assert len(rows) == len(stories) > 3
    for index, row in enumerate(rows):
        following = [*stories[index:], *stories[:index]]
        joined = np.concatenate([story[story != symbols.pad_id][1:] for story in following])
        assert row.tolist() == [symbols.first, *joined[:29]]


def test_training_and_held_out_sequences_come_from_their_own_stories(making: Workshop) -> None:
    alone = load_stories(config_of(size=0, packing="pad"), making=making)
    both = load_stories(config_of(packing="pad"), making=making)
    assert len(alone.train) == 0 < len(both.train)
    np.testing.assert_array_equal(alone.rows[alone.held_out], both.rows[both.held_out])
    more = load_stories(config_of(size=700, packing="pad"), making=making)
    assert len(more.train) > len(both.train)
    np.testing.assert_array_equal(more.rows[: len(both.train)], both.rows[both.train])


def test_training_sequences_are_the_whole_stories_among_the_first_tokens(making: Workshop) -> None:
    making = replace(making, plan=replace(PLAN, stories_per_shard=60))
    shard = making.train(1)[0]
    ends, is_whole = shard.offsets[1:], shard.ids[shard.offsets[1:] - 1] == BEGIN
    is_whole &= np.diff(shard.offsets) > 1
    assert 0 < is_whole.sum() < len(shard)
    last = int(ends[is_whole][-1])
    for size in (int(ends[2]), last - 1, last):
        packed = load_stories(config_of(packing="pad", size=size), making=making)
        assert len(packed.train) == is_whole[ends <= size].sum()


def test_a_story_that_does_not_fit_is_cut_off_without_an_end(making: Workshop) -> None:
    packed = load_stories(config_of(packing="pad", length=4), making=making)
    is_full = (packed.rows != packed.codec.symbols.pad_id).all(axis=1)
    assert is_full.any()
    assert (packed.rows[is_full, -1] != packed.codec.symbols.last).any()
    assert (packed.rows[:, 0] == packed.codec.symbols.first).all()


def test_a_bpe_is_trained_on_the_text_of_the_stories(making: Workshop) -> None:
    packed = load_stories(config_of(tokenizer="bpe-260", packing="pad", length=200), making=making)
    assert to_source(packed.codec.tokenizer, making.tokenizer) is None
    texts = [text for shard in [making.held_out()] for text in shard.texts()]
    ids = packed.rows[packed.held_out[0]].tolist()
    assert packed.codec.tokenizer.decode([i for i in ids if i != packed.codec.symbols.pad_id]) in texts
    with pytest.raises(ValueError, match=r"data\.size is 0"):
        load_stories(config_of(tokenizer="bpe-260", size=0), making=making)


def test_words_are_those_of_the_stories_and_models_of_them_are_judged_through_text(making: Workshop) -> None:
    packed = load_stories(config_of(tokenizer="words-270", packing="pad", length=200), making=making)
    texts = [*making.held_out().texts()]
    ids = packed.rows[packed.held_out[0]].tolist()
    assert packed.codec.tokenizer.decode([i for i in ids if i != packed.codec.symbols.pad_id]) in texts
    assert to_source(packed.codec.tokenizer, making.tokenizer) is None
    with pytest.raises(ValueError, match=r"words-270 is trained on the stories, but data\.size is 0"):
        load_stories(config_of(tokenizer="words-270", size=0), making=making)


def test_cut_symbols_spell_every_text_and_cut_it_as_the_source_does(making: Workshop) -> None:
    source = making.tokenizer
    mass = np.linspace(1, 0, SYMBOLS)
    whole, cut = cut_tokenizer(source, mass, SYMBOLS + 2), cut_tokenizer(source, mass, 264)
    for text in ("abc ab", "b  abé", "z\n€ 🐕"):
        own = to_source(whole, source)
        assert own is not None
        assert own[whole.encode(text).ids].tolist() == source.encode(text)
        symbols = Spelling(cut, source)(np.array(source.encode(text)))
        assert cut.decode(symbols.tolist()) == whole.decode(whole.encode(text).ids) == text
        assert max(symbols) < 263
    assert cut.get_vocab_size() == 263
    assert whole.get_vocab_size() == SYMBOLS - 2 == 268  # all but <unk> and </s>


def test_a_piece_is_kept_with_the_pieces_it_is_merged_from(making: Workshop) -> None:
    source = making.tokenizer
    pieces = {source.pieces[index].decode(errors="replace"): index for index in range(259, SYMBOLS)}
    mass = np.zeros(SYMBOLS)
    mass[pieces["abc"]] = 1.0
    kept = kept_pieces(source, mass, 258 + 5)
    assert kept == sorted(pieces[name] for name in ("abc", "ab", "a", "b", "c"))
    own = to_source(cut := cut_tokenizer(source, mass, 258 + 5), source)
    assert own is not None
    assert own[cut.encode("zabc").ids][-1] == pieces["abc"]


def test_other_symbols_are_not_the_sources(making: Workshop) -> None:
    assert to_source(train_bpe(iter(["abc"]), 258), making.tokenizer) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": -1}, "data.size is -1; it must be 0 to"),
        ({"length": 2}, "data.length is 2; it must be 3 to"),
        ({"tokenizer": "source-12"}, "can be cut to 259"),
        ({"tokenizer": "bpe-12"}, "byte-level BPE has 258"),
        ({"tokenizer": "words-12"}, "a vocabulary of words and bytes has 258"),
    ],
)
def test_settings_that_cannot_be_met_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StoriesConfig(**fields)  # type: ignore[arg-type]


def test_the_symbols_are_known_before_any_story_is_made() -> None:
    assert StoriesConfig().vocabulary == Vocabulary(size=4096, mask_id=4095, length=256)
    assert StoriesConfig(tokenizer="source-2048", length=128).vocabulary == Vocabulary(
        size=2048, mask_id=2047, length=128
    )
    assert StoriesConfig(tokenizer="bpe-300").vocabulary.size == 300


def test_the_config_is_kept_with_a_model() -> None:
    config = StoriesConfig(size=5, tokenizer="source-300", length=16, packing="pad")
    assert data_config({"data_type": "stories", **asdict(config)}, "config.json") == config
    assert isinstance(config, DataConfig)


def test_a_model_of_any_symbols_is_measured_on_the_held_out_stories_and_no_training_story_is_made(
    making: Workshop, text_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stories_text, "workshop", lambda: making)
    monkeypatch.setattr(stories_text, "make_stories", lambda size: None)
    data, words = measured_data(text_model, "stories")
    assert words == "what training holds out of stories (synthetic)"
    text = text_model.speech.show(data.rows[data.held_out[0], 1:-1].tolist())
    assert text in "".join(making.held_out().texts())
    own = replace(text_model, data=config_of(tokenizer="bpe-271", length=24, packing="pad"))
    assert len(data_for(own).held_out) > 0
    assert not list(making.folder.glob("train-*"))
    assert len(data_for(own, with_training=True).train) > 0
    with pytest.raises(ValueError, match="measured on held-out stories only; give --split held-out"):
        data_for(own, split="all")
