"""Our models in transformers, with real folders and its own Auto classes; nothing is downloaded."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer
from transformers.utils import logging

import fpmgm
import fpmgm.hf
from fpmgm.checkpoint import BUNDLED, Model
from tests.conftest import SMALL, Build

logging.disable_progress_bar()
TEXTS = ("the sea and the sky", "the old")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers asks the hub about every tokenizer, and waits long where no hub answers."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def folder(text_model: Model, tmp_path: Path) -> Path:
    text_model.save(tmp_path / "model", dtype=torch.float16)
    return tmp_path / "model"


def masked_lm(folder: Path, **settings: Any) -> Any:
    return AutoModelForMaskedLM.from_pretrained(folder, local_files_only=True, **settings)


def rows_of(folder: Path) -> list[list[int]]:
    """A long row and a short one, with masks in both."""
    model = fpmgm.load(folder, device="cpu")
    codec: Any = model.speech
    mask, first = model.denoiser.mask_id, codec.first
    return [[first, 300 % mask, mask, 70, mask, 80, 90], [first, mask, 75]]


def test_transformers_loads_a_folder_of_ours_as_it_is_and_computes_the_same(folder: Path) -> None:
    model, own = masked_lm(folder), fpmgm.load(folder, device="cpu")
    assert isinstance(model, fpmgm.hf.FpmgmForMaskedLM)
    assert model.dtype == torch.float32
    x = torch.tensor(rows_of(folder)[:1])
    with torch.no_grad():
        expected = own.denoiser.head(own.denoiser(x, 0.3, torch.ones_like(x, dtype=torch.bool), num_grad=6).features)
        logits = model(x).logits[0]
    assert torch.equal(logits[:, :-1], expected[:, :-1])
    assert (logits[:, -1] == -torch.inf).all()  # the mask


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("num_fp", [0, 1])
def test_a_padded_batch_equals_its_sequences_alone(num_fp: int, side: str, small_model: Build, tmp_path: Path) -> None:
    blocks: dict[str, Any] = {"num_pre": 1, "num_fp": 1, "num_post": 1}
    blocks = blocks if num_fp else {"num_pre": 3, "num_fp": 0, "num_post": 0}
    Model(denoiser=small_model(**blocks), config=replace(SMALL, **blocks)).save(tmp_path / "model")
    model = masked_lm(tmp_path / "model", dtype=torch.float64)
    long, short = [1, 2, 11, 4, 11, 6, 7], [3, 11, 5]
    pad = [8] * (len(long) - len(short))
    ids = torch.tensor([long, [*pad, *short] if side == "left" else [*short, *pad]])
    real = torch.tensor([[1] * len(long), [0] * len(pad) + [1] * 3 if side == "left" else [1] * 3 + [0] * len(pad)])
    with torch.no_grad():
        together = model(ids, attention_mask=real).logits
        alone = [model(torch.tensor([row])).logits[0] for row in (long, short)]
        seen = model(ids).logits
    assert torch.allclose(together[0], alone[0], rtol=0, atol=1e-12)
    assert torch.allclose(together[1][real[1].bool()], alone[1], rtol=0, atol=1e-12)
    assert not torch.allclose(seen[1][real[1].bool()], alone[1], rtol=0, atol=1e-3)  # padding that is seen matters


def test_positions_are_those_that_are_given(folder: Path) -> None:
    model = masked_lm(folder, dtype=torch.float64)
    x = torch.tensor(rows_of(folder)[:1])
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    with torch.no_grad():
        plain = model(x).logits
        shuffled = model(x[:, order], position_ids=order[None]).logits  # the same tokens at the same positions
        elsewhere = model(x[:, order]).logits
    assert torch.allclose(shuffled, plain[:, order], rtol=0, atol=1e-10)
    assert not torch.allclose(elsewhere, plain[:, order], rtol=0, atol=1e-3)


def test_a_saved_folder_loads_back_bit_for_bit_and_by_fpmgm_too(folder: Path, tmp_path: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"defaults": {"temperature": 0.9}}))
    model, tokenizer = masked_lm(folder), AutoTokenizer.from_pretrained(folder)
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    again, own = masked_lm(tmp_path / "saved"), fpmgm.load(tmp_path / "saved", device="cpu")
    first = fpmgm.load(folder, device="cpu")
    assert {**model.state_dict()}.keys() == again.state_dict().keys() == own.denoiser.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
        assert torch.equal(tensor, own.denoiser.state_dict()[name])
    assert (own.config, own.data, own.generation) == (first.config, first.data, first.generation)
    assert own.speech.encode(TEXTS[0]) == first.speech.encode(TEXTS[0])  # type: ignore[attr-defined]
    assert AutoConfig.from_pretrained(tmp_path / "saved").network == first.config
    assert AutoTokenizer.from_pretrained(tmp_path / "saved")(TEXTS[0]).input_ids == tokenizer(TEXTS[0]).input_ids


def test_the_tokenizer_begins_texts_as_the_model_knows_them_and_has_the_mask(folder: Path) -> None:
    tokenizer, own = AutoTokenizer.from_pretrained(folder), fpmgm.load(folder, device="cpu")
    codec: Any = own.speech
    assert tokenizer(TEXTS[0]).input_ids == [codec.first, *codec.encode(TEXTS[0])]
    masked = tokenizer("the [MASK] sky").input_ids
    assert masked == [codec.first, *codec.encode("the"), own.denoiser.mask_id, *codec.encode(" sky")]
    assert (tokenizer.mask_token_id, tokenizer.model_max_length) == (own.denoiser.mask_id, own.denoiser.max_length)
    padded = tokenizer(list(TEXTS), padding=True)
    assert padded.attention_mask[1][-1] == 0
    assert tokenizer.decode(tokenizer(TEXTS[0]).input_ids, skip_special_tokens=True) == TEXTS[0]


def test_generate_continues_and_fills_in_as_our_sampler_does(folder: Path) -> None:
    model, tokenizer = masked_lm(folder), AutoTokenizer.from_pretrained(folder)
    own = fpmgm.load(folder, device="cpu")
    written = model.generate(**tokenizer(TEXTS[1], return_tensors="pt"), budget=12, seed=3)
    expected = fpmgm.generate(own, prompts=TEXTS[1], budget=12, seed=3)
    assert written.tolist() == expected.tokens
    long, short = rows_of(folder)
    mask = model.config.mask_id
    batch = torch.tensor([long, [5, 5, 5, 5, *short]])
    real = torch.tensor([[1] * 7, [0] * 4 + [1] * 3])
    filled = model.generate(batch, real, budget=12, pad_token_id=0).tolist()
    assert [new for new, old in zip(filled[0], long, strict=True) if old != mask] == [x for x in long if x != mask]
    assert mask not in filled[0]
    assert (filled[1][0], filled[1][2], filled[1][3:]) == (short[0], short[2], [0] * 4)
    otherwise = model.generate(torch.tensor([long, [*short, 9, 9, 9, 9]]), real.flip(1), budget=12, pad_token_id=0)
    assert otherwise.tolist() == filled  # wherever the padding was
    more = model.generate(torch.tensor([short]), max_new_tokens=4, num_return_sequences=2, budget=12)
    assert more.shape == (2, 7)


def test_labels_give_the_loss_of_the_positions_that_count(folder: Path) -> None:
    model = masked_lm(folder)
    x = torch.tensor(rows_of(folder)[:1])
    labels = torch.full_like(x, -100)
    labels[0, 2], labels[0, 4] = 7, 9
    found = model(x, labels=labels)
    log_p = found.logits[0].log_softmax(dim=-1)
    assert found.loss.item() == pytest.approx(-(log_p[2, 7] + log_p[4, 9]).item() / 2, rel=1e-5)
    found.loss.backward()
    assert model.backbone.vocab_embed.embedding.grad.abs().sum() > 0
    with pytest.raises(ValueError, match="labels hold the mask"):
        model(x, labels=x)


def test_the_pipeline_that_fills_masks_works(folder: Path) -> None:
    from transformers import pipeline

    fill = pipeline("fill-mask", model=masked_lm(folder), tokenizer=AutoTokenizer.from_pretrained(folder))
    found = fill("the [MASK] sky", top_k=3)
    assert len(found) == 3
    assert sum(each["score"] for each in found) <= 1


def test_a_model_that_writes_no_masked_text_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match=r"is a fpmgm-maskgit, which writes no text.*fpmgm\.load"):
        masked_lm(BUNDLED / "fashion")
    with pytest.raises(ValueError, match=r"fashion has no tokenizer\.json"):
        AutoTokenizer.from_pretrained(BUNDLED / "fashion")


def test_a_causal_model_is_refused_in_words(text_model: Model, small_model: Build, tmp_path: Path) -> None:
    blocks: dict[str, Any] = {"num_pre": 2, "num_fp": 0, "num_post": 0, "is_causal": True}
    Model(denoiser=small_model(**blocks), config=replace(SMALL, **blocks)).save(tmp_path / "judge")
    with pytest.raises(ValueError, match="causal, made to judge text"):
        masked_lm(tmp_path / "judge")


def test_a_tokenizer_that_cannot_be_made_is_answered_in_words(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "Unknown"}}')
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot be read"):
        AutoTokenizer.from_pretrained(folder)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(b"sentencepiece")
    with pytest.raises(ValueError, match=r"has no tokenizer\.json, and no other form of a tokenizer can be read"):
        AutoTokenizer.from_pretrained(folder)


def test_weights_that_do_not_fit_are_refused(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["injection.project.weight" if "injection.project.weight" in tensors else sorted(tensors)[0]]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="1 tensors are missing or extra"):
        masked_lm(folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bugdet": 12}, "unknown setting 'bugdet'; did you mean 'budget'"),
        ({"max_length": 9, "max_new_tokens": 2}, "both set"),
        ({"max_new_tokens": 1000}, r"3 tokens are to become 1003; the model writes at most 24"),
        ({"attention_mask": torch.zeros(1, 3)}, "hides every token"),
        ({"attention_mask": torch.ones(1, 4)}, r"shape \(1, 4\) and input_ids \(1, 3\)"),
    ],
)
def test_bad_settings_of_generate_are_answered_in_words(settings: Any, message: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=message):
        masked_lm(folder).generate(torch.tensor([[0, 5, 6]]), **settings)


def test_a_sequence_beyond_the_models_length_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="sequences of 25 tokens; the model takes at most 24"):
        masked_lm(folder)(torch.zeros(1, 25, dtype=torch.long))


@pytest.mark.slow
def test_without_transformers_the_name_of_the_extra_is_said() -> None:
    code = "import sys; sys.modules['transformers'] = None\nimport fpmgm.hf"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'fpmgm[eval]'" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_bundled_models_load_in_transformers(tmp_path: Path) -> None:
    for config in sorted(BUNDLED.glob("*/config.json")):
        settings = json.loads(config.read_text())
        if settings["model_type"] != "fpmgm-mdlm" or settings["is_causal"]:
            continue
        shutil.copytree(config.parent, tmp_path / config.parent.name)
        model = masked_lm(tmp_path / config.parent.name)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / config.parent.name)
        found = model.generate(**tokenizer("The", return_tensors="pt"), budget=24)
        assert found.shape == (1, settings["length"])
