import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fpmgm
from fpmgm.__main__ import main
from fpmgm.checkpoint import Model
from fpmgm.data.text import train_bpe
from fpmgm.evaluation.diversity import unigram_entropy
from fpmgm.evaluation.judges import Judge, generative_perplexity, load_judge
from fpmgm.evaluation.likelihood import perplexity
from fpmgm.generation import encode
from fpmgm.objectives import next_token_nll
from fpmgm.randomness import generator
from tests.conftest import SMALL, Build

VERSE = "".join(f"line {i} of a poem about the {word}\n" for i in range(300) for word in ("sea", "sky", "old oak"))


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
    model = Model(denoiser=fpmgm.mdlm(config), config=config, tokenizer=tokenizer.to_str())
    model.save(folder)
    return model


def test_a_judge_of_our_own_with_known_probabilities_gives_their_perplexity(tmp_path: Path) -> None:
    model = save_fresh(tmp_path / "judge", is_causal=True)
    judge = load_judge(str(tmp_path / "judge"))
    text = "a poem about the sea"
    assert len(judge.nats(text)) == len(encode(model, text))
    found = generative_perplexity([text, "the sky"], judge)
    assert found.per_token == pytest.approx(model.config.vocab_size, rel=1e-4)
    assert found.judge == "fpmgm:judge"


def test_the_two_averages_differ_as_they_should_and_empty_texts_do_not_count() -> None:
    nats = {"long": torch.tensor([1.0, 1.0, 1.0, 1.0]), "short": torch.tensor([3.0]), "": torch.zeros(0)}
    found = generative_perplexity(list(nats), Judge(name="table", nats=nats.__getitem__))
    assert found.per_token == pytest.approx(math.exp(7 / 5))
    assert found.per_sample == pytest.approx(math.exp(2))
    assert found.num_texts == 2


def test_a_masked_model_is_refused_as_judge(tmp_path: Path) -> None:
    save_fresh(tmp_path / "masked", is_causal=False)
    with pytest.raises(ValueError, match="is a masked model; a judge must be causal"):
        load_judge(str(tmp_path / "masked"))


def test_the_evaluate_command_measures_a_model_on_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "verse.txt").write_text(VERSE)
    model = save_fresh(tmp_path / "model", is_causal=False)
    save_fresh(tmp_path / "judge", is_causal=True)
    command = ["evaluate", str(tmp_path / "model"), "--data", str(tmp_path / "verse.txt"), "--budgets", "4", "8"]
    command += ["--num-samples", "3", "--judge", str(tmp_path / "judge")]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    size = model.config.vocab_size
    assert found["validation"]["value"] == pytest.approx(size - 1, abs=4 * found["validation"]["error"])
    assert [row["block_evals"] for row in found["samples"]] == [4, 8]
    assert found["samples"][0]["generative_perplexity"]["per_token"] == pytest.approx(size, rel=1e-3)
    assert main(command) == 0
    assert "judge: fpmgm:judge" in capsys.readouterr().out


@pytest.mark.parametrize("is_causal", [False, True])
def test_validation_perplexity_leaves_padding_out(small_model: Build, is_causal: bool) -> None:
    denoiser = small_model(num_pre=2, num_fp=0, num_post=0, is_causal=is_causal)
    x = torch.randint(0, 11, (4, 16), generator=generator(0))
    x[1:, 9:] = 11  # padded with the mask, whose own probability is 0
    padded = perplexity(denoiser, x, pad_id=11)
    assert math.isfinite(padded.value)
    if is_causal:
        nll = next_token_nll(denoiser, x).detach()
        assert padded.nats_per_token == pytest.approx(
            float((nll[0].sum() + nll[1:, :8].sum()) / (15 + 3 * 8)), rel=1e-5
        )
    same = perplexity(denoiser, x[:1], pad_id=11)
    assert same.nats_per_token == pytest.approx(perplexity(denoiser, x[:1]).nats_per_token)
