"""Names: choosing by one (the nearest is offered if it is misspelt), writing one as a file's, shortening paths."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import PurePath
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


def check_names(kind: str, given: Iterable[str], config: type) -> None:
    """A ValueError that names the nearest one if something given is no field of a dataclass."""
    known = dict.fromkeys(field.name for field in fields(config))
    for name in given:
        choose(kind, name, known)


def slug(name: str) -> str:
    """A name as a file may have it."""
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower())


def short_names(places: Iterable[str]) -> dict[str, str]:
    """Each place by the end of its path, as much of it as tells it from all others.

    >>> short_names(["runs/a/model", "runs/b/model", "stories"])
    {'runs/a/model': 'a/model', 'runs/b/model': 'b/model', 'stories': 'stories'}
    """
    parts = {place: PurePath(place).parts for place in places}

    def short(place: str) -> str:
        own = parts[place]
        for num in range(1, len(own)):
            others = (theirs for theirs in parts.values() if theirs != own)
            if all(theirs[-num:] != own[-num:] for theirs in others):
                return str(PurePath(*own[-num:]))
        return place

    return {place: short(place) for place in parts}
