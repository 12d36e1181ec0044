"""The content of a file written by torch.save, read so that nothing in it can run.

Such a file is a zip: a pickle that names classes, and the bytes of its tensors. Here every name in the pickle becomes
a class of this file, never the thing itself, so there is nothing for a hostile pickle to call. Tensors stay on disk
until they are read, one by one: a training checkpoint holds three or four copies of the weights, and one is wanted.
"""

import math
import pickle
import sys
import zipfile
from _compat_pickle import IMPORT_MAPPING
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DTYPES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
DATA_MODULES = {"_codecs", "argparse", "collections", "copyreg", "datetime", "decimal", "enum", "functools", "pathlib"}
DATA_MODULES |= {"typing", "uuid"}
DATA_BUILTINS = {"bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "object"}
DATA_BUILTINS |= {"range", "set", "slice", "str", "tuple"}


class _Sealed:
    """What a pickle may build but not change; without `__setstate__` it could set any attribute."""

    def __setstate__(self, state: Any) -> None:
        raise ValueError(f"it changes a {type(self).__name__}")


@dataclass(frozen=True, kw_only=True)
class PickledTensor(_Sealed):
    """A tensor that is still on disk."""

    file: Path
    record: str
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def read(self) -> Tensor:
        """The tensor itself."""
        try:
            with zipfile.ZipFile(self.file) as archive:
                content = bytearray(archive.read(self.record))
            return torch.frombuffer(content, dtype=self.dtype).as_strided(self.shape, self.stride, self.offset)
        except (zipfile.BadZipFile, EOFError, RuntimeError, ValueError) as error:
            raise ValueError(f"{self.file} is damaged: its record {self.record} cannot be read ({error})") from error


class Inert:
    """Stands for an object of any class: takes whatever it is given, keeps its state to be looked at, does nothing."""

    state: Any = None

    def __new__(cls, *args: Any, **kwargs: Any) -> "Inert":
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, item: Any) -> None:
        pass

    def extend(self, items: Any) -> None:
        pass

    def add(self, item: Any) -> None:
        pass


class _Table(dict[Any, Any]):
    """For OrderedDict, whose state (`_metadata` of a state dict) is not wanted."""

    def __setstate__(self, state: Any) -> None:
        pass


@dataclass(frozen=True)
class _Storage(_Sealed):
    file: Path
    record: str
    dtype: torch.dtype
    num_bytes: int


class _RebuiltTensor(_Sealed):
    """For torch._utils._rebuild_tensor_v2. No function, because a pickle could set the defaults of one."""

    def __new__(cls, storage: Any, offset: Any, shape: Any, stride: Any, *rest: Any) -> Any:
        if not isinstance(storage, _Storage):
            return Inert()
        if not all(type(number) is int and number >= 0 for number in (offset, *shape, *stride)):
            return Inert()
        if math.prod(shape) * storage.dtype.itemsize > storage.num_bytes:
            return Inert()  # an expanded tensor: no weight of a network is one
        return PickledTensor(
            file=storage.file,
            record=storage.record,
            dtype=storage.dtype,
            offset=offset,
            shape=tuple(shape),
            stride=tuple(stride),
        )


class _RebuiltParameter(_Sealed):
    """For torch._utils._rebuild_parameter: a parameter is its tensor."""

    def __new__(cls, tensor: Any, *rest: Any) -> Any:
        return tensor


STANDS_FOR: dict[tuple[str, str], type] = {
    ("collections", "OrderedDict"): _Table,
    ("torch._utils", "_rebuild_tensor_v2"): _RebuiltTensor,
    ("torch._utils", "_rebuild_parameter"): _RebuiltParameter,
}


class ForbiddenError(ValueError):
    """The pickle names something of the standard library that is no data."""


class _Unpickler(pickle._Unpickler):  # the one in Python: that in C allocates whatever a pickle asks for
    def __init__(self, stream: Any, file: Path, records: dict[str, int], folder: str) -> None:
        super().__init__(stream)
        self.file = file
        self.records = records
        self.folder = folder

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a name: nothing is imported, and what is known to run things is refused."""
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        root = IMPORT_MAPPING.get(module, module).split(".")[0]  # torch.save writes Python 2's names
        harmless = name in DATA_BUILTINS if root == "builtins" else root in DATA_MODULES
        if root in sys.stdlib_module_names and not harmless:
            raise ForbiddenError(f"{self.file} asks to run {module}.{name} when it is read; refused, and nothing ran")
        return STANDS_FOR.get((module, name), Inert)

    def persistent_load(self, pid: Any) -> Any:
        """The place of a tensor's bytes."""
        kind, dtype, key, *_ = pid
        record = f"{self.folder}data/{key}"
        if kind != "storage" or record not in self.records:
            raise ValueError(f"no record {record}")
        if not isinstance(dtype, torch.dtype):
            return Inert()
        return _Storage(self.file, record, dtype, self.records[record])


def read_pickled(file: Path) -> Any:
    """What a file of torch.save holds: plain containers, `PickledTensor` and, for all else, `Inert`."""
    try:
        with zipfile.ZipFile(file) as archive:
            return _unpickle(archive, file)
    except (ForbiddenError, OSError):
        raise
    except zipfile.BadZipFile as error:
        raise ValueError(f"{file} {_what_it_is(file)}") from error
    except Exception as error:  # a broken pickle raises anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{file} is no checkpoint that torch.save wrote: {reason}") from error


def _unpickle(archive: zipfile.ZipFile, file: Path) -> Any:
    records = {entry.filename: entry for entry in archive.infolist()}
    pickles = [name for name in records if name.endswith("data.pkl") and name.count("/") <= 1]
    if len(pickles) != 1:
        raise ValueError("it is a zip without a data.pkl")
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in records.values()):
        raise ValueError("its records are compressed, which torch.save does not do")
    if sum(entry.file_size for entry in records.values()) > file.stat().st_size:
        raise ValueError("its records claim to be larger than the file")
    folder = pickles[0].removesuffix("data.pkl")
    order = archive.read(f"{folder}byteorder").decode() if f"{folder}byteorder" in records else sys.byteorder
    if order != sys.byteorder:
        raise ValueError(f"its numbers are {order}-endian, those of this machine {sys.byteorder}-endian")
    with archive.open(pickles[0]) as stream:
        sizes = {name: entry.file_size for name, entry in records.items()}
        return _Unpickler(stream, file, sizes, folder).load()


def _what_it_is(file: Path) -> str:
    with open(file, "rb") as stream:
        start = stream.read(4)
    if start == b"PK\x03\x04":
        return "is truncated: a zip without its end"
    if start[:1] == b"\x80":
        return "is a bare pickle, or of a torch before 1.6; load it where it was written and torch.save it again"
    return "is no checkpoint: torch.save writes a zip, and this is none"
