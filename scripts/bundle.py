"""Put the model of a finished run into the package, in half precision: python scripts/bundle.py RUN NAME [SEQUENCES]

The half-precision weights are measured again, on all held-out sequences or so many of them. The card gains that report,
and beside it two kinds of 5-gram models, of the tokens that training saw and of all it could have seen, unless the run
is a stage that started from another model. The card of a model of images gains what a classifier says of its samples
and of real images. Needs the data of the run. Afterwards, bundle_held_out.py, bundle_frontier.py and bundle_samples.py
add what the card of a text model has besides.
"""

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fpmgm.checkpoint import BUNDLED, CURVES, load_folder
from fpmgm.codecs import ImageCodec
from fpmgm.data.images import ImagesConfig
from fpmgm.evaluation.evaluator import evaluator_for
from fpmgm.evaluation.held_out import HELD_OUT, data_for
from fpmgm.evaluation.ngram import floors
from fpmgm.evaluation.side_by_side import evaluate
from fpmgm.training.order import Order

ALL = 1 << 30
CFG_WEIGHT = 0.5
"""The guidance of bundled models of images: of 0, 0.5, 1 and 2 it had the lowest Fréchet distance (docs/log.md)."""


def bundle(run: Path, name: str, sequences: int = ALL) -> None:
    settings = json.loads((run / "config.json").read_text())
    folder = BUNDLED / name
    model = load_folder(run / "model")
    model = replace(model, card=model.card.replace(f"# {run.name}\n", f"# {name}\n", 1))
    if isinstance(model.data, ImagesConfig):
        own = replace(model.data, tokenizer=name)  # it holds its own
        model = replace(model, data=own, generation={"defaults": {"cfg_weight": CFG_WEIGHT}})
    model.save(folder, dtype=torch.float16)
    if (tokenizer := folder / "tokenizer.json").is_file():  # without its line breaks it has a third of the size
        content = json.loads(tokenizer.read_text())
        tokenizer.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")))
    shutil.copyfile(run / "model" / CURVES, folder / CURVES)
    if model.speech.kind != "text":
        _bundle_images(run / "model", folder, name)
        return
    is_stage = settings["init"] not in ("", name)  # a base may go on from the model that it replaces
    found = evaluate(name, budgets=(), judge="", validation_sequences=sequences, ngram=not is_stage)
    [bound] = found.validation
    results = found.as_json()
    lines = [(f"this model, {bound.num_sequences:,} sequences", f"{bound.value:.2f} ± {bound.error:.2f}")]
    if is_stage:
        about = f"The model started from `{settings['init']}`, whose card has 5-gram models of the same text."
    else:
        data = data_for(model, split=HELD_OUT, with_training=True)
        order = Order(data.train, settings["batch_size"], settings["seed"])
        seen = np.unique(np.concatenate([order.batch(update) for update in range(settings["updates"])]))
        size = model.config.vocabulary.size
        of_seen = floors(data.rows[seen], data.measured(ALL).x.numpy(), vocab_size=size, num_given=int(data.is_begun))
        results["validation"][0]["ngram_of_seen"] = of_seen
        lines += _floor_lines("5-gram of the tokens that training saw", of_seen)
        lines += _floor_lines("5-gram of all training tokens", bound.ngram)
        about = f"Training saw {len(seen):,} of {len(data.train):,} sequences. Stupid backoff gives no probabilities."
    table = "\n".join(f"| {name} | {value} |" for name, value in lines)
    report = f"""## The half-precision weights, on held-out tokens

| model | perplexity per token |
| --- | --- |
{table}

{about}

## 20 samples"""
    card = model.card.replace("## 20 samples", report, 1)
    (folder / "README.md").write_text(card)
    (folder / "report.json").write_text(json.dumps(results, indent=1) + "\n")
    print(report)


def _bundle_images(source: Path, folder: Path, name: str) -> None:
    """The card of a model of images tells and shows what its half-precision weights draw, beside real images."""
    shutil.copyfile(source / "samples.png", folder / "samples.png")
    model = load_folder(folder)
    if not isinstance(model.codec, ImageCodec) or model.data is None:
        return
    data, evaluator = model.data.load(model.codec), evaluator_for("image")
    table = "\n".join(evaluator.in_card(model, data))
    how, shown = evaluator.shown(model, data, 20)
    pictured, files = model.codec.in_card(shown)
    for file, content in files.items():
        (folder / file).write_bytes(content)
    before = re.split(r"\nJudged by|\nLabel accuracy was not|\n## 20 samples", model.card)[0].rstrip()
    parts = [
        before,
        "## The half-precision weights, beside real images",
        table,
        "## 20 samples, uncurated",
        how,
        pictured,
    ]
    (folder / "README.md").write_text("\n\n".join(parts) + "\n")
    print(table)


def _floor_lines(name: str, found: dict[str, float]) -> list[tuple[str, str]]:
    kinds = {"stupid_backoff": "stupid backoff", "kneser_ney": "interpolated Kneser-Ney"}
    return [(f"{name}, {title}", f"{found[kind]:.2f}") for kind, title in kinds.items()]


if __name__ == "__main__":
    bundle(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
