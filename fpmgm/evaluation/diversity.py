"""Diversity of samples."""

import torch
from jaxtyping import Int
from torch import Tensor

from fpmgm.types import PerSequence, Tokens


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
