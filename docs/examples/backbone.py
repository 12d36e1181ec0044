"""A backbone of your own: an MLP-Mixer, which a `Denoiser` samples as a plain stack or with a fixed point."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import fpmgm
from fpmgm.types import Features, Hidden, Labels, PerSequence, Places, Rows, Tokens


@dataclass(frozen=True)
class Nothing:
    """What blocks need besides h. A mixer needs nothing."""

    def rows(self, rows: Rows) -> "Nothing":
        return self

    def freeze_dropout(self, h: Hidden, blocks: range) -> "Nothing":
        return self


class MixerBlock(nn.Module):
    """Mixes positions, then channels."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.positions = nn.Sequential(nn.Linear(length, 2 * length), nn.GELU(), nn.Linear(2 * length, length))
        self.channels = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.positions(self.norms[0](h).mT).mT
        return h + self.channels(self.norms[1](h))


class Mixer(nn.Module):
    """An embedding, a stack of blocks and a head: the members of `fpmgm.denoiser.Backbone`."""

    is_causal = False

    def __init__(self, *, vocab_size: int, mask_id: int, length: int, width: int, num_blocks: int) -> None:
        super().__init__()
        self.vocab_size, self.mask_id, self.max_length = vocab_size, mask_id, length
        self.tokens = nn.Embedding(vocab_size, width)
        self.blocks = nn.ModuleList([MixerBlock(length, width) for _ in range(num_blocks)])
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, vocab_size)

    def condition(self, z: Tokens, t: float | PerSequence, label: Labels | None = None) -> Nothing:
        if label is not None:
            raise ValueError("a label is given, and this network has no classes")
        return Nothing()

    def embed(self, z: Tokens) -> Hidden:
        return self.tokens(z)

    def run_block(self, index: int, h: Hidden, cond: Nothing) -> Hidden:
        return self.blocks[index](h)

    def run_block_at(self, index: int, h: Hidden, cond: Nothing, places: Places) -> Features:
        return places.take(self.run_block(index, h, cond))

    def finish(self, features: Features, cond: Nothing, places: Places) -> Features:
        return self.norm(features)

    def head_weights(self) -> tuple[Tensor, Tensor]:
        return self.out.weight, self.out.bias


torch.manual_seed(0)
size = {"vocab_size": 5, "mask_id": 4, "length": 8, "width": 32}
mixer = fpmgm.Denoiser(
    Mixer(**size, num_blocks=3),
    fpmgm.Cost(1, 1, 1),  # a block before the fixed point, one inside it, one after it
    injection=fpmgm.Injection("linear", 32),
)
x = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]]).repeat(32, 1)

objective = fpmgm.MaskedCrossEntropy(
    weighting="masked", iterations=fpmgm.IterationCounts(no_grad_max=1, grad_min=1, grad_max=2)
)
optimiser = torch.optim.AdamW(mixer.parameters(), lr=1e-2)
for update in range(40):
    optimiser.zero_grad()
    objective(mixer, x, rng=fpmgm.generator(0, update)).total.backward()
    optimiser.step()

spending = fpmgm.plan(20, mixer.cost)
out = fpmgm.sample(
    mixer,
    fpmgm.masked_start(mixer, [[]] * 4),
    times=fpmgm.even_times(spending.num_steps),
    iterations=spending.iterations,
    transition=fpmgm.Ancestral(),
    reuse=fpmgm.three_state_reuse,
    rng=fpmgm.Streams.of(0, range(4)),
)
accuracy = (out.z == x[0]).float().mean()
assert accuracy > 0.9  # it has learned the one sequence that there is
