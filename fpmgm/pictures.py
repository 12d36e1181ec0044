"""Pictures: images side by side as PNG, their filling-in as an animation, and drawings for a terminal.

A picture is an array of bytes, height x width for grey and height x width x 3 for colours.
"""

import io
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont, UnidentifiedImageError

Picture = UInt8[np.ndarray, "..."]
Colours = UInt8[np.ndarray, "H W 3"]

PAPER, INK = 255, 0
"""The grey between images, and that of what is written under them."""
SIZE = 96
"""At least about so many pixels wide an image of a grid is drawn, so that people see it."""
LEVELS = " .:-=+*#%@"
"""From dark to bright, where there are no colours."""
MAX_PIXELS = 1 << 26
"""Pictures with more pixels are refused, before they fill the memory."""


def scale_for(picture: Picture) -> int:
    """How many pixels wide a pixel must be for a person to see the picture well."""
    return max(1, round(SIZE / picture.shape[1]))


def grid(
    images: Sequence[Picture],
    *,
    columns: int,
    scale: int = 1,
    gap: int = 2,
    captions: Sequence[str] = (),
    paper: int = PAPER,
) -> Picture:
    """Images of one size side by side, row by row, each pixel `scale` pixels wide; a caption under each if given."""
    shapes = {image.shape for image in images}
    if len(shapes) != 1:
        raise ValueError(f"a grid needs images of one size; these have {sorted(shapes) or 'none'}")
    if captions and len(captions) != len(images):
        raise ValueError(f"{len(captions)} captions for {len(images)} images; give one for each")
    if min(columns, scale) < 1:
        raise ValueError(f"a grid of {columns} columns and scale {scale}; both must be at least 1")
    columns = min(columns, len(images))
    height, width, *rgb = images[0].shape
    height, width = height * scale, width * scale
    line = _line_height(width) if captions else 0
    rows = math.ceil(len(images) / columns)
    step_down, step_right = height + line + gap, width + gap
    found = np.full((rows * step_down - gap, columns * step_right - gap, *rgb), paper, np.uint8)
    for index, image in enumerate(images):
        top, left = index // columns * step_down, index % columns * step_right
        found[top : top + height, left : left + width] = _enlarged(image, scale)
        if captions:
            found[top + height : top + height + line, left : left + width] = _caption(
                captions[index], (line, width, *rgb)
            )
    return found


def _enlarged(image: Picture, scale: int) -> Picture:
    return image.repeat(scale, axis=0).repeat(scale, axis=1)


def _line_height(width: int) -> int:
    """Of a caption under an image so many pixels wide."""
    return max(10, min(20, width // 6))


def _caption(text: str, shape: tuple[int, ...]) -> Picture:
    """A line of text in the middle; what does not fit is cut off."""
    height, width = shape[:2]
    paper = Image.new("L", (width, height), PAPER)
    font = ImageFont.load_default(size=0.8 * height)
    while len(text) > 1 and font.getlength(text) > width:
        text = text.removesuffix("…")[:-1] + "…"
    ImageDraw.Draw(paper).text((width / 2, height / 2), text, fill=INK, font=font, anchor="mm")
    drawn = np.asarray(paper)
    return drawn if len(shape) == 2 else np.repeat(drawn[:, :, None], shape[2], axis=2)


def png(picture: Picture) -> bytes:
    """A PNG file."""
    return _saved([picture], "PNG", optimize=True)


def grid_png(
    images: Sequence[Picture], *, columns: int, scale: int = 1, gap: int = 2, captions: Sequence[str] = ()
) -> bytes:
    """A PNG file with images side by side."""
    return png(grid(images, columns=columns, scale=scale, gap=gap, captions=captions))


def animation(frames: Sequence[Picture], kind: Literal["gif", "webp"], *, seconds: float = 0.12) -> bytes:
    """An animated GIF or WebP that repeats; each frame is seen for so long, and the last one ten times as long."""
    if not frames:
        raise ValueError("an animation needs at least one frame")
    durations = [round(1000 * seconds)] * (len(frames) - 1) + [round(10_000 * seconds)]
    options: dict[str, Any] = {"lossless": True} if kind == "webp" else {"optimize": True}
    return _saved(frames, kind.upper(), save_all=True, duration=durations, loop=0, **options)


def _saved(frames: Sequence[Picture], kind: str, **options: Any) -> bytes:
    first, *rest = [Image.fromarray(frame) for frame in frames]
    if rest:
        options["append_images"] = rest
    file = io.BytesIO()
    first.save(file, format=kind, **options)
    return file.getvalue()


def read_picture(content: bytes, where: str, *, is_grey: bool) -> Picture:
    """The picture in a file, in grey or in colours; a ValueError that names the place if it is broken or no picture."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"{where} has {image.width} x {image.height} pixels; give at most {MAX_PIXELS} in all")
            return np.asarray(image.convert("L" if is_grey else "RGB"))
    except UnidentifiedImageError as error:  # its own words name an object, not the file
        raise ValueError(f"{where} is no image that can be read; give a PNG, JPEG or WebP file") from error
    except (Image.DecompressionBombError, OSError, SyntaxError) as error:
        raise ValueError(f"{where} is no image that can be read: {error}") from error


def resized(picture: Picture, height: int, width: int, *, is_mask: bool = False) -> Picture:
    """The picture in another size; of a mask every pixel stays one of its own."""
    how = Image.Resampling.NEAREST if is_mask else Image.Resampling.LANCZOS
    return np.asarray(Image.fromarray(picture).resize((width, height), how))


def fitted(images: Sequence[Picture], *, width: int, lines: int, columns: int | None = None) -> Picture:
    """A grid for a terminal of so many characters and lines, with images as large as it allows, and no larger than own.

    A character shows two pixels, one above the other. Without `columns`, there are as many as make images largest.
    """
    height, own = images[0].shape[:2]

    def factor(columns: int) -> float:
        rows = math.ceil(len(images) / columns)
        return min(1.0, (width - columns + 1) / (columns * own), (2 * lines - rows + 1) / (rows * height))

    columns = columns or max(range(1, len(images) + 1), key=lambda number: (factor(number), number))
    size = max(1, int(factor(columns) * height)), max(1, int(factor(columns) * own))
    small = [image if image.shape[:2] == size else resized(image, *size) for image in images]
    return grid(small, columns=columns, gap=1, paper=0)


def half_blocks(picture: Picture) -> str:
    """Lines for a terminal with colours: a character shows two pixels, the upper in its own colour."""
    colours = _in_colours(picture)
    lines = []
    for top in range(0, len(colours), 2):
        upper = colours[top].tolist()
        lower = colours[top + 1].tolist() if top + 1 < len(colours) else [None] * len(upper)
        lines.append("".join(map(_block, upper, lower)) + "\x1b[0m")
    return "\n".join(lines)


def _block(upper: list[int], lower: list[int] | None) -> str:
    over = "\x1b[38;2;{};{};{}m".format(*upper)
    under = "\x1b[48;2;{};{};{}m".format(*lower) if lower else "\x1b[49m"
    return f"{over}{under}▀"


def in_letters(picture: Picture) -> str:
    """Lines for a pipe or a terminal without colours: a character for two pixels, the brighter the fuller."""
    grey = _in_colours(picture).mean(axis=2)
    if len(grey) % 2:
        grey = np.concatenate([grey, grey[-1:]])
    pairs = (grey[0::2] + grey[1::2]) / 2
    levels = np.minimum(pairs / 256 * len(LEVELS), len(LEVELS) - 1).astype(int)
    return "\n".join("".join(LEVELS[level] for level in line).rstrip() for line in levels.tolist())


def _in_colours(picture: Picture) -> Colours:
    return picture if picture.ndim == 3 else np.repeat(picture[:, :, None], 3, axis=2)
