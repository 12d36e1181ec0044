"""From a request to rows of tokens to sample, and back from finished rows to texts."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from fpmgm.budget import Plan, plan
from fpmgm.codecs import TextCodec
from fpmgm.generation import Sampling, rules_of, until_end, with_saved_settings
from fpmgm.schema import has_surrogates, require
from fpmgm.serving.limits import Limits
from fpmgm.serving.models import Served
from fpmgm.serving.wire import CompletionRequest

GRAIN = 16
"""Without a suffix, a row is as long as the next multiple of this, so that rows of several requests are equally long
and can share a run. What is written beyond max_tokens is left out."""
BETWEEN = 16
"""Tokens to write between a prompt and a suffix if max_tokens is left out: OpenAI's default."""
SETTINGS = (
    "budget",
    "steps",
    "allocation",
    "reuse",
    "solver",
    "tolerance",
    "transition",
    "temperature",
    "top_k",
    "top_p",
)
"""What an answer tells of the settings that made it, besides the seed."""


class Start(NamedTuple):
    """A row before it is sampled, and where the text goes that is asked for."""

    tokens: tuple[int, ...]  # masks where something is to be written
    first: int  # the first position of the text
    num: int  # its tokens
    num_given: int  # tokens of prompt and suffix, without those that only mark the ends


class Written(NamedTuple):
    """What was written in a row."""

    text: str
    num_tokens: int
    reason: Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request that can be answered."""

    served: Served
    request: CompletionRequest
    sampling: Sampling
    """All that was left open is decided, the seed too."""
    spending: Plan
    starts: tuple[Start, ...]
    """Text i of the answer has row i, and the random numbers of (seed, i)."""

    @property
    def settings(self) -> dict[str, Any]:
        """What somebody needs to get the same texts again."""
        return {name: getattr(self.sampling, name) for name in (*SETTINGS, "seed")}

    def prompt_of(self, index: int) -> str:
        """The prompt of text `index`."""
        return self.request.prompts[index // (self.request.n or 1)]

    def written(self, index: int, row: Sequence[int]) -> Written:
        """The text of a finished row, up to its end or the first text of `stop`; with the prompt if it is asked for."""
        start, codec = self.starts[index], self.served.codec
        whole = list(row[: start.first + start.num])
        tokens = until_end(whole, codec, start.first)
        text = self._shown(index, tokens)
        cuts = [place for place in (text.find(stop) for stop in self.request.stops) if place >= 0]
        text = text[: min(cuts)] if cuts else text
        is_stopped = bool(cuts) or len(tokens) < len(whole)
        text = self.prompt_of(index) + text if self.request.echo else text
        return Written(text, max(0, len(tokens) - start.first), "stop" if is_stopped else "length")

    def provisional(self, index: int, row: Sequence[int]) -> str:
        """The text of a row that is still being written; masks are dots."""
        start = self.starts[index]
        return self._shown(index, row[: start.first + start.num])

    def _shown(self, index: int, tokens: Sequence[int]) -> str:
        """What stands after the prompt, so that prompt and text read on when they are put together."""
        start, codec = self.starts[index], self.served.codec
        before, whole = codec.show(tokens[: start.first]), codec.show(tokens)
        text = (
            whole.removeprefix(before) if whole.startswith(before) else codec.show(tokens[start.first :], goes_on=True)
        )
        return text.removeprefix(" ") if self.prompt_of(index).endswith(" ") else text


def ask(request: CompletionRequest, served: Served, limits: Limits) -> Asked:
    """The rows and settings of a request; a ValueError if it asks for what cannot be, or for more than is allowed."""
    n = 1 if request.n is None else request.n
    require("n", n, 1, limits.texts)
    num_texts = n * len(request.prompts)
    if num_texts > limits.texts:
        raise ValueError(f"{len(request.prompts)} prompts and n {n} make {num_texts} texts; {limits.texts} are allowed")
    if request.stream_options is not None and not request.stream:
        raise ValueError("stream_options are given, and stream is not true, so they would do nothing; leave them out")
    sampling = _sampling(request, served, limits)
    cost = served.denoiser.cost
    spending = plan(sampling.budget, cost, num_steps=sampling.steps, allocation=sampling.allocation)
    rules_of(sampling, cost)  # says what does not go together
    starts = [start for prompt in request.prompts for start in [_start(request, prompt, served, limits)] * n]
    sampling = replace(sampling, steps=spending.num_steps)
    return Asked(served=served, request=request, sampling=sampling, spending=spending, starts=tuple(starts))


def _sampling(request: CompletionRequest, served: Served, limits: Limits) -> Sampling:
    options: dict[str, Any] = request.fpmgm.model_dump(exclude_none=True) if request.fpmgm else {}
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    top_p = None if request.top_p == 1 else request.top_p  # all tokens either way, and many clients send it
    seed = secrets.randbelow(2**31) if request.seed is None else request.seed
    sampling = Sampling(temperature=request.temperature, top_p=top_p, seed=seed, **options)
    if sampling.budget > limits.budget:
        raise ValueError(f"fpmgm.budget is {sampling.budget}; at most {limits.budget} block evaluations are allowed")
    return with_saved_settings(served.model.generation, sampling, None)


def _start(request: CompletionRequest, prompt: str, served: Served, limits: Limits) -> Start:
    """A row with room for the text after the prompt, or between the prompt and the suffix."""
    codec, length = served.codec, served.length
    before = [codec.first, *_encoded(codec, prompt, "prompt")]
    after = [] if request.suffix is None else [*_encoded(codec, request.suffix, "suffix", goes_on=True), codec.last]
    num_given = len(before) - 1 + max(0, len(after) - 1)
    num = _num_tokens(request, num_given, length - len(before) - len(after), limits, length)
    total = len(before) + num + len(after)
    if request.suffix is None:
        total = min(length, -(-total // GRAIN) * GRAIN)
    masks = [codec.symbols.mask_id] * (total - len(before) - len(after))
    return Start((*before, *masks, *after), len(before), num, num_given)


def _num_tokens(request: CompletionRequest, num_given: int, room: int, limits: Limits, length: int) -> int:
    """How many tokens to write; a ValueError if there is no room for them, or a limit forbids it."""
    given = f"the prompt has {num_given} tokens" if request.suffix is None else f"prompt and suffix have {num_given}"
    if limits.prompt_tokens is not None and num_given > limits.prompt_tokens:
        raise ValueError(f"{given}, and at most {limits.prompt_tokens} are allowed; shorten it")
    if room < 1:
        raise ValueError(f"{given}, and the model's sequences have {length}, so nothing could be written; shorten it")
    largest = room if limits.max_tokens is None else min(room, limits.max_tokens)
    if request.max_tokens is None:
        return largest if request.suffix is None else min(largest, BETWEEN)
    if not 1 <= request.max_tokens <= largest:
        why = f"{given}, which leaves room for {room}" if largest == room else f"at most {largest} are allowed"
        raise ValueError(f"max_tokens is {request.max_tokens}; it must be 1 to {largest}: {why}")
    return request.max_tokens


def _encoded(codec: TextCodec, text: str, name: str, *, goes_on: bool = False) -> list[int]:
    """The tokens of a text, without the space at its end: the next word brings its own."""
    if has_surrogates(text):
        raise ValueError(f"{name} has half characters (surrogates), which no tokenizer can read")
    return codec.encode(text.removesuffix(" "), goes_on=goes_on)
