"""Draws docs/fashion.png, real images beside samples of the bundled model: python scripts/fashion_picture.py"""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from fpmgm.checkpoint import load
from fpmgm.experiments.image_mini.tables import real_pictures
from fpmgm.generation import generate
from fpmgm.pictures import grid

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "fashion.png"
COLUMNS, NUM_ROWS, SCALE, TOP, BETWEEN = 10, 5, 2, 22, 24


def main() -> None:
    model = load("fashion")
    num = COLUMNS * NUM_ROWS
    drawn = generate(model, num_samples=num, budget=96, seed=0).shown
    halves = [grid(images, columns=COLUMNS, scale=SCALE) for images in (real_pictures(model, num), drawn)]
    height, width = halves[0].shape
    sheet = np.full((height + TOP, 2 * width + BETWEEN), 255, np.uint8)
    for index, half in enumerate(halves):
        left = index * (width + BETWEEN)
        sheet[TOP:, left : left + width] = half
    picture = Image.fromarray(sheet)
    text = ImageDraw.Draw(picture)
    for index, words in enumerate(("real images, held out", "samples of the bundled model `fashion`")):
        text.text((index * (width + BETWEEN) + 2, 4), words, fill=0, font_size=14)
    picture.save(PICTURE)
    print(f"wrote {PICTURE}")


if __name__ == "__main__":
    main()
