"""Put uncurated samples of the half-precision weights into cards: python scripts/bundle_samples.py NAME [NAME ...]

The card of each bundled model of text NAME ends with 20 samples at temperature 1 and 20 at temperature 0.8, seed 0.
They are drawn as the model draws when nothing else is asked for, and replace those of before.
"""

import sys

from fpmgm.checkpoint import BUNDLED, load_folder
from fpmgm.evaluation.shown import samples_of
from fpmgm.files import write_text

NUM_SAMPLES = 20
TITLES = {1.0: f"## {NUM_SAMPLES} samples, uncurated", 0.8: f"## {NUM_SAMPLES} samples at temperature 0.8, uncurated"}


def add_samples(name: str) -> None:
    model = load_folder(BUNDLED / name)
    parts = [model.card.partition(f"\n{TITLES[1.0]}\n")[0].rstrip()]
    for temperature, title in TITLES.items():
        how, shown = samples_of(model, NUM_SAMPLES, temperature=temperature)
        pictured, _ = model.speech.in_card(shown)
        parts += [title, how, pictured]
    write_text(BUNDLED / name / "README.md", "\n\n".join(parts) + "\n")


if __name__ == "__main__":
    for each in sys.argv[1:]:
        add_samples(each)
