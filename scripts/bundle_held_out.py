"""Put held-out stories beside the bundled models of stories: python scripts/bundle_held_out.py

The report.json and the card of each gain bits a byte: of the model, of Kneser-Ney 5-grams and of the source. The report
of the judge gains the perplexity that it finds in held-out stories, as many as `NUM_STORIES`, each a text of its own in
the tokens of the default model, as samples are. Needs the held-out stories: fpmgm prepare stories --size 0.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from fpmgm.checkpoint import BUNDLED, DEFAULT, load_folder
from fpmgm.evaluation.held_out import measured_data, text_codec
from fpmgm.evaluation.judges import BUNDLED_JUDGE
from fpmgm.evaluation.per_byte import bytes_of, card_part, per_byte, with_part
from fpmgm.evaluation.text import TextEvaluator
from fpmgm.files import write_json, write_text
from fpmgm.schema import read_json

NUM_STORIES = 256
ALL = 1 << 30
FLOORS_OF = {DEFAULT: "stories-fp"}
"""A stage has no 5-gram model of its own; that of its start has the same tokens."""


def add_bytes(name: str) -> None:
    """Put bits a byte into the report and the card of a model."""
    folder, model = BUNDLED / name, load_folder(BUNDLED / name)
    report = read_json(folder / "report.json")
    floors = read_json(BUNDLED / FLOORS_OF.get(name, name) / "report.json")["validation"][0]["ngram"]
    data, _ = measured_data(model)
    rows = data.measured(ALL).x.tolist()
    num_tokens = sum(len(row) - int(data.is_begun) for row in rows)
    num_bytes = bytes_of(rows, text_codec(model))
    report["per_byte"] = per_byte(report["validation"][0], floors, num_tokens, num_bytes)
    write_json(folder / "report.json", report)
    part = card_part(report["per_byte"], is_bound=not model.denoiser.is_causal)
    write_text(folder / "README.md", with_part((folder / "README.md").read_text(), part))


def add_real(file: Path) -> None:
    """Put what the judge finds in held-out stories into its report."""
    model = load_folder(BUNDLED / DEFAULT)
    data, words = measured_data(model)
    tokens = data.measured(NUM_STORIES).x
    found = TextEvaluator(judge=BUNDLED_JUDGE, device="cpu").measure(model, tokens, seed=0)
    kept: dict[str, Any] = {name: asdict(found[name]) for name in ("perplexity_per_sample", "entropy")}
    report = read_json(file)
    report["held_out"] = {"num_texts": len(tokens), "words": words, "convention": "paper", "metrics": kept}
    write_json(file, report)


if __name__ == "__main__":
    for each in (DEFAULT, "stories-fp", "stories-mdlm", BUNDLED_JUDGE):
        add_bytes(each)
    add_real(BUNDLED / BUNDLED_JUDGE / "report.json")
