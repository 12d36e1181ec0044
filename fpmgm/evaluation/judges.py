"""Judges: causal language models that say how likely a text is. Every result names its judge."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fpmgm.checkpoint import BUNDLED, Model, load
from fpmgm.data.assets import fetch, hub_answers
from fpmgm.generation import encode, first_token
from fpmgm.objectives import next_token_nll
from fpmgm.symbols import END_OF_TEXT

TokenNats = Float[Tensor, " N"]


@dataclass(frozen=True, kw_only=True)
class Judge:
    """A causal language model and the name under which its results go."""

    name: str
    nats: Callable[[str], TokenNats]
    """-log p of every token of a text, after an end-of-text token."""


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


def _own(source: str) -> Judge:
    model = load(source)
    if not model.config.is_causal:
        raise ValueError(f"{source} is a masked model; a judge must be causal, such as one trained by text-mini-judge")
    return Judge(name=f"fpmgm:{Path(source).name}", nats=lambda text: _own_nats(model, text))


@torch.no_grad()
def _own_nats(model: Model, text: str) -> TokenNats:
    ids = [first_token(model), *encode(model, text)][: model.config.length]
    if len(ids) < 2:
        return torch.zeros(0)
    return next_token_nll(model.denoiser, torch.tensor([ids]))[0]


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
    prefix = end if isinstance(end, int) else tokenizer.bos_token_id

    def nats(text: str) -> TokenNats:
        ids = [prefix, *tokenizer(text, add_special_tokens=False)["input_ids"]][:max_length]
        return _hub_nats(model, ids)

    return Judge(name=name, nats=nats)


@torch.no_grad()
def _hub_nats(model: Any, ids: Sequence[int]) -> TokenNats:
    tokens = torch.tensor([list(ids)])
    log_p = model(input_ids=tokens).logits[0, :-1].float().log_softmax(dim=-1)
    return -log_p.gather(1, tokens[0, 1:, None])[:, 0]


@dataclass(frozen=True, kw_only=True)
class GenerativePerplexity:
    """exp of the mean of -log p under a judge, in the two ways it is averaged in the literature."""

    per_token: float  # mean over all tokens of all texts (MDLM)
    per_sample: float  # mean over texts of each text's mean (the paper, SDTT)
    judge: str
    num_texts: int


def generative_perplexity(texts: Sequence[str], judge: Judge) -> GenerativePerplexity:
    """Of texts; one in which the judge finds no token does not count."""
    nats = [found.double() for found in map(judge.nats, texts) if len(found)]
    if not nats:
        raise ValueError(f"none of {len(texts)} texts has a token to judge")
    return GenerativePerplexity(
        per_token=float(torch.cat(nats).mean().exp()),
        per_sample=float(torch.stack([found.mean() for found in nats]).mean().exp()),
        judge=judge.name,
        num_texts=len(nats),
    )
