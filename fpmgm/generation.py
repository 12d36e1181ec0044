"""Generation: text in, text out, around the sampling loop."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from typing import Any

import torch

from fpmgm.budget import Cost, plan
from fpmgm.checkpoint import Model
from fpmgm.draws import Draw
from fpmgm.names import choose
from fpmgm.randomness import Streams
from fpmgm.reuse import Reuse, ThreeStateReuse, reuse_by_name
from fpmgm.sampling import Step, even_times, sample
from fpmgm.solvers import Solver, solver_by_name
from fpmgm.symbols import END_OF_TEXT, Symbols, symbols_of
from fpmgm.transitions import Ancestral, Cap, Conf, Confidence, Loop, Remasking, Rescale, Transition

TRANSITIONS: dict[str, Callable[[Draw], Transition]] = {
    "ancestral": lambda draw: Ancestral(draw=draw),
    "confidence": lambda draw: Confidence(draw=draw),
    "confidence-margin": lambda draw: Confidence(score="margin", draw=draw),
    "confidence-entropy": lambda draw: Confidence(score="entropy", draw=draw),
    "remdm-cap": lambda draw: Remasking(rule=Cap(), draw=draw),
    "remdm-rescale": lambda draw: Remasking(rule=Rescale(), draw=draw),
    "remdm-conf": lambda draw: Remasking(rule=Conf(), draw=draw),
    "remdm-loop": lambda draw: Remasking(rule=Loop(), draw=draw),
}


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to spend a budget on a sample."""

    budget: int = 96
    """Block evaluations per sequence."""
    steps: int | None = None
    """Denoising steps; None: what the model's generation_config.json says for the budget, else as many as the budget
    allows at four iterations each on average."""
    allocation: str = "auto"
    """How solver iterations are spread over the steps: fixed, decreasing, increasing, cosine or front-loaded; auto:
    what generation_config.json says for the budget, else decreasing."""
    reuse: str = "auto"
    """Where the solver starts: none, full or three-state; auto: three-state, or none for a plain stack."""
    reuse_masked: tuple[float, float] = (0.75, 0.9)
    """Three-state reuse: the share kept at masked positions when nothing is visible, and when all is."""
    reuse_changed: tuple[float, float] = (0.2, 0.2)
    """The same at positions whose token has changed."""
    solver: str = "picard"
    """picard or anderson."""
    tolerance: float | None = None
    """Stop a sequence's solver when its relative residual is at most this; None: run all iterations."""
    transition: str = "ancestral"
    """ancestral; confidence, confidence-margin, confidence-entropy; remdm-cap, -rescale, -conf or -loop."""
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    nucleus: str = "inclusive"
    """Which set top_p keeps: inclusive (with the token that crosses p) or strict."""
    seed: int = 0
    batch_size: int = 32


@dataclass(frozen=True, kw_only=True)
class Generated:
    """Samples and what they cost."""

    texts: list[str]
    tokens: list[list[int]]
    block_evals: int  # the most that any sequence spent
    seconds: float
    steps: int
    allocation: str
    iterations: tuple[int, ...]  # of the solver, by step; 0 for a plain stack


def generate(
    model: Model,
    *,
    num_samples: int = 1,
    prompts: Sequence[str] = (),
    infill: Sequence[str] = (),
    on_step: Callable[[Step], None] | None = None,
    **settings: Any,
) -> Generated:
    """Sample texts: from nothing, as continuations of prompts, or into the blanks of `infill`.

    A blank is a run of underscores, one token for each. `num_samples` are drawn for every prompt or text with blanks.
    Other settings are the fields of `Sampling`.
    """
    for name in settings:
        choose("setting", name, {field.name: None for field in fields(Sampling)})
    how = Sampling(**settings)
    if num_samples < 1:
        raise ValueError(f"num_samples is {num_samples}; it must be at least 1")
    starts = [start for start in _starts(model, prompts, infill) for _ in range(num_samples)]
    how = with_saved_settings(model.generation, how)
    spending = plan(how.budget, model.denoiser.cost, num_steps=how.steps, allocation=how.allocation)
    rules: dict[str, Any] = {
        "times": even_times(spending.num_steps),
        "iterations": spending.iterations,
        "on_step": on_step,
        **rules_of(how, model.denoiser.cost),
    }
    rows: list[list[int]] = [[]] * len(starts)
    spent = 0
    begin = time.perf_counter()
    for batch in _batches(starts, how.batch_size):
        z = torch.tensor([starts[index] for index in batch], device=next(model.denoiser.parameters()).device)
        sampled = sample(model.denoiser, z, rng=Streams.of(how.seed, batch), **rules)
        spent = max(spent, int(sampled.block_evals.max()))
        for index, row in zip(batch, sampled.z.tolist(), strict=True):
            rows[index] = row
    seconds = time.perf_counter() - begin
    texts = [decode(model, row) for row in rows]
    return Generated(
        texts=texts,
        tokens=rows,
        block_evals=spent,
        seconds=seconds,
        steps=spending.num_steps,
        allocation=how.allocation,
        iterations=tuple(spending.iterations),
    )


def rules_of(how: Sampling, cost: Cost) -> dict[str, Any]:
    """Transition, reuse and solver by their names; a ValueError if the settings make no sense."""
    draw = Draw(temperature=how.temperature, top_k=how.top_k, top_p=how.top_p, nucleus=how.nucleus)
    return {
        "transition": choose("transition", how.transition, TRANSITIONS)(draw),
        "reuse": _reuse(how, cost),
        "solver": _solver(how),
    }


def with_saved_settings(generation: Mapping[str, Any], how: Sampling) -> Sampling:
    """The same with steps and allocation as a model's generation_config.json says for this budget, if it does."""
    saved = generation.get("budgets", {}).get(str(how.budget), {})
    if how.allocation == "auto":
        how = replace(how, allocation=saved.get("allocation", "decreasing"))
    return replace(how, steps=saved.get("steps")) if how.steps is None else how


def first_token(model: Model) -> int:
    """What every sequence of the model begins with."""
    return _symbols(model).first


def encode(model: Model, text: str) -> list[int]:
    """The token ids of a text."""
    return _tokenizer(model.tokenizer).encode(text, add_special_tokens=False).ids


def documents(model: Model, tokens: Sequence[int]) -> str:
    """The text of tokens, for a judge: documents with <|endoftext|> between them, and none at either end."""
    parts: list[list[int]] = [[]]
    for token in tokens:
        if token in (_symbols(model).first, _symbols(model).last):
            parts.append([])
        else:
            parts[-1].append(token)
    while len(parts) > 1 and not parts[0]:
        parts.pop(0)
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return END_OF_TEXT.join(decode(model, part) for part in parts)


def decode(model: Model, tokens: Sequence[int]) -> str:
    """The text of tokens, without end-of-text; masks as dots."""
    tokenizer = _tokenizer(model.tokenizer)
    parts: list[str] = []
    run: list[int] = []
    for token in tokens:
        if token == model.denoiser.mask_id:
            parts += [tokenizer.decode(run), "·"]
            run = []
        else:
            run.append(token)
    return "".join([*parts, tokenizer.decode(run)])


def _starts(model: Model, prompts: Sequence[str], infill: Sequence[str]) -> list[list[int]]:
    """What is given of each sequence, masks elsewhere."""
    length, mask = model.denoiser.max_length, model.denoiser.mask_id
    first = first_token(model)
    if prompts and infill:
        raise ValueError("prompts and infill are both given; give one of them")
    if infill:
        return [_with_blanks(model, text) for text in infill]
    starts = [[first, *encode(model, prompt)] for prompt in prompts] or [[]]
    for prompt, start in zip(prompts, starts, strict=False):
        if len(start) >= length:
            raise ValueError(
                f"the prompt {prompt[:40]!r} has {len(start) - 1} tokens; the model writes {length}, "
                f"so a prompt may have {length - 2} at most"
            )
    return [[*start, *[mask] * (length - len(start))] for start in starts]


def _with_blanks(model: Model, text: str) -> list[int]:
    tokens = [_symbols(model).first]
    for part in re.split(r"(_+)", text):
        tokens += [model.denoiser.mask_id] * len(part) if part.startswith("_") else encode(model, part)
    tokens.append(_symbols(model).last)
    if model.denoiser.mask_id not in tokens:
        raise ValueError(f"{text[:40]!r} has no blank to fill in; write one as underscores, one for each token: ___")
    if len(tokens) > model.denoiser.max_length:
        raise ValueError(f"{text[:40]!r} has {len(tokens) - 2} tokens; the model takes {model.denoiser.max_length - 2}")
    return tokens


def _batches(starts: Sequence[Sequence[int]], batch_size: int) -> Iterator[list[int]]:
    """Indices of starts of equal length, in order."""
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 1")
    by_length: dict[int, list[int]] = {}
    for index, start in enumerate(starts):
        by_length.setdefault(len(start), []).append(index)
    for indices in by_length.values():
        for first in range(0, len(indices), batch_size):
            yield indices[first : first + batch_size]


def _reuse(how: Sampling, cost: Cost) -> Reuse:
    name = ("three-state" if cost.fp else "none") if how.reuse == "auto" else how.reuse
    (masked_min, masked_max), (changed_min, changed_max) = how.reuse_masked, how.reuse_changed
    is_default = (how.reuse_masked, how.reuse_changed) == (Sampling.reuse_masked, Sampling.reuse_changed)
    if is_default:
        return reuse_by_name(name)
    if name != "three-state":
        raise ValueError(f"reuse_masked and reuse_changed are for three-state reuse, and reuse is {name}")
    return ThreeStateReuse(
        masked_min=masked_min, masked_max=masked_max, changed_min=changed_min, changed_max=changed_max
    )


def _solver(how: Sampling) -> Solver:
    solver = solver_by_name(how.solver)
    return solver if how.tolerance is None else partial(solver, tolerance=how.tolerance)


def _symbols(model: Model) -> Symbols:
    return symbols_of(_tokenizer(model.tokenizer))


@lru_cache(maxsize=4)
def _tokenizer(content: str) -> Any:
    from tokenizers import Tokenizer

    if not content:
        raise ValueError("the model has no tokenizer.json, so it cannot read or write text")
    return Tokenizer.from_str(content)
