"""Files that survive: whole or not at all, and nothing of others is touched."""

import os
from pathlib import Path

import pytest
import torch

from fpmgm.files import append_line, remove_leftovers, whole_folder, write_json, write_tensors, write_text

DEAD = 4_194_305  # above the largest process id there can be


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "new" / "a.json"
    write_json(file, {"a": 1})
    with pytest.raises(UnicodeEncodeError):
        write_text(file, "\ud800")
    assert file.read_text() == '{\n "a": 1\n}\n'
    assert os.listdir(file.parent) == ["a.json"]


def test_a_link_to_a_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "a.txt")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "a.txt").read_text() == "new"


def test_tensors_may_be_read_by_whoever_may_read_other_new_files(tmp_path: Path) -> None:
    write_text(tmp_path / "text", "")
    write_tensors({"a": torch.zeros(2)}, tmp_path / "tensors")
    assert (tmp_path / "tensors").stat().st_mode == (tmp_path / "text").stat().st_mode


def test_a_folder_that_fails_to_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "ours").write_text("old")
    with pytest.raises(UnicodeEncodeError), whole_folder(folder, ["ours"]) as scratch:
        (scratch / "ours").write_text("\ud800")
    assert (folder / "ours").read_text() == "old"
    assert os.listdir(tmp_path) == ["model"]


def test_a_kill_between_the_two_renames_of_a_swap_is_mended_by_the_next_writer(tmp_path: Path) -> None:
    moved = tmp_path / f".model.{DEAD}.old"
    moved.mkdir()
    (moved / "notes.txt").write_text("mine")
    (tmp_path / f".model.{DEAD}").mkdir()
    with whole_folder(tmp_path / "model", ["ours"]) as scratch:
        (scratch / "ours").write_text("new")
    assert os.listdir(tmp_path) == ["model"]
    assert sorted(os.listdir(tmp_path / "model")) == ["notes.txt", "ours"]


def test_only_half_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    names = {f".a.{DEAD}", f".a.{os.getpid()}", f".b.{DEAD}", f".a.{DEAD}.txt", ".a.12x", "a"}
    for name in names:
        (tmp_path / name).touch()
    remove_leftovers(tmp_path, "a")
    assert set(os.listdir(tmp_path)) == names - {f".a.{DEAD}"}


def test_a_line_is_added_after_an_unfinished_one_is_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_bytes(b"one\ntw")
    append_line(file, "two")
    append_line(file, "three")
    assert file.read_text() == "one\ntwo\nthree\n"
