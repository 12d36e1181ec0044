"""Images of folders and of the hub: how they are read, what is refused, and that they are read once."""

import builtins
import io
import json
import os
import shutil
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fpmgm.data import image_hub
from fpmgm.data.image_files import BrokenImageError, image_array
from fpmgm.data.image_folder import folder_images
from fpmgm.data.pixels import PixelsConfig, load_pixels, split_evenly

Put = Callable[..., Path]


def noise(height: int = 6, width: int = 6, channels: int = 3, seed: int = 0) -> np.ndarray:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "pets").mkdir()
    return tmp_path / "pets"


@pytest.fixture
def put(root: Path) -> Put:
    def write(name: str, image: "np.ndarray | Image.Image | None" = None, **options: Any) -> Path:
        """An image file in the folder; noise of its own if none is given."""
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = noise(seed=zlib.crc32(name.encode())) if image is None else image
        (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(file, **options)
        return file

    return write


def packed(root: Path, size: int = 0, colours: Any = "auto", broken: str = "refuse") -> tuple[Any, Any, dict[str, Any]]:
    """Images, labels and what is told of them."""
    folder = folder_images(str(root), size, colours, broken)
    about = json.loads((folder / "about.json").read_text())
    assert sorted(file.name for file in folder.iterdir()) == ["about.json", "images.npy", "labels.npy"]
    return np.load(folder / "images.npy"), np.load(folder / "labels.npy"), about


def png_of_size(width: int, height: int) -> bytes:
    """A PNG file of a few bytes that claims to have so many pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"\0")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in (header, data)
    )


def test_classes_and_images_come_in_the_order_of_their_names(root: Path, put: Put) -> None:
    files = [put("cats/2.bmp"), put("cats/Z.PNG"), put("dogs/1.png")]
    put("cats/.hidden.png")
    (root / "cats" / "readme.txt").write_text("no image")
    (root / ".thumbnails").mkdir()
    images, labels, about = packed(root)
    expected = np.stack([np.asarray(Image.open(file)).transpose(2, 0, 1) for file in files])
    assert np.array_equal(images, expected)
    assert images.dtype == np.uint8
    assert labels.dtype == np.int64
    assert labels.tolist() == [0, 0, 1]
    assert about["classes"] == ["cats", "dogs"]
    assert about["num_held_out"] == 0


@pytest.mark.parametrize("suffix", ["jpg", "jpeg", "webp", "gif", "png", "bmp"])
def test_the_usual_kinds_of_files_are_read(root: Path, put: Put, suffix: str) -> None:
    put(f"cats/1.{suffix}")
    assert packed(root)[0].shape == (1, 3, 6, 6)


def test_the_first_frame_of_an_animation_is_taken(root: Path, put: Put) -> None:
    black, white = (Image.new("L", (4, 4), shade) for shade in (0, 255))
    put("cats/1.gif", black, save_all=True, append_images=[white])
    assert packed(root)[0].max() == 0


def test_images_are_cropped_to_the_square_in_their_middle(root: Path, put: Put) -> None:
    wide, high = noise(6, 11, seed=1), noise(9, 6, seed=2)
    put("cats/1.png", wide)
    put("cats/2.png", high)
    images, _, _ = packed(root, size=6)
    assert np.array_equal(images[0].transpose(1, 2, 0), wide[:, 2:8])
    assert np.array_equal(images[1].transpose(1, 2, 0), high[1:7])


def test_images_are_resized_by_the_bicubic_filter_which_averages(root: Path, put: Put) -> None:
    stripes = np.zeros((32, 32), np.uint8)
    stripes[:, ::2] = 255
    put("cats/1.png", stripes)
    images, _, _ = packed(root, size=8)
    expected = Image.fromarray(stripes).resize((8, 8), Image.Resampling.BICUBIC)
    assert np.array_equal(images[0, 0], np.asarray(expected))
    assert 110 < images.min() <= images.max() < 145  # one pixel of 4 x 4 would be black or white


def test_images_are_grey_only_if_all_are(root: Path, put: Put) -> None:
    grey = noise(channels=1)
    put("cats/1.png", grey)
    put("cats/2.png", np.stack([grey] * 3, axis=2))
    images, _, _ = packed(root)
    assert np.array_equal(images, np.stack([grey[None]] * 2))
    put("ants/1.png")  # before the others
    assert packed(root)[0].shape == (3, 3, 6, 6)
    (root / "ants" / "1.png").rename(root / "cats" / "3.png")
    (root / "ants").rmdir()
    assert packed(root)[0].shape == (3, 3, 6, 6)


def test_colours_may_be_asked_for(root: Path, put: Put) -> None:
    grey, coloured = noise(channels=1), noise(seed=3)
    put("cats/1.png", grey)
    put("cats/2.png", coloured)
    images, _, _ = packed(root, colours="grey")
    assert np.array_equal(images[0, 0], grey)
    assert np.array_equal(images[1, 0], np.asarray(Image.fromarray(coloured).convert("L")))
    (root / "cats" / "2.png").unlink()
    assert np.array_equal(packed(root, colours="rgb")[0][0], np.stack([grey] * 3))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_lies_on_white(root: Path, put: Put, mode: str) -> None:
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 255))
    image.putpixel((1, 0), (0, 0, 0, 0))
    put("cats/1.png", image.convert(mode))
    assert packed(root)[0].tolist() == [[[[0, 255]]]]


def test_half_transparent_pixels_are_mixed_with_white(root: Path, put: Put) -> None:
    put("cats/1.png", Image.new("RGBA", (1, 1), (0, 100, 200, 128)))
    assert packed(root)[0].flatten().tolist() == pytest.approx([127, 177, 227], abs=1)


def test_grey_images_of_16_bits_keep_their_range(root: Path, put: Put) -> None:
    put("cats/1.png", np.array([[0, 257 * 100, 65535]], np.uint16))
    assert packed(root)[0].tolist() == [[[[0, 100, 255]]]]


def test_images_are_turned_as_their_camera_says(root: Path, put: Put) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees, clockwise
    image = Image.fromarray(np.array([[0, 85, 170]], np.uint8))
    put("cats/1.png", image, exif=exif)
    assert packed(root)[0].tolist() == [[[[0], [85], [170]]]]


def break_file(file: Path, kind: str) -> None:
    content = {
        "truncated": file.read_bytes()[:-40],
        "empty": b"",
        "text": b"no image",
        "huge": png_of_size(60000, 60000),
    }
    file.write_bytes(content[kind])


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("truncated", "truncated"),
        ("empty", "it is empty"),
        ("text", "no image that pillow"),
        ("huge", "pixels; at most"),
    ],
)
def test_the_first_broken_file_is_named_and_refused(root: Path, put: Put, kind: str, reason: str) -> None:
    for number in range(4):
        put(f"cats/{number}.png")
    for number in (2, 3):
        break_file(root / f"cats/{number}.png", kind)
    with pytest.raises(ValueError, match=rf"cats/2\.png cannot be read: .*{reason}.*--data.broken skip") as caught:
        packed(root)
    assert "\n" not in str(caught.value)
    assert not list((root.parent / "cache" / "packed").glob("*pixels*"))


def test_broken_files_are_named_and_skipped_if_asked(root: Path, put: Put, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(17):
        put(f"cats/{number:02}.png")
    for number in range(3, 16):
        break_file(root / f"cats/{number:02}.png", "truncated")
    images, labels, _ = packed(root, broken="skip")
    said = capsys.readouterr().err.splitlines()
    kept = [np.asarray(Image.open(root / f"cats/{number:02}.png")).transpose(2, 0, 1) for number in (0, 1, 2, 16)]
    assert np.array_equal(images, np.stack(kept))
    assert labels.tolist() == [0] * 4
    assert len(said) == 11
    assert all(f"{number:02}.png: " in line for number, line in zip(range(3, 13), said, strict=False))
    assert said[-1] == "skipped 3 more images that cannot be read"


def test_a_class_that_loses_all_its_images_is_refused(root: Path, put: Put) -> None:
    put("cats/1.png")
    break_file(put("dogs/1.png"), "empty")
    with pytest.raises(ValueError, match=r"class dogs has no image to learn from: .*1\.png: it is empty"):
        packed(root, broken="skip")


def test_a_held_out_part_that_loses_all_its_images_is_refused(root: Path, put: Put) -> None:
    put("train/cats/1.png")
    break_file(put("val/cats/1.png"), "empty")
    with pytest.raises(ValueError, match=r"no held-out image can be read: .*1\.png: it is empty"):
        packed(root, broken="skip")


def test_a_large_image_is_refused_before_it_is_read() -> None:
    with pytest.raises(BrokenImageError, match="9000 x 9000 pixels; at most 67108864"):
        image_array(png_of_size(9000, 9000), 8, "auto")


def test_more_images_than_the_disk_holds_are_refused(root: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put("cats/1.png")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=100))
    with pytest.raises(ValueError, match=r"1 images of 32 x 32 pixels take .* GB left; give a smaller --data.size"):
        packed(root, size=32)


def test_the_first_image_of_another_size_is_named(root: Path, put: Put) -> None:
    put("cats/1.png", noise(6, 5))
    put("cats/2.png", noise(6, 5))
    put("dogs/1.png", noise(4, 7))
    expected = r"dogs/1\.png has 7 x 4 pixels, and .*cats/1\.png has 5 x 6; give --data.size N"
    with pytest.raises(ValueError, match=expected):
        packed(root)
    assert packed(root, size=4)[0].shape == (3, 3, 4, 4)


@pytest.mark.parametrize("name", ["val", "valid", "validation", "test"])
def test_a_folder_with_a_split_keeps_it(root: Path, put: Put, name: str) -> None:
    for file in ("train/cats/1.png", "train/cats/2.png", "train/dogs/1.png", f"{name}/dogs/1.png"):
        put(file)
    images, labels, about = packed(root)
    assert labels.tolist() == [0, 0, 1, 1]
    assert about["num_held_out"] == 1
    last = np.asarray(Image.open(root / name / "dogs" / "1.png")).transpose(2, 0, 1)
    assert np.array_equal(images[-1], last)
    pixels = load_pixels(PixelsConfig(source=str(root)))
    assert (pixels.train.tolist(), pixels.held_out.tolist()) == ([0, 1, 2], [3])


def test_classes_may_be_called_train_and_test(root: Path, put: Put) -> None:
    put("train/1.png")
    put("test/1.png")
    assert packed(root)[2]["classes"] == ["test", "train"]


def test_a_held_out_class_that_is_never_learned_is_refused(root: Path, put: Put) -> None:
    put("train/cats/1.png")
    put("val/cows/1.png")
    with pytest.raises(ValueError, match=r"val has a class cows, which .*train does not have"):
        packed(root)


def lay_out(root: Path, put: Put, layout: str) -> None:
    if layout == "images only":
        put("1.png")
    if layout == "a class without images":
        put("cats/1.png")
        (root / "dogs").mkdir()
    if layout == "a folder too high":
        put("all/cats/1.png")


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("nothing", "pets is empty; it needs a folder of images for each class"),
        ("images only", "has images, and no folder for each class; put them into one, as in .*pets/cats/1.png"),
        ("a class without images", r"class dogs of .*pets has no images \(.png, .*\)$"),
        (
            "a folder too high",
            "class all of .* has no images .*; it has folders: give the one above those of the class",
        ),
    ],
)
def test_folders_that_are_laid_out_otherwise_are_refused(root: Path, put: Put, layout: str, said: str) -> None:
    lay_out(root, put, layout)
    with pytest.raises(ValueError, match=said):
        packed(root)


def test_a_missing_folder_is_answered_with_what_there_is(root: Path) -> None:
    with pytest.raises(ValueError, match=r"no images at 'fashon'; did you mean 'fashion'\? Give a folder .*hub:owner"):
        folder_images("fashon", 0, "auto", "refuse")
    (root / "file").write_text("")
    with pytest.raises(ValueError, match="is a file; give a folder"):
        folder_images(str(root / "file"), 0, "auto", "refuse")


def test_images_are_read_once(root: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put("cats/1.png")
    first = folder_images(str(root), 0, "auto", "refuse")
    opened: list[str] = []
    original = io.open

    def watched(file: Any, *options: Any, **more: Any) -> Any:
        opened.append(str(file))
        return original(file, *options, **more)

    monkeypatch.setattr(io, "open", watched)
    monkeypatch.setattr(builtins, "open", watched)
    assert folder_images(str(root), 0, "auto", "refuse") == first
    assert opened  # the hash that is kept
    assert not [name for name in opened if name.endswith(".png")]


def test_other_content_and_other_settings_are_kept_apart(root: Path, put: Put) -> None:
    file = put("cats/1.png")
    first = folder_images(str(root), 0, "auto", "refuse")
    os.utime(file, (1, 1))
    assert folder_images(str(root), 0, "auto", "refuse") == first  # the same content, at another time
    content = file.read_bytes()
    put("cats/1.png", noise(seed=9))
    found = {folder_images(str(root), 0, "auto", "refuse"), folder_images(str(root), 4, "auto", "refuse"), first}
    file.write_bytes(content)
    file.rename(root / "cats/2.png")
    found |= {folder_images(str(root), 0, "auto", "refuse"), folder_images(str(root), 0, "grey", "refuse")}
    contents = {json.loads((folder / "about.json").read_text())["content"] for folder in found}
    assert len(found) == len(contents) == 5


def test_the_same_folder_in_another_place_is_the_same_data(root: Path, put: Put, tmp_path: Path) -> None:
    put("cats/1.png")
    shutil.copytree(root, tmp_path / "copy")
    assert folder_images(str(root), 0, "auto", "refuse") == folder_images(str(tmp_path / "copy"), 0, "auto", "refuse")


def test_a_share_of_a_folder_without_a_split_is_held_out(root: Path, put: Put) -> None:
    for number in range(20):
        put(f"cats/{number}.png")
    pixels = load_pixels(PixelsConfig(source=str(root), validation_share=0.2))
    assert len(pixels.held_out) == 4
    assert sorted([*pixels.train, *pixels.held_out]) == list(range(20))
    again = load_pixels(PixelsConfig(source=str(root), validation_share=0.2))
    assert np.array_equal(pixels.held_out, again.held_out)


def test_too_few_images_to_hold_any_out_are_refused(root: Path, put: Put) -> None:
    put("cats/1.png")
    with pytest.raises(ValueError, match="has 1 images, of which 0 would be held out; give more images"):
        load_pixels(PixelsConfig(source=str(root)))


def test_images_that_changed_since_training_are_refused(root: Path, put: Put) -> None:
    for number in range(10):
        put(f"cats/{number}.png")
    config = PixelsConfig(source=str(root))
    content = load_pixels(config).content
    assert len(load_pixels(PixelsConfig(source=str(root), content=content)).images) == 10
    put("cats/3.png", noise(seed=5))
    with pytest.raises(ValueError, match="have changed since the model was trained on them"):
        load_pixels(PixelsConfig(source=str(root), content=content))


def test_held_out_rows_are_spread_over_all() -> None:
    train, held_out = split_evenly(1000, 0.1)
    assert len(held_out) == 100
    assert not set(train) & set(held_out)
    assert np.histogram(held_out, bins=4, range=(0, 1000))[0].min() > 10


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"size": -1}, "data.size is -1"),
        ({"size": 1 << 15}, "data.size is 32768"),
        ({"colours": "gray"}, "did you mean 'grey'"),
        ({"broken": "drop"}, "unknown broken 'drop'"),
        ({"validation_share": 0.6}, "validation_share is 0.6"),
        ({"source": "fashion", "size": 32}, "the images of fashion have one size"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PixelsConfig(**{"source": "folder", **settings})


def as_png(image: np.ndarray) -> dict[str, Any]:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def hub_set(names: list[str], labels: list[Any], **columns: Any) -> Any:
    """A data set in memory with a PNG for each label; `names` are its classes, if its column says so."""
    import datasets

    kind = datasets.ClassLabel(names=names) if names else datasets.Value("string")
    features = {
        "picture": datasets.Image(),
        "kind" if names else "label": kind,
        **{c: datasets.Value("int64") for c in columns},
    }
    images = [as_png(noise(seed=number)) for number in range(len(labels))]
    rows = {"picture": images, "kind" if names else "label": labels, **columns}
    return datasets.Dataset.from_dict(rows, features=datasets.Features(features))


@pytest.fixture
def hub(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A hub that has what is put into this table, by name and configuration."""
    import datasets
    import huggingface_hub

    found: dict[str, Any] = {}

    def load(name: str, configuration: str | None = None, *, revision: str) -> Any:
        assert revision == "abc"
        return found[f"{name}:{configuration}"]

    monkeypatch.setattr(datasets, "load_dataset", load)
    about = SimpleNamespace(dataset_info=lambda name: SimpleNamespace(sha="abc"))
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: about)
    monkeypatch.setattr(image_hub, "hub_answers", lambda: True)
    return found


def test_columns_of_a_hub_data_set_are_found_by_what_they_hold(hub: dict[str, Any]) -> None:
    hub["me/pets:None"] = {"train": hub_set(["cat", "dog"], [1, 0, 1], number=[7, 8, 9])}
    images, labels, about = packed(Path("hub:me/pets"))
    assert labels.tolist() == [1, 0, 1]
    assert about["classes"] == ["cat", "dog"]
    assert about["num_held_out"] == 0
    assert np.array_equal(images[2], noise(seed=2).transpose(2, 0, 1))


def test_a_split_of_a_hub_data_set_is_held_out(hub: dict[str, Any]) -> None:
    train, others = hub_set(["cat", "dog"], [0, 1]), hub_set(["cat", "dog"], [1])
    hub["me/pets:small"] = {"test": hub_set(["cat", "dog"], [0] * 5), "validation": others, "train": train}
    _, labels, about = packed(Path("hub:me/pets:small"))
    assert labels.tolist() == [0, 1, 1]
    assert about["num_held_out"] == 1


def test_classes_of_a_hub_data_set_may_be_words(hub: dict[str, Any]) -> None:
    hub["me/pets:None"] = {"train": hub_set([], ["dog", "cat", "dog"])}
    _, labels, about = packed(Path("hub:me/pets"))
    assert (labels.tolist(), about["classes"]) == ([1, 0, 1], ["cat", "dog"])


def test_a_hub_data_set_that_does_not_tell_image_and_class_is_refused(hub: dict[str, Any]) -> None:
    told = hub_set(["cat"], [0])
    hub["me/a:None"] = {"train": told.remove_columns("picture")}
    hub["me/b:None"] = {"train": told.remove_columns("kind")}
    hub["me/c:None"] = {"train": hub_set([], ["cat"]), "test": hub_set([], ["cow"])}
    for name, said in (
        ("a", "0 columns of images"),
        ("b", "0 columns of classes"),
        ("c", "of class 'cow', which is none"),
    ):
        with pytest.raises(ValueError, match=said):
            packed(Path(f"hub:me/{name}"))


def test_a_broken_image_of_a_hub_data_set_is_named(hub: dict[str, Any]) -> None:
    import datasets

    rows = {"image": [as_png(noise()), {"bytes": b"no image", "path": None}, None], "label": ["a"] * 3}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
    hub["me/pets:None"] = {"train": datasets.Dataset.from_dict(rows, features=features)}
    with pytest.raises(ValueError, match=r"image 1 of me/pets \(train\) cannot be read: it is no image"):
        packed(Path("hub:me/pets"))
    assert len(packed(Path("hub:me/pets"), broken="skip")[0]) == 1


def test_files_of_a_hub_data_set_are_read_from_where_they_are(hub: dict[str, Any], put: Put, root: Path) -> None:
    import datasets

    rows = {"image": [str(put("cats/1.png"))], "label": ["cat"]}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
    hub["me/pets:None"] = {"train": datasets.Dataset.from_dict(rows, features=features)}
    assert np.array_equal(packed(Path("hub:me/pets"))[0], packed(root)[0])


def test_a_hub_that_does_not_answer_is_told_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_hub, "hub_answers", lambda: False)
    with pytest.raises(ConnectionError, match="the hub does not answer, and me/pets is there; check the network"):
        packed(Path("hub:me/pets"))


def test_packages_that_are_not_installed_are_named(root: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put("cats/1.png")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"package datasets, which is not installed; install fpmgm\[data\]"):
        packed(Path("hub:me/pets"))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ValueError, match=r"pillow, .* is not installed; install fpmgm\[image\]"):
        packed(root)


def test_an_error_while_reading_leaves_nothing_that_is_taken_for_data(
    root: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("cats/1.png")

    def fill(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np.lib.format, "open_memmap", fill)
        with pytest.raises(OSError, match="No space left"):
            packed(root)
    assert not [path for path in (root.parent / "cache" / "packed").iterdir() if "pixels" in path.name]
    assert len(packed(root)[0]) == 1
