"""Files of settings, checked where they are read: JSON that is whole, and values that a dataclass allows."""

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

MAX_SAMPLES = 1_000_000
MAX_BUDGET = 1_000_000
MAX_ITERATIONS = 10_000
MAX_LENGTH = 1 << 16
"""What one command may ask for. Larger numbers are mistakes: they would take years or more memory than there is."""


def require(name: str, value: int | float, least: int, most: int | float = math.inf) -> None:
    """A ValueError unless least <= value <= most; nan never is.

    >>> require("num_samples", 0, 1, 1_000_000)
    Traceback (most recent call last):
    ValueError: num_samples is 0; it must be 1 to 1000000
    """
    if not least <= value <= most:
        allowed = f"at least {least}" if most == math.inf else f"{least} to {most}"
        raise ValueError(f"{name} is {shortened(value)}; it must be {allowed}")


LARGEST_RATE = 1
"""Of learning rates."""
LARGEST_WEIGHT = 10_000
"""Of a term of a loss."""


def require_above(name: str, value: int | float, most: int | float) -> None:
    """A ValueError unless 0 < value <= most; nan never is.

    >>> require_above("optim.lr", 1e9, LARGEST_RATE)
    Traceback (most recent call last):
    ValueError: optim.lr is 1000000000.0; it must be above 0 and at most 1
    """
    if not 0 < value <= most:
        raise ValueError(f"{name} is {value}; it must be above 0 and at most {most:g}")


def shortened(value: Any) -> str:
    """A value as a message shows it, on one line and not too long."""
    try:
        text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or an integer of more digits than Python writes
        text = f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= 60 else f"{text[:50]}..."


def read_text(file: Path) -> str:
    """The text of a file; a ValueError if it is not UTF-8."""
    try:
        return file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def parse_json(text: str, where: str, *, is_strict: bool = True) -> Any:
    """What a JSON text holds; a ValueError if it holds none or, strictly, nan, infinity or a key given twice."""
    rules: dict[str, Any] = {}
    if is_strict:
        rules = {"parse_constant": _no_number, "parse_float": _finite, "object_pairs_hook": _without_doubles}
    try:
        return json.loads(text, **rules)
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply to be read") from None
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from error


def parse_object(text: str, where: str, *, is_strict: bool = True) -> dict[str, Any]:
    """The JSON object that a text holds; a ValueError if it holds something else."""
    found = parse_json(text, where, is_strict=is_strict)
    if not isinstance(found, dict):
        raise ValueError(f"{where} must hold a JSON object, and it holds {shortened(found)}")
    return found


def read_json(file: Path) -> dict[str, Any]:
    """The settings in a JSON file."""
    return parse_object(read_text(file), str(file))


def read_object(kind: type[T], settings: Mapping[str, Any], where: str) -> T:
    """The dataclass whose fields the settings are, each of its field's type; a ValueError that names the file if not.

    >>> from dataclasses import dataclass
    >>> Size = dataclass(type("Size", (), {"__annotations__": {"width": int}}))
    >>> read_object(Size, {"width": "wide"}, "config.json")
    Traceback (most recent call last):
    ValueError: config.json: width is 'wide'; it must be a whole number
    """
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    needed = {name for name, field in known.items() if field.default is field.default_factory is MISSING}
    if unknown := sorted(set(settings) - set(known)):
        raise ValueError(f"{where} has unknown settings: {', '.join(map(shortened, unknown))}")
    if missing := sorted(needed - set(settings)):
        raise ValueError(f"{where} lacks settings: {', '.join(missing)}")
    hints = get_type_hints(kind)
    values = {name: field_value(value, hints[name], f"{where}: {name}") for name, value in settings.items()}
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def field_value(value: Any, hint: Any, what: str) -> Any:
    """A value of JSON as a field of this type has it, lists as tuples; a ValueError if it does not fit."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (UnionType, Union):
        if value is None and NoneType in parts:
            return None
        (hint,) = (part for part in parts if part is not NoneType)
        return field_value(value, hint, what)
    if origin is Literal:
        is_fit = value in parts
    elif origin is tuple:
        return _items(value, parts, what)
    elif hint is float:
        is_fit = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(_as_float(value))
        value = float(value) if is_fit else value
    elif hint is str:
        is_fit = isinstance(value, str) and not has_surrogates(value)
    else:
        is_fit = type(value) is hint
    if not is_fit:
        raise ValueError(f"{what} is {shortened(value)}; it must be {_described(hint)}")
    return value


def has_surrogates(text: str) -> bool:
    """Whether a text holds half characters, which no file in UTF-8 can hold."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _items(value: Any, parts: tuple[Any, ...], what: str) -> tuple[Any, ...]:
    is_open = len(parts) == 2 and parts[1] is Ellipsis
    if not isinstance(value, list | tuple) or not (is_open or len(value) == len(parts)):
        number = "" if is_open else f" of {len(parts)}"
        raise ValueError(f"{what} is {shortened(value)}; it must be a list{number}")
    hints = [parts[0]] * len(value) if is_open else parts
    return tuple(field_value(item, hint, what) for item, hint in zip(value, hints, strict=True))


def _described(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, get_args(hint)))}"
    names = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text", dict: "an object"}
    return names.get(hint, f"a {hint.__name__}")


def _as_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:40]} is too large")
    return number


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{shortened(next(name for name in names if names.count(name) > 1))} is given twice")
    return found
