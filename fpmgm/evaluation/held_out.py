"""Held-out text as a model reads it."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from fpmgm.checkpoint import Model
from fpmgm.data.text import PackedText, TextConfig, load_text
from fpmgm.types import Tokens


def text_for(model: Model, source: str) -> PackedText:
    """A text packed with the model's own tokenizer and length."""
    if not model.tokenizer:
        raise ValueError("the model has no tokenizer.json, so it cannot read text")
    with TemporaryDirectory() as folder:
        tokenizer = Path(folder) / "tokenizer.json"
        tokenizer.write_text(model.tokenizer)
        return load_text(TextConfig(source=source, tokenizer=str(tokenizer), length=model.config.length))


def held_out_sequences(text: PackedText, num: int) -> Tokens:
    """`num` held-out sequences spread over all of them, or all if there are fewer."""
    if num < 1:
        raise ValueError(f"{num} held-out sequences are asked for; ask for at least 1")
    rows = text.validation[:: max(1, len(text.validation) // num)][:num]
    return torch.from_numpy(text.rows[rows].astype("int64"))
