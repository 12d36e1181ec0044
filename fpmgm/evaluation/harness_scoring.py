"""How likely a model finds a continuation: exactly if it is causal, else by one of three conventions for masked models.

`duo` masks context and continuation alike and takes the mean over all tokens; an end of text follows them. `smdm` and
`llada` mask the continuation alone and take the sum: `smdm` masks each token by chance at a drawn time, `llada` masks a
drawn number of tokens. Scores of different conventions do not compare.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from fpmgm.denoiser import Denoiser, evaluating
from fpmgm.masking import stratified_times, without_mask
from fpmgm.objectives import token_nll
from fpmgm.progress import Progress
from fpmgm.randomness import generator
from fpmgm.schema import require
from fpmgm.types import Logits, PerSequence, Positions, Tokens

ScoringName = Literal["duo", "smdm", "llada"]
MAX_DRAWS = 1 << 20


class Item(NamedTuple):
    """A continuation to be scored: tokens that are given, those that are scored, and an end of text, or nothing."""

    prefix: tuple[int, ...]
    target: tuple[int, ...]
    suffix: tuple[int, ...] = ()

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.prefix, *self.target, *self.suffix)


class Draws(NamedTuple):
    """Masks of an item, and the weight of each in the estimate."""

    is_masked: Bool[Tensor, "N L"]
    weights: Float[Tensor, " N"]

    def sparing(self, num: int) -> "Draws":
        """The same where the first `num` tokens are given: not masked, and not counted in the mean over all."""
        is_masked, length = self.is_masked.clone(), self.is_masked.shape[1]
        is_masked[:, :num] = False
        return Draws(is_masked, self.weights * length / (length - num))


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """A convention, and what is spent on it. Causal models need neither."""

    name: ScoringName = "duo"
    draws: int = 128
    """Masks drawn for each continuation."""
    num_iters: int = 6
    """Solver iterations of a pass; a plain stack has none."""
    seed: int = 0
    batch_size: int = 32
    num_given: int = 0
    """How many tokens at the beginning of an item the model has never had to guess; `duo` leaves them out."""

    def __post_init__(self) -> None:
        require("draws", self.draws, 1, MAX_DRAWS)
        require("num_iters", self.num_iters, 1, MAX_DRAWS)
        require("batch_size", self.batch_size, 1, MAX_DRAWS)


@torch.no_grad()
def scores(denoiser: Denoiser, items: Sequence[Item], scoring: Scoring) -> list[float]:
    """The log-likelihood of each continuation, as the convention has it, in nats; exact for a causal model."""
    with evaluating(denoiser):
        if denoiser.is_causal:
            return [nats for nats, _ in _read_causally(denoiser, items, scoring)]
        drawn = [draw_masks(item, scoring) for item in items]
        return _estimates(denoiser, items, drawn, scoring)


@torch.no_grad()
def are_greedy(denoiser: Denoiser, items: Sequence[Item], scoring: Scoring) -> list[bool]:
    """Whether the model would write each continuation if it always took the most probable token.

    `duo` masks all its tokens at once and takes them from one pass. `smdm` and `llada` reveal one after the other, the
    surest first.
    """
    with evaluating(denoiser):
        if denoiser.is_causal:
            return [is_greedy for _, is_greedy in _read_causally(denoiser, items, scoring)]
        at_once = scoring.name == "duo"
        return [_is_greedy(denoiser, item, scoring.num_iters, at_once=at_once) for item in items]


def draw_masks(item: Item, scoring: Scoring) -> Draws:
    """The masks of an item. Items with one prefix share random numbers, so that choices differ by what they say."""
    rng = generator(scoring.seed, zlib.crc32(repr(item.prefix).encode()))
    drawn = DRAWN[scoring.name](item, scoring.draws, rng)
    return drawn.sparing(scoring.num_given) if scoring.name == "duo" and scoring.num_given else drawn


def _draw_all(item: Item, num: int, rng: Generator) -> Draws:
    t = stratified_times(num, rng=rng)
    length = len(item.tokens)
    u = torch.rand(length, num, generator=rng).T  # by position first, so that equal prefixes have equal numbers
    return Draws(u < t[:, None], 1 / (t * length))


def _draw_by_chance(item: Item, num: int, rng: Generator) -> Draws:
    t = stratified_times(num, rng=rng)
    u = torch.rand(len(item.target), num, generator=rng).T
    return Draws(_in_target(item, u < t[:, None]), 1 / t)


def _draw_by_count(item: Item, num: int, rng: Generator) -> Draws:
    """The counts go evenly round 1 to the number of tokens, from one that is drawn."""
    length = len(item.target)
    begin = int(torch.randint(length, (), generator=rng))
    counts = (begin + torch.arange(num) * length // num) % length + 1
    u = torch.rand(length, num, generator=rng).T
    ranks = u.argsort(dim=1).argsort(dim=1)
    return Draws(_in_target(item, ranks < counts[:, None]), length / counts)


DRAWN = {"duo": _draw_all, "smdm": _draw_by_chance, "llada": _draw_by_count}


def _in_target(item: Item, is_masked: Bool[Tensor, "N T"]) -> Bool[Tensor, "N L"]:
    before = is_masked.new_zeros(len(is_masked), len(item.prefix))
    return torch.cat([before, is_masked, is_masked.new_zeros(len(is_masked), len(item.suffix))], dim=1)


class _Row(NamedTuple):
    """A mask of an item to be computed, and what it weighs in the item's estimate."""

    item: int
    is_masked: Tensor
    weight: float


def _rows(index: int, drawn: Draws) -> Iterator[_Row]:
    """The different masks of an item; those that were drawn several times are computed once."""
    masks, which = torch.unique(drawn.is_masked, dim=0, return_inverse=True)
    weights = torch.zeros(len(masks), dtype=torch.float64).index_add(0, which, drawn.weights.double())
    for mask, weight in zip(masks, (weights / len(drawn.weights)).tolist(), strict=True):
        if mask.any():
            yield _Row(index, mask, weight)


def _estimates(denoiser: Denoiser, items: Sequence[Item], drawn: Sequence[Draws], scoring: Scoring) -> list[float]:
    found = [0.0] * len(items)
    rows = [row for index, draws in enumerate(drawn) for row in _rows(index, draws)]
    device = next(denoiser.parameters(), torch.empty(0)).device
    with Progress("scoring", len(rows), unit="passes", patience=3.0) as progress:
        for batch in batches([len(row.is_masked) for row in rows], scoring.batch_size):
            chosen = [rows[index] for index in batch]
            x = torch.tensor([items[row.item].tokens for row in chosen], device=device)
            is_masked = torch.stack([row.is_masked for row in chosen]).to(device)
            nats = _masked_nats(denoiser, x, is_masked, scoring.num_iters).tolist()
            for row, value in zip(chosen, nats, strict=True):
                found[row.item] -= row.weight * value
            progress.reach(progress.done + len(batch))
    return found


def batches(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Indices of rows of equal length, so that nothing is padded; the longest first, so that memory fails early.

    >>> list(batches([3, 5, 3, 3], 2))
    [[1], [0, 2], [3]]
    """
    by_length: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        by_length.setdefault(length, []).append(index)
    for length in sorted(by_length, reverse=True):
        indices = by_length[length]
        for first in range(0, len(indices), batch_size):
            yield indices[first : first + batch_size]


def _masked_nats(denoiser: Denoiser, x: Tokens, is_masked: Positions, num_iters: int) -> PerSequence:
    """-log p of the masked tokens of each sequence, summed."""
    nll = token_nll(denoiser, _features(denoiser, x, is_masked, num_iters), x[is_masked])
    return torch.zeros(x.shape, dtype=nll.dtype, device=x.device).masked_scatter(is_masked, nll).double().sum(dim=1)


def _features(denoiser: Denoiser, x: Tokens, is_masked: Positions, num_iters: int) -> Tensor:
    """What the head reads at masked positions. Networks that see the time are told the share that is masked."""
    z = torch.where(is_masked, denoiser.mask_id, x)
    t = is_masked.float().mean(dim=1)
    return denoiser(z, t, is_masked, num_grad=num_iters if denoiser.cost.fp else 0).features


def _is_greedy(denoiser: Denoiser, item: Item, num_iters: int, *, at_once: bool) -> bool:
    device = next(denoiser.parameters(), torch.empty(0)).device
    x = torch.tensor([item.tokens], device=device)
    is_masked = _in_target(item, torch.ones(1, len(item.target), dtype=torch.bool)).to(device)
    while is_masked.any():
        logits = denoiser.head(_features(denoiser, x, is_masked, num_iters))
        p = without_mask(logits, mask_id=denoiser.mask_id).softmax(dim=-1)
        is_right = p.argmax(dim=-1) == x[is_masked]
        if at_once:
            return bool(is_right.all())
        surest = int(p.amax(dim=-1).argmax())
        if not is_right[surest]:
            return False
        place = is_masked[0].nonzero()[surest, 0]
        is_masked[0, place] = False
    return True


def _read_causally(denoiser: Denoiser, items: Sequence[Item], scoring: Scoring) -> list[tuple[float, bool]]:
    """The exact log-likelihood of each target, and whether every token of it is the most probable one."""
    found = [(0.0, False)] * len(items)
    device = next(denoiser.parameters(), torch.empty(0)).device
    with Progress("scoring", len(items), unit="passes", patience=3.0) as progress:
        for batch in batches([len(item.prefix) + len(item.target) for item in items], scoring.batch_size):
            chosen = [items[index] for index in batch]
            x = torch.tensor([(*item.prefix, *item.target) for item in chosen], device=device)
            is_before = torch.zeros_like(x, dtype=torch.bool)
            for row, item in enumerate(chosen):
                is_before[row, len(item.prefix) - 1 : -1] = True
            logits = denoiser.head(denoiser(x, 0.0, is_before).features)
            parts = _by_item(logits, [item.target for item in chosen])
            for index, result in zip(batch, parts, strict=True):
                found[index] = result
            progress.reach(progress.done + len(batch))
    return found


def _by_item(logits: Logits, targets: Sequence[tuple[int, ...]]) -> Iterator[tuple[float, bool]]:
    tokens = torch.tensor([token for target in targets for token in target], device=logits.device)
    nats = logits.double().log_softmax(dim=-1).gather(1, tokens[:, None])[:, 0]
    is_right = logits.argmax(dim=-1) == tokens
    sizes = [len(target) for target in targets]
    for own, right in zip(nats.split(sizes), is_right.split(sizes), strict=True):
        yield float(own.sum()), bool(right.all())
