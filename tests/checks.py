"""How annotations are checked while tests run: by beartype, but for choices."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_origin

from beartype import beartype

F = TypeVar("F", bound=Callable[..., Any])


def checked(function: F) -> F:
    """beartype, but a choice may be any text: code refuses a misspelt one with a sentence, and tests read it."""
    hints = getattr(function, "__annotations__", {})
    if any(get_origin(hint) is Literal for hint in hints.values()):
        function.__annotations__ = {name: str if get_origin(hint) is Literal else hint for name, hint in hints.items()}
    return beartype(function)
