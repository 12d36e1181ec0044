"""Prompts and answers: the prompt is given, in data, in every objective and in what is measured."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fpmgm.__main__ import main
from fpmgm.backbones.dit import Network
from fpmgm.checkpoint import load
from fpmgm.data.pairs import Fields, holds_pairs, read_pairs
from fpmgm.data.text import TextConfig, load_text
from fpmgm.data.tokenizing import train_bpe
from fpmgm.denoiser import Denoiser
from fpmgm.evaluation.held_out import measured_data, measured_on
from fpmgm.evaluation.likelihood import masked_cross_entropy, perplexity
from fpmgm.evaluation.shown import held_out_prompts
from fpmgm.generation import generate
from fpmgm.gradients import IterationCounts
from fpmgm.masking import linear
from fpmgm.objectives import MaskedCrossEntropy, NextToken, next_token_nll
from fpmgm.post_training.consistency import Consistency
from fpmgm.post_training.matching import Matching
from fpmgm.post_training.sdtt import SelfDistillation
from fpmgm.randomness import generator
from fpmgm.training.config import Training
from fpmgm.training.loop import train
from fpmgm.training.metrics import read_metrics
from fpmgm.training.optim import OptimConfig
from fpmgm.types import Batch
from tests.conftest import Build
from tests.documentation import DOCS, blocks

NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PAIRS = [(f"{NUMBERS[i]} and {NUMBERS[j]}", NUMBERS[i + j + 1]) for i in range(4) for j in range(5)]
CAPITALS = [
    *[("France", "Paris"), ("Italy", "Rome"), ("Spain", "Madrid"), ("Japan", "Tokyo"), ("Egypt", "Cairo")],
    *[("Cuba", "Havana"), ("Peru", "Lima"), ("Kenya", "Nairobi"), ("Greece", "Athens"), ("Norway", "Oslo")],
    *[("China", "Beijing"), ("Iran", "Tehran"), ("Austria", "Vienna"), ("Hungary", "Budapest"), ("Ireland", "Dublin")],
    *[
        ("Portugal", "Lisbon"),
        ("Russia", "Moscow"),
        ("Sweden", "Stockholm"),
        ("Poland", "Warsaw"),
        ("Turkey", "Ankara"),
    ],
]
MASK = 11


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def write_pairs(file: Path, pairs: list[tuple[str, str]], names: tuple[str, str] = ("prompt", "answer")) -> Path:
    file.write_text("".join(json.dumps(dict(zip(names, pair, strict=True))) + "\n" for pair in pairs))
    return file


def config_of(file: Path, **changes: Any) -> TextConfig:
    return replace(TextConfig(source=str(file), tokenizer="bpe-320", length=24, packing="pairs"), **changes)


# What a row is


def test_a_row_is_a_prompt_that_is_given_then_its_answer_and_ends(tmp_path: Path) -> None:
    data = load_text(config_of(write_pairs(tmp_path / "sums.jsonl", PAIRS)))
    codec = data.codec
    assert data.given is not None
    for row, given, (prompt, answer) in zip(data.rows.tolist(), data.given.tolist(), PAIRS, strict=True):
        before, after = codec.encode(prompt), codec.encode("\n" + answer)
        begun = [codec.first, *before, *after]
        assert row == [*begun, *[codec.last] * (24 - len(begun))]
        assert given == 1 + len(before)
        start = codec.starts({"prompts": [prompt + " "]}, data.vocabulary, 1).tokens[0]
        assert start == [*row[:given], *[data.vocabulary.mask_id] * (24 - given)]  # as `sample --prompt` begins
    batch = data.batch(np.arange(3))
    assert batch.given is not None
    assert batch.given.sum(dim=1).tolist() == data.given[:3].tolist()
    assert batch.is_real.sum(dim=1).tolist() == [24 - int(given) for given in data.given[:3]]


def test_fields_can_have_other_names_and_something_else_can_stand_between(tmp_path: Path) -> None:
    file = write_pairs(tmp_path / "titles.jsonl", PAIRS, ("question", "reply"))
    config = config_of(file, prompt_field="question", answer_field="reply", between=" = ")
    data = load_text(config)
    assert data.codec.show(data.tokens(0)) == f"{PAIRS[0][0]} = {PAIRS[0][1]}"
    assert holds_pairs(str(file), config.fields)
    assert not holds_pairs(str(file), Fields())


def test_the_page_on_own_data_shows_pairs_as_they_must_be(tmp_path: Path) -> None:
    [block] = [content for language, content in blocks(DOCS / "own-data.md") if language == "json"]
    (tmp_path / "shown.jsonl").write_text(block)
    pairs = list(read_pairs(str(tmp_path / "shown.jsonl"), Fields()))
    assert len(pairs) == 2
    assert all(prompt.endswith("?") and answer.startswith("\n") for prompt, answer, _ in pairs)


def test_pairs_that_do_not_fit_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = ("a question " * 30, "an answer")
    file = write_pairs(tmp_path / "some.jsonl", [*PAIRS[:3], long, *PAIRS[3:], long])
    data = load_text(config_of(file))
    assert len(data.rows) == len(PAIRS)
    said = capsys.readouterr().err
    assert said.startswith(
        f"{file}: 2 of 22 pairs have more than 24 tokens and are left out, the first in {file} line 4"
    )
    needed = int(said.rpartition("--data.length ")[2].split()[0])
    load_text(config_of(file))  # one command says it once
    assert capsys.readouterr().err == ""
    assert len(load_text(config_of(file, length=needed)).rows) == 22
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match=rf"none of the 22 pairs of .* fits into 3 tokens; the longest needs {needed}"):
        load_text(config_of(file, length=3))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a"}', "line 2 has no field 'answer'; it has 'prompt': name the two with --data.prompt-field and"),
        ('{"prompt": "a", "answer": " "}', "line 2 has an empty 'answer'; every pair needs an answer"),
        ('{"prompt": "a", "answer": 3}', "line 2: answer is 3; it must be a text"),
        ('{"prompt": ["a"], "answer": "b"}', "line 2: prompt is ['a']; it must be a text"),
        ('{"prompt": "a", "answer": "\\ud800"}', "line 2: answer is '\\ud800'; it must be a text"),
        ('{"prompt": "a", ', "line 2 is not JSON"),
        ('["a", "b"]', "line 2 must hold a JSON object, and it holds ['a', 'b']"),
    ],
)
def test_a_line_that_is_no_pair_is_told_by_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a", "answer": "b"}\n' + line + "\n")
    words = ["--data.source", "bad.jsonl", "--data.packing", "pairs"]
    assert main(["train", "mine", *words, "--start", "fresh"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert message in said
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ValueError, match="line 2"):
        load_text(config_of(tmp_path / "bad.jsonl"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": "some.txt"}, r"pairs are read from \.jsonl files, and some\.txt is none"),
        ({"source": "hub:owner/name"}, r"pairs are read from \.jsonl files, and data\.source is hub:owner/name"),
        ({"source": "empty.jsonl"}, "empty.jsonl holds no pairs"),
        ({"text_field": "body"}, "data.text_field is 'body', and packing pairs does not use it; leave it out"),
        ({"packing": "end", "between": " "}, "data.between is ' ', and packing end does not use it; leave it out"),
        ({"tokenizer": "odd.json"}, "neither <.endoftext.> nor .CLS. and .SEP. to begin and end a text with"),
    ],
)
def test_settings_that_make_no_pairs_say_why(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    (tmp_path / "some.txt").write_text("a line\n" * 9)
    (tmp_path / "empty.jsonl").write_text("\n")
    write_pairs(tmp_path / "some.jsonl", PAIRS)
    odd = train_bpe(iter(["a b"]), 270).to_str().replace("<|endoftext|>", "<|over|>")
    (tmp_path / "odd.json").write_text(odd)
    tokenizer = tmp_path / "even.json"
    tokenizer.write_text(train_bpe(iter(["a b"]), 270).to_str())
    given = {"source": "some.jsonl", "tokenizer": str(tokenizer), "packing": "pairs", **settings}
    with pytest.raises(ValueError, match=message):
        TextConfig(**given).load()


# The prompt is never masked and has no part in a loss


def batch_with_prompts(num: int = 6, length: int = 16) -> Batch:
    x = torch.randint(MASK, (num, length), generator=generator(3))
    given = torch.arange(length) < torch.arange(1, num + 1)[:, None]
    return Batch(x=x, given=given)


def other_prompts(batch: Batch) -> torch.Tensor:
    """The same answers after other prompts."""
    assert batch.given is not None
    return torch.where(batch.given, (batch.x + 1) % MASK, batch.x)


OBJECTIVES: dict[str, Any] = {
    "bound": MaskedCrossEntropy(),
    "masked": MaskedCrossEntropy(weighting="masked", schedule="arccos"),
    "all": MaskedCrossEntropy(weighting="all"),
    "consistency": Consistency(),
    "consistency of logits": Consistency(distance="kl", positions="both-masked"),
    "self-distillation": SelfDistillation(first_steps=8),
    "matching": Matching(steps=(4,), remask="nested"),
    "matching anew": Matching(),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_no_pass_of_an_objective_sees_a_masked_prompt_and_no_loss_asks_for_one(small_model: Build, name: str) -> None:
    objective, batch = OBJECTIVES[name], batch_with_prompts()
    assert batch.given is not None
    networks = [small_model(seed=seed) for seed in (1, 2, 3)]
    seen: list[torch.Tensor] = []
    for network in networks:
        network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    others = {"teacher": networks[1]} | ({"fake": networks[2]} if isinstance(objective, Matching) else {})
    for seed in range(2):
        noise = objective.draw(networks[0], batch, rng=generator(seed))
        assert not (noise.asked & batch.given).any()
        assert noise.num_tokens == int((~batch.given).sum())
        total = objective.loss(networks[0], batch.x, noise, **others).total
        changed = objective.loss(networks[0], other_prompts(batch), noise, **others).total  # as a target only
        assert torch.equal(total, changed)
    assert len(seen) >= 4
    for z in seen:
        assert torch.equal(z[batch.given], batch.x[batch.given])
        assert (z == MASK).any()


@pytest.mark.parametrize("inputs", ["data", "own"])
def test_the_samples_that_matching_makes_of_itself_go_on_from_the_prompts(small_model: Build, inputs: Any) -> None:
    objective, batch = Matching(steps=(3,), inputs=inputs), batch_with_prompts()
    networks = [small_model(seed=seed) for seed in (1, 2, 3)]
    seen: list[torch.Tensor] = []
    for network in networks:
        network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    noise = objective.draw(networks[0], batch, rng=generator(0))
    objective.loss(networks[0], batch.x, noise, teacher=networks[1], fake=networks[2])
    assert seen
    assert all(torch.equal(z[batch.given], batch.x[batch.given]) for z in seen)


def asked_nats(denoiser: Denoiser, x: torch.Tensor, z: torch.Tensor, t: torch.Tensor, num_iters: int) -> torch.Tensor:
    """-log p of every token of x at a masked place of z, 0 elsewhere, one place at a time."""
    found = torch.zeros(x.shape, dtype=torch.float64)
    for row, place in (z == MASK).nonzero().tolist():
        is_there = torch.zeros_like(z, dtype=torch.bool)
        is_there[row, place] = True
        logits = denoiser.head(denoiser(z, t, is_there, num_grad=num_iters).features)[0].double()
        found[row, place] = -logits[:MASK].log_softmax(dim=-1)[x[row, place]]
    return found


def test_the_loss_is_the_bound_of_the_answers_by_hand(small_model: Build) -> None:
    denoiser, batch = small_model(num_pre=2, num_fp=0, num_post=0), batch_with_prompts()
    assert batch.given is not None
    objective = MaskedCrossEntropy()
    noise = objective.draw(denoiser, batch, rng=generator(5))
    with torch.no_grad():
        nats = asked_nats(denoiser, batch.x, noise.z, noise.t, 0)
        found = objective.loss(denoiser, batch.x, noise).total
    num_answered = sum(16 - given for given in range(1, 7))
    expected = sum(float(nats[row].sum() / noise.t[row]) for row in range(6)) / num_answered
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_the_validation_bound_masks_and_counts_answers_only(small_model: Build) -> None:
    denoiser, batch = small_model(), batch_with_prompts()
    assert batch.given is not None
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    hook = denoiser.register_forward_pre_hook(lambda _, inputs: seen.append((inputs[0], inputs[1])))
    found = perplexity(denoiser, batch, num_iters=2)
    masked_cross_entropy(denoiser, batch, num_iters=2)
    hook.remove()
    assert all(torch.equal(z[batch.given], batch.x[batch.given]) for z, _ in seen)
    z, t = seen[0]
    with torch.no_grad():
        nats = asked_nats(denoiser, batch.x, z, t, 2)
    expected = float((linear.weight(t)[:, None] * nats).sum()) / int((~batch.given).sum())
    assert found.nats_per_token == pytest.approx(expected, rel=1e-4)
    changed = perplexity(denoiser, replace(batch, given=None), num_iters=2)
    assert changed.nats_per_token != pytest.approx(expected, rel=1e-2)


def test_a_causal_model_learns_and_is_measured_on_answers_only(small_model: Build) -> None:
    denoiser, batch = small_model(num_pre=2, num_fp=0, num_post=0, is_causal=True), batch_with_prompts()
    assert batch.given is not None
    with torch.no_grad():
        nats = next_token_nll(denoiser, batch.x)
        objective = NextToken()
        loss = objective.loss(denoiser, batch.x, objective.draw(denoiser, batch, rng=generator(0))).total
    expected = float(nats[~batch.given[:, 1:]].mean())
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert perplexity(denoiser, batch).nats_per_token == pytest.approx(expected, rel=1e-5)


def test_a_batch_in_which_nothing_is_masked_has_no_loss(small_model: Build) -> None:
    batch = Batch(x=torch.zeros(2, 16, dtype=torch.long), given=torch.arange(16).expand(2, 16) < 15)
    objective = MaskedCrossEntropy()
    noise = objective.draw(small_model(), batch, rng=generator(0))
    noise = replace(noise, z=batch.x, asked=torch.zeros_like(noise.asked), num_masked=0)
    assert objective.loss(small_model(), batch.x, noise).total.item() == 0


# Runs


def training_of(tmp_path: Path, **changes: Any) -> Training:
    file = write_pairs(tmp_path / "sums.jsonl", PAIRS)
    usual = Training(
        out=str(tmp_path / "run"),
        model=Network(width=16, num_heads=2, num_pre=1, num_fp=1, num_post=1, cond_width=8, dropout=0.1),
        data=config_of(file, length=16),
        optim=OptimConfig(lr=1e-3, warmup=2, ema=0.9),
        updates=6,
        batch_size=4,
        validation_sequences=4,
        trackers=(),
    )
    return replace(usual, **changes)


def stopping_after(num: int) -> Callable[[float], bool]:
    done: list[float] = []

    def is_over(seconds: float) -> bool:
        done.append(seconds)
        return len(done) == num

    return is_over


def test_a_run_of_pairs_that_was_stopped_ends_bit_for_bit_as_an_unbroken_one(tmp_path: Path) -> None:
    whole = training_of(tmp_path, out=str(tmp_path / "whole"))
    train(whole, "test", card_samples=2)
    broken = replace(whole, out=str(tmp_path / "broken"), validate_every=2)
    train(broken, "test", is_over=stopping_after(2), card_samples=2)
    train(broken, "test", card_samples=2)
    losses = [[row["loss"] for row in read_metrics(tmp_path / name)] for name in ("whole", "broken")]
    assert losses[0] == losses[1]
    first, second = (load(tmp_path / name).denoiser.state_dict() for name in ("whole", "broken"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    model = load(tmp_path / "whole")
    assert model.has_ends
    data, words = measured_data(model)
    batch = data.measured(1000)
    assert batch.given is not None
    answered = int((~batch.given).sum())
    assert measured_on(data, batch, words).startswith(f"all {answered:,} tokens of what training holds out of ")
    card = (tmp_path / "whole" / "model" / "README.md").read_text()
    prompt = model.speech.show(held_out_prompts(data, 1)[0])
    assert "Each goes on from a held-out prompt." in card
    assert card.count(f"text\n{prompt}") == 2


def test_pairs_of_another_file_are_read_as_the_models_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(training_of(tmp_path, updates=1), "test", card_samples=1)
    write_pairs(tmp_path / "other.jsonl", PAIRS[:7])
    data, words = measured_data(load(tmp_path / "run"), "other.jsonl")
    assert data.given is not None
    assert len(data.held_out) == 7
    assert "other.jsonl (the model was trained on" in words
    assert main(["evaluate", "run", "--judge", "", "--budgets", "--ngram"]) == 2
    assert "has prompts, which n-gram models would count as answers; leave --ngram out" in capsys.readouterr().err


@pytest.mark.slow
def test_a_small_model_learns_twenty_pairs_by_heart_and_answers_them_with_an_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_pairs(tmp_path / "capitals.jsonl", CAPITALS)
    network = Network(width=64, num_heads=2, num_pre=1, num_fp=1, num_post=1, cond_width=16, dropout=0.0)
    few = IterationCounts(no_grad_min=0, no_grad_max=1, grad_min=1, grad_max=2)
    config = training_of(
        tmp_path,
        data=config_of(file, tokenizer="bpe-600", length=8),
        model=replace(network, embedding_start="normal", injection_start="mean"),
        optim=OptimConfig(lr=3e-3, warmup=20, ema=0.9, injection_lr=0.1),
        objective=MaskedCrossEntropy(weighting="masked", iterations=few),
        updates=400,
        batch_size=19,
    )
    model = load(train(config, "test", card_samples=1))
    learned = [CAPITALS[row] for row in config.data.load().train]
    out = generate(model, prompts=[prompt for prompt, _ in learned], temperature=0.0, budget=48)
    assert out.continuations == ["\n" + answer for _, answer in learned]
    assert out.texts == [f"{prompt}\n{answer}" for prompt, answer in learned]
    assert all(row[-1] == model.speech.last for row in out.tokens)
    prompt, answer = learned[0]
    assert main(["sample", "run", "--prompt", prompt, "--temperature", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["texts"] == [f"{prompt}\n{answer}"]
