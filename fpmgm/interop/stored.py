"""A model of other code of which only names, shapes and settings have been read; its tensors are still on disk."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fpmgm.denoiser import Denoiser

WRAPPERS = ("module", "_orig_mod", "backbone")  # of DDP, torch.compile and Lightning, in any order and number
NUM_LISTED = 20

Shape = tuple[int, ...]


@runtime_checkable
class Stored(Protocol):
    """A tensor that is still on disk."""

    @property
    def shape(self) -> Shape: ...

    def read(self) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class SafeTensor:
    """A tensor of a safetensors file."""

    file: Path
    name: str
    shape: Shape

    def read(self) -> Tensor:
        """The tensor itself."""
        with safe_open(self.file, "pt") as file:
            return file.get_tensor(self.name)


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """A model of other code, of which only names, shapes and settings have been read."""

    place: Path
    format: str
    tensors: Mapping[str, Stored]
    """By the names of the code that wrote them, without prefixes."""
    average: tuple[Stored, ...] = ()
    """The moving average of the parameters (EMA), in their order; empty if there is none."""
    settings: Mapping[str, Any]
    """What the source says of its network, by our names."""
    tokenizer: str = ""

    @property
    def shapes(self) -> dict[str, Shape]:
        return {name: tensor.shape for name, tensor in self.tensors.items()}


def safe_tensors(file: Path) -> dict[str, SafeTensor]:
    """The tensors of a safetensors file, unread."""
    try:
        with safe_open(file, "pt") as opened:
            shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{file} is truncated or not a safetensors file: {error}") from error
    return {name: SafeTensor(file=file, name=name, shape=shape) for name, shape in shapes.items()}


def by_short_names(place: Path, tensors: Mapping[Any, Any]) -> dict[str, Stored]:
    """The tensors without the names of what they were wrapped in."""
    found: dict[str, Stored] = {}
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, Stored):
            raise ValueError(f"{place}: {name!r} in its state_dict is no tensor")
        parts = name.split(".")
        while parts[0] in WRAPPERS and len(parts) > 1:
            parts.pop(0)
        short = ".".join(part for part in parts if part != "_orig_mod")  # compiled block by block
        if short in found:
            raise ValueError(f"{place} holds {short} twice, once as {name}")
        found[short] = tensor
    return found


def settled(source: Foreign, sizes: Mapping[str, int], told: Mapping[str, int | None]) -> dict[str, Any]:
    """What the tensors, the settings and the user say of a network; a ValueError where two of them differ."""
    known: dict[str, Any] = dict(sizes)
    for origin, facts in (("its settings say", source.settings), ("you say", told)):
        for name, value in facts.items():
            if value is not None and known.setdefault(name, value) != value:
                raise ValueError(f"{source.place}: {origin} that {name} is {value}, but it is {known[name]}")
    for name in ("num_heads", "length"):
        if name not in known:
            raise ValueError(f"{source.place} does not say its {name}; give --{name.replace('_', '-')}")
        if known[name] < 1:
            raise ValueError(f"{name} is {known[name]}; it must be at least 1")
    return known


def check_tensors(source: Foreign, what: str, expected: Mapping[str, Shape], found: Mapping[str, Shape]) -> None:
    """A ValueError unless every tensor has its name and shape, with none missing and none left over."""
    other = [name for name in expected if name in found and expected[name] != found[name]]
    problems = {
        "missing": [name for name in expected if name not in found],
        "extra": [name for name in found if name not in expected],
        "of another shape": [f"{name} ({size(found[name])}, not {size(expected[name])})" for name in other],
    }
    if any(problems.values()):
        told = "; ".join(f"{kind}: {listed(names)}" for kind, names in problems.items() if names)
        raise ValueError(f"{source.place} is no {what}; {told}")


def fill(source: Foreign, denoiser: Denoiser, stored_of: Callable[[int, str], Stored | None]) -> Denoiser:
    """The denoiser with the source's weights, read one by one; `stored_of` finds that of a parameter's place and
    name, and None leaves a parameter as it is."""
    with torch.no_grad():
        for index, (name, parameter) in enumerate(denoiser.named_parameters()):
            stored = stored_of(index, name.removeprefix("backbone."))
            if stored is None:
                continue
            tensor = stored.read()
            if not tensor.is_floating_point():
                raise ValueError(f"{source.place}: {name} holds {tensor.dtype}; weights are floating-point numbers")
            parameter.copy_(tensor)
    return denoiser.eval()


def size(shape: Shape) -> str:
    """A shape as a message shows it."""
    return " x ".join(map(str, shape))


def listed(names: list[str]) -> str:
    """Names as a message shows them, not too many."""
    more = f" and {len(names) - NUM_LISTED} more" if len(names) > NUM_LISTED else ""
    return ", ".join(names[:NUM_LISTED]) + more if names else "nothing"
