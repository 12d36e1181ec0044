"""What the fuzzer damages: a tiny model, a judge, a finished run, texts, results, and a user's folder.

All of it is made by the program itself, small enough that a command takes milliseconds.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import fpmgm
from fpmgm.__main__ import main
from fpmgm.backbones.dit import MDLMConfig
from fpmgm.checkpoint import BUNDLED, Model
from fpmgm.codecs import TextCodec
from fpmgm.data.tokenizing import train_bpe

LINE = "the sea and the sky and the old oak by the shore\n"
NETWORK = MDLMConfig(
    vocab_size=271, mask_id=270, length=12, width=8, num_heads=2, num_pre=1, num_fp=1, num_post=1, cond_width=4
)
TRAIN: tuple[str, ...] = ("train", "poetry", "--out", "run", "--data.source", "text.txt", "--data.length", "8")
TRAIN += ("--data.tokenizer", "bpe-258", "--model.width", "8", "--model.num-heads", "2", "--model.cond-width", "4")
TRAIN += ("--updates", "2", "--batch-size", "2", "--validation-sequences", "2", "--validation-iters", "1", "--trackers")
SAMPLES = ("--budgets", "9", "--num-samples", "2", "--judge", "")
SWEEP = ("sweep", "budgets", "model", *SAMPLES, "--out", "results")
PROTECTED = "mine"
"""A folder of the user. What is in it must stay as it is; results come into it only if a command names it."""


def build(folder: Path) -> None:
    """Make everything in the folder, which becomes the working directory."""
    os.chdir(folder)
    _texts()
    tokenizer = train_bpe(iter([LINE * 50]), 270)
    for name, changes in (
        ("model", {}),
        ("plain", {"num_fp": 0, "num_post": 0}),
        ("judge", {"num_fp": 0, "num_post": 0, "is_causal": True}),
    ):
        _model(tokenizer.to_str(), **changes).save(name)
    settings = {"budgets": {"9": {"steps": 2, "allocation": "fixed"}, "12": {"steps": 2, "allocation": "cosine"}}}
    Path("model/generation_config.json").write_text(json.dumps(settings))
    for command in ((*TRAIN, "--snapshot-every", "1"), ("analyse", "run", "dynamics", *SAMPLES), SWEEP):
        assert main(command) == 0, command
    Path(PROTECTED).mkdir()
    Path(PROTECTED, "thesis.tex").write_text("years of work\n")
    Path(PROTECTED, "config.json").write_text('{"mine": true}\n')
    Path(PROTECTED, "update-00000060.bak").write_bytes(bytes(64))


def _model(tokenizer: str, **changes: Any) -> Model:
    config = replace(NETWORK, **changes)
    denoiser = fpmgm.mdlm(config)
    rng = fpmgm.generator(1)
    with torch.no_grad():
        for parameter in denoiser.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=rng))
    return Model(denoiser=denoiser.eval(), config=config, codec=TextCodec(tokenizer))


def _texts() -> None:
    import pyarrow
    from pyarrow import parquet

    Path("text.txt").write_text(LINE * 40)
    Path("text.jsonl").write_text("".join(json.dumps({"text": LINE, "id": n}) + "\n" for n in range(40)))
    parquet.write_table(pyarrow.table({"text": [LINE] * 40, "id": list(range(40))}), "text.parquet")
    Path("texts").mkdir()
    Path("texts", "a.txt").write_text(LINE * 20)
    Path("texts", "b.jsonl").write_text(json.dumps({"text": LINE * 20}) + "\n")


def contents(folder: Path) -> dict[str, bytes]:
    """All names in a folder, with what is in the files."""
    paths = folder.rglob("*")
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in paths}


def bundled() -> dict[str, tuple[int, int]]:
    """Size and time of change of every file of the bundled models."""
    files = [file for file in BUNDLED.rglob("*") if file.is_file()]
    return {str(file): (file.stat().st_size, file.stat().st_mtime_ns) for file in files}
