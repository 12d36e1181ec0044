"""The two conventions of generative perplexity, by hand: which tokens a judge reads and which it scores."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fpmgm
from fpmgm.checkpoint import Model
from fpmgm.evaluation.held_out import text_codec
from fpmgm.evaluation.judges import load_judge, read_symbols
from fpmgm.evaluation.layout import measured_columns
from fpmgm.evaluation.rows import as_json, row_of
from fpmgm.evaluation.sweep import Cell, Protocol, key_of
from fpmgm.evaluation.text import TextEvaluator
from fpmgm.generation import Sampling
from fpmgm.objectives import next_token_nll
from fpmgm.randomness import generator
from tests.test_evaluation import save_fresh

END = 0


@pytest.fixture
def judged(tmp_path: Path) -> tuple[str, Model]:
    """A causal model whose tokens differ in probability, and where it lies."""
    model = save_fresh(tmp_path / "judge", is_causal=True)
    with torch.no_grad():
        for parameter in model.denoiser.parameters():
            parameter.normal_(std=0.3, generator=generator(3))
    model.save(tmp_path / "judge")
    return str(tmp_path / "judge"), model


def nats_of(model: Model, ids: list[int]) -> torch.Tensor:
    """-log p of every token but the first."""
    with torch.no_grad():
        return next_token_nll(model.denoiser, torch.tensor([ids]))[0]


def test_published_scores_neither_the_first_token_nor_any_end_but_the_first(judged: tuple[str, Model]) -> None:
    source, model = judged
    codec = text_codec(model)
    sea, oak, old = map(codec.encode, ("the sea", "a poem", "old"))
    judge = load_judge(source, convention="published")
    inside = [*sea, END, *oak, END, *old]
    around = [END, *sea, END, *oak, END]
    rows, _ = read_symbols(judge, codec, [inside, around])
    second_end = len(sea) + 1 + len(oak)
    kept = [index for index in range(1, len(inside)) if index != second_end]
    torch.testing.assert_close(rows[0].nats, nats_of(model, inside)[[index - 1 for index in kept]])
    kept = [index for index in range(1, len(around)) if around[index] != END]  # the first end is the first token
    torch.testing.assert_close(rows[1].nats, nats_of(model, around)[[index - 1 for index in kept]])


def test_paper_scores_the_first_token_after_an_end_that_it_puts_before(judged: tuple[str, Model]) -> None:
    source, model = judged
    codec = text_codec(model)
    row = codec.encode("the sea")
    judge = load_judge(source)
    for given in (row, [END, *row, END]):  # ends around a sample are left out
        [reading], _ = read_symbols(judge, codec, [given])
        torch.testing.assert_close(reading.nats, nats_of(model, [END, *row]))


def test_paper_scores_every_token_and_every_end_between_documents(judged: tuple[str, Model]) -> None:
    source, model = judged
    codec = text_codec(model)
    sea, oak, old = map(codec.encode, ("the sea", "a poem", "old"))
    row = [*sea, END, *oak, END, *old]
    [reading], _ = read_symbols(load_judge(source), codec, [row])
    torch.testing.assert_close(reading.nats, nats_of(model, [END, *row]))


@pytest.mark.parametrize("convention", ["paper", "published"])
def test_no_token_is_lost_at_the_full_length_of_the_judge(judged: tuple[str, Model], convention: str) -> None:
    source, model = judged
    length = model.config.vocabulary.length
    judge = load_judge(source, convention=convention)
    text = "sea" * 40
    ids = text_codec(model).encode(text)[:length]
    assert len(ids) == length
    (reading, short) = judge.read([text, "a"])
    assert len(reading.nats) == (length if convention == "paper" else length - 1)
    (alone,) = judge.read([text])
    torch.testing.assert_close(reading.nats, alone.nats)
    torch.testing.assert_close(reading.feature, alone.feature)
    assert len(short.nats) == (1 if convention == "paper" else 0)
    read = [END, *ids] if convention == "paper" else ids
    torch.testing.assert_close(reading.nats[: length - 1], nats_of(model, read[:length])[: length - 1])


def test_rows_and_tables_name_the_convention_and_old_rows_are_of_the_paper(
    judged: tuple[str, Model], tmp_path: Path
) -> None:
    judge, _ = judged
    save_fresh(tmp_path / "model", is_causal=False)
    settings: dict[str, Any] = {"judge": judge, "num_samples": 2, "budgets": (4,)}
    found = {
        name: fpmgm.sweep("budgets", str(tmp_path / "model"), convention=name, **settings).rows[0]
        for name in ("paper", "published")
    }
    for name, row in found.items():
        assert row.protocol.convention == name
        assert f"generative perplexity ({name})" in [column.title for column in measured_columns([row])]
    assert measured_columns(list(found.values()))[-1].title == "convention"
    assert found["paper"].metrics["perplexity_per_token"] != found["published"].metrics["perplexity_per_token"]
    line = as_json(found["paper"])
    del line["protocol"]["convention"]
    assert row_of(line) == found["paper"]
    del line["metrics"]["perplexity_per_sample"]
    assert row_of(line).protocol.convention == ""


def test_a_convention_is_part_of_the_key_unless_it_is_the_usual_one(judged: tuple[str, Model], tmp_path: Path) -> None:
    judge, _ = judged
    save_fresh(tmp_path / "model", is_causal=False)
    cell = Cell(model=str(tmp_path / "model"), sampling=Sampling(budget=4))
    usual = TextEvaluator(judge=judge)
    assert "convention" not in usual.key()[0]
    assert usual.key()[0]["ends"] == "all"  # rows of before 2026-11-19 scored the first end only, and are others
    assert "ends" not in TextEvaluator(judge="stories-source").key()[0]  # which always scored all
    keys = {
        key_of(cell, Protocol(num_samples=2, evaluator=each))
        for each in (usual, replace(usual, convention="published"))
    }
    assert len(keys) == 2


def test_a_convention_without_effect_or_without_sense_is_refused() -> None:
    for judge, convention, message in (
        ("", "published", "nobody judges; give --judge"),
        ("stories-source", "published", "stories-source has only paper"),
        ("smollm2", "publishd", "unknown convention 'publishd'; did you mean 'published'"),
    ):
        with pytest.raises(ValueError, match=message):
            TextEvaluator(judge=judge, convention=convention)  # type: ignore[arg-type]
