"""Judges: causal language models that say how likely a text is. Every result names its judge.

A text may hold several documents with <|endoftext|> between them. The judge reads one of its own end-of-text tokens
before the text and at each such place; of those between documents only the first of a text is scored, as MDLM does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fpmgm.checkpoint import BUNDLED, load
from fpmgm.data.assets import fetch, hub_answers
from fpmgm.generation import encode, first_token
from fpmgm.objectives import token_nll
from fpmgm.symbols import END_OF_TEXT

TokenNats = Float[Tensor, " N"]
TEXTS_AT_ONCE = 16
BUNDLED_JUDGE = "text-mini-judge"


class Reading(NamedTuple):
    """What a judge finds in a text."""

    nats: TokenNats  # -log p of every token that is scored
    feature: Float[Tensor, " D"]  # what the judge's head reads at the last token


@dataclass(frozen=True, kw_only=True)
class Judge:
    """A causal language model and the name under which its results go."""

    name: str
    read: Callable[[Sequence[str]], list[Reading]]


def judge_named(judge: str) -> str:
    """The bundled judge for `auto`."""
    return BUNDLED_JUDGE if judge == "auto" else judge


def load_judge(source: str, max_length: int = 1024) -> Judge:
    """smollm2; a bundled causal model or a folder of one; or any causal model of the hub, such as gpt2-large."""
    if source == "smollm2":
        return _smollm2(max_length)
    if (BUNDLED / source).is_dir() or (Path(source) / "model.safetensors").is_file():
        return _own(source)
    if not hub_answers():
        raise ValueError(
            f"judge is {source!r}, but the hub does not answer; give smollm2 or a folder of a causal model"
        )
    return _hub(source, source, max_length)


def judged_ids(text: str, encode: Callable[[str], list[int]], end: int, max_length: int) -> list[int]:
    """The judge's tokens of a text, each document after an end-of-text token, cut off at the judge's length."""
    return [token for document in text.split(END_OF_TEXT) for token in [end, *encode(document)]][:max_length]


def scored(ids: Sequence[int], end: int) -> list[bool]:
    """Which of the tokens after the first are scored: all but the second and later ends of text.

    >>> scored([0, 7, 0, 8, 9, 0, 5], end=0)
    [True, True, True, True, False, True]
    """
    ends = 0
    found = []
    for token in ids[1:]:
        ends += token == end
        found.append(token != end or ends == 1)
    return found


def _reader(
    run: Callable[[Tensor], tuple[Tensor, Tensor]], encode: Callable[[str], list[int]], end: int, max_length: int
) -> Callable[[Sequence[str]], list[Reading]]:
    """Read texts in batches of similar length. `run` takes tokens to (-log p of the next tokens, features).

    Shorter texts are filled up at the end, where a causal model does not see it from before.
    """

    @torch.no_grad()
    def read(texts: Sequence[str]) -> list[Reading]:
        rows = [judged_ids(text, encode, end, max_length) for text in texts]
        found: list[Reading | None] = [None] * len(rows)
        by_length = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        for first in range(0, len(rows), TEXTS_AT_ONCE):
            batch = by_length[first : first + TEXTS_AT_ONCE]
            longest = max(2, *(len(rows[index]) for index in batch))
            tokens = torch.tensor([[*rows[index], *[end] * (longest - len(rows[index]))] for index in batch])
            nats, features = run(tokens)
            for place, index in enumerate(batch):
                own = rows[index]
                keep = torch.tensor(scored(own, end), dtype=torch.bool)
                found[index] = Reading(nats[place, : len(own) - 1][keep], features[place, len(own) - 1])
        return [reading for reading in found if reading is not None]

    return read


def _own(source: str) -> Judge:
    model = load(source)
    if not model.config.is_causal:
        raise ValueError(f"{source} is a masked model; a judge must be causal, such as one trained by text-mini-judge")

    def run(tokens: Tensor) -> tuple[Tensor, Tensor]:
        features = model.denoiser(tokens, 0.0, torch.ones_like(tokens, dtype=torch.bool)).features
        features = features.view(*tokens.shape, -1)
        nats = token_nll(model.denoiser, features[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        return nats.view(len(tokens), -1), features

    read = _reader(run, lambda text: encode(model, text), first_token(model), model.config.length)
    return Judge(name=f"fpmgm:{Path(source).name}", read=read)


def _smollm2(max_length: int) -> Judge:
    """From the asset; the 4-bit file is turned into safetensors once, because it takes half a minute to read."""
    folder = fetch("smollm2")
    if not (folder / "model.gguf").exists():
        return _hub(str(folder), "SmolLM2-135M-Instruct", max_length)
    ready = folder / "safetensors"
    if not ready.exists():
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", dtype=torch.float32)
        model.hf_quantizer = None
        model.is_quantized = False
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        scratch = folder / ".safetensors"
        model.save_pretrained(scratch)
        AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf").save_pretrained(scratch)
        scratch.rename(ready)
    return _hub(str(ready), "SmolLM2-135M-Instruct Q4_1", max_length)


def _hub(source: str, name: str, max_length: int) -> Judge:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(source)
    end = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    end = end if isinstance(end, int) else tokenizer.bos_token_id

    def run(tokens: Tensor) -> tuple[Tensor, Tensor]:
        out = model(input_ids=tokens, output_hidden_states=True)
        log_p = out.logits[:, :-1].float().log_softmax(dim=-1)
        return -log_p.gather(2, tokens[:, 1:, None])[..., 0], out.hidden_states[-1].float()

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    return Judge(name=name, read=_reader(run, encode, end, max_length))
