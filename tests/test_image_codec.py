"""Images and codes: classes, in-painting, saving, and data sets written in the codes of a tokenizer."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fpmgm.backbones.network import Vocabulary
from fpmgm.checkpoint import Model, load
from fpmgm.codecs import ImageCodec, PixelCodec, TextCodec, load_codec
from fpmgm.codecs.image_tokenizer import VQTokenizer
from fpmgm.codecs.images import FILE, GREY, WEIGHTS
from fpmgm.data import data_config, images
from fpmgm.data.images import ImagesConfig, encoded
from fpmgm.data.pixels import PixelsConfig, load_pixels
from tests.images import random_images, small_codec, small_image_model, small_network, small_tokenizer


@pytest.fixture
def codec() -> ImageCodec:
    return small_codec()


def write(codec: Any, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in codec.files.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def test_a_codec_is_read_as_it_was_written(codec: ImageCodec, tmp_path: Path) -> None:
    found = load_codec(write(codec, tmp_path))
    assert isinstance(found, ImageCodec)
    assert found.class_names == codec.class_names
    assert found.is_alike(codec)
    batch = random_images(5)
    assert torch.equal(found.tokenizer.encode(batch), codec.tokenizer.encode(batch))
    codes = torch.arange(48).view(3, 16) % 8
    assert torch.equal(found.images(codes), codec.images(codes))


def test_a_codec_goes_with_its_model(tmp_path: Path) -> None:
    model = small_image_model(fp=False)
    model.save(tmp_path / "model")
    found = load(str(tmp_path / "model"))
    assert found.speech.is_alike(model.speech)
    assert found.config == model.config


def test_codecs_with_other_weights_classes_or_kinds_are_not_alike(codec: ImageCodec) -> None:
    assert not codec.is_alike(ImageCodec(codec.tokenizer, codec.class_names[:2]))
    assert not codec.is_alike(small_codec(num_codes=9))
    config = small_tokenizer().config
    other = small_network(config)
    with torch.no_grad():
        other.codebook[0] += 1
    assert not codec.is_alike(ImageCodec(VQTokenizer.made_of(config, other), codec.class_names))
    assert not codec.is_alike(PixelCodec((1, 16, 16), codec.class_names))
    assert codec.is_alike(small_codec())


def test_classes_are_known_by_name_and_by_number(codec: ImageCodec) -> None:
    assert [codec.class_index(name) for name in ("circle", "star", "1", 2)] == [0, 2, 1, 2]


def test_a_class_whose_name_is_a_number_is_known_by_it(codec: ImageCodec) -> None:
    years = replace(codec, class_names=("1", "2", "10"))
    assert [years.class_index(name) for name in ("1", "10", "0", 1)] == [0, 2, 0, 1]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("sqaure", r"unknown class 'sqaure'; did you mean 'square'\? Choices: circle, square, star$"),
        ("zzz", r"unknown class 'zzz'; Choices: circle"),
        ("3", "class is '3'; the model knows 0 to 2"),
        (-1, "class is -1; the model knows 0 to 2"),
    ],
)
def test_an_unknown_class_is_answered_with_the_nearest(codec: ImageCodec, asked: str | int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        codec.class_index(asked)


def test_of_many_classes_only_some_are_named(codec: ImageCodec) -> None:
    many = replace(codec, class_names=tuple(f"kind{number}" for number in range(1000)))
    with pytest.raises(ValueError, match=r"did you mean 'kind999'\? Choices: kind0, .*kind19 and 980 more$"):
        many.class_index("kind9999")


def test_a_model_without_classes_says_so(codec: ImageCodec) -> None:
    with pytest.raises(ValueError, match="class is 'star'; this model has no classes"):
        replace(codec, class_names=()).class_index("star")


def test_samples_take_all_classes_in_turn_or_those_that_are_asked_for(codec: ImageCodec) -> None:
    def labels(num: int, **request: Any) -> list[int] | None:
        starts = codec.starts(request, codec.vocabulary, num)
        assert all(tokens == [codec.mask_id] * 16 for tokens in starts.tokens)
        assert starts.labels is None or len(starts.labels) == len(starts.tokens)
        return starts.labels

    assert labels(5) == [0, 1, 2, 0, 1]
    assert labels(2, classes=["star", "0"]) == [2, 2, 0, 0]
    assert labels(2, classes="star") == [2, 2]
    assert labels(2, classes=0) == [0, 0]
    without = replace(codec, class_names=())
    assert without.starts({}, without.vocabulary, 3).labels is None


def test_codes_outside_the_codebook_are_refused(codec: ImageCodec) -> None:
    for code in (9, -1):
        codes = torch.zeros(2, 16, dtype=torch.long)
        codes[1, 3] = code
        with pytest.raises(ValueError, match=r"codes run from .*; the codebook has 0 to 7"):
            codec.images(codes)


def test_masked_cells_are_grey_and_no_others(codec: ImageCodec) -> None:
    codes = torch.arange(16)[None] % 8
    masked = codes.clone()
    masked[0, 6] = codec.mask_id  # row 1, column 2
    found = codec.images(masked)
    assert (found[0, :, 4:8, 8:12] == GREY).all()
    whole = codec.images(masked.masked_fill(masked == codec.mask_id, 0))
    found[0, :, 4:8, 8:12] = whole[0, :, 4:8, 8:12]
    assert torch.equal(found, whole)


def test_a_picture_has_colours_last_and_only_if_it_has_them(codec: ImageCodec) -> None:
    codes = [0, 1] * 8
    assert codec.show(codes).shape == (16, 16)
    coloured = small_codec(channels=3)
    picture = coloured.show(codes)
    assert picture.shape == (16, 16, 3)
    assert np.array_equal(picture.transpose(2, 0, 1), coloured.images(torch.tensor([codes]))[0].numpy())


@pytest.mark.parametrize(
    ("rows", "columns", "touched"),
    [
        (slice(0, 1), slice(0, 1), {0}),
        (slice(3, 5), slice(0, 1), {0, 4}),  # one pixel in each of two cells
        (slice(7, 8), slice(7, 9), {5, 6}),
        (slice(0, 16), slice(15, 16), {3, 7, 11, 15}),
    ],
)
def test_in_painting_fills_every_cell_that_the_mask_touches(
    codec: ImageCodec, rows: slice, columns: slice, touched: set[int]
) -> None:
    image = random_images(1, seed=4)
    hole = np.zeros((16, 16), bool)
    hole[rows, columns] = True
    starts = codec.starts({"inpaint": image[0, 0].numpy(), "inpaint_mask": hole}, codec.vocabulary, 2)
    codes = codec.tokenizer.encode(image)[0].tolist()
    expected = [codec.mask_id if place in touched else code for place, code in enumerate(codes)]
    assert starts.tokens == [expected] * 2


@pytest.mark.parametrize(
    ("image", "hole", "said"),
    [
        ((16, 16), (8, 16), "the mask has 16 x 8 pixels; the images of this model have 16 x 16"),
        ((16, 12), (16, 16), "the image has 12 x 16 pixels of 1 colours; this model takes 16 x 16 of 1"),
        ((16, 16, 3), (16, 16), "the image has 16 x 16 pixels of 3 colours; this model takes 16 x 16 of 1"),
        ((16, 16), None, "in-painting needs an image and a mask"),
        (None, (16, 16), "in-painting needs an image and a mask"),
    ],
)
def test_in_painting_with_another_size_is_refused(
    codec: ImageCodec, image: tuple[int, ...] | None, hole: tuple[int, int] | None, said: str
) -> None:
    request: dict[str, Any] = {}
    if image:
        request["inpaint"] = np.zeros(image, np.uint8)
    if hole:
        request["inpaint_mask"] = np.ones(hole, bool)
    with pytest.raises(ValueError, match=said):
        codec.starts(request, codec.vocabulary, 1)


def test_a_mask_that_marks_nothing_is_refused(codec: ImageCodec) -> None:
    request = {"inpaint": np.zeros((16, 16), np.uint8), "inpaint_mask": np.zeros((16, 16), bool)}
    with pytest.raises(ValueError, match="the mask is true nowhere"):
        codec.starts(request, codec.vocabulary, 1)


def test_a_tokenizer_that_does_not_fit_the_network_is_refused(codec: ImageCodec, tmp_path: Path) -> None:
    model = small_image_model(fp=False)
    for other in (small_codec(num_codes=9), small_codec(size=8), small_codec(num_classes=2)):
        with pytest.raises(ValueError, match=r"image_codec\.json is for .*; give the tokenizer that the network was"):
            _reload(replace(model, codec=other), tmp_path / "model")
    codec.check(model.config.vocabulary, "here")


def _reload(model: Model, folder: Path) -> Model:
    model.save(folder)
    return load(str(folder))


def spoil(folder: Path, how: str) -> None:
    file = folder / FILE
    settings = json.loads(file.read_text())
    if how == "half a file":
        file.write_text(file.read_text()[:50])
    elif how == "no weights":
        (folder / WEIGHTS).unlink()
    elif how == "half the weights":
        (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-100])
    elif how == "no safetensors":
        (folder / WEIGHTS).write_bytes(b"something else")
    elif how == "another kind":
        file.write_text(json.dumps({**settings, "tokenizer_type": "fpmgm-qv"}))
    elif how == "classes":
        file.write_text(json.dumps({**settings, "classes": "star"}))
    elif how == "another size":
        file.write_text(json.dumps({**settings, "tokenizer": {**settings["tokenizer"], "num_codes": 16}}))
    elif how == "a setting less":
        del settings["tokenizer"]["image_height"]
        file.write_text(json.dumps(settings))
    elif how == "a wrong setting":
        file.write_text(json.dumps({**settings, "tokenizer": {**settings["tokenizer"], "num_stages": "two"}}))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("half a file", "image_codec.json is not JSON"),
        ("no weights", "has no image_tokenizer.safetensors, which its image_codec.json needs"),
        ("half the weights", "image_tokenizer.safetensors is truncated or not a safetensors file"),
        ("no safetensors", "image_tokenizer.safetensors is truncated or not a safetensors file"),
        ("another kind", "unknown tokenizer_type 'fpmgm-qv'; did you mean 'fpmgm-vq'"),
        ("classes", "image_codec.json: classes is 'star'; it must be a list"),
        ("another size", "image_codec.json: image_tokenizer.safetensors does not fit these settings"),
        ("a setting less", "image_codec.json lacks settings: image_height"),
        ("a wrong setting", "image_codec.json: num_stages is 'two'; it must be a whole number"),
    ],
)
def test_a_broken_codec_is_told_in_one_line(codec: ImageCodec, tmp_path: Path, how: str, said: str) -> None:
    spoil(write(codec, tmp_path), how)
    with pytest.raises(ValueError, match=said) as caught:
        load_codec(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_pixel_codec_is_read_as_it_was_written(tmp_path: Path) -> None:
    codec = PixelCodec((3, 2, 2), ("cat", "dog"))
    assert load_codec(write(codec, tmp_path)) == codec
    picture = codec.show(range(12))
    assert picture[0, 1].tolist() == [1, 5, 9]
    with pytest.raises(ValueError, match="draws none"):
        codec.starts({}, Vocabulary(size=257, mask_id=256, length=12), 1)
    with pytest.raises(ValueError, match=r"for images of shape \(3, 2, 2\), and the network for \(1, 2, 2\)"):
        codec.check(Vocabulary(size=257, mask_id=256, length=4, shape=(1, 2, 2)), "here")


@pytest.fixture
def pets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImagesConfig:
    """A folder of 40 images of two classes, with the small tokenizer in a folder of its own."""
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    for number, image in enumerate(random_images(40, seed=7)[:, 0].numpy()):
        file = tmp_path / "pets" / ("cat", "dog")[number % 2] / f"{number:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(file)
    write(small_codec(), tmp_path / "tokenizer")
    return ImagesConfig(
        source=str(tmp_path / "pets"),
        tokenizer=str(tmp_path / "tokenizer"),
        num_codes=8,
        grid=(4, 4),
        num_classes=2,
        validation_share=0.25,
    )


def test_rows_are_the_codes_of_the_images(pets: ImagesConfig) -> None:
    data, pixels = pets.load(), load_pixels(pets)
    codes = small_tokenizer().encode(torch.from_numpy(np.array(pixels.images)))
    assert np.array_equal(data.rows, codes.numpy())
    assert data.labels is not None
    assert data.labels.tolist() == [0] * 20 + [1] * 20
    assert data.vocabulary == pets.vocabulary
    assert isinstance(data.codec, ImageCodec)
    assert data.codec.class_names == ("cat", "dog")
    assert len(data.held_out) == 10
    assert sorted([*data.train, *data.held_out]) == list(range(40))
    batch = data.batch(data.held_out[:3])
    assert batch.label is not None
    assert batch.x.shape == (3, 16)


def test_codes_are_made_once_for_each_tokenizer_and_content(
    pets: ImagesConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num = 0
    original = VQTokenizer.encode

    def counted(self: VQTokenizer, batch: torch.Tensor) -> torch.Tensor:
        nonlocal num
        num += 1
        return original(self, batch)

    monkeypatch.setattr(VQTokenizer, "encode", counted)
    first = pets.load().place
    assert (pets.load().place, num) == (first, 1)
    config = small_tokenizer().config
    network = small_network(config)
    with torch.no_grad():
        network.codebook.mul_(2)
    write(ImageCodec(VQTokenizer.made_of(config, network)), tmp_path / "tokenizer")
    second = pets.load().place
    Image.fromarray(random_images(1, seed=8)[0, 0].numpy()).save(next((tmp_path / "pets" / "cat").iterdir()))
    third = pets.load().place
    assert len({first, second, third}) == num == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_codes": 16}, "the run is set for 16 codes, and tokenizer .* has 8; set --data.num-codes"),
        ({"grid": (4, 2)}, r"set for \(4, 2\) rows and columns, and tokenizer .* has \(4, 4\); set --data.grid"),
        ({"num_classes": 3}, "the run is set for 3 classes, and .*pets has 2; set --data.num-classes"),
        ({"size": 8}, r"pets have the shape \(1, 8, 8\), and tokenizer .* is for \(1, 16, 16\); give --data.size"),
        ({"colours": "rgb"}, r"have the shape \(3, 16, 16\), and tokenizer .* is for \(1, 16, 16\)"),
        ({"tokenizer": "nowhere"}, "no model at 'nowhere'"),
    ],
)
def test_data_that_the_run_is_not_set_for_is_refused(pets: ImagesConfig, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        replace(pets, **changes).load()
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_tokenizer_is_refused(pets: ImagesConfig, tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    with pytest.raises(ValueError, match=r"else holds no image tokenizer: it has no config\.json"):
        replace(pets, tokenizer=str(tmp_path / "else")).load()
    (tmp_path / "else" / "config.json").write_text('{"model_type": "fpmgm-maskgit"}')
    with pytest.raises(ValueError, match="else holds no image tokenizer; train one with fpmgm train"):
        replace(pets, tokenizer=str(tmp_path / "else")).load()


def test_the_codec_of_a_model_is_taken_if_it_fits(pets: ImagesConfig, text_model: Model) -> None:
    own = replace(small_codec(), class_names=("cat", "dog"))
    assert replace(pets, tokenizer="nowhere").load(own).codec is own
    with pytest.raises(ValueError, match=r"the classes of .*pets are cat, dog, and those of the model dog, cat; give"):
        pets.load(replace(own, class_names=("dog", "cat")))
    assert isinstance(text_model.codec, TextCodec)
    with pytest.raises(ValueError, match="are images, and the model writes text"):
        pets.load(text_model.codec)


def test_the_data_of_a_model_is_read_as_it_was_written(
    pets: ImagesConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    relative = replace(pets, source="pets", tokenizer="tokenizer")
    placed = relative.placed(relative.load().content)
    assert (placed.source, placed.tokenizer) == (pets.source, pets.tokenizer)
    settings = json.loads(json.dumps({"data_type": placed.data_type, **vars(placed)}))
    assert data_config(settings, "here") == placed
    assert placed.load().content == placed.content


def test_codes_and_pixels_of_the_same_images_are_split_alike(pets: ImagesConfig) -> None:
    pixels = PixelsConfig(source=pets.source, validation_share=0.25)
    assert pets.is_split_as(pixels)
    assert pixels.is_split_as(pets)
    assert not pets.is_split_as(replace(pixels, validation_share=0.2))
    assert np.array_equal(pixels.load().held_out, pets.load().held_out)


def test_pixels_are_rows_of_bytes(pets: ImagesConfig) -> None:
    config = PixelsConfig(source=pets.source)
    data = config.load()
    assert data.vocabulary == config.vocabulary
    assert config.vocabulary.shape == (1, 16, 16)
    assert config.length == 256
    picture = data.codec.show(data.tokens(0))
    assert np.array_equal(picture, np.asarray(Image.open(Path(pets.source) / "cat" / "00.png")))


def test_the_digits_need_no_download() -> None:
    data = PixelsConfig(source="digits").load()
    assert data.rows.shape == (1797, 64)
    assert data.vocabulary == PixelsConfig(source="digits").vocabulary
    assert (data.rows.min(), data.rows.max()) == (0, 255)
    assert not set(data.train) & set(data.held_out)
    assert len(data.held_out) == 180


def test_the_codes_of_the_digits_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(images, "AT_ONCE", 1000)
    pixels, tokenizer = load_pixels(PixelsConfig(source="digits")), small_tokenizer(size=8)
    codes = np.load(encoded(pixels, tokenizer) / "codes.npy")
    assert codes.shape == (1797, 4)
    assert codes.dtype == np.uint16
    assert np.array_equal(codes, tokenizer.encode(torch.from_numpy(pixels.images)).numpy())
