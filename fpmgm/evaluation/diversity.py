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
