"""Put the model of a finished run into the package, in half precision: python scripts/bundle.py RUN NAME

The half-precision weights are measured again, on all held-out sequences and beside 5-gram models of the same training
tokens, and the card gains that report. Needs the data of the run.
"""

import json
import shutil
import sys
from pathlib import Path

import torch

from fpmgm.checkpoint import BUNDLED, load_folder
from fpmgm.commands.evaluate import EvaluateCommand, evaluate
from fpmgm.training.card import CURVES

ALL = 1 << 30


def bundle(run: Path, name: str) -> None:
    settings = json.loads((run / "config.json").read_text())
    folder = BUNDLED / name
    model = load_folder(run / "model")
    model.save(folder, dtype=torch.float16)
    shutil.copyfile(run / "model" / CURVES, folder / CURVES)
    command = EvaluateCommand(
        models=(name,), data=settings["data.source"], budgets=(), validation_sequences=ALL, ngram=True
    )
    found = evaluate(command)
    bound = found["validation"][0]
    floor = bound["ngram"]
    seen = settings["updates"] * settings["batch_size"] / bound["num_training_sequences"]
    report = f"""## The half-precision weights, on all held-out tokens

| model | perplexity per token |
| --- | --- |
| this model, {bound["num_sequences"]:,} sequences | {bound["value"]:.2f} ± {bound["error"]:.2f} |
| 5-gram, stupid backoff (its scores are no probabilities) | {floor["stupid_backoff"]:.2f} |
| 5-gram, interpolated Kneser-Ney | {floor["kneser_ney"]:.2f} |

The n-gram models have counted all training tokens; training passed over them {seen:.2f} times.

## 20 samples"""
    card = model.card.replace("## 20 samples", report, 1)
    (folder / "README.md").write_text(card)
    (folder / "report.json").write_text(json.dumps(found, indent=1) + "\n")
    print(report)


if __name__ == "__main__":
    bundle(Path(sys.argv[1]), sys.argv[2])
