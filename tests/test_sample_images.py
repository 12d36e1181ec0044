"""`fpmgm sample` and the quick start with image models, as their users type them and see them."""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fpmgm import quickstart, replay
from fpmgm.__main__ import main
from fpmgm.checkpoint import Model
from fpmgm.generation import generate
from fpmgm.pictures import png
from fpmgm.replay import Recorder, Replay, drawing
from tests.images import random_images, small_image_model


@pytest.fixture(scope="module")
def model() -> Model:
    return small_image_model()


@pytest.fixture(scope="module")
def folder(model: Model, tmp_path_factory: pytest.TempPathFactory) -> str:
    found = tmp_path_factory.mktemp("images") / "model"
    model.save(found)
    return str(found)


def opened(file: Path) -> Image.Image:
    return Image.open(io.BytesIO(file.read_bytes()))


def run(folder: str, *options: str) -> int:
    return main(["sample", folder, "--budget", "12", *options])


def test_a_class_by_name_or_number_gives_a_grid_of_its_images(model: Model, folder: str, tmp_path: Path) -> None:
    by_name, by_number = tmp_path / "name.png", tmp_path / "number.png"
    assert run(folder, "--class", "star", "--num-samples", "4", "--out", str(by_name)) == 0
    assert run(folder, "--class", "2", "--num-samples", "4", "--out", str(by_number)) == 0
    assert by_name.read_bytes() == by_number.read_bytes()
    found = np.asarray(opened(by_name))
    shown = generate(model, classes="star", num_samples=4, budget=12).shown
    scale, side = 6, 6 * 16
    assert found.shape == (2 * side + 2, 2 * side + 2)  # one class needs no captions
    for index, image in enumerate(shown):
        top, left = index // 2 * (side + 2), index % 2 * (side + 2)
        assert np.array_equal(found[top : top + side : scale, left : left + side : scale], image)


def test_several_classes_have_a_row_each_and_captions(folder: str, tmp_path: Path) -> None:
    sizes = []
    for words in (["--class", "star", "0"], ["--class", "star", "--class", "circle"]):
        assert run(folder, *words, "--num-samples", "3", "--out", str(tmp_path / "all.png")) == 0
        sizes.append(opened(tmp_path / "all.png").size)
    assert sizes[0] == sizes[1] == (3 * 98 - 2, 2 * (98 + 16) - 2)


def test_a_folder_gets_a_file_for_each_image(model: Model, folder: str, tmp_path: Path) -> None:
    out = tmp_path / "new" / "images"
    assert run(folder, "--num-samples", "4", "--out", f"{out}/") == 0
    names = ["000-circle.png", "001-square.png", "002-star.png", "003-circle.png"]
    assert sorted(file.name for file in out.iterdir()) == names
    for name, image in zip(names, generate(model, num_samples=4, budget=12).shown, strict=True):
        assert np.array_equal(np.asarray(opened(out / name)), image)


def test_without_a_place_images_are_drawn_and_saved_where_the_output_says(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "--num-samples", "2") == 0
    captured = capsys.readouterr()
    *drawn, last = captured.out.splitlines()
    file = Path(last.removeprefix("saved to "))
    assert opened(file).format == "PNG"
    assert len(drawn) == 8  # two images of 16 x 16 pixels, side by side
    assert "\x1b" not in captured.out
    assert "block evaluations in 2 steps" in captured.err
    file.unlink()
    file.parent.rmdir()


def test_json_holds_codes_and_classes_and_repeats(
    model: Model, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for _ in range(2):
        assert run(folder, "--class", "star", "1", "--num-samples", "2", "--json", "--cfg-weight", "1.5") == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["codes"] == found[1]["codes"]
    assert found[0]["classes"] == ["star", "star", "square", "square"]
    assert found[0]["files"] == []
    assert (found[0]["block_evals"], found[0]["steps"]) == (12, 2)
    settings: dict[str, Any] = {**found[0]["settings"]}
    del settings["model"]
    again: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
    }
    again |= {"classes": ["star", 1], "num_samples": 2}
    assert generate(model, **again).tokens == found[0]["codes"]


@pytest.mark.parametrize("name", ["filling.gif", "filling.webp"])
def test_an_animation_has_a_frame_for_each_step_and_one_before_them(
    model: Model, folder: str, tmp_path: Path, name: str
) -> None:
    file, out = tmp_path / name, tmp_path / "grid.png"
    arguments = ["--num-samples", "5", "--batch-size", "2", "--budget", "24", "--animate", str(file), "--out", str(out)]
    assert run(folder, *arguments) == 0
    film = opened(file)
    assert getattr(film, "n_frames", 1) == 5  # of 4 steps
    last, whole = (np.asarray(each.convert("L")).astype(int) for each in (_last(film), opened(out)))
    assert np.abs(last - whole).max() <= 1
    film.seek(0)
    first = np.asarray(film.convert("L"))
    assert (first[:96, :96] == 128).all()  # all masked is all grey


def _last(film: Image.Image) -> Image.Image:
    film.seek(getattr(film, "n_frames", 1) - 1)
    return film


def test_a_recorder_keeps_the_steps_of_all_batches_in_order(model: Model) -> None:
    recorder = Recorder()
    out = generate(model, num_samples=5, batch_size=2, budget=24, on_step=recorder)
    assert [tuple(frame.shape) for frame in recorder.frames] == [(5, 16)] * 5
    assert (recorder.frames[0] == model.denoiser.mask_id).all()
    assert recorder.frames[-1].tolist() == out.tokens
    for before, after in zip(recorder.frames, recorder.frames[1:], strict=False):
        was_there = before != model.denoiser.mask_id
        assert (after[was_there] == before[was_there]).all()


@pytest.fixture
def picture(tmp_path: Path) -> dict[str, str]:
    """An image and masks: one that fits, of another size, all black; and a larger pair."""
    image = random_images(1)[0, 0].numpy()
    mask = np.zeros((16, 16), np.uint8)
    mask[:8, :8] = 255
    files = {
        "image": png(image),
        "mask": png(mask),
        "half": png(mask[:8]),
        "black": png(np.zeros_like(mask)),
        "large": png(image.repeat(2, 0).repeat(2, 1)),
        "large_mask": png(mask.repeat(2, 0).repeat(2, 1)),
        "broken": png(image)[:50],
        "text": b"no image",
    }
    for name, content in files.items():
        (tmp_path / f"{name}.png").write_bytes(content)
    return {name: str(tmp_path / f"{name}.png") for name in files}


def test_in_painting_draws_where_the_mask_is_white_and_keeps_the_rest(
    model: Model, folder: str, picture: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    codes = []
    for pair in (("image", "mask"), ("large", "large_mask")):
        options = ["--inpaint", picture[pair[0]], "--mask", picture[pair[1]], "--num-samples", "4", "--json"]
        assert run(folder, *options, *(["--resize"] if "large" in pair else [])) == 0
        codes.append(np.array(json.loads(capsys.readouterr().out)["codes"]).reshape(4, 4, 4))
    codec: Any = model.speech
    given = codec.encode(random_images(1)[0, 0].numpy()).view(4, 4).numpy()
    is_hole = np.zeros((4, 4), bool)
    is_hole[:2, :2] = True
    assert (codes[0][:, ~is_hole] == given[~is_hole]).all()
    assert (codes[0][:, is_hole] != given[is_hole]).any()
    assert codes[1].shape == codes[0].shape


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--class", "stra"], "unknown class 'stra'; did you mean 'star'"),
        (["--class", "9"], "the model knows 0 to 2"),
        (["--prompt", "hello"], "--prompt is for text models, and"),
        (["--infill", "a _ b"], "draws images; ask for a class with --class"),
        (["--inpaint", "image"], "in-painting needs --inpaint with an image and --mask with a mask"),
        (["--mask", "mask"], "in-painting needs --inpaint with an image and --mask with a mask"),
        (["--inpaint", "image", "--mask", "half"], "half.png has 16 x 8 pixels and"),
        (["--inpaint", "large", "--mask", "large_mask"], "has 32 x 32 pixels; the model draws 16 x 16: give such an"),
        (["--inpaint", "image", "--mask", "black"], "the mask is true nowhere"),
        (["--inpaint", "broken", "--mask", "mask"], "broken.png is no image that can be read"),
        (["--inpaint", "text", "--mask", "mask"], "text.png is no image that can be read; give a PNG"),
        (["--inpaint", "nowhere.png", "--mask", "mask"], "no image at nowhere.png"),
        (["--resize"], "without --inpaint there is nothing to resize"),
        (["--out", "x.jpg"], "out is x.jpg; a grid of images is a .png file, and a folder for single images ends with"),
        (["--animate", "x.mp4"], "animate is x.mp4; an animation is a .gif or a .webp file"),
        (["--guidance", "rampe"], "did you mean 'ramp'?"),
        (["--guidance", "ramp"], "without a cfg_weight above 0 nothing is guided"),
        (["--cfg-weight", "-1"], "cfg_weight is -1.0; it must be a number, 0 or more"),
    ],
)
def test_wrong_input_gets_one_line_and_exit_code_2(
    folder: str, picture: dict[str, str], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, *(picture.get(word, word) for word in arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err


@pytest.mark.parametrize("option", [["--class", "star"], ["--out", "a.png"], ["--animate", "a.gif"]])
def test_what_only_image_models_know_is_refused_by_text_models(
    text_model: Model, tmp_path: Path, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text_model.save(tmp_path / "model")
    assert run(str(tmp_path / "model"), *option) == 2
    error = capsys.readouterr().err
    assert f"{option[0]} is for image models, and" in error
    assert "writes text; begin it with --prompt" in error


def test_a_terminal_watches_images_appear_and_a_pipe_gets_letters(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay.time, "sleep", lambda _: None)
    printed = {}
    for is_terminal in (True, False):
        out = io.StringIO()
        console = Console(file=out, force_terminal=is_terminal, color_system="truecolor", width=60, height=30)
        console = console if is_terminal else Console(file=out, width=60)
        with Replay(model, console, stays=False) as watch:
            generate(model, num_samples=3, batch_size=2, budget=24, on_step=watch)
        printed[is_terminal] = out.getvalue()
    of_a_step = 2 * 16 * 8 + 8  # two images of the first batch and the gap
    assert printed[True].count("▀") == 5 * of_a_step  # rich shows the last of the four steps twice
    assert "\x1b[38;2;128;128;128" in printed[True]  # a masked cell is grey
    assert re.findall(r"step (\d)", printed[False]) == ["1", "2", "3"]
    assert "▀" not in printed[False]
    assert "\x1b" not in printed[False]


@pytest.mark.parametrize(("colours", "is_in_blocks"), [("truecolor", True), ("256", True), (None, False)])
def test_a_drawing_suits_the_colours_of_the_terminal(colours: Any, is_in_blocks: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=colours is not None, color_system=colours, width=40)
    first = 0 if colours == "truecolor" else 128  # rich keeps the codes of a style that it has shown once
    console.print(drawing([np.arange(first, first + 128, dtype=np.uint8).reshape(16, 8)], console))
    printed = out.getvalue()
    assert ("▀" in printed) == is_in_blocks
    assert ("8;2;" in printed) == (colours == "truecolor")
    assert ("8;5;" in printed) == (colours == "256")


def test_the_quick_start_draws_images_and_says_where_they_are(
    folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(quickstart, "IMAGES", folder)
    monkeypatch.setattr(quickstart, "mkdtemp", lambda prefix: str(tmp_path))
    out = io.StringIO()
    quickstart.draw_images(quickstart.Quickstart(), Console(file=out, width=60))
    printed = out.getvalue()
    assert "draws 12 images with 96 block evaluations each" in " ".join(printed.split())
    assert f"The same as a file: {tmp_path / 'model.png'}" in printed
    assert opened(tmp_path / "model.png").format == "PNG"
