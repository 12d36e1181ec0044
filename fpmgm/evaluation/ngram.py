"""N-gram models with interpolated Kneser-Ney smoothing or stupid backoff: the floor of what a neural model must reach.

N-grams are numbers in base V, sorted; looking one up is a binary search. Orders up to 5 fit for V up to 7131.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Integer

TokenRows = Integer[np.ndarray, "_ L"]
Grams = Int[np.ndarray, " K"]


class Order(NamedTuple):
    """Counts of all n-grams of one length, and of the contexts they begin with."""

    grams: Grams
    counts: Float[np.ndarray, " K"]
    contexts: Int[np.ndarray, " C"]
    totals: Float[np.ndarray, " C"]  # counts of a context, over all words that follow it
    num_words: Float[np.ndarray, " C"]  # how many different words follow it
    discount: float


@dataclass(frozen=True)
class KneserNey:
    """log p(word | the n - 1 words before it)."""

    orders: tuple[Order, ...]  # from one word up to n
    vocab_size: int

    def nats(self, rows: TokenRows) -> Float[np.ndarray, "N L"]:
        """-log p of every token of every row, given those before it in the row."""
        grams = _grams(rows, len(self.orders), self.vocab_size)
        p = np.full(rows.shape, 1 / self.vocab_size)
        for n, order in enumerate(self.orders, 1):
            p = _interpolate(order, grams % self.vocab_size**n, p, self.vocab_size)
        return -np.log(p)


def kneser_ney(rows: TokenRows, *, n: int, vocab_size: int) -> KneserNey:
    """Count the n-grams of the rows; a row is preceded by as many copies of its first token as a context needs."""
    grams, counts = np.unique(_grams(rows, n, vocab_size), return_counts=True)
    orders = [_order(grams, counts, vocab_size)]
    for length in range(n - 1, 0, -1):
        # Below the highest order a gram counts once for every different word before it.
        grams, counts = np.unique(grams % vocab_size**length, return_counts=True)
        orders.append(_order(grams, counts, vocab_size))
    return KneserNey(tuple(reversed(orders)), vocab_size)


@dataclass(frozen=True)
class StupidBackoff:
    """The share of the longest context seen with the word, times 0.4 for every word dropped from it.

    Brants et al. (2007). The scores of all words do not add up to one, so their "perplexity" is one in name only.
    """

    orders: tuple[Order, ...]  # from one word up to n
    vocab_size: int
    factor: float = 0.4

    def nats(self, rows: TokenRows) -> Float[np.ndarray, "N L"]:
        """-log of the score of every token of every row, given those before it in the row."""
        grams = _grams(rows, len(self.orders), self.vocab_size)
        score = np.full(rows.shape, 1 / self.vocab_size)
        for n, order in enumerate(self.orders, 1):
            gram = grams % self.vocab_size**n
            count = _look_up(order.grams, order.counts, gram)
            total = _look_up(order.contexts, order.totals, gram // self.vocab_size)
            score = np.where(count > 0, count / np.maximum(total, 1), self.factor * score)
        return -np.log(score)


def stupid_backoff(rows: TokenRows, *, n: int, vocab_size: int) -> StupidBackoff:
    """Count the n-grams of the rows and all shorter ones, each as often as it occurs."""
    grams, counts = np.unique(_grams(rows, n, vocab_size), return_counts=True)
    orders = [_order(grams, counts, vocab_size)]
    for length in range(n - 1, 0, -1):
        grams, longer = np.unique(grams % vocab_size**length, return_inverse=True)
        counts = np.bincount(longer, weights=counts).astype(np.int64)
        orders.append(_order(grams, counts, vocab_size))
    return StupidBackoff(tuple(reversed(orders)), vocab_size)


def floors(
    train: TokenRows, validation: TokenRows, *, n: int = 5, vocab_size: int, num_given: int = 0
) -> dict[str, float]:
    """Perplexity per token of the validation rows under both models of the training rows, by name.

    The first `num_given` tokens of each row do not count.
    """
    return {
        build.__name__: float(np.exp(build(train, n=n, vocab_size=vocab_size).nats(validation)[:, num_given:].mean()))
        for build in (kneser_ney, stupid_backoff)
    }


def _grams(rows: TokenRows, n: int, vocab_size: int) -> Int[np.ndarray, "N L"]:
    """The n-gram that ends at each token, as a number."""
    if vocab_size**n >= 1 << 63:
        raise ValueError(f"{n}-grams over {vocab_size} symbols do not fit into 63 bits; take a smaller n")
    first = np.repeat(rows[:, :1], n - 1, axis=1)
    padded = np.concatenate([first, rows], axis=1).astype(np.int64)
    found = np.zeros(rows.shape, np.int64)
    for offset in range(n):
        found = found * vocab_size + padded[:, offset : offset + rows.shape[1]]
    return found


def _order(grams: Grams, counts: np.ndarray, vocab_size: int) -> Order:
    contexts, starts = np.unique(grams // vocab_size, return_index=True)
    totals = np.add.reduceat(counts, starts).astype(float)
    num_words = np.diff([*starts, len(grams)]).astype(float)
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    discount = once / (once + 2 * twice) if once else 0.5
    return Order(grams, counts.astype(float), contexts, totals, num_words, discount)


def _interpolate(order: Order, grams: np.ndarray, lower: np.ndarray, vocab_size: int) -> np.ndarray:
    """max(count - D, 0) / total + D * different words / total * p of the next lower order."""
    count = _look_up(order.grams, order.counts, grams)
    total = _look_up(order.contexts, order.totals, grams // vocab_size)
    num_words = _look_up(order.contexts, order.num_words, grams // vocab_size)
    seen = total > 0
    p = lower.copy()
    kept = np.maximum(count[seen] - order.discount, 0) / total[seen]
    p[seen] = kept + order.discount * num_words[seen] / total[seen] * lower[seen]
    return p


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    index = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[index] == wanted, values[index], 0.0)
