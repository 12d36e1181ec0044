"""Sentences made on the spot, whose words must agree across the sentence.

`yesterday these old cats chased a green bird while it watched them .`

Tense binds both verbs to the first word; number binds articles, nouns, verbs and pronouns. A model that reveals words
without regard to each other breaks an agreement, and `is_grammatical` sees it.
"""

from dataclasses import dataclass

import torch
from torch import Generator

from fpmgm.types import Tokens

ARTICLES = {"one": ("a", "the", "this", "that"), "many": ("two", "the", "these", "those")}
ADJECTIVES = ("old", "young", "small", "large", "green", "grey", "quick", "slow", "wild", "tame")
NOUNS = {
    "one": ("cat", "dog", "bird", "horse", "snake", "bear", "frog", "hen"),
    "many": ("cats", "dogs", "birds", "horses", "snakes", "bears", "frogs", "hens"),
}
TIMES = {"present": ("today", "now", "always"), "past": ("yesterday", "once", "then")}
VERBS = {
    ("present", "one"): ("chases", "watches", "follows", "hears", "finds", "fears"),
    ("present", "many"): ("chase", "watch", "follow", "hear", "find", "fear"),
    ("past", "one"): ("chased", "watched", "followed", "heard", "found", "feared"),
    ("past", "many"): ("chased", "watched", "followed", "heard", "found", "feared"),
}
SUBJECTS = {"one": ("it",), "many": ("they",)}
OBJECTS = {"one": ("it",), "many": ("them",)}

Choices = tuple[tuple[str, ...], ...]


def _choices(tense: str, first: str, second: str) -> Choices:
    """What may stand at each position, given the three hidden choices."""
    return (
        TIMES[tense],
        ARTICLES[first],
        ADJECTIVES,
        NOUNS[first],
        VERBS[tense, first],
        ARTICLES[second],
        ADJECTIVES,
        NOUNS[second],
        ("while",),
        SUBJECTS[second],
        VERBS[tense, second],
        OBJECTS[first],
        (".",),
    )


KINDS: tuple[Choices, ...] = tuple(
    _choices(tense, first, second) for tense in TIMES for first in NOUNS for second in NOUNS
)
WORDS: tuple[str, ...] = tuple(dict.fromkeys(word for kind in KINDS for words in kind for word in words))
LENGTH = len(KINDS[0])
MASK_ID = len(WORDS)
VOCAB_SIZE = len(WORDS) + 1
_IDS = {word: index for index, word in enumerate(WORDS)}


@dataclass(frozen=True)
class _Table:
    """The word ids of each kind and position, padded by repeating, so that a batch is drawn by indexing."""

    ids: torch.Tensor  # (kinds, LENGTH, most choices)
    sizes: torch.Tensor  # (kinds, LENGTH)


def _table() -> _Table:
    sizes = torch.tensor([[len(words) for words in kind] for kind in KINDS])
    most = int(sizes.max())
    ids = [[[_IDS[words[i % len(words)]] for i in range(most)] for words in kind] for kind in KINDS]
    return _Table(torch.tensor(ids), sizes)


_TABLE = _table()


def sentences(num: int, *, rng: Generator) -> Tokens:
    """`num` grammatical sentences, every choice uniform."""
    kind = torch.randint(len(KINDS), (num,), generator=rng)
    choice = (torch.rand(num, LENGTH, generator=rng) * _TABLE.sizes[kind]).long()
    return _TABLE.ids[kind].gather(2, choice[..., None])[..., 0]


def encode(text: str) -> list[int]:
    """Word ids; `_` stands for a word to be filled in."""
    unknown = [word for word in text.split() if word != "_" and word not in _IDS]
    if unknown:
        raise ValueError(f"unknown word {unknown[0]!r}; the toy knows {' '.join(WORDS)}")
    return [MASK_ID if word == "_" else _IDS[word] for word in text.split()]


def decode(tokens: list[int]) -> str:
    """Words; masks as dots."""
    return " ".join("···" if token == MASK_ID else WORDS[token] for token in tokens)


def is_grammatical(tokens: list[int]) -> bool:
    """Whether every word agrees with the others.

    >>> is_grammatical(encode("now the old cats hear this slow frog while it fears them ."))
    True
    >>> is_grammatical(encode("now the old cats hear this slow frog while they fear them ."))
    False
    """
    words = decode(tokens).split()
    return any(all(word in fits for word, fits in zip(words, kind, strict=True)) for kind in KINDS)
