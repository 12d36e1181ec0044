"""The layers of a denoiser as an analysis sees them: one state for every block that is run."""

from collections.abc import Iterator

from jaxtyping import Float
from torch import Tensor

from fpmgm.budget import Cost
from fpmgm.denoiser import Denoiser
from fpmgm.types import Hidden, Tokens

States = Float[Tensor, "K N D"]  # of K layers, at the same N tokens


def layer_names(cost: Cost, num_iters: int) -> tuple[str, ...]:
    """What the states of `layer_states` are called: of a plain stack 1, 2, ...

    >>> layer_names(Cost(1, 1, 1), 2)
    ('pre 1', 'iteration 1', 'iteration 2', 'post 1')
    """
    if cost.fp == 0:
        return tuple(str(layer) for layer in range(1, cost.pre + 1))
    counts = {"pre": cost.pre, "iteration": num_iters, "post": cost.post}
    return tuple(f"{part} {index}" for part, num in counts.items() for index in range(1, num + 1))


def layer_states(denoiser: Denoiser, z: Tokens, t: float, *, num_iters: int) -> Iterator[Hidden]:
    """The residual stream after every block, at all positions but the network's registers.

    The blocks of a fixed point count as one layer for each of `num_iters` Picard iterations from h_pre; a plain stack
    has none.
    """
    cost, backbone = denoiser.cost, denoiser.backbone
    cond = denoiser.condition(z, t)
    h = backbone.embed(z)
    for index in range(cost.pre):
        h = backbone.run_block(index, h, cond)
        yield h[:, : z.shape[1]]
    if cost.fp:
        f = denoiser.fixed_point_map(h, cond)
        for _ in range(num_iters):
            h = f(h)
            yield h[:, : z.shape[1]]
    for index in range(cost.pre + cost.fp, len(backbone.blocks)):
        h = backbone.run_block(index, h, cond)
        yield h[:, : z.shape[1]]
