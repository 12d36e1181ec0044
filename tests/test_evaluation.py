import json
import math
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fpmgm
from fpmgm import masking
from fpmgm.__main__ import main
from fpmgm.backbones.dit import as_mdlm
from fpmgm.checkpoint import Model
from fpmgm.codecs import TextCodec
from fpmgm.data.text import TextConfig, load_text
from fpmgm.data.tokenizing import train_bpe
from fpmgm.evaluation.diversity import unigram_entropy
from fpmgm.evaluation.held_out import text_codec
from fpmgm.evaluation.judges import Reading, load_judge
from fpmgm.evaluation.likelihood import perplexity
from fpmgm.evaluation.matched import match_entropy
from fpmgm.evaluation.mauve import mauve_interval, mauve_score, reference_texts
from fpmgm.evaluation.text import TextEvaluator, measure
from fpmgm.generation import generate
from fpmgm.masking import stratified_times
from fpmgm.objectives import next_token_nll, token_nll
from fpmgm.randomness import generator
from fpmgm.types import Batch
from tests.conftest import SMALL, Build

VERSE = "".join(f"line {i} of a poem about the {word}\n" for i in range(300) for word in ("sea", "sky", "old oak"))
SOME_TOKENS = torch.arange(12).view(2, 6)


def test_the_entropy_of_l_distinct_tokens_is_log_l() -> None:
    assert unigram_entropy(torch.arange(37)[None]).item() == pytest.approx(math.log(37), rel=1e-6)


def test_entropy_counts_each_sequence_by_itself() -> None:
    tokens = torch.tensor([[7, 7, 7, 7], [1, 1, 2, 2], [1, 1, 1, 2]])
    quarter = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert unigram_entropy(tokens).tolist() == pytest.approx([0, math.log(2), quarter], abs=1e-6)


def save_fresh(folder: Path, *, is_causal: bool) -> Model:
    """A model that knows nothing yet: every symbol is as likely as any other."""
    tokenizer = train_bpe(iter([VERSE]), 280)
    size = tokenizer.get_vocab_size() + 1
    config = replace(
        SMALL, vocab_size=size, mask_id=size - 1, length=24, num_pre=2, num_fp=0, num_post=0, is_causal=is_causal
    )
    model = Model(denoiser=fpmgm.mdlm(config), config=config, codec=TextCodec(tokenizer.to_str()))
    model.save(folder)
    return model


def test_a_judge_of_our_own_with_known_probabilities_gives_their_perplexity(tmp_path: Path) -> None:
    model = save_fresh(tmp_path / "judge", is_causal=True)
    judge = load_judge(str(tmp_path / "judge"))
    text = "a poem about the sea"
    assert len(judge.read([text])[0].nats) == len(text_codec(model).encode(text))
    found = measure(SOME_TOKENS, judge.read([text, "the sky"]))
    assert found["perplexity_per_token"].value == pytest.approx(model.config.vocabulary.size, rel=1e-4)
    assert judge.name == "fpmgm:judge"


def test_the_two_averages_differ_as_they_should_and_empty_texts_do_not_count() -> None:
    nats = {"long": torch.tensor([1.0, 1.0, 1.0, 1.0]), "short": torch.tensor([3.0]), "": torch.zeros(0)}
    found = measure(SOME_TOKENS, [Reading(each, torch.zeros(2)) for each in nats.values()])
    assert found["perplexity_per_token"].value == pytest.approx(math.exp(7 / 5))
    assert found["perplexity_per_sample"].value == pytest.approx(math.exp(2))
    with pytest.raises(ValueError, match="none of 1 texts has a token to judge"):
        measure(SOME_TOKENS, [Reading(nats[""], torch.zeros(2))])


def test_a_masked_model_is_refused_as_judge(tmp_path: Path) -> None:
    save_fresh(tmp_path / "masked", is_causal=False)
    with pytest.raises(ValueError, match="is a masked model; a judge must be causal"):
        load_judge(str(tmp_path / "masked"))


def test_the_evaluate_command_measures_models_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "verse.txt").write_text(VERSE)
    model = save_fresh(tmp_path / "model", is_causal=False)
    save_fresh(tmp_path / "judge", is_causal=True)
    shutil.copytree(tmp_path / "model", tmp_path / "other")
    command = ["evaluate", str(tmp_path / "model"), str(tmp_path / "other"), "--data", str(tmp_path / "verse.txt")]
    command += [
        "--budgets",
        "4",
        "8",
        "--num-samples",
        "3",
        "--judge",
        str(tmp_path / "judge"),
        "--ngram",
        "--split",
        "held-out",
    ]
    command += ["--out", str(tmp_path / "out")]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    size = model.config.vocabulary.size
    for row in found["validation"]:
        assert row["value"] == pytest.approx(size - 1, abs=4 * row["error"])
        assert row["ngram"]["kneser_ney"] < row["value"] / 5
    assert [row["block_evals"] for row in found["samples"]] == [4, 8, 4, 8]
    first = found["samples"][0]
    assert first["metrics"]["perplexity_per_token"]["value"] == pytest.approx(size, rel=1e-3)
    assert first["protocol"]["judge"] == "fpmgm:judge"
    assert first["protocol"]["hardware"]
    assert first["multiply_adds"] > 0
    for name in ("samples.jsonl", "results.json", "table.md", "table.tex", "quality.png", "quality.svg"):
        assert (tmp_path / "out" / name).stat().st_size > 0
    assert main(command) == 0
    assert "judge: fpmgm:judge" in " ".join(capsys.readouterr().out.split())


def test_evaluate_from_python_returns_records_and_writes_nothing_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "verse.txt").write_text(VERSE)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    model = save_fresh(tmp_path / "model", is_causal=False)
    told: list[str] = []
    settings: dict[str, Any] = {"data": str(tmp_path / "verse.txt"), "judge": "", "budgets": (4, 8), "num_samples": 3}
    found = fpmgm.evaluate(
        str(tmp_path / "model"),
        on_model=lambda name, where: told.append(where),
        on_cell=lambda cell, index, total: told.append(f"{index + 1} of {total}"),
        **settings,
    )
    [validated] = found.validation
    assert validated.value == pytest.approx(model.config.vocabulary.size - 1, abs=4 * validated.error)
    assert told == [validated.measured_on, "1 of 2", "2 of 2"]
    assert [(row.budget, row.block_evals, row.protocol.num_samples) for row in found.samples] == [(4, 4, 3), (8, 8, 3)]
    assert all(row.metrics["entropy"].low <= row.metrics["entropy"].high for row in found.samples)
    assert found.matched == found.files == ()
    assert json.loads(json.dumps(found.as_json()))["samples"][1]["sampling"]["budget"] == 8
    assert not list((tmp_path / "here").iterdir())
    with pytest.raises(ValueError, match="unknown setting 'jugde'; did you mean 'judge'"):
        fpmgm.evaluate(str(tmp_path / "model"), jugde="")
    with pytest.raises(ValueError, match="unknown knob 'temprature'; did you mean 'temperature'"):
        fpmgm.evaluate(("a", "b"), match="temprature")


@pytest.mark.slow
def test_evaluate_matches_the_entropy_of_the_first_model_and_scores_mauve(
    tmp_path: Path, small_model: Build, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "verse.txt").write_text(4 * VERSE)
    save_fresh(tmp_path / "judge", is_causal=True)
    model = save_fresh(tmp_path / "model", is_causal=False)
    size = model.config.vocabulary.size
    sharp = small_model(std=0.4, vocab_size=size, mask_id=size - 1, length=24)
    config = replace(as_mdlm(model.config), num_pre=1, num_fp=1, num_post=1)
    replace(model, denoiser=sharp, config=config).save(tmp_path / "sharp")
    command = ["evaluate", str(tmp_path / "model"), str(tmp_path / "sharp"), "--judge", str(tmp_path / "judge")]
    command += ["--data", str(tmp_path / "verse.txt"), "--budgets", "12", "--num-samples", "8", "--mauve"]
    command += ["--match", "temperature", "--out", str(tmp_path / "out")]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    flat, sharp_row = found["samples"]
    assert all(0 < row["metrics"]["mauve"]["value"] <= 1 for row in found["samples"])
    (matched,) = found["matched"]
    assert matched["matched"]["entropy"] == flat["metrics"]["entropy"]["value"]
    assert matched["sampling"]["temperature"] > sharp_row["sampling"]["temperature"]
    distance = [
        abs(row["metrics"]["entropy"]["value"] - flat["metrics"]["entropy"]["value"]) for row in (matched, sharp_row)
    ]
    assert distance[0] < distance[1]
    assert found["validation"][0]["by_iterations"] == {}
    assert set(found["validation"][1]["by_iterations"]) == {"2", "12"}
    assert len((tmp_path / "out" / "samples.jsonl").read_text().splitlines()) == 3
    assert main(command) == 0
    assert "At the entropy of model, by temperature:" in capsys.readouterr().out
    assert len((tmp_path / "out" / "samples.jsonl").read_text().splitlines()) == 3  # nothing measured twice


def test_validation_masks_as_mdlm_by_name(small_model: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "KEPT", 0.3)  # 1e-3 would leave these few masks as they are
    denoiser = small_model(num_pre=2, num_fp=0, num_post=0).eval()
    x = torch.randint(0, 11, (4, 16), generator=generator(1))
    rng = generator(0)
    t = stratified_times(4, rng=rng)[torch.randperm(4, generator=rng)]
    z = torch.where(torch.rand(x.shape, generator=rng) < 0.7 * t[:, None], 11, x)
    asked = z == 11
    with torch.no_grad():
        nll = token_nll(denoiser, denoiser(z, t, asked).features, x[asked])
    nats = (torch.zeros(x.shape).masked_scatter(asked, nll) / t[:, None]).sum() / x.numel()
    evaluator = TextEvaluator(masking="log-linear")
    found = evaluator.validate(denoiser, Batch.of(x), num_iters=0)
    assert found.nats_per_token == pytest.approx(float(nats), rel=1e-5)
    assert evaluator.validated.title == "validation perplexity (log-linear masks)"
    usual = TextEvaluator().validate(denoiser, Batch.of(x), num_iters=0)
    assert found.nats_per_token != pytest.approx(usual.nats_per_token, rel=1e-3)


@pytest.mark.parametrize("is_causal", [False, True])
def test_validation_perplexity_leaves_padding_out(small_model: Build, is_causal: bool) -> None:
    denoiser = small_model(num_pre=2, num_fp=0, num_post=0, is_causal=is_causal)
    x = torch.randint(0, 11, (4, 16), generator=generator(0))
    x[1:, 9:] = 11  # padded with the mask, whose own probability is 0
    padded = perplexity(denoiser, Batch(x=x, counts=x != 11))
    assert math.isfinite(padded.value)
    if is_causal:
        nll = next_token_nll(denoiser, x).detach()
        assert padded.nats_per_token == pytest.approx(
            float((nll[0].sum() + nll[1:, :8].sum()) / (15 + 3 * 8)), rel=1e-5
        )
    same = perplexity(denoiser, Batch(x=x[:1], counts=x[:1] != 11))
    assert same.nats_per_token == pytest.approx(perplexity(denoiser, x[:1]).nats_per_token)


def test_a_judge_reads_and_scores_its_own_ends_of_text_between_documents(tmp_path: Path) -> None:
    model = save_fresh(tmp_path / "judge", is_causal=True)
    with torch.no_grad():
        for parameter in model.denoiser.parameters():
            parameter.normal_(std=0.3, generator=generator(3))
    model.save(tmp_path / "judge")
    judge = load_judge(str(tmp_path / "judge"))
    parts = [text_codec(model).encode(part) for part in ("the sea", "a poem", "old")]
    whole = [0, *parts[0], 0, *parts[1], 0, *parts[2]]
    (reading,) = judge.read(["the sea<|endoftext|>a poem<|endoftext|>old"])
    with torch.no_grad():
        nll = next_token_nll(model.denoiser, torch.tensor([whole]))[0]
    torch.testing.assert_close(reading.nats, nll)
    together = judge.read(["the sky", "the sea<|endoftext|>a poem<|endoftext|>old", "oak"])[1]
    torch.testing.assert_close(together.nats, reading.nats, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(together.feature, reading.feature, rtol=1e-4, atol=1e-5)


def test_the_documents_of_a_sample_have_end_of_text_between_them_and_none_around(tmp_path: Path) -> None:
    model = save_fresh(tmp_path / "m", is_causal=False)
    sea, oak = text_codec(model).encode("the sea"), text_codec(model).encode("old oak")
    assert text_codec(model).documents([0, *sea, 0, *oak, 0]) == "the sea<|endoftext|>old oak"
    assert text_codec(model).documents([0, 0, *sea, 0, 0]) == "the sea"
    assert text_codec(model).documents([0, 0]) == ""


def test_samples_are_matched_to_an_entropy_by_temperature_or_top_p(small_model: Build) -> None:
    tokenizer = train_bpe(iter([VERSE]), 280)
    size = tokenizer.get_vocab_size() + 1
    changes = {"vocab_size": size, "mask_id": size - 1, "length": 24}
    denoiser = small_model(std=0.4, **changes)
    model = Model(denoiser=denoiser, config=replace(SMALL, **changes), codec=TextCodec(tokenizer.to_str()))  # type: ignore[arg-type]
    sampling: dict[str, Any] = {"num_samples": 24, "budget": 24, "seed": 0}

    def entropy(knob: str, setting: float) -> float:
        out = generate(model, **{**sampling, knob: setting})
        return float(unigram_entropy(torch.tensor(out.tokens)).mean())

    target = (entropy("temperature", 0.5) + entropy("temperature", 1.0)) / 2
    for knob in ("temperature", "top_p"):
        found = match_entropy(partial(entropy, knob), target, knob=knob)
        assert found.is_met
        assert found.entropy == entropy(knob, found.setting) == pytest.approx(target, abs=0.01)


def test_a_search_for_an_entropy_takes_few_tries_and_ends_at_the_range_if_there_is_none() -> None:
    tried: list[float] = []

    def entropy(setting: float) -> float:
        tried.append(setting)
        return 4.3 + 1.2 * math.log(setting)

    for target, most in ((4.3, 1), (4.2, 3), (4.05, 4), (4.5, 4), (3.0, 6)):
        tried.clear()
        assert match_entropy(entropy, target).is_met
        assert len(tried) <= most
    tried.clear()
    assert match_entropy(entropy, 4.3 + 1.2 * math.log(0.7), start=0.705).is_met
    assert tried == [0.705]
    for target, end in ((10.0, 1.5), (1.0, 0.3)):
        unreachable = match_entropy(entropy, target)
        assert (unreachable.is_met, unreachable.setting) == (False, end)
    assert match_entropy(entropy, 10.0, knob="top_p").setting == 1.0
    stepwise = match_entropy(lambda setting: 3.0 if setting < 0.77 else 5.0, 4.0)
    assert not stepwise.is_met
    with pytest.raises(ValueError, match="unknown knob 'temprature'; did you mean 'temperature'"):
        match_entropy(entropy, 1.0, knob="temprature")


def test_measured_metrics_are_those_of_the_samples_themselves() -> None:
    tokens = torch.tensor([[1, 2, 1, 2, 3], [1, 2, 3, 4, 5]])
    readings = [Reading(torch.tensor([1.0, 1.0, 1.0]), torch.zeros(2)), Reading(torch.tensor([5.0]), torch.zeros(2))]
    found = measure(tokens, readings)
    assert found["perplexity_per_token"].value == pytest.approx(math.exp(2))
    assert found["perplexity_per_sample"].value == pytest.approx(math.exp(3))
    assert found["distinct_2"].value == pytest.approx(7 / 8)
    assert found["repetition_4"].value == 0
    assert found["entropy"].value == pytest.approx(float(unigram_entropy(tokens).mean()))
    assert all(metric.low <= metric.value <= metric.high for metric in found.values())


def test_mauve_is_high_for_texts_of_one_distribution_and_low_for_disjoint_ones() -> None:
    rng = np.random.default_rng(0)
    real, same = rng.normal(size=(2, 200, 8))
    assert mauve_score(same, real) > 0.9
    assert mauve_score(real, real) > 0.99
    assert mauve_score(same + 30, real) < 0.05
    with pytest.raises(ValueError, match="needs at least 8 of each"):
        mauve_score(real[:3], real)


def test_the_interval_of_mauve_tells_near_texts_from_far_ones() -> None:
    rng = np.random.default_rng(0)
    real, near = rng.normal(size=(2, 60, 4))
    close, far = (mauve_interval(each, real, num_resamples=8) for each in (near, near + 3))
    assert far.low <= far.high < close.low <= close.high


def test_reference_texts_are_drawn_once_without_replacement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "verse.txt").write_text("".join(f"verse number {i}\n" for i in range(3000)))
    text = load_text(TextConfig(source=str(tmp_path / "verse.txt"), tokenizer="bpe-300", length=16))
    everything = reference_texts(text, len(text.held_out))
    assert len(set(everything)) == len(everything)
    assert reference_texts(text, 3) == reference_texts(text, 3)
    with pytest.raises(ValueError, match="sequences are held out"):
        reference_texts(text, len(text.held_out) + 1)
