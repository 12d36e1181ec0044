"""Stand-ins with given answers: a denoiser whose conditional probabilities are a table, and what they imply."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor, nn

from fpmgm.budget import Cost
from fpmgm.denoiser import Denoiser
from fpmgm.injection import Injection
from fpmgm.randomness import generator
from fpmgm.types import Places

LENGTH = 3
NUM_SYMBOLS = 4
MASK = NUM_SYMBOLS

Distribution = dict[tuple[int, ...], float]


@dataclass(frozen=True)
class NoConditioning:
    def rows(self, rows: Tensor) -> "NoConditioning":
        return self


class PassingBackbone(nn.Module):
    """Blocks and head that pass on what `embed` gives."""

    vocab_size: int

    def condition(self, z: Tensor, t: Any, label: Any = None) -> NoConditioning:
        return NoConditioning()

    def run_block(self, index: int, h: Tensor, cond: Any) -> Tensor:
        return h

    def run_block_at(self, index: int, h: Tensor, cond: Any, places: Places) -> Tensor:
        return places.take(h)

    def finish(self, features: Tensor, cond: Any, places: Places) -> Tensor:
        return features

    def head_weights(self) -> tuple[Tensor, Tensor]:
        return torch.eye(self.vocab_size), torch.zeros(self.vocab_size)


class GivenBackbone(PassingBackbone):
    """Hidden states are the logits themselves: log p(x_i | z) for every z, and a large logit for the mask."""

    mask_id = MASK
    vocab_size = NUM_SYMBOLS + 1
    max_length = LENGTH
    is_causal = False

    def __init__(self, num_blocks: int, seed: int = 0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Identity() for _ in range(num_blocks))
        shape = (*[NUM_SYMBOLS + 1] * LENGTH, LENGTH, NUM_SYMBOLS)
        log_p = (1.5 * torch.randn(shape, generator=generator(seed))).log_softmax(dim=-1)
        self.register_buffer("log_p", torch.cat([log_p, torch.full((*shape[:-1], 1), 3.0)], dim=-1))

    def embed(self, z: Tensor) -> Tensor:
        return self.get_buffer("log_p")[tuple(z.unbind(1))]


def given_plain() -> Denoiser:
    return Denoiser(GivenBackbone(2), Cost(2, 0, 0))


def given_fixed_point() -> Denoiser:
    """F(h) = 0.05 h + 0.95 log p: its fixed point is the table, which 8 iterations reach from anywhere."""
    injection = Injection("add", NUM_SYMBOLS + 1, has_projection=False)
    injection.set_exact(0.05, 0.95)
    return Denoiser(GivenBackbone(3), Cost(1, 1, 1), injection=injection)


def table_of(denoiser: Denoiser, num_iters: int) -> dict[tuple[int, ...], Tensor]:
    """p(x_i | z) of a denoiser for every z, (LENGTH, NUM_SYMBOLS) each, from its own forward pass."""
    states = list(product(range(NUM_SYMBOLS + 1), repeat=LENGTH))
    z = torch.tensor(states)
    with torch.no_grad():
        features = denoiser(z, 0.5, torch.ones_like(z, dtype=torch.bool), num_grad=num_iters).features
        p = denoiser.head(features)[:, :NUM_SYMBOLS].double().softmax(dim=-1)
    return dict(zip(states, p.unflatten(0, (len(states), LENGTH)), strict=True))


def enumerate_ancestral(table: dict[tuple[int, ...], Tensor], times: Sequence[float]) -> Distribution:
    """The exact distribution of what ancestral sampling ends with, over all ways it can go."""
    states: Distribution = {(MASK,) * LENGTH: 1.0}
    for t, s in pairwise(times):
        reveal = (t - s) / t
        following: Distribution = {}
        for z, probability in states.items():
            p = table[z].tolist()
            outcomes = [
                [(MASK, 1 - reveal)] + [(token, reveal * p[i][token]) for token in range(NUM_SYMBOLS)]
                if z[i] == MASK
                else [(z[i], 1.0)]
                for i in range(LENGTH)
            ]
            for choice in product(*outcomes):
                after = tuple(token for token, _ in choice)
                weight = probability * torch.tensor([q for _, q in choice], dtype=torch.float64).prod().item()
                if weight > 0:
                    following[after] = following.get(after, 0.0) + weight
        states = following
    return states
