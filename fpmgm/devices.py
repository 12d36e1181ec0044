"""Where a network runs: one decision, made when it is loaded. Nothing below asks again."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch

from fpmgm.names import choose

DtypeName = Literal["float32", "bfloat16", "float16", "float64", "int8"]
DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
    "int8": torch.float32,
}
"""What tensors are kept in, by name. With int8, large layers also keep their weights as whole numbers (int8.py)."""


@dataclass(frozen=True, kw_only=True)
class OnDevice:
    """Where networks run, and in which precision."""

    device: str = "auto"
    """Where the network runs: cpu, cuda, cuda:1 or mps. With auto, it runs on CUDA if that is there, else on MPS, else
    on the CPU."""
    dtype: DtypeName = "float32"
    """The precision of weights and hidden states. int8 is for the CPU: large layers round weights and inputs to 8 bits,
    and all else is float32. Tokens are drawn in float64 in any case."""

    def check_device(self) -> None:
        """A ValueError if there is no such device, or it does not compute so."""
        check_pair(device_named(self.device), self.dtype)


def device_named(name: str) -> torch.device:
    """`auto` (CUDA, then MPS, then the CPU), `cpu`, `mps`, `cuda` or `cuda:1`; a ValueError if it is not there."""
    if name == "auto":
        return torch.device("cuda" if _has_cuda() else "mps" if _has_mps() else "cpu")
    kind, _, index = name.partition(":")
    choose("device", kind, {"auto": None, "cpu": None, "cuda": None, "mps": None})
    if index and not (kind == "cuda" and index.isdigit()):
        raise ValueError(f"device is {name!r}; write cuda:0, cuda:1 and so on, or {kind} alone")
    is_there = {"cpu": True, "mps": _has_mps(), "cuda": _has_cuda()}[kind]
    if not is_there:
        raise ValueError(f"device is {name!r}, and this machine has none; give cpu or auto")
    if index and int(index) >= torch.cuda.device_count():
        raise ValueError(f"device is {name!r}, and the last one here is cuda:{torch.cuda.device_count() - 1}")
    return torch.device(name)


def dtype_named(name: str) -> torch.dtype:
    """What weights and hidden states are kept in: float32, bfloat16, float16 or float64; float32 for int8."""
    return choose("dtype", name, DTYPES)


def check_pair(device: torch.device, dtype: str) -> None:
    """A ValueError if the device does not compute in the precision of that name."""
    if dtype_named(dtype) == torch.float64 and not has_float64(device):
        raise ValueError(f"{device} does not compute in float64; give --dtype float32 or --device cpu")
    if dtype == "int8" and device.type != "cpu":
        raise ValueError(f"dtype is int8, which is for the CPU, and the device is {device}; give --device cpu")


def has_float64(device: torch.device) -> bool:
    """Whether a device computes in float64."""
    return device.type != "mps"


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether products in bfloat16 are faster than in float32: on CUDA, and on a CPU with instructions for them."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def wait_for(device: torch.device) -> None:
    """Wait until a device has done all that was asked of it, so that a clock tells the truth."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Full precision for what needs all its digits, also within mixed precision."""
    if not torch.amp.is_autocast_available(device.type):  # `meta` has none
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def _has_cuda() -> bool:
    return torch.cuda.is_available()


def _has_mps() -> bool:
    return torch.backends.mps.is_available()
