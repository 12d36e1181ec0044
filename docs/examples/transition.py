"""A transition of your own: the leftmost masked tokens are revealed first."""

from dataclasses import dataclass, field

import torch

import fpmgm
from fpmgm.transitions import uniforms_at
from fpmgm.types import Logits, Places, Positions, State


@dataclass(frozen=True, kw_only=True)
class LeftToRight:
    """Reveal the leftmost masked positions. How many of them is what `Ancestral` reveals on average."""

    draw: fpmgm.Draw = field(default_factory=fpmgm.Draw)

    def positions(self, state: State, t: float, t_next: float, *, rng: fpmgm.Streams) -> Positions:
        num_masked = state.is_masked.sum(dim=1, keepdim=True)
        num_left = (num_masked * t_next / t).long()  # at t_next = 0 no mask is left
        rank = state.is_masked.cumsum(dim=1)  # 1 for the first mask of a sequence
        return state.is_masked & (rank <= num_masked - num_left)

    def write(
        self, state: State, logits: Logits, places: Places, t: float, t_next: float, *, rng: fpmgm.Streams
    ) -> State:
        return state.written(places, self.draw(logits, uniforms_at(places, logits, rng)))


shape = fpmgm.MDLMConfig(vocab_size=20, mask_id=19, length=16, width=32, num_heads=2, num_pre=1, num_fp=1, num_post=1)
model = fpmgm.mdlm(shape)
steps: list[fpmgm.Step] = []
spending = fpmgm.plan(24, model.cost)
out = fpmgm.sample(
    model,
    fpmgm.masked_start(model, [[], [3, 4]]),
    times=fpmgm.even_times(spending.num_steps),
    iterations=spending.iterations,
    transition=LeftToRight(),
    reuse=fpmgm.three_state_reuse,
    rng=fpmgm.Streams.of(0, range(2)),
    on_step=steps.append,
)

for step in steps:  # what is visible is always the beginning of the sequence
    is_visible = step.z_next != model.mask_id
    assert torch.equal(is_visible, is_visible.cummin(dim=1).values)
assert not (out.z == model.mask_id).any()
assert out.z[1, :2].tolist() == [3, 4]
