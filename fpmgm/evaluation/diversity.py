"""Diversity of samples."""

import torch

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


def distinct(tokens: Tokens, n: int) -> float:
    """Distinct-n: the share of different n-grams among all of the sequences together, 1 if none occurs twice.

    >>> distinct(torch.tensor([[1, 2, 1, 2], [3, 4, 5, 6]]), 2)  # 12 21 12 34 45 56
    0.8333333333333334
    """
    if not 1 <= n <= tokens.shape[1]:
        raise ValueError(f"n is {n}; sequences of {tokens.shape[1]} tokens have n-grams of 1 to {tokens.shape[1]}")
    grams = tokens.unfold(1, n, 1).flatten(0, 1)
    return len(grams.unique(dim=0)) / len(grams)
