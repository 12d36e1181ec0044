"""What `sample` does with image models: classes, in-painting, grids, single images, animations, drawings."""

import json
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from rich.console import Console

from fpmgm.checkpoint import Model
from fpmgm.codecs import ImageCodec
from fpmgm.codecs.images import as_picture
from fpmgm.files import write_bytes
from fpmgm.generation import Generated, generate
from fpmgm.names import slug
from fpmgm.pictures import Picture, animation, grid, png, read_picture, resized, scale_for
from fpmgm.progress import StepProgress
from fpmgm.replay import Recorder, Replay, drawing
from fpmgm.sampling import Step

if TYPE_CHECKING:
    from fpmgm.commands.sample import SampleCommand

COLUMNS = 16
"""At most so many images stand side by side in a grid."""
DRAWN = 40
"""At most so many images are drawn in a terminal; files hold all."""


def check_files(out: str, animate: str, inpaint: str, mask: str) -> None:
    """A ValueError if a file cannot be of the kind that its name says, or an image is given without its mask."""
    if out and not is_folder(out) and Path(out).suffix.lower() != ".png":
        raise ValueError(f"out is {out}; a grid of images is a .png file, and a folder for single images ends with /")
    if animate and Path(animate).suffix.lower() not in (".gif", ".webp"):
        raise ValueError(f"animate is {animate}; an animation is a .gif or a .webp file")
    if bool(inpaint) != bool(mask):
        raise ValueError("in-painting needs --inpaint with an image and --mask with a mask, white where to fill in")


def is_folder(out: str) -> bool:
    """Whether single images are asked for."""
    return out.endswith("/") or Path(out).is_dir()


def run_sample_images(command: "SampleCommand", model: Model, codec: ImageCodec, settings: dict[str, Any]) -> None:
    """Draw the images, save them and say where they are."""
    request: dict[str, Any] = {"classes": command.class_list}
    if command.inpaint:
        request |= inpainted(command, codec)
    console, recorder = Console(highlight=False), Recorder()
    with ExitStack() as stack:
        seen: list[Callable[[Step], None]] = [recorder] if command.animate else []
        if command.watch:
            seen.append(stack.enter_context(Replay(model, console, stays=False)))
        else:
            seen.append(stack.enter_context(StepProgress("drawing", command.num_batches)))
        out = generate(model, num_samples=command.num_samples, on_step=_each(seen), **request, **settings)
    classes = [codec.class_names[label] for label in out.labels or ()]
    files = _save(command, out, classes)
    if command.animate:
        files.append(_animate(Path(command.animate), recorder, codec, out, command.num_samples))
    if command.json:
        found = {"codes": out.tokens, "classes": classes, "files": list(map(str, files))}
        spent = {"block_evals": out.block_evals, "position_blocks": out.position_blocks, "seconds": out.seconds}
        spent["steps"] = out.steps
        print(json.dumps({**found, **spent, "settings": {"model": command.model, **asdict(out.sampling)}}))
        return
    if not command.out:
        console.print(drawing(out.shown[:DRAWN], console))
    for file in files:
        print(f"saved to {file}")
    print(f"{out.block_evals} block evaluations in {out.steps} steps, {out.seconds:.2f} s", file=sys.stderr)


def _each(seen: Sequence[Any]) -> Any:
    """One `on_step` that calls several."""

    def on_step(step: Step) -> None:
        for each in seen:
            each(step)

    return on_step if seen else None


def inpainted(command: "SampleCommand", codec: ImageCodec) -> dict[str, Any]:
    """The image to fill in and where; a ValueError unless image and mask have one size, and it is the model's."""
    channels, height, width = codec.tokenizer.image_shape
    image = _read(command.inpaint, is_grey=channels == 1)
    mask = _read(command.mask, is_grey=True)
    if mask.shape[:2] != image.shape[:2]:
        raise ValueError(
            f"{command.mask} has {_size(mask)} pixels and {command.inpaint} has {_size(image)}; a mask has the size of "
            "its image"
        )
    if image.shape[:2] != (height, width):
        if not command.resize:
            raise ValueError(
                f"{command.inpaint} has {_size(image)} pixels; the model draws {width} x {height}: give such an image, "
                "or --resize"
            )
        image, mask = resized(image, height, width), resized(mask, height, width, is_mask=True)
    return {"inpaint": image, "inpaint_mask": np.asarray(mask >= 128)}


def _read(file: str, *, is_grey: bool) -> Picture:
    if not Path(file).is_file():
        raise ValueError(f"no image at {file}; give a file such as image.png")
    return read_picture(Path(file).read_bytes(), file, is_grey=is_grey)


def _size(picture: Picture) -> str:
    return f"{picture.shape[1]} x {picture.shape[0]}"


def _save(command: "SampleCommand", out: Generated, classes: Sequence[str]) -> list[Path]:
    """Write a grid, or single images into a folder; without --out a grid into a new folder, unless JSON is wanted."""
    if command.json and not command.out:
        return []
    if command.out and is_folder(command.out):
        names = [f"{index:03}-{slug(name)}.png" for index, name in enumerate(classes)]
        names = names or [f"{index:03}.png" for index in range(len(out.tokens))]
        files = [Path(command.out) / name for name in names]
        for file, image in zip(files, out.shown, strict=True):
            write_bytes(file, png(image))
        return files
    file = Path(command.out or Path(mkdtemp(prefix="fpmgm-")) / f"{slug(Path(command.model).name)}.png")
    write_bytes(file, png(_grid(out.shown, command.num_samples, out, classes)))
    return [file]


def _grid(images: Sequence[Picture], num_samples: int, out: Generated, classes: Sequence[str]) -> Picture:
    """The images side by side; their classes under them if there are several."""
    captions = classes if len(set(classes)) > 1 else ()
    columns = columns_for(len(images), num_samples, out.labels)
    return grid(images, columns=columns, scale=scale_for(images[0]), captions=captions)


def columns_for(num_images: int, num_samples: int, labels: Sequence[int] | None) -> int:
    """How many images stand side by side: a row for each class that is asked for, or a column for each of all.

    >>> [columns_for(16, 16, [7] * 16), columns_for(8, 4, [1] * 4 + [2] * 4), columns_for(30, 30, [*range(10)] * 3)]
    [4, 4, 10]
    """
    square = min(COLUMNS, math.ceil(math.sqrt(num_images)))
    if num_images > num_samples:
        return num_samples if num_samples <= COLUMNS else square
    num_classes = len(set(labels or ()))
    return num_classes if 1 < num_classes <= COLUMNS else square


def _animate(file: Path, recorder: Recorder, codec: ImageCodec, out: Generated, num_samples: int) -> Path:
    """Write the filling-in, one frame a step; cells that are still masked are grey."""
    classes = [codec.class_names[label] for label in out.labels or ()]
    frames = [
        _grid([as_picture(image) for image in codec.images(tokens)], num_samples, out, classes)
        for tokens in recorder.frames
    ]
    kind: Literal["gif", "webp"] = "gif" if file.suffix.lower() == ".gif" else "webp"
    write_bytes(file, animation(frames, kind))
    return file
