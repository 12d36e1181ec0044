"""Stories drawn from the source at temperature 1: in batches, with cached keys and values, one random stream a story.

All stories of a batch are at the same position, so attention reads only what has been written. The place of a story
that has ended is taken by the last one of its batch, so nothing is computed for ended stories. (Starting a new story
there would mix positions, and attention would then have to read all positions for every story.)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, UInt16
from torch import Tensor
from torch.nn import functional

from fpmgm.data.stories_source import BEGIN, Source, finished, normed, projections
from fpmgm.draws import categorical
from fpmgm.randomness import Streams

Story = UInt16[np.ndarray, " _"]


@dataclass(frozen=True, kw_only=True)
class Head:
    """The rows of the source's head that can be drawn."""

    rows: Int[Tensor, " R"]
    weight: Float[Tensor, "R D"]

    @classmethod
    def of(cls, source: Source, rows: Tensor | None = None) -> "Head":
        """The rows given, in order, or all of them."""
        rows = torch.arange(source.num_symbols) if rows is None else rows
        return cls(rows=rows, weight=source.embedding[rows].contiguous())


class Cache:
    """Keys and values of a batch of stories, (layers, stories, heads, positions, width of a head) each."""

    def __init__(self, source: Source, num_stories: int) -> None:
        heads, width = source.num_heads, source.embedding.shape[1] // source.num_heads
        shape = (len(source.layers), num_stories, heads, source.num_positions, width)
        self.keys, self.values = torch.empty(shape), torch.empty(shape)

    def move(self, place: int, to: int, num_positions: int) -> None:
        """Put what is known of one story where another one was."""
        for cached in (self.keys, self.values):
            cached[:, to, :, :num_positions] = cached[:, place, :, :num_positions]


def sample_stories(
    source: Source, head: Head, *, seed: int, indices: Sequence[int], batch_size: int = 128, tally: Tensor | None = None
) -> Iterator[list[Story]]:
    """The stories of these indices, batch by batch: what the source writes after `BEGIN`.

    A story ends with `BEGIN`, or without it when all positions are used. To `tally`, a float64 tensor with an entry
    for each row of the head, the probabilities are added that each row had at each token drawn.
    """
    cache = Cache(source, min(batch_size, len(indices)))
    for first in range(0, len(indices), batch_size):
        yield _sample_batch(source, head, cache, Streams.of(seed, indices[first : first + batch_size]), tally)


@torch.inference_mode()
def _sample_batch(source: Source, head: Head, cache: Cache, streams: Streams, tally: Tensor | None) -> list[Story]:
    uniforms = streams.uniform(source.num_positions)
    drawn = np.full((len(streams), source.num_positions), BEGIN, np.uint16)
    lengths = np.full(len(streams), source.num_positions)
    running = np.arange(len(streams))  # the story at each place of the batch
    tokens = torch.full((len(streams),), BEGIN)
    for position in range(source.num_positions):
        scores = functional.linear(advance(source, cache, tokens, position), head.weight)
        if tally is not None:
            tally += scores.softmax(dim=-1).sum(dim=0)
        tokens = head.rows[categorical(scores.double(), uniforms[running, position])]
        drawn[running, position] = tokens.numpy()
        for place in reversed((tokens == BEGIN).nonzero()[:, 0].tolist()):
            lengths[running[place]] = position + 1
            end = len(running) - 1
            cache.move(end, place, position + 1)
            running[place], tokens[place] = running[end], tokens[end]
            running, tokens = running[:end], tokens[:end]
        if len(running) == 0:
            break
    return [story[:length] for story, length in zip(drawn, lengths, strict=True)]


def advance(source: Source, cache: Cache, tokens: Int[Tensor, " N"], position: int) -> Float[Tensor, "N D"]:
    """What the head reads after these tokens at this position; their keys and values are added to the cache."""
    cosines, sines = source.cosines[position], source.sines[position]
    h = source.embedding[tokens]
    for index, layer in enumerate(source.layers):
        query, key, value = projections(source, layer, h, cosines, sines)
        keys, values = cache.keys[index, : len(tokens)], cache.values[index, : len(tokens)]
        keys[:, :, position], values[:, :, position] = key, value
        known = slice(position + 1)
        mixed = functional.scaled_dot_product_attention(query[:, :, None], keys[:, :, known], values[:, :, known])
        h = finished(layer, h, mixed.flatten(1))
    return normed(h, source.final_norm)
