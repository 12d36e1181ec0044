"""Judges: causal language models that say how likely a text is. Every result names its judge.

A text may hold several documents with <|endoftext|> between them. The judge reads one of its own end-of-text tokens at
each such place. There are two conventions, and every result names its own:

`paper`      an end-of-text is put before the text, and every token of the text is scored: the first one, and every end
             between documents. Ends at both ends of a sample are left out.
`published`  the public code of MDLM, ReMDM and Duo. Nothing is put before the text, and ends stay where the sample has
             them. The first token is not scored, and of all ends only the first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fpmgm.checkpoint import BUNDLED, find_folder, load, read_config
from fpmgm.codecs import TextCodec
from fpmgm.data.assets import fetch, hub_answers
from fpmgm.devices import device_named
from fpmgm.evaluation.evaluator import PAPER, PUBLISHED
from fpmgm.evaluation.evaluator import ConventionName as ConventionName
from fpmgm.files import whole_folder
from fpmgm.names import choose
from fpmgm.objectives import token_nll
from fpmgm.products import quicken
from fpmgm.progress import tracked
from fpmgm.symbols import END_OF_TEXT

TokenNats = Float[Tensor, " N"]
TEXTS_AT_ONCE = 16
BUNDLED_JUDGE = "stories-judge"
STORIES_SOURCE, STORIES_IDS = "stories-source", "stories-source-ids"


class Reading(NamedTuple):
    """What a judge finds in a text."""

    nats: TokenNats  # -log p of every token that is scored
    feature: Float[Tensor, " D"]  # what the judge's head reads at the last token


@dataclass(frozen=True, kw_only=True)
class Judge:
    """A causal language model and the name under which its results go."""

    name: str
    read: Callable[[Sequence[str]], list[Reading]]
    read_ids: Callable[[str, Sequence[list[int]]], list[Reading] | None] | None = None
    """Reads rows of a model with this tokenizer.json by their symbols; None if they are not the judge's own ids."""
    reads_text: bool = True
    """Whether a model of other symbols is judged through its text; if not, it is refused."""
    convention: str = PAPER
    """Which tokens are scored."""


def read_symbols(judge: Judge, codec: TextCodec, rows: Sequence[list[int]]) -> tuple[list[Reading], str]:
    """What a judge finds in rows of a model's symbols, and by what it read them: `ids` or `text`."""
    readings = judge.read_ids(codec.content, rows) if judge.read_ids else None
    if readings is not None:
        return readings, "ids"
    if not judge.reads_text:
        raise ValueError(
            f"{STORIES_IDS} reads only models that write the source's own ids (--data.tokenizer source), and this one "
            f"does not; {STORIES_SOURCE} judges it through its text"
        )
    return judge.read([codec.documents(row, has_ends=judge.convention == PUBLISHED) for row in rows]), "text"


def judge_named(judge: str) -> str:
    """The bundled judge for `auto`."""
    return BUNDLED_JUDGE if judge == "auto" else judge


def check_convention(convention: str, judge: str) -> None:
    """A ValueError if there is no such convention, or if this judge does not have it."""
    choose("convention", convention, {PAPER: None, PUBLISHED: None})
    if convention != PAPER and not judge:
        raise ValueError(f"convention is {convention}, and nobody judges; give --judge or leave it out")
    if convention != PAPER and judge in (STORIES_SOURCE, STORIES_IDS):
        raise ValueError(
            f"convention is {convention}, and {judge} has only {PAPER}: it gives the true likelihood of whole stories, "
            "from their first token on; leave --convention out or give another judge"
        )


def check_judge(source: str) -> None:
    """A ValueError if a model is no judge, or if there is no such judge here and the hub does not answer."""
    if _is_own(source):
        _check_causal(source)
    elif source not in (STORIES_SOURCE, STORIES_IDS, "smollm2") and not hub_answers():
        raise ValueError(
            f"judge is {source!r}, but the hub does not answer; give {STORIES_SOURCE}, {BUNDLED_JUDGE}, smollm2 or a "
            "folder of a causal model"
        )


def _is_own(source: str) -> bool:
    """Whether a judge is a bundled model or the folder of one."""
    return (BUNDLED / source).is_dir() or (Path(source) / "model.safetensors").is_file()


def _check_causal(source: str) -> None:
    if not read_config(find_folder(source)).is_causal:
        raise ValueError(f"{source} is a masked model; a judge must be causal, such as one trained by stories-judge")


def load_judge(source: str, max_length: int = 1024, *, device: str = "auto", convention: str = PAPER) -> Judge:
    """stories-source, smollm2, a bundled causal model, a folder of one, or any causal model of the hub, as gpt2-large.

    `stories-source` reads models that write its own ids by these ids, exactly, and others through their text.
    `stories-source-ids` refuses the others. A judge reads at most `max_length` tokens of a text.
    """
    check_convention(convention, source)
    if source in (STORIES_SOURCE, STORIES_IDS):
        from fpmgm.evaluation.stories_judge import load_stories_judge

        return load_stories_judge(source, device)
    if source == "smollm2":
        return _smollm2(max_length, device, convention)
    check_judge(source)
    if _is_own(source):
        return _own(source, device, convention)
    return _hub(source, source, max_length, device, convention)


def judged_ids(
    text: str, encode: Callable[[str], list[int]], end: int, max_length: int, convention: str = PAPER
) -> list[int]:
    """The judge's tokens of a text, at most `max_length` of them, and with `paper` an end-of-text before them."""
    ids = [token for document in text.split(END_OF_TEXT) for token in [end, *encode(document)]]
    return ids[: max_length + 1] if convention == PAPER else ids[1 : max_length + 1]


def scored(ids: Sequence[int], end: int, convention: str = PAPER) -> list[bool]:
    """Which of the tokens after the first are scored: with `paper` all, with `published` of all ends only the first.

    >>> scored([0, 7, 0, 8, 9, 0, 5], end=0)
    [True, True, True, True, True, True]
    >>> scored([0, 7, 0, 8, 9, 0, 5], end=0, convention="published")
    [True, False, True, True, False, True]
    """
    if convention == PAPER:
        return [True] * len(ids[1:])
    ends = int(list(ids[:1]) == [end])
    found = []
    for token in ids[1:]:
        ends += token == end
        found.append(token != end or ends == 1)
    return found


def _reader(
    run: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    encode: Callable[[str], list[int]],
    end: int,
    max_length: int,
    convention: str,
) -> Callable[[Sequence[str]], list[Reading]]:
    """Read texts in batches of similar length. `run` takes tokens and those that follow to (-log p of them, features).

    The judge sees at most `max_length` tokens; the token after the last of these is still scored. Shorter texts are
    filled up at the end, where a causal model does not see it from before.
    """

    @torch.no_grad()
    def read(texts: Sequence[str]) -> list[Reading]:
        rows = [judged_ids(text, encode, end, max_length, convention) for text in texts]
        found: list[Reading | None] = [None] * len(rows)
        by_length = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        for first in tracked(range(0, len(rows), TEXTS_AT_ONCE), "judging texts"):
            batch = by_length[first : first + TEXTS_AT_ONCE]
            longest = max(2, *(len(rows[index]) for index in batch))
            tokens = torch.tensor([[*rows[index], *[end] * (longest - len(rows[index]))] for index in batch])
            nats, features = run(tokens[:, :max_length], tokens[:, 1:])
            for place, index in enumerate(batch):
                keep = torch.tensor(scored(rows[index], end, convention), dtype=torch.bool)
                last = max(min(len(rows[index]), max_length) - 1, 0)
                found[index] = Reading(nats[place, : len(keep)][keep], features[place, last])
        return [reading for reading in found if reading is not None]

    return read


def _own(source: str, device: str, convention: str) -> Judge:
    model = load(source, device=device)

    def run(tokens: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
        tokens, following = tokens.to(model.device), following.to(model.device)
        features = model.denoiser(tokens, 0.0, torch.ones_like(tokens, dtype=torch.bool)).features
        features = features.view(*tokens.shape, -1)
        nats = token_nll(model.denoiser, features[:, : following.shape[1]].flatten(0, 1), following.flatten())
        return nats.view(len(tokens), -1).cpu(), features.cpu()

    codec = model.speech
    if not isinstance(codec, TextCodec):
        raise ValueError(f"{source} reads {codec.kind}; a judge of texts must read text")
    read = _reader(run, codec.encode, codec.first, model.config.vocabulary.length, convention)
    return Judge(name=f"fpmgm:{Path(source).name}", read=read, convention=convention)


def _smollm2(max_length: int, device: str, convention: str) -> Judge:
    """From the asset; the 4-bit file is turned into safetensors once, because it takes half a minute to read."""
    folder = fetch("smollm2")
    if not (folder / "model.gguf").exists():
        return _hub(str(folder), "SmolLM2-135M-Instruct", max_length, device, convention)
    ready = folder / "safetensors"
    if not ready.exists():
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", dtype=torch.float32)
        model.hf_quantizer = None
        model.is_quantized = False
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        with whole_folder(ready) as scratch:
            model.save_pretrained(scratch)
            AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf").save_pretrained(scratch)
    return _hub(str(ready), "SmolLM2-135M-Instruct Q4_1", max_length, device, convention)


def _hub(source: str, name: str, max_length: int, device: str, convention: str) -> Judge:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    place = device_named(device)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval().to(place)
    quicken(model)
    tokenizer = AutoTokenizer.from_pretrained(source)
    end = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    end = end if isinstance(end, int) else tokenizer.bos_token_id

    def run(tokens: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
        tokens, following = tokens.to(place), following.to(place)
        out = model(input_ids=tokens, output_hidden_states=True)
        log_p = out.logits[:, : following.shape[1]].float().log_softmax(dim=-1)
        return -log_p.gather(2, following[..., None])[..., 0].cpu(), out.hidden_states[-1].float().cpu()

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    longest = min(max_length, getattr(model.config, "max_position_embeddings", max_length))
    return Judge(name=name, read=_reader(run, encode, end, longest, convention), convention=convention)
