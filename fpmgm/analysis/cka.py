"""Linear CKA between the layers of a denoiser: which of them see the tokens alike, and where that changes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, combinations_with_replacement
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from fpmgm.analysis.layers import States, layer_names, layer_states
from fpmgm.denoiser import Denoiser, evaluating
from fpmgm.interop.layer_map import LayerMap
from fpmgm.masking import masked_below
from fpmgm.progress import tracked
from fpmgm.types import Batch, Positions, Tokens, Uniforms

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
    batch: Tokens | Batch,
    *,
    rng: Generator,
    times: Sequence[float] = TIMES,
    num_iters: int = 6,
    batch_size: int = 8,
    on_time: Callable[[float], None] | None = None,
) -> LayerSimilarity:
    """Linear CKA between all layers, of the states at all positions but padding, masked at each time.

    A later time masks what an earlier one does and more. `num_iters` solver iterations; none for a plain stack.
    """
    if denoiser.is_causal:
        raise ValueError("the model is causal; layers are compared at times t, which only masked models have")
    batch = Batch.of(batch)
    x, is_real = batch.x, batch.is_real
    u = batch.sparing(torch.rand(x.shape, generator=rng).to(x.device))
    with evaluating(denoiser):
        by_time = []
        for t in times:
            if on_time:
                on_time(t)
            by_time.append(linear_cka(_states(denoiser, x, is_real, u, t, num_iters, batch_size)))
    names = layer_names(denoiser.cost, num_iters)
    return LayerSimilarity(layers=names, times=tuple(times), by_time=torch.stack(by_time).cpu())


def _states(
    denoiser: Denoiser, x: Tokens, is_real: Positions, u: Uniforms, t: float, num_iters: int, batch_size: int
) -> Iterator[States]:
    for rows in tracked(torch.arange(len(x), device=x.device).split(batch_size), f"comparing layers at t = {t:g}"):
        time = torch.full((len(rows),), t, device=x.device)
        z = masked_below(x[rows], u[rows], time, mask_id=denoiser.mask_id)
        yield torch.stack([h[is_real[rows]] for h in layer_states(denoiser, z, t, num_iters=num_iters)])


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """A cut between two neighbouring layers, and how alike the layers on its two sides are."""

    after: int
    """The last early layer, counted from 1."""
    cka: float
    """Of the two layers that it lies between."""
    early: float
    """The mean of all pairs of early layers; 1 if there is only one."""
    late: float
    across: float
    """The mean of all pairs of an early and a late layer."""


def strongest_boundary(similarity: Similarity, *, num_late: int = 1) -> Boundary:
    """The cut where neighbours are least alike, of those that leave at least `num_late` late layers.

    >>> group = torch.tensor([0, 0, 1, 1, 1])
    >>> strongest_boundary(0.1 + 0.9 * (group == group[:, None]).float()).after
    2
    """
    if len(similarity) <= num_late:
        raise ValueError(f"the number of layers is {len(similarity)}; a boundary needs at least {num_late + 1}")
    after = int(similarity.diagonal(1)[: len(similarity) - num_late].argmin()) + 1
    return Boundary(
        after=after,
        cka=float(similarity[after - 1, after]),
        early=_mean_of_pairs(similarity[:after, :after]),
        late=_mean_of_pairs(similarity[after:, after:]),
        across=float(similarity[:after, after:].mean()),
    )


def _mean_of_pairs(similarity: Similarity) -> float:
    pairs = similarity[torch.ones_like(similarity).triu(1).bool()]
    return float(pairs.mean()) if len(pairs) else 1.0


def choose_map(denoiser: Denoiser, batch: Tokens | Batch, *, rng: Generator) -> LayerMap:
    """The layer map of a plain stack by its CKA on a batch, averaged over times: `map_of`."""
    if denoiser.cost.fp:
        raise ValueError("the model has a fixed point already; a layer map is chosen for plain stacks")
    return map_of(layer_similarity(denoiser, batch, rng=rng).mean)


def map_of(similarity: Similarity) -> LayerMap:
    """The first layer before, the layer after the strongest boundary as fixed point, the last layer behind.

    The paper's rule. Its neighbours are least alike at 5 and 6, and the layers 6-12 are so alike that they refine one
    representation: the layer that enters it becomes the shared block, and the layers at both ends stay. At least two
    layers are late, so that the fixed point and the last layer are different ones.
    """
    if len(similarity) < 3:
        raise ValueError(f"a layer map is chosen among at least 3 layers, and the model has {len(similarity)}")
    late = strongest_boundary(similarity, num_late=2).after + 1
    return LayerMap((1,), (late,), (len(similarity),))


def summary(similarity: LayerSimilarity, *, is_plain: bool) -> dict[str, Any]:
    """What CKA says of the layers, as JSON can hold it; a map only of a plain stack of three layers or more."""
    mean = similarity.mean
    return {
        "layers": similarity.layers,
        "times": similarity.times,
        "cka": mean.tolist(),
        "cka_by_time": similarity.by_time.tolist(),
        "consecutive": mean.diagonal(1).tolist(),
        "boundary": asdict(strongest_boundary(mean)),
        "boundary_by_time": [strongest_boundary(at).after for at in similarity.by_time],
        "map": str(map_of(mean)) if is_plain and len(mean) >= 3 else "",
    }
