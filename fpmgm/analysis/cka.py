"""Linear CKA between the layers of a denoiser: which of them see the tokens alike, and where that changes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations_with_replacement

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from fpmgm.analysis.layers import States, layer_names, layer_states
from fpmgm.denoiser import Denoiser
from fpmgm.layer_map import LayerMap
from fpmgm.masking import masked_below
from fpmgm.types import Tokens, Uniforms

TIMES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""The paper's."""

Similarity = Float[Tensor, "K K"]


def linear_cka(batches: Iterable[States]) -> Similarity:
    """|X'Y|^2 / (|X'X| |Y'Y|) of every pair of layers, with centred columns and Frobenius norms.

    Each batch holds the states of some tokens in every layer. Only sums over tokens are kept, in float64: memory grows
    with layers and width, not with tokens.
    """
    batches = iter(batches)
    first = next(batches, None)
    if first is None:
        raise ValueError("there are no tokens to compare layers on; give at least two")
    num_layers, num_tokens, width = len(first), 0, first.shape[-1]
    origin = first.double().mean(dim=1, keepdim=True)  # near the mean of all, so that little cancels in the end
    sums = torch.zeros_like(origin[:, 0])
    pairs = list(combinations_with_replacement(range(num_layers), 2))
    products = sums.new_zeros(len(pairs), width, width)
    for batch in chain([first], batches):
        x = batch.double() - origin
        num_tokens += x.shape[1]
        sums += x.sum(dim=1)
        for product, (i, j) in zip(products, pairs, strict=True):
            product.addmm_(x[i].mT, x[j])
    squares = sums.new_zeros(num_layers, num_layers)
    for product, (i, j) in zip(products, pairs, strict=True):
        product.addr_(sums[i], sums[j], alpha=-1 / num_tokens)  # now X'Y of centred columns
        squares[i, j] = squares[j, i] = product.square().sum()
    norms = squares.diagonal().sqrt()
    if not bool((norms > 0).all()):
        raise ValueError("some layer has the same state at every token, or one that is no number; CKA is undefined")
    return squares / torch.outer(norms, norms)


@dataclass(frozen=True, kw_only=True)
class LayerSimilarity:
    """CKA between all layers of a denoiser, at several times."""

    layers: tuple[str, ...]
    times: tuple[float, ...]
    by_time: Float[Tensor, "T K K"]

    @property
    def mean(self) -> Similarity:
        """The average over times."""
        return self.by_time.mean(dim=0)


@torch.no_grad()
def layer_similarity(
    denoiser: Denoiser,
    x: Tokens,
    *,
    rng: Generator,
    times: Sequence[float] = TIMES,
    num_iters: int = 6,
    batch_size: int = 8,
) -> LayerSimilarity:
    """Linear CKA between all layers, of the states at all positions of x, masked at each time.

    A later time masks what an earlier one does and more. `num_iters` solver iterations; none for a plain stack.
    """
    if denoiser.is_causal:
        raise ValueError("the model is causal; layers are compared at times t, which only masked models have")
    u = torch.rand(x.shape, generator=rng).to(x.device)
    was_training = denoiser.training
    denoiser.eval()
    try:
        by_time = [linear_cka(_states(denoiser, x, u, t, num_iters, batch_size)) for t in times]
    finally:
        denoiser.train(was_training)
    names = layer_names(denoiser.cost, num_iters)
    return LayerSimilarity(layers=names, times=tuple(times), by_time=torch.stack(by_time).cpu())


def _states(denoiser: Denoiser, x: Tokens, u: Uniforms, t: float, num_iters: int, batch_size: int) -> Iterator[States]:
    for rows in torch.arange(len(x), device=x.device).split(batch_size):
        time = torch.full((len(rows),), t, device=x.device)
        z = masked_below(x[rows], u[rows], time, mask_id=denoiser.mask_id)
        yield torch.stack([h.flatten(0, 1) for h in layer_states(denoiser, z, t, num_iters=num_iters)])


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """A cut of the layers into an early and a late group, and the mean CKA of different layers in and across them."""

    after: int
    """The last early layer, counted from 1."""
    early: float
    late: float
    across: float
    contrast: float
    """Mean CKA of pairs in the same group, less that of pairs across."""


def strongest_boundary(similarity: Similarity, *, num_late: int = 1) -> Boundary:
    """The cut of largest contrast that leaves at least `num_late` late layers.

    >>> groups = torch.tensor([0, 0, 1, 1, 1])
    >>> strongest_boundary(0.1 + 0.9 * (groups == groups[:, None]).float()).after
    2
    """
    cuts = range(1, len(similarity) - num_late + 1)
    if not cuts:
        raise ValueError(f"{len(similarity)} layers; a boundary needs at least {num_late + 1}")
    return max((_cut(similarity, after) for after in cuts), key=lambda boundary: boundary.contrast)


def _cut(similarity: Similarity, after: int) -> Boundary:
    early, late = _pairs(similarity[:after, :after]), _pairs(similarity[after:, after:])
    across = _mean(similarity[:after, after:].flatten())
    within = _mean(torch.cat([early, late]))
    return Boundary(after=after, early=_mean(early), late=_mean(late), across=across, contrast=within - across)


def _pairs(square: Similarity) -> Float[Tensor, " P"]:
    """The similarities of different layers, each pair once."""
    return square[torch.triu(torch.ones_like(square), diagonal=1).bool()]


def _mean(similarities: Float[Tensor, " P"]) -> float:
    """Of a group of one layer, which has no pairs, 1: it is like itself."""
    return float(similarities.mean()) if len(similarities) else 1.0


def choose_map(denoiser: Denoiser, x: Tokens, *, rng: Generator) -> LayerMap:
    """The layer map of a plain stack by its CKA on x, averaged over times: `map_of`."""
    if denoiser.cost.fp:
        raise ValueError("the model has a fixed point already; a layer map is chosen for plain stacks")
    return map_of(layer_similarity(denoiser, x, rng=rng).mean)


def map_of(similarity: Similarity) -> LayerMap:
    """The first layer before, the first layer after the strongest boundary as fixed point, the last layer behind.

    The paper's rule: its late layers 6-12 are so alike that they refine one representation, so the layer that enters
    it starts the shared block, and the layers at both ends stay. The late group has two layers at least, so that the
    fixed point and the last are different ones; below three layers that cannot be.
    """
    if len(similarity) < 3:
        raise ValueError(f"a layer map is chosen among at least 3 layers, and the model has {len(similarity)}")
    late = strongest_boundary(similarity, num_late=2).after + 1
    return LayerMap((1,), (late,), (len(similarity),))
