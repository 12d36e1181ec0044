"""Tokenizers that put a space before whatever they read, such as Llama's and that of stories."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers

from fpmgm.backbones.network import Vocabulary
from fpmgm.codecs import TextCodec
from fpmgm.data.packing import tokenised
from fpmgm.data.pairs import Pair, pair_tokens
from fpmgm.data.sources import Piece
from fpmgm.data.tokenizing import train_bpe
from fpmgm.demo.tokens import pieces
from fpmgm.symbols import END_OF_TEXT, LONG_WORD, continuing, encode_texts

SPACE = "▁"
WORDS = (f"{SPACE}the", f"{SPACE}cat", f"{SPACE}ran", "the", "cat", "ran", SPACE, ".", "\n", *"aehcnrt")


@pytest.fixture
def tokenizer() -> Tokenizer:
    names = [END_OF_TEXT, *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    names += ["th", "ca", "ra", f"{SPACE}t", f"{SPACE}c", f"{SPACE}r", f"{SPACE}th", f"{SPACE}ca", f"{SPACE}ra"]
    known = {name: index for index, name in enumerate(names)}
    merges = [(name[:cut], name[cut:]) for name in names[257:] for cut in range(1, len(name))]
    merges = [(left, right) for left, right in merges if left in known and right in known]
    made = Tokenizer(models.BPE(known, merges, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(parts)
    made.add_special_tokens([END_OF_TEXT])
    return made


@pytest.fixture
def codec(tokenizer: Tokenizer) -> TextCodec:
    return TextCodec(tokenizer.to_str())


@pytest.mark.parametrize("cut", range(1, 14))
def test_a_text_in_two_parts_has_the_text_of_the_whole(codec: TextCodec, cut: int) -> None:
    text = "the cat\n ran. "
    tokens = codec.encode(text[:cut]) + codec.encode(text[cut:], goes_on=True)
    assert codec.show(tokens) == text
    first = len(codec.encode(text[:cut]))
    assert codec.show(tokens[:first]) + codec.show(tokens[first:], goes_on=True) == text


def test_what_follows_a_mask_keeps_its_space(codec: TextCodec) -> None:
    the, cat, ran = codec.encode("the cat ran")
    mask = codec.symbols.mask_id
    assert codec.show([the, mask, ran]) == "the· ran"
    assert codec.show([mask, cat, ran]) == "· cat ran"


def test_a_text_with_blanks_gets_no_spaces_of_its_own(codec: TextCodec) -> None:
    vocabulary = Vocabulary(size=codec.symbols.size, mask_id=codec.symbols.mask_id, length=12)
    asked = {"infill": ["the cat _.", "_ cat ran"]}
    assert [codec.show(row) for row in codec.starts(asked, vocabulary, 1).tokens] == ["the cat·.", "· cat ran"]


def test_token_by_token_a_text_is_shown_as_a_whole(codec: TextCodec) -> None:
    tokens = [codec.first, *codec.encode("the cat ran.")]
    assert "".join(pieces(codec, tokens)) == "the cat ran."


def test_a_document_in_pieces_and_a_pair_have_the_tokens_of_their_text(tokenizer: Tokenizer) -> None:
    source = [Piece("the ca", False), Piece("t ran", True), Piece("the", True)]
    found = [ids for _, ids in tokenised(iter(source), tokenizer, 2)]
    assert [tokenizer.decode(found[0] + found[1]), tokenizer.decode(found[2])] == ["the cat ran", "the"]
    [(_, prompt, answer)] = pair_tokens(iter([Pair("the cat", "\nran", "here")]), tokenizer)
    assert tokenizer.decode(prompt + answer) == "the cat\nran"


@pytest.mark.parametrize("letter", ["a", ".", " ", "\n"])
def test_a_word_without_end_is_cut_and_nothing_is_added_to_it(tokenizer: Tokenizer, letter: str) -> None:
    text = f"the {letter * (3 * LONG_WORD)} ran"
    [ids] = encode_texts(tokenizer, [text])
    assert tokenizer.decode(ids) == text


def test_a_tokenizer_that_adds_no_space_goes_on_as_it_begins(tmp_path: Path) -> None:
    content = train_bpe(iter(["the cat ran\n" * 50]), 270).to_str()
    assert TextCodec(content).encode(" cat ran", goes_on=True) == TextCodec(content).encode(" cat ran")
    assert continuing(content) is TextCodec(content).tokenizer
