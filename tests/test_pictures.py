import io
import itertools
import re

import numpy as np
import pytest
from PIL import Image

from fpmgm import pictures
from fpmgm.pictures import animation, fitted, grid, grid_png, half_blocks, in_letters, read_picture, resized, scale_for


def grey(value: int, height: int = 4, width: int = 6) -> pictures.Picture:
    return np.full((height, width), value, np.uint8)


def read(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content))


@pytest.mark.parametrize("is_grey", [True, False])
def test_a_grid_holds_every_image_in_its_place_row_by_row(is_grey: bool) -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 255, (4, 6) if is_grey else (4, 6, 3), dtype=np.uint8) for _ in range(5)]
    found = np.asarray(read(grid_png(images, columns=3, scale=2, gap=3)))
    assert found.shape[:2] == (2 * 8 + 3, 3 * 12 + 2 * 3)
    for index, image in enumerate(images):
        top, left = index // 3 * 11, index % 3 * 15
        assert np.array_equal(found[top : top + 8 : 2, left : left + 12 : 2], image)
        assert np.array_equal(found[top + 1 : top + 8 : 2, left + 1 : left + 12 : 2], image)
    assert (found[8:11] == 255).all()  # the gap
    assert (found[11:, 30:] == 255).all()  # where no image is


def test_captions_stand_under_their_images_and_are_cut_to_the_width() -> None:
    images = [grey(10, 28, 28), grey(20, 28, 28)]
    plain = grid(images, columns=2, scale=3)
    found = grid(images, columns=2, scale=3, captions=["bag", "a very long name of a class indeed"])
    line = found.shape[0] - plain.shape[0]
    assert found.shape[1] == plain.shape[1]
    assert np.array_equal(found[: plain.shape[0]], plain)
    under = found[-line:]
    assert (under[:, :84] < 128).any()
    assert (under[:, 86:] < 128).any()
    assert (under[:, 84:86] == 255).all()  # nothing runs into the gap
    assert grid([each[:, :, None].repeat(3, axis=2) for each in images], columns=2, captions=["a", "b"]).shape[2] == 3


def test_a_grid_of_images_of_two_sizes_or_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="a grid needs images of one size"):
        grid([grey(0), grey(0, 5)], columns=2)
    with pytest.raises(ValueError, match="these have none"):
        grid([], columns=2)
    with pytest.raises(ValueError, match="1 captions for 2 images"):
        grid([grey(0), grey(0)], columns=2, captions=["a"])
    with pytest.raises(ValueError, match="a grid of 0 columns"):
        grid([grey(0)], columns=0)


@pytest.mark.parametrize(("kind", "name"), [("gif", "GIF"), ("webp", "WEBP")])
def test_an_animation_has_a_frame_for_each_picture_and_repeats(kind: str, name: str) -> None:
    frames = [grey(value, 16, 16) for value in (0, 128, 255)]
    found = read(animation(frames, kind))  # type: ignore[arg-type]
    assert (found.format, getattr(found, "n_frames", 1), found.info["loop"]) == (name, 3, 0)
    for index, value in enumerate((0, 128, 255)):
        found.seek(index)
        assert abs(int(np.asarray(found.convert("L")).mean()) - value) <= 1
    assert found.info["duration"] == 1200  # the last is seen for longer
    with pytest.raises(ValueError, match="at least one frame"):
        animation([], "gif")


def test_an_animation_of_one_step_and_one_in_colours_can_be_read() -> None:
    assert read(animation([grey(3)], "gif")).size == (6, 4)
    colours = np.random.default_rng(0).integers(0, 255, (2, 8, 8, 3), dtype=np.uint8)
    found = read(animation(list(colours), "webp"))
    assert np.array_equal(np.asarray(found.convert("RGB")), colours[0])  # nothing is lost


def test_half_blocks_show_two_pixels_with_each_character() -> None:
    picture = np.array([[[255, 0, 0]], [[0, 255, 0]], [[0, 0, 255]]], np.uint8)
    first, second = half_blocks(picture).split("\n")
    assert first == "\x1b[38;2;255;0;0m\x1b[48;2;0;255;0m▀\x1b[0m"
    assert second == "\x1b[38;2;0;0;255m\x1b[49m▀\x1b[0m"  # under the last of an odd number there is nothing
    lines = half_blocks(grey(7, 8, 5)).split("\n")
    assert [line.count("▀") for line in lines] == [5] * 4
    assert set(re.findall(r"8;2;(\d+;\d+;\d+)m", "".join(lines))) == {"7;7;7"}


def test_letters_are_fuller_where_the_picture_is_brighter() -> None:
    picture = np.array([[0, 60, 120, 180, 255]] * 3, np.uint8)
    lines = in_letters(picture).split("\n")
    assert len(lines) == 2
    levels = [pictures.LEVELS.index(letter) for letter in lines[0]]
    assert levels == sorted(set(levels))
    assert (levels[0], levels[-1]) == (0, len(pictures.LEVELS) - 1)
    assert in_letters(grey(0)) == "\n"  # no spaces at the end of lines


def test_a_drawing_fits_the_terminal_with_images_as_large_as_can_be() -> None:
    for num, width, lines in itertools.product((1, 3, 16, 40), (40, 80, 200), (12, 24, 60)):
        found = fitted([grey(1, 28, 28)] * num, width=width, lines=lines)
        assert found.shape[1] <= width
        assert found.shape[0] <= 2 * lines
    assert fitted([grey(1, 28, 28)] * 6, width=80, lines=40, columns=3).shape == (2 * 26 + 1, 3 * 26 + 2)
    assert fitted([grey(1, 28, 28)] * 2, width=80, lines=20).shape == (28, 57)  # no smaller and no larger than it is
    assert fitted([grey(1, 300, 300)], width=40, lines=60).shape == (40, 40)
    assert fitted([grey(1, 300, 300)], width=90, lines=15).shape == (30, 30)
    assert np.array_equal(fitted([grey(9)], width=80, lines=9), grey(9))


def test_small_images_are_drawn_larger_in_files() -> None:
    assert [scale_for(grey(0, size, size)) for size in (8, 28, 32, 64, 256)] == [12, 3, 3, 2, 1]


def test_a_file_that_is_no_picture_is_refused_by_its_name() -> None:
    whole = grid_png([grey(5, 40, 40)], columns=1)
    assert np.array_equal(read_picture(whole, "a.png", is_grey=True), grey(5, 40, 40))
    assert read_picture(whole, "a.png", is_grey=False).shape == (40, 40, 3)
    for broken in (b"", b"no picture", whole[:60]):
        with pytest.raises(ValueError, match=r"a\.png is no image that can be read"):
            read_picture(broken, "a.png", is_grey=True)


def test_a_picture_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MAX_PIXELS", 20)
    with pytest.raises(ValueError, match=r"a\.png has 6 x 4 pixels; give at most 20 in all"):
        read_picture(grid_png([grey(5)], columns=1), "a.png", is_grey=True)


def test_a_mask_in_another_size_is_still_black_and_white() -> None:
    mask = np.zeros((7, 7), np.uint8)
    mask[2:5, 2:5] = 255
    assert set(np.unique(resized(mask, 28, 28, is_mask=True))) == {0, 255}
    assert resized(mask, 28, 14).shape == (28, 14)
