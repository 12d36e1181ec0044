import json
import os
from pathlib import Path
from typing import Any

import pytest

from fpmgm.checkpoint import BUNDLED, Model, load
from fpmgm.data.tokenizing import train_bpe
from fpmgm.evaluation.held_out import text_codec
from fpmgm.symbols import LONG_WORD, cut_words, encode_texts, load_tokenizer, read_tokenizer, symbols_of


@pytest.fixture
def content(text_model: Model) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(text_codec(text_model).content)
    return parsed


def wrong_model(content: dict[str, Any]) -> None:
    content["model"]["vocab"] = {"a": 1.5}


def wrong_merge(content: dict[str, Any]) -> None:
    content["model"]["merges"] = [["not there", "at all"]]


def far_token(content: dict[str, Any]) -> None:
    content["model"]["vocab"]["zebra"] = 4_000_000_000


def no_ends(content: dict[str, Any]) -> None:
    content["added_tokens"] = []
    content["model"]["vocab"].pop("<|endoftext|>")
    content["model"]["vocab"]["zebra"] = 0


def unknown_pre_tokenizer(content: dict[str, Any]) -> None:
    content["pre_tokenizer"] = {"type": "Nothing"}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (wrong_model, "cannot be read"),
        (wrong_merge, "cannot be read"),
        (far_token, "one of them with id 4000000000; ids must have no gaps"),
        (no_ends, "neither <|endoftext|> nor"),
        (unknown_pre_tokenizer, "cannot be read"),
    ],
)
def test_a_broken_tokenizer_is_refused_in_one_line(content: dict[str, Any], damage: Any, message: str) -> None:
    damage(content)
    with pytest.raises(ValueError, match=r"^t\.json ") as error:
        load_tokenizer(json.dumps(content), "t.json")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_panic_of_the_tokenizer_library_is_a_value_error_and_nothing_of_it_is_printed(
    content: dict[str, Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A panic is no Exception. The library is replaced by one that panics, because its bugs are mended one by one."""
    import tokenizers

    class PanicException(BaseException):
        pass

    class Panics:
        @staticmethod
        def from_str(content: str) -> None:
            os.write(2, b"thread '<unnamed>' panicked at src/lib.rs\n")
            raise PanicException("index out of bounds")

    monkeypatch.setattr(tokenizers, "Tokenizer", Panics)
    with pytest.raises(ValueError, match=r"t\.json cannot be read: index out of bounds"):
        load_tokenizer(json.dumps(content) + " ", "t.json")
    assert capfd.readouterr().err == ""


def test_a_tokenizer_neither_pads_nor_cuts_whatever_its_file_says(content: dict[str, Any]) -> None:
    plain = load_tokenizer(json.dumps(content))
    content["padding"] = {"strategy": {"Fixed": 1000}, "direction": "Right", "pad_to_multiple_of": None}
    content["padding"] |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>"}
    content["truncation"] = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    text = ["the old oak and the sea"]
    assert encode_texts(load_tokenizer(json.dumps(content)), text) == encode_texts(plain, text)


def test_a_tokenizer_with_more_symbols_than_the_network_is_refused(text_model: Model, tmp_path: Path) -> None:
    text_model.save(tmp_path / "model")
    other = train_bpe(iter(["the sea and the sky and the old oak\n" * 50]), 260)
    other.save(str(tmp_path / "model" / "tokenizer.json"))
    with pytest.raises(ValueError, match="has 261 symbols, of which 260 is the mask, and the network has"):
        load(tmp_path / "model")


def test_the_tokens_of_ordinary_text_are_those_of_the_tokenizer_itself() -> None:
    tokenizer = read_tokenizer(BUNDLED / "stories-fp" / "tokenizer.json")
    file = BUNDLED / "stories-fp" / "README.md"
    texts = [file.read_text(), "", " ", "a " * 5000, "é中文。" * 3000, "x" * LONG_WORD, "\n" * LONG_WORD]
    plain = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    assert encode_texts(tokenizer, texts) == plain
    assert all(cut_words(text) == [text] for text in texts)


@pytest.mark.parametrize("letter", ["a", "7", "_", "—", " ", "\n", "中"])
def test_a_word_without_end_is_cut_and_nothing_of_it_is_lost(letter: str) -> None:
    text = f"before {letter * 3500} after"
    parts = cut_words(text)
    assert "".join(parts) == text
    assert len(parts) > 3
    tokenizer = read_tokenizer(BUNDLED / "stories-fp" / "tokenizer.json")
    [ids] = encode_texts(tokenizer, [text])
    assert tokenizer.decode(ids) == text


def test_training_bpe_on_ordinary_text_is_what_it_was_without_cutting() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    texts = [(BUNDLED / name / "README.md").read_text() for name in ("stories-fp", "stories-mdlm")]
    expected = Tokenizer(models.BPE())
    expected.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    expected.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    expected.train_from_iterator(iter(texts), trainer)
    assert train_bpe(iter(texts), 400).to_str() == expected.to_str()


@pytest.mark.timeout(60)
def test_bpe_training_on_an_endless_word_ends() -> None:
    """3 MB of one letter, in the pieces of a source: as one word, it was not done after minutes."""
    pieces = ["a" * (1 << 18)] * 12
    assert symbols_of(train_bpe(iter(pieces), 300)).size <= 301
