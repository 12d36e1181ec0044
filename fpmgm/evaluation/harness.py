"""Our models in lm-eval's registry, by the name `fpmgm`. This file needs lm-eval; nothing imports it before it is used.

lm_eval --model fpmgm --model_args pretrained=MODEL,scoring=llada --tasks ...
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

from fpmgm.checkpoint import DEFAULT, Model, load
from fpmgm.evaluation.harness_scoring import DRAWN, Item, Scoring, ScoringName, are_greedy, scores
from fpmgm.evaluation.tasks import text_codec
from fpmgm.generation import Sampling
from fpmgm.interop.filled import fill_in
from fpmgm.names import choose

BATCH = 32
GENERATED = 256
"""Tokens that are generated if a task does not say how many, as elsewhere in the harness."""


@register_model("fpmgm")
class FpmgmLM(TemplateLM):
    """A text model of ours as the harness calls it: masked (MDLM, FP-MDLM) or causal (a judge)."""

    def __init__(
        self,
        pretrained: str | Model = DEFAULT,
        *,
        scoring: ScoringName = "duo",
        draws: int = 128,
        num_iters: int = 6,
        seed: int = 0,
        budget: int = 96,
        batch_size: int | str = BATCH,
        max_batch_size: int | None = None,
        device: str = "auto",
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        self.model = pretrained if isinstance(pretrained, Model) else load(pretrained, device=device, dtype=dtype)
        self.codec = text_codec(self.model, str(pretrained) if isinstance(pretrained, str) else "the model")
        choose("scoring", scoring, DRAWN)
        at_once = BATCH if batch_size == "auto" else int(batch_size)
        self.scoring = Scoring(
            name=scoring,
            draws=int(draws),
            num_iters=int(num_iters),
            seed=int(seed),
            batch_size=min(at_once, max_batch_size or at_once),
            num_given=int(self.model.is_begun),
        )
        self.budget = int(budget)
        self.cut: dict[str, set[Any]] = {}
        """The documents of each task that were too long and lost their beginning."""

    @property
    def convention(self) -> str:
        """How answers are scored: causal, which is exact, or the convention for masked models."""
        return "causal" if self.model.denoiser.is_causal else self.scoring.name

    @property
    def eot_token_id(self) -> int:
        return self.codec.symbols.last

    @property
    def max_length(self) -> int:
        return self.model.config.vocabulary.length

    @property
    def tokenizer_name(self) -> str:
        return "fpmgm"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **settings: Any) -> list[int]:
        """The tokens of a text, without any that begin or end a sequence."""
        return self.codec.encode(string)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """The score of each continuation, and whether it is what the model itself would write.

        The second is found out only where a document has a single continuation, as in LAMBADA: choices among several
        are by score, and a pass for every token of each of them would be spent on nothing.
        """
        items = [self._item(request, *self._encoded(*request.args[:2])) for request in requests]
        found = scores(self.model.denoiser, items, self.scoring)
        per_document = Counter((request.task_name, request.doc_id) for request in requests)
        alone = [
            index
            for index, each in enumerate(requests)
            if each.doc_id is None or per_document[each.task_name, each.doc_id] == 1
        ]
        greedy = dict(zip(alone, are_greedy(self.model.denoiser, [items[i] for i in alone], self.scoring), strict=True))
        return [(score, greedy.get(index, False)) for index, score in enumerate(found)]

    def _loglikelihood_tokens(self, requests: Any, **settings: Any) -> list[tuple[float, bool]]:
        """What `loglikelihood` does, for tokens."""
        items = [self._fitted(context, target)[0] for _, context, target in requests]
        found = scores(self.model.denoiser, items, self.scoring)
        return list(zip(found, are_greedy(self.model.denoiser, items, self.scoring), strict=True))

    def _encoded(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        if not context:
            return [], self.tok_encode(continuation)
        context_ids, target = self._encode_pair(context, continuation)
        return context_ids, target

    def _item(self, request: Instance, context: list[int], target: list[int]) -> Item:
        item, is_cut = self._fitted(context, target)
        if is_cut:
            self.cut.setdefault(str(request.task_name), set()).add(request.doc_id)
        return item

    def _fitted(self, context: Sequence[int], target: Sequence[int]) -> tuple[Item, bool]:
        """An item as long as the model reads, cut on the left if it must be, and whether it was cut."""
        if not target:
            raise ValueError("a task asks for the score of an empty continuation; there is nothing to score")
        suffix = (self.codec.symbols.last,) if self.convention == "duo" else ()
        room = self.max_length - 1 - len(suffix)
        kept = tuple(target)[-room:]
        before = room - len(kept)
        prefix = tuple(context)[-before:] if before else ()
        is_cut = len(context) + len(target) > room
        return Item((self.codec.symbols.first, *prefix), kept, suffix), is_cut

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of each text in windows of the model's length, each read by itself; always a sum.

        `duo` is a mean over context and continuation; here it gives way to `smdm`, which draws its masks alike.
        """
        scoring = replace(self.scoring, name="smdm") if self.scoring.name == "duo" else self.scoring
        room = self.max_length - 1
        items: list[Item] = []
        owners: list[int] = []
        for index, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            for first in range(0, len(tokens), room):
                items.append(Item((self.codec.symbols.first,), tuple(tokens[first : first + room])))
                owners.append(index)
        totals = [0.0] * len(requests)
        for index, score in zip(owners, scores(self.model.denoiser, items, scoring), strict=True):
            totals[index] += score
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """What the sampler writes after each context, up to a text that ends it or to the end of the text."""
        return [self._generated(*request.args[:2]) for request in requests]

    def _generated(self, context: str, settings: dict[str, Any]) -> str:
        asked = int(settings.get("max_gen_toks", GENERATED))
        tokens = self.tok_encode(context)
        room = max(self.max_length - 1 - len(tokens), self.max_length // 2)
        num = min(asked, room)
        kept = tokens[-(self.max_length - 1 - num) :]
        start = [self.codec.symbols.first, *kept, *[self.codec.symbols.mask_id] * num]
        named = {name: settings[name] for name in ("top_k", "top_p") if settings.get(name) is not None}
        is_drawn = settings.get("do_sample", bool(settings.get("temperature")))
        temperature = float(settings.get("temperature", 1.0)) if is_drawn else 0.0
        sampling = Sampling(budget=self.budget, seed=self.scoring.seed, temperature=temperature, **named)
        [row] = fill_in(self.model.denoiser, [start], sampling, self.model.generation)
        return self._until(row[len(start) - num :], settings.get("until") or [])

    def _until(self, tokens: list[int], ends: str | list[str]) -> str:
        last = self.codec.symbols.last
        text = self.codec.show(tokens[: tokens.index(last)] if last in tokens else tokens)
        for end in [ends] if isinstance(ends, str) else ends:
            text = text.split(end)[0] if end else text
        return text
