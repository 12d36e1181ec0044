"""The source as the judge of its own world, with a small source of random weights."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fpmgm.checkpoint import Model
from fpmgm.codecs import TextCodec
from fpmgm.data.stories import Plan, Workshop
from fpmgm.data.stories_source import BEGIN, Source, logits, read_source
from fpmgm.data.stories_symbols import cut_tokenizer, to_source
from fpmgm.data.stories_tokenizer import SourceTokenizer, read_tokenizer
from fpmgm.evaluation import sweep, text
from fpmgm.evaluation.held_out import text_codec
from fpmgm.evaluation.judges import Judge, read_symbols
from fpmgm.evaluation.stories_judge import entropy_rate, read_stories, stories_judge
from fpmgm.evaluation.sweep import Cell, Protocol, run_sweep
from fpmgm.evaluation.text import TextEvaluator
from fpmgm.symbols import END_OF_TEXT
from tests.conftest import SMALL, Build
from tests.small_source import POSITIONS, SYMBOLS, write_source


@pytest.fixture
def source(tmp_path: Path) -> Source:
    write_source(tmp_path)
    return read_source(tmp_path / "model.bin")


@pytest.fixture
def tokenizer(tmp_path: Path) -> SourceTokenizer:
    write_source(tmp_path)
    return read_tokenizer(tmp_path / "tokenizer.bin")


@pytest.fixture
def model(small_model: Build, tokenizer: SourceTokenizer) -> Model:
    """A model that writes the source's ids."""
    own = cut_tokenizer(tokenizer, np.ones(SYMBOLS), SYMBOLS + 2)
    size = own.get_vocab_size() + 1
    changes = {"vocab_size": size, "mask_id": size - 1, "length": 12}
    return Model(denoiser=small_model(**changes), config=replace(SMALL, **changes), codec=TextCodec(own.to_str()))  # type: ignore[arg-type]


def nats_of(source: Source, story: list[int]) -> torch.Tensor:
    """One story at a time, from the whole logits."""
    log_p = logits(source, torch.tensor([[BEGIN, *story[:-1]]]))[0].log_softmax(dim=-1)
    return -log_p[torch.arange(len(story)), story]


def test_stories_of_many_lengths_are_read_as_each_alone(source: Source) -> None:
    rng = np.random.default_rng(0)
    stories = [rng.integers(0, SYMBOLS, length).tolist() for length in (1, POSITIONS, 5, *range(1, 20))]
    for story, (nats, feature) in zip(stories, read_stories(source, stories), strict=True):
        torch.testing.assert_close(nats, nats_of(source, story), rtol=1e-5, atol=1e-5)
        (_, alone) = read_stories(source, [story])[0]
        torch.testing.assert_close(feature, alone, rtol=1e-5, atol=1e-5)


def test_a_story_is_read_as_far_as_the_source_has_positions(source: Source) -> None:
    story = [7] * (POSITIONS + 5)
    ((nats, _),) = read_stories(source, [story])
    torch.testing.assert_close(nats, nats_of(source, story[:POSITIONS]), rtol=1e-5, atol=1e-5)


def test_documents_are_read_alone_and_their_ends_are_scored_between_them(
    source: Source, tokenizer: SourceTokenizer
) -> None:
    judge = stories_judge(source, tokenizer)
    (both,) = judge.read([f"ab c{END_OF_TEXT}bc"])
    first, second = tokenizer.encode("ab c"), tokenizer.encode("bc")
    expected = torch.cat([nats_of(source, [*first, BEGIN]), nats_of(source, second)])
    torch.testing.assert_close(both.nats, expected, rtol=1e-5, atol=1e-5)


def test_a_model_of_the_sources_ids_is_judged_by_its_ids_and_not_through_text(
    source: Source, tokenizer: SourceTokenizer, model: Model
) -> None:
    own = to_source(cut_tokenizer(tokenizer, np.ones(SYMBOLS), SYMBOLS + 2), tokenizer)
    assert own is not None
    symbols = {index: symbol for symbol, index in enumerate(own.tolist())}
    single = [tokenizer.encode("a")[0], *(3 + byte for byte in b"bc")]  # the same text has the ids of " a", "bc"
    assert single != tokenizer.encode("abc")
    row = [0, *(symbols[index] for index in single), 0, symbols[single[0]], 0, model.config.vocabulary.mask_id]
    readings, judged_by = read_symbols(stories_judge(source, tokenizer), text_codec(model), [row, [0, 0]])
    assert judged_by == "ids"
    expected = torch.cat([nats_of(source, [*single, BEGIN]), nats_of(source, single[:1])])
    torch.testing.assert_close(readings[0].nats, expected, rtol=1e-5, atol=1e-5)
    assert len(readings[1].nats) == 0


def test_another_model_is_judged_through_its_text_or_refused(
    source: Source, tokenizer: SourceTokenizer, text_model: Model
) -> None:
    rows = [[1, 2, 3, 40, 50]]
    readings, judged_by = read_symbols(stories_judge(source, tokenizer), text_codec(text_model), rows)
    assert judged_by == "text"
    assert len(readings[0].nats) > 0
    with pytest.raises(ValueError, match=r"stories-source-ids reads only .*--data\.tokenizer source"):
        read_symbols(stories_judge(source, tokenizer, reads_text=False), text_codec(text_model), rows)


def test_rows_of_a_sweep_say_by_what_they_were_judged_and_exactness_is_checked_before_sampling(
    source: Source, tokenizer: SourceTokenizer, model: Model, text_model: Model, tmp_path: Path
) -> None:
    model.save(tmp_path / "own")
    text_model.save(tmp_path / "other")
    judges = {name: stories_judge(source, tokenizer, reads_text=name == "any") for name in ("any", "ids")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "_judge", lambda name, **_: judges[name])
        for name, expected in (("own", "ids"), ("other", "text")):
            cell = Cell(model=str(tmp_path / name), sampling=sweep.Sampling(budget=6))
            (row,) = run_sweep(
                [cell], Protocol(num_samples=2, evaluator=TextEvaluator(judge="any")), tmp_path / f"{name}.jsonl"
            )
            assert row.protocol.judge == "stories-source"
            assert row.protocol.judged_by == expected
        patch.setattr(sweep, "measure_cell", lambda *_: pytest.fail("sampled"))
        with pytest.raises(ValueError, match="reads only models that write the source's own ids"):
            run_sweep([cell], Protocol(num_samples=2, evaluator=TextEvaluator(judge="ids")), tmp_path / "refused.jsonl")


def test_the_entropy_rate_is_that_of_the_stories_with_their_ends(
    source: Source, tokenizer: SourceTokenizer, tmp_path: Path
) -> None:
    plan = Plan(num_held_out=10, stories_per_shard=4, num_rows=200, batch_size=8)
    shard = Workshop(folder=tmp_path / "stories", source=source, tokenizer=tokenizer, plan=plan).held_out()
    found = entropy_rate(source, shard)
    total = sum(float(nats_of(source, shard.story(index).tolist()).sum()) for index in range(10))
    assert found["nats_per_token"]["value"] == pytest.approx(total / len(shard.ids), rel=1e-5)
    num_bytes = sum(len(text.encode()) for text in shard.texts())
    assert found["nats_per_byte"]["value"] == pytest.approx(total / num_bytes, rel=1e-5)
    assert found["nats_per_token"]["low"] < found["nats_per_token"]["value"] < found["nats_per_token"]["high"]


def test_judges_that_read_only_text_do_so(text_model: Model) -> None:
    judge = Judge(name="none", read=lambda texts: [])
    assert read_symbols(judge, text_codec(text_model), []) == ([], "text")
