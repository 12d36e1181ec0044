"""A vocabulary of whole words."""

from pathlib import Path

import pytest

from fpmgm.data.text import TextConfig, load_text
from fpmgm.data.tokenizing import mask_and_size
from fpmgm.data.words import train_words
from fpmgm.symbols import END_OF_TEXT, symbols_of

TALE = "Once there was a fox. The fox ran to the sea, and the sea was cold.\n"
ODD = "“Fox”, said the \tzebra—\U0001f98a!  Ünder 12345 中文 " + "y" * 3000


def test_every_frequent_word_is_one_symbol_with_the_space_before_it() -> None:
    tokenizer = train_words(iter([TALE * 20]), 300)

    assert tokenizer.encode(TALE).tokens[:6] == ["Once", "Ġthere", "Ġwas", "Ġa", "Ġfox", "."]
    assert len(tokenizer.encode(TALE).ids) == 20


def test_any_text_comes_back_whatever_words_were_learned() -> None:
    for texts in (["a"], [TALE], [ODD]):
        tokenizer = train_words(iter(texts), 320)
        ids = tokenizer.encode(ODD).ids
        assert tokenizer.decode(ids) == ODD
        assert tokenizer.token_to_id(END_OF_TEXT) not in ids


def test_words_without_a_place_are_cut_into_learned_pieces() -> None:
    common = " ".join([f"{first}{second}" for first in "abcdefghij" for second in "klmnopqrst"][:95])
    rare = " ".join(f"quartz{letter}" for letter in "abcdefgh")
    tokenizer = train_words(iter([" " + common] * 9 + [" " + rare]), 257 + 100)

    assert len(tokenizer.encode(" quartza").tokens) < len(" quartza") / 2
    assert tokenizer.get_vocab_size() == 357


def test_the_most_frequent_words_are_taken_first() -> None:
    texts = [" often" * 9 + " never"]

    assert train_words(iter(texts), 258).encode(" often never").tokens[0] == "Ġoften"
    assert len(train_words(iter(texts), 258).encode(" never").tokens) > 1


def test_the_end_of_text_is_never_read_from_a_word_and_stands_first() -> None:
    tokenizer = train_words(iter([TALE]), 300)

    assert symbols_of(tokenizer).first == symbols_of(tokenizer).last == 0
    assert tokenizer.decode([0, *tokenizer.encode("fox").ids], skip_special_tokens=True) == "fox"


def test_words_n_has_n_symbols_with_the_mask(tmp_path: Path) -> None:
    file = tmp_path / "tale.txt"
    file.write_text(TALE * 40 + " ".join(f"word{number}" for number in range(400)))
    data = load_text(TextConfig(source=str(file), tokenizer="words-300", length=16))

    assert data.vocabulary.size == 300 == mask_and_size("words-300")[1]
    assert data.vocabulary.mask_id == 299


def test_too_small_a_vocabulary_of_words_is_refused_before_any_text_is_read() -> None:
    with pytest.raises(
        ValueError, match="words-12; a vocabulary of words and bytes has 258 to 1048576 symbols, as in words-2048"
    ):
        TextConfig(source="unread.txt", tokenizer="words-12")
