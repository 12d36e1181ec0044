"""Put uncurated samples at a low temperature into cards: python scripts/bundle_samples.py NAME [NAME ...]

The card of each bundled model of text NAME gains 20 samples at temperature 0.8 behind its 20 at temperature 1, seed 0.
"""

import sys

from fpmgm.checkpoint import BUNDLED, load_folder
from fpmgm.evaluation.shown import samples_of
from fpmgm.files import write_text

NUM_SAMPLES, TEMPERATURE = 20, 0.8
TITLE = f"## {NUM_SAMPLES} samples at temperature {TEMPERATURE:g}, uncurated"


def add_samples(name: str) -> None:
    """Sample the half-precision weights; samples of before are replaced."""
    model = load_folder(BUNDLED / name)
    how, shown = samples_of(model, NUM_SAMPLES, temperature=TEMPERATURE)
    pictured, _ = model.speech.in_card(shown)
    before = model.card.partition(f"\n{TITLE}\n")[0].rstrip()
    write_text(BUNDLED / name / "README.md", f"{before}\n\n{TITLE}\n\n{how}\n\n{pictured}\n")


if __name__ == "__main__":
    for each in sys.argv[1:]:
        add_samples(each)
