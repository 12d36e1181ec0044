"""Names: choosing by one, where a misspelt one is an error that offers the nearest, and writing one as a file's."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")


def choose(kind: str, name: str, table: Mapping[str, T]) -> T:
    """Return table[name], or raise a ValueError that names the nearest choice.

    >>> choose("solver", "picrad", {"picard": 1, "anderson": 2})
    Traceback (most recent call last):
    ValueError: unknown solver 'picrad'; did you mean 'picard'? Choices: picard, anderson
    """
    if name in table:
        return table[name]
    near = get_close_matches(name, table, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"unknown {kind} {name!r}; {hint}Choices: {', '.join(table)}")


def slug(name: str) -> str:
    """A name as a file may have it."""
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower())
