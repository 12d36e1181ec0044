"""Diversity of samples: within each of them, and between them."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fpmgm.types import PerSequence, Tokens

PerSet = Float[np.ndarray, " B"]
"""A number of the set without each of its sequences."""


def unigram_entropy(tokens: Tokens) -> PerSequence:
    """The entropy, in nats, of each sequence's own token frequencies: log L if all L tokens differ.

    >>> unigram_entropy(torch.tensor([[5, 5, 5, 5], [1, 2, 3, 4]]))
    tensor([0.0000, 1.3863])
    """
    entropies = []
    for sequence in tokens:
        share = sequence.unique(return_counts=True)[1].double() / len(sequence)
        entropies.append((share * -share.log()).sum())
    return torch.stack(entropies).float()


def distinct_counts(tokens: Tokens, n: int) -> tuple[PerSequence, int]:
    """Distinct-n: how many different n-grams each sequence has, and how many it has in all.

    >>> distinct_counts(torch.tensor([[1, 2, 1, 2], [3, 4, 5, 6]]), 2)  # 12 21 12, and 34 45 56
    (tensor([2., 3.]), 3)
    """
    grams = _grams(tokens, n)
    return torch.tensor([float(len(own.unique(dim=0))) for own in grams]), grams.shape[1]


def repetition(tokens: Tokens, n: int) -> PerSequence:
    """The share of each sequence's n-grams that occur in it more than once: 0 if none does.

    >>> repetition(torch.tensor([[1, 2, 1, 2, 3], [1, 2, 3, 4, 5]]), 2)  # 12 21 12 23: two of four
    tensor([0.5000, 0.0000])
    """
    shares = []
    for own in _grams(tokens, n):
        counts = own.unique(dim=0, return_counts=True)[1]
        shares.append(counts[counts > 1].sum() / len(own))
    return torch.stack(shares)


def _grams(tokens: Tokens, n: int) -> Int[Tensor, "B N n"]:
    if not 1 <= n <= tokens.shape[1]:
        raise ValueError(f"n is {n}; sequences of {tokens.shape[1]} tokens have n-grams of 1 to {tokens.shape[1]}")
    return tokens.unfold(1, n, 1)


class SetDiversity(NamedTuple):
    """How different samples are from each other, and the same without each of them in turn."""

    distinct: float
    """Different n-grams of the whole set, as a share of all its n-grams. It falls as samples are added."""
    overlap: float
    """The share of a sample's n-grams that occur in another sample, mean over samples: 1 if all are the same text."""
    distinct_without: PerSet
    overlap_without: PerSet


def set_diversity(tokens: Tokens, n: int = 4) -> SetDiversity:
    """How different samples are from each other, by their n-grams; unigram entropy looks at each sample alone.

    >>> two = torch.tensor([[1, 2, 3], [1, 2, 4], [5, 6, 7]])  # 12 23, 12 24, 56 67: 12 is in two of them
    >>> set_diversity(two, 2)[:2]
    (0.8333333333333334, 0.3333333333333333)
    """
    grams = _numbered(_grams(tokens, n).numpy())
    num, each = grams.shape
    size = int(grams.max()) + 1
    held, times = np.unique(np.arange(num)[:, None] * size + grams, return_counts=True)
    sample, gram = np.divmod(held, size)  # every n-gram of every sample once
    spread = np.bincount(gram, minlength=size)  # how many samples have it
    is_shared = spread[gram] > 1
    shares = np.bincount(sample, is_shared * times, minlength=num) / each
    own = np.bincount(sample, spread[gram] == 1, minlength=num)  # n-grams that leave the set with this sample
    total = np.bincount(gram, np.where(spread[gram] == 2, times, 0), minlength=size)
    partners = np.bincount(sample, np.where(spread[gram] == 2, total[gram] - times, 0), minlength=num) / each
    without = max(1, num - 1)
    return SetDiversity(
        distinct=size / grams.size,
        overlap=float(shares.mean()),
        distinct_without=(size - own) / (without * each),
        overlap_without=(shares.sum() - shares - partners) / without,
    )


def _numbered(grams: Int[np.ndarray, "B N n"]) -> Int[np.ndarray, "B N"]:
    """Each n-gram as a number, the same for the same n-gram, without gaps."""
    numbers = np.unique(grams[..., 0], return_inverse=True)[1]
    for place in range(1, grams.shape[-1]):
        joined = numbers.reshape(grams.shape[:2]) * (int(grams.max()) + 1) + grams[..., place]
        numbers = np.unique(joined, return_inverse=True)[1]
    return numbers.reshape(grams.shape[:2])
