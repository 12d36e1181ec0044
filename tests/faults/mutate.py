"""Damage, drawn from a seeded generator: bytes that are flipped or cut, JSON with other values, odd words."""

import json
from copy import deepcopy
from random import Random
from typing import Any

ENORMOUS = ("1000000000", "1000000000000", "9223372036854775808", "1" + "0" * 30, "1" + "0" * 400, "-1" + "0" * 30)
NUMBERS = (
    "0",
    "-1",
    "1",
    "2",
    "3",
    "0.5",
    "1.5",
    "nan",
    "inf",
    "-inf",
    "1e308",
    "-1e308",
    "1e-320",
    "1e999",
    *ENORMOUS,
)
WORDS = ("", " ", "one", "None", "null", "True", "[]", "{}", "-", "--", "0x10", "½", "١٢", "1,2", "1 2", "\U0001f4a5")
SURROGATES = ("\udcff", "caf\udce9", "\udc80\udc81")
LONG = "x" * 5000
ODD_WORDS = (*WORDS, *SURROGATES, LONG, "a\nb", "\x1b[31m", "../..", "/dev/null", "nan")

DEEP = "@deep@"
ODD_JSON: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3, 0.5, 1e308, -1e308, 10**12, 10**30, float("nan"), float("inf")),
    *("", "word", "\ud800", "é", LONG, "12", [], {}, [0], [[]], {"a": 1}, {"": None}, [None] * 100, DEEP),
)


def odd_word(rng: Random) -> str:
    """A number or a word as somebody might give it on the command line by mistake."""
    return rng.choice(NUMBERS if rng.random() < 0.6 else ODD_WORDS)


def misspelt(rng: Random, word: str) -> str:
    """A word with one letter left out, doubled or changed."""
    if not word:
        return "x"
    place = rng.randrange(len(word))
    return word[:place] + rng.choice(("", word[place] * 2, "q")) + word[place + 1 :]


def broken_bytes(rng: Random, content: bytes) -> bytes:
    """The content with some of its bytes flipped, cut off, doubled, blanked or replaced."""
    if not content:
        return rng.randbytes(8)
    first, last = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    match rng.randrange(8):
        case 0 | 1 | 2:
            damaged = bytearray(content)
            for _ in range(rng.choice((1, 1, 3, 20))):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            return bytes(damaged)
        case 3 | 4:
            return content[:first]
        case 5:
            return content[:first] + rng.randbytes(rng.choice((1, 4, 64))) + content[first:]
        case 6:
            return content[:first] + bytes(last - first) + content[last:]
        case _:
            return content[:last] + content[first:]


def broken_json(rng: Random, text: str) -> str:
    """The same JSON with one to three of its values or keys changed, taken out or added; seldom no JSON at all."""
    if rng.random() < 0.05:
        return rng.choice(("", "null", "[]", "1", '"a"', "{", "[" * 100_000, '{"a":' * 50_000, "NaN", "{}"))
    tree = json.loads(text)
    for _ in range(rng.choice((1, 1, 2, 3))):
        tree = _changed(rng, tree)
    return json.dumps(tree).replace(f'"{DEEP}"', "[" * 50_000 + "]" * 50_000)


def _changed(rng: Random, node: Any) -> Any:
    """A tree that differs from this one at one place, which is sought downwards from the root."""
    if not isinstance(node, dict | list) or not node or rng.random() < 0.04:
        return _odd(rng)
    key: Any = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
    if isinstance(node[key], dict | list) and rng.random() < 0.7:
        node[key] = _changed(rng, node[key])
        return node
    match rng.randrange(6):
        case 0:
            del node[key]
        case 1 if isinstance(node, dict):
            node[misspelt(rng, key)] = node.pop(key)
        case 2 if isinstance(node, dict):
            node[rng.choice(("extra", "", key * 2, "\ud800"))] = _odd(rng)
        case _:
            node[key] = _odd(rng)
    return node


def _odd(rng: Random) -> Any:
    """A value of its own, which later changes may change."""
    return deepcopy(rng.choice(ODD_JSON))
