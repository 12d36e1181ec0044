import pytest

from fpmgm.data import toy
from fpmgm.randomness import generator


def test_every_sentence_is_coherent_and_all_scenes_and_words_occur() -> None:
    rows = toy.sentences(3000, rng=generator(0)).tolist()
    assert all(map(toy.is_coherent, rows))
    assert {token for row in rows for token in row} == set(range(toy.MASK_ID))


def test_one_word_of_another_scene_makes_a_sentence_incoherent() -> None:
    sea, farm = list(toy.SCENES.values())[:2]
    sentence = ["the", sea[0][0], sea[1][0], sea[2][0], "the", sea[3][0], sea[4][0], "by", "the", sea[5][0], "."]
    assert toy.is_coherent(toy.encode(" ".join(sentence)))
    for position, slot in ((1, 0), (2, 1), (3, 2), (5, 3), (6, 4), (9, 5)):
        mixed = [*sentence[:position], farm[slot][0], *sentence[position + 1 :]]
        assert not toy.is_coherent(toy.encode(" ".join(mixed)))


def test_text_and_tokens_convert_both_ways() -> None:
    text = "the salty sailor _ the rusty anchor by the pier ."
    assert toy.decode(toy.encode(text)) == text
    with pytest.raises(ValueError, match="unknown word 'salior'"):
        toy.encode("the salior")
