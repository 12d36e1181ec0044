import os
import pickle
import resource
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fpmgm.interop.pickled import Inert, PickledTensor, read_pickled
from tests.published import foreign_classes


def save_pickle(file: Path, pickled: bytes) -> Path:
    """A file of torch.save with that pickle in it."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/byteorder", sys.byteorder)
        archive.writestr("archive/data/0", torch.arange(6.0).numpy().tobytes())
        archive.writestr("archive/version", "3\n")
    return file


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
)
def test_tensors_come_back_as_they_were_saved(tmp_path: Path, dtype: torch.dtype) -> None:
    whole = torch.arange(24).reshape(4, 6).to(dtype)
    saved = {"whole": whole, "turned": whole.T, "part": whole[1:3, 2:], "scalar": whole[0, 1], "parameter": whole}
    if dtype.is_floating_point:
        saved["parameter"] = nn.Parameter(whole)
    torch.save(OrderedDict(saved), tmp_path / "x.pt")
    found = read_pickled(tmp_path / "x.pt")
    assert list(found) == list(saved)
    for name, tensor in saved.items():
        assert isinstance(found[name], PickledTensor)
        assert found[name].shape == tensor.shape
        read = found[name].read()
        assert read.dtype == dtype
        assert torch.equal(read, tensor.detach())


def test_plain_data_comes_back_and_objects_of_unknown_classes_do_nothing(tmp_path: Path) -> None:
    with foreign_classes() as classes:
        thing = classes["DictConfig"]()
        vars(thing).update({"_content": {"a": 1}, "seen": {1, 2}, "raw": b"\xff", "where": Path("x"), "kind": Any})
        data = {"n": 3, "x": [1.5, None, ("a", True)], "thing": thing, "dtype": torch.float32, "size": torch.Size([2])}
        torch.save(data, tmp_path / "x.pt")
    found = read_pickled(tmp_path / "x.pt")
    assert (found["n"], found["x"]) == (3, [1.5, None, ("a", True)])
    assert isinstance(found["thing"], Inert)
    assert found["thing"].state["_content"] == {"a": 1}
    assert "omegaconf.dictconfig" not in sys.modules


class Calls:
    """Pickled, it is a call of a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (os.system, "posix.system"),
        (eval, "builtin__.eval"),
        (exec, "builtin__.exec"),
        (__import__, "builtin__.__import__"),
        (getattr, "builtin__.getattr"),
        (open, "open"),
        (os.mkdir, "posix.mkdir"),
        (__import__("subprocess").check_output, "subprocess.check_output"),
        (__import__("runpy").run_path, "runpy.run_path"),
        (__import__("shutil").rmtree, "shutil.rmtree"),
        (__import__("importlib").import_module, "importlib.import_module"),
        (pickle.loads, "pickle.loads"),
    ],
)
@pytest.mark.parametrize("is_deep", [False, True])
def test_a_file_that_tries_to_run_code_is_refused_and_nothing_ran(
    tmp_path: Path, function: Callable[..., Any], name: str, is_deep: bool
) -> None:
    proof = tmp_path / "ran"
    call = Calls(function, str(proof) if function is os.mkdir else f"__import__('os').mkdir({str(proof)!r})")
    torch.save({"state_dict": {"a": torch.ones(2)}, "x": [{"y": call}] if is_deep else call}, tmp_path / "x.ckpt")
    with pytest.raises(ValueError, match=r"asks to run .* when it is read; refused, and nothing ran") as refusal:
        read_pickled(tmp_path / "x.ckpt")
    assert name.split(".")[-1] in str(refusal.value)
    assert not proof.exists()


def test_the_malicious_files_of_these_tests_do_run_when_torch_reads_them(tmp_path: Path) -> None:
    torch.save({"x": Calls(os.mkdir, str(tmp_path / "ran"))}, tmp_path / "x.ckpt")
    torch.load(tmp_path / "x.ckpt", weights_only=False)
    assert (tmp_path / "ran").is_dir()


def test_functions_of_other_packages_are_never_called(tmp_path: Path) -> None:
    (tmp_path / "inner.pt").write_bytes(pickle.dumps(Calls(os.mkdir, str(tmp_path / "ran"))))
    torch.save({"x": Calls(torch.load, str(tmp_path / "inner.pt")), "n": 1}, tmp_path / "x.ckpt")
    found = read_pickled(tmp_path / "x.ckpt")
    assert isinstance(found["x"], Inert)
    assert found["n"] == 1
    assert not (tmp_path / "ran").exists()


STORAGE = b"((Vstorage\nctorch\nFloatStorage\nV0\nVcpu\nI6\ntQ"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n(" + STORAGE[1:] + b"I0\n(I2\nI3\nt(I3\nI1\ntI00\nNtR"


@pytest.mark.parametrize(
    "pickled",
    [
        b"cposix\nsystem\n(S'true'\ntR.",  # GLOBAL, REDUCE
        b"(S'true'\niposix\nsystem\n.",  # INST
        b"(cposix\nsystem\nS'true'\no.",  # OBJ
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.",  # STACK_GLOBAL
        b"c__builtin__\neval\n(S'1'\ntR.",
        b"cos.path\njoin\n.",
    ],
)
def test_no_way_of_naming_a_function_gets_through(tmp_path: Path, pickled: bytes) -> None:
    with pytest.raises(ValueError, match="refused, and nothing ran"):
        read_pickled(save_pickle(tmp_path / "x.ckpt", pickled))


def test_a_hand_written_tensor_is_read(tmp_path: Path) -> None:
    tensor = read_pickled(save_pickle(tmp_path / "x.ckpt", TENSOR + b"."))
    assert torch.equal(tensor.read(), torch.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize(
    "pickled",
    [
        TENSOR + b"}S'file'\nS'/etc/passwd'\nsb.",  # BUILD on a tensor
        TENSOR + b"(N}S'file'\nS'/etc/passwd'\nstb.",
        b"ctorch._utils\n_rebuild_tensor_v2\n(N}S'__defaults__'\n(I1\ntstb.",  # BUILD on what builds tensors
        b"cmodels.dit\nDIT\n(N}S'append'\nI1\nstb.",  # on what stands for classes
        b"ccollections\nOrderedDict\n}S'x'\nI1\nsb.",
        b"ctorch\nFloatStorage\n}S'x'\nI1\nsb.",
        TENSOR.replace(b"V0\n", b"V../../secret\n") + b".",  # a record that is not there
    ],
)
def test_a_pickle_cannot_change_the_reader_or_read_elsewhere(tmp_path: Path, pickled: bytes) -> None:
    with pytest.raises(ValueError, match=r"is no checkpoint that torch\.save wrote"):
        read_pickled(save_pickle(tmp_path / "x.ckpt", pickled))
    assert not hasattr(Inert, "x")
    Inert().append(1)


def test_a_tensor_larger_than_its_bytes_is_not_one(tmp_path: Path) -> None:
    pickled = TENSOR.replace(b"(I2\nI3\nt(I3\nI1\nt", b"(I2000000\nI3000000\nt(I0\nI0\nt") + b"."
    assert isinstance(read_pickled(save_pickle(tmp_path / "x.ckpt", pickled)), Inert)


def test_a_pickle_gets_no_more_memory_than_it_has_content(tmp_path: Path) -> None:
    file = save_pickle(tmp_path / "x.ckpt", b"\x80\x02}r\xff\xff\xff\x03.")  # remembered as number 67108863
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read_pickled(file) == {}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def damaged(file: Path, how: str) -> Path:
    saved = {"state_dict": {"a": torch.ones(300)}}
    match how:
        case "empty":
            file.touch()
        case "text":
            file.write_text("not a checkpoint")
        case "bare pickle":
            file.write_bytes(pickle.dumps({"state_dict": {}}))
        case "old torch":
            torch.save(saved, file, _use_new_zipfile_serialization=False)
        case "truncated":
            torch.save(saved, file)
            file.write_bytes(file.read_bytes()[:-600])
        case "another zip":
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("word/document.xml", "<x/>")
        case "compressed":
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("archive/data.pkl", b"\0" * 1_000_000)
        case "broken pickle":
            save_pickle(file, b"\x80\x02}q\x00(X\x05")
        case "big-endian":
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("archive/data.pkl", b"}.")
                archive.writestr("archive/byteorder", "big" if sys.byteorder == "little" else "little")
    return file


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("empty", "is no checkpoint: torch.save writes a zip, and this is none"),
        ("text", "is no checkpoint: torch.save writes a zip, and this is none"),
        ("bare pickle", "is a bare pickle, or of a torch before 1.6"),
        ("old torch", "is a bare pickle, or of a torch before 1.6"),
        ("truncated", "is truncated: a zip without its end"),
        ("another zip", "it is a zip without a data.pkl"),
        ("compressed", "its records are compressed"),
        ("broken pickle", "is no checkpoint that torch.save wrote"),
        ("big-endian", "-endian"),
    ],
)
def test_other_and_damaged_files_are_refused_with_the_reason(tmp_path: Path, how: str, message: str) -> None:
    file = damaged(tmp_path / "x.ckpt", how)
    with pytest.raises(ValueError, match=message.replace(".", r"\.")) as refusal:
        read_pickled(file)
    assert "\n" not in str(refusal.value)


def test_damaged_bytes_of_a_tensor_are_noticed(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(300)}, tmp_path / "x.ckpt")
    content = bytearray((tmp_path / "x.ckpt").read_bytes())
    place = content.index(torch.ones(300).numpy().tobytes())
    content[place] ^= 1
    (tmp_path / "x.ckpt").write_bytes(content)
    with pytest.raises(ValueError, match="is damaged: its record x/data/0 cannot be read"):
        read_pickled(tmp_path / "x.ckpt")["a"].read()
