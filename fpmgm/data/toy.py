"""Sentences made on the spot, each about one scene.

`the salty sailor hauled the heavy anchor by the harbour .`

Every word but the small ones belongs to one scene, so the words of a sentence depend on each other. A model that
reveals words without regard to each other mixes scenes, and `is_coherent` sees it.
"""

import torch
from torch import Generator

from fpmgm.types import Tokens

SCENES: dict[str, tuple[tuple[str, ...], ...]] = {
    "sea": (
        ("salty", "drenched", "seasick"),
        ("sailor", "captain", "diver"),
        ("hauled", "moored", "steered"),
        ("rusty", "tarred", "floating"),
        ("anchor", "net", "raft"),
        ("harbour", "reef", "pier"),
    ),
    "farm": (
        ("sunburnt", "barefoot", "patient"),
        ("farmer", "milkmaid", "shepherd"),
        ("fed", "sheared", "fenced"),
        ("woolly", "stubborn", "spotted"),
        ("goat", "calf", "ram"),
        ("barn", "meadow", "well"),
    ),
    "kitchen": (
        ("floury", "hungry", "hurried"),
        ("cook", "baker", "waiter"),
        ("kneaded", "tasted", "buttered"),
        ("warm", "crusty", "sweet"),
        ("loaf", "pie", "bun"),
        ("oven", "pantry", "stove"),
    ),
    "castle": (
        ("noble", "armoured", "exiled"),
        ("knight", "queen", "squire"),
        ("guarded", "crowned", "betrayed"),
        ("royal", "jewelled", "ancient"),
        ("throne", "banner", "sceptre"),
        ("moat", "drawbridge", "tower"),
    ),
    "space": (
        ("weightless", "orbiting", "lonely"),
        ("pilot", "robot", "astronaut"),
        ("launched", "repaired", "scanned"),
        ("silver", "distant", "spinning"),
        ("probe", "comet", "satellite"),
        ("airlock", "crater", "moon"),
    ),
    "forest": (
        ("mossy", "hidden", "whistling"),
        ("hunter", "hermit", "fox"),
        ("tracked", "startled", "followed"),
        ("antlered", "grey", "timid"),
        ("stag", "hare", "owl"),
        ("thicket", "brook", "clearing"),
    ),
}
"""Who is how, does what, to what kind of what, where."""


def _choices(scene: str) -> tuple[tuple[str, ...], ...]:
    """What may stand at each position of a sentence about the scene."""
    how, who, did, kind, what, where = SCENES[scene]
    the = ("the",)
    return (the, how, who, did, the, kind, what, ("by",), the, where, (".",))


CHOICES = tuple(_choices(scene) for scene in SCENES)
WORDS = tuple(dict.fromkeys(word for scene in CHOICES for words in scene for word in words))
LENGTH = len(CHOICES[0])
MASK_ID = len(WORDS)
VOCAB_SIZE = len(WORDS) + 1

_IDS = {word: index for index, word in enumerate(WORDS)}
_SIZES = torch.tensor([[len(words) for words in scene] for scene in CHOICES])
_TABLE = torch.tensor([[[_IDS[words[i % len(words)]] for i in range(3)] for words in scene] for scene in CHOICES])

START = "_ " * (LENGTH - 1) + "."
"""Nothing but the full stop. The blocks of MDLM see only how far apart tokens are, so one of them must be given for
the others to know where they stand."""


def sentences(num: int, *, rng: Generator) -> Tokens:
    """`num` coherent sentences, scene and words uniform."""
    scene = torch.randint(len(CHOICES), (num,), generator=rng)
    choice = (torch.rand(num, LENGTH, generator=rng) * _SIZES[scene]).long()
    return _TABLE[scene].gather(2, choice[..., None])[..., 0]


def encode(text: str) -> list[int]:
    """Word ids; `_` stands for a word to be filled in."""
    unknown = [word for word in text.split() if word != "_" and word not in _IDS]
    if unknown:
        raise ValueError(f"unknown word {unknown[0]!r}; the toy knows {' '.join(WORDS)}")
    return [MASK_ID if word == "_" else _IDS[word] for word in text.split()]


def decode(tokens: list[int]) -> str:
    """Words; `_` for a mask."""
    return " ".join("_" if token == MASK_ID else WORDS[token] for token in tokens)


def is_coherent(tokens: list[int]) -> bool:
    """Whether every word stands in its place and all belong to one scene.

    >>> is_coherent(encode("the salty sailor hauled the rusty anchor by the pier ."))
    True
    >>> is_coherent(encode("the salty sailor hauled the rusty anchor by the oven ."))
    False
    """
    words = decode(tokens).split()
    return any(all(word in fits for word, fits in zip(words, scene, strict=True)) for scene in CHOICES)
