"""The block of Halton-MaskGIT: attention and SwiGLU, each modulated and gated, at all positions or at some."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from fpmgm.backbones.attention import attend
from fpmgm.backbones.dit_block import Vector, at_places, drop
from fpmgm.backbones.kept import Heads, KeptKeys, Keys, Projected, by_row
from fpmgm.backbones.lean import gated, modulated, unit
from fpmgm.products import Linear
from fpmgm.sums import added
from fpmgm.types import Features, Hidden, Places, Rows

Weights = Float[Tensor, "B H N S"]


class Modulation(NamedTuple):
    """What adaLN gives a block: shift, gain and gate of each of its two branches.

    A gain is the weight of the branch's norm times 1 + scale, so that a norm and its modulation are one thing.
    """

    shift_attn: Vector
    gain_attn: Vector
    gate_attn: Vector
    shift_mlp: Vector
    gain_mlp: Vector
    gate_mlp: Vector


class Drops(NamedTuple):
    """Dropout of a block: rates, or patterns that were drawn before and are multiplied in."""

    branch: float = 0.0  # of attention's output and of SwiGLU's hidden product
    weights: float = 0.0  # of attention's weights
    kept_weights: Weights | None = None
    kept_hidden: Float[Tensor, "B S H"] | None = None

    def at(self, places: Places) -> "Drops":
        """The same at some places: of attention's queries by sequence, of SwiGLU in row-major order."""
        weights, hidden = self.kept_weights, self.kept_hidden
        if weights is not None:
            index = places.by_row[:, None, :, None].expand(-1, weights.shape[1], -1, weights.shape[3])
            weights = weights.gather(2, index)
        return self._replace(kept_weights=weights, kept_hidden=None if hidden is None else places.take(hidden))


@dataclass(frozen=True, kw_only=True)
class Conditioning:
    """All that the blocks need besides h, made once per denoising step."""

    blocks: tuple[Modulation, ...]
    final_shift: Vector
    final_gain: Vector
    drops: Drops  # no dropout in evaluation
    num_heads: int
    mlp_width: int
    frozen: dict[int, Drops] = field(default_factory=dict)  # of blocks whose dropout has been drawn

    def drops_of(self, index: int) -> Drops:
        return self.frozen.get(index, self.drops)

    def rows(self, rows: Rows) -> "Conditioning":
        def take(vector: Tensor) -> Tensor:
            return vector if len(vector) == 1 else vector[rows]

        def taken(drops: Drops) -> Drops:
            weights, hidden = drops.kept_weights, drops.kept_hidden
            return drops._replace(
                kept_weights=None if weights is None else weights[rows],
                kept_hidden=None if hidden is None else hidden[rows],
            )

        return replace(
            self,
            blocks=tuple(Modulation(*map(take, block)) for block in self.blocks),
            final_shift=take(self.final_shift),
            final_gain=take(self.final_gain),
            frozen={index: taken(drops) for index, drops in self.frozen.items()},
        )

    def freeze_dropout(self, h: Hidden, blocks: range) -> "Conditioning":
        """Draw the patterns of those blocks once. Dropout of attention's output goes into its gate.

        No other block may run with this conditioning.
        """
        (batch, length), rate = h.shape[:2], self.drops.branch
        modulations, frozen = list(self.blocks), dict(self.frozen)
        for index in blocks:
            gate = modulations[index].gate_attn
            modulations[index] = modulations[index]._replace(gate_attn=gate * drop(torch.ones_like(h), rate))
            frozen[index] = Drops(
                kept_weights=drop(h.new_ones(batch, self.num_heads, length, length), rate)
                if self.drops.weights
                else None,
                kept_hidden=drop(h.new_ones(batch, length, self.mlp_width), rate),
            )
        return replace(self, blocks=tuple(modulations), frozen=frozen)


class Block(nn.Module):
    """Pre-norm attention and SwiGLU, each modulated by the class alone and gated."""

    modulating = "mlp"
    """The layer that makes modulations; tokens pass all the others."""

    def __init__(self, width: int, num_heads: int, mlp_width: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        across = width // num_heads * num_heads  # of all heads together
        self.mlp = nn.Linear(width, 6 * width)  # of the modulations; the checkpoints' name
        self.ln1 = RMSNorm(width)
        self.wq = Linear(width, across, bias=False)
        self.wk = Linear(width, across, bias=False)
        self.wv = Linear(width, across, bias=False)
        self.wo = Linear(across, width, bias=False)
        self.ln2 = RMSNorm(width)
        self.w1 = Linear(width, mlp_width, bias=False)
        self.w2 = Linear(mlp_width, width, bias=False)
        self.w3 = Linear(width, mlp_width, bias=False)

    def modulation(self, c: Float[Tensor, "B D"]) -> Modulation:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.mlp(c)[:, None].chunk(6, dim=-1)
        gain1, gain2 = self.ln1.weight * (1 + scale1), self.ln2.weight * (1 + scale2)
        return Modulation(shift1, gain1, gate1, shift2, gain2, gate2)

    def project(self, h: Hidden, m: Modulation) -> Projected:
        """What attention reads of h."""
        x = modulated(h, m.shift_attn, m.gain_attn)
        return Projected(self._heads(unit(self.wq(x))), self._heads(unit(self.wk(x))), self._heads(self.wv(x)))

    def project_at(self, h: Hidden, m: Modulation, places: Places) -> Projected:
        """`project` at some places, in row-major order, as of one sequence."""
        vectors = (at_places(vector, places)[None] for vector in m)
        return self.project(places.take(h)[None], Modulation(*vectors))

    def forward(self, h: Hidden, m: Modulation, drops: Drops, projected: Projected | None = None) -> Hidden:
        """Attention, then SwiGLU. `projected` is what attention reads of h, if it is known already."""
        q, k, v = self.project(h, m) if projected is None else projected
        mixed = drop(self.wo(_attend(q, k, v, drops)), drops.branch)
        h = torch.addcmul(h, m.gate_attn, mixed)
        return added(h, m.gate_mlp, self._swiglu(modulated(h, m.shift_mlp, m.gain_mlp), drops))

    def forward_at(self, h: Hidden, m: Modulation, drops: Drops, places: Places) -> Features:
        """`forward` at some places: keys and values everywhere; queries, output and SwiGLU only there.

        Sequences have different numbers of places: queries are those of `by_row`, filled up to the largest number.
        """
        x = modulated(h, m.shift_attn, m.gain_attn)
        k, v = self._heads(unit(self.wk(x))), self._heads(self.wv(x))
        asking = x.gather(1, places.by_row[..., None].expand(-1, -1, x.shape[-1]))
        q = self._heads(unit(self.wq(asking)))
        drops = drops.at(places)
        attended = _attend(q, k, v, drops).flatten(0, 1)[places.slots]
        mixed = drop(self.wo(attended), drops.branch)
        features = torch.addcmul(places.take(h), at_places(m.gate_attn, places), mixed)
        shift, gain, gate = (at_places(v, places) for v in (m.shift_mlp, m.gain_mlp, m.gate_mlp))
        return torch.addcmul(features, gate, self._swiglu(modulated(features, shift, gain), drops))

    def keep_keys(self, x: Features, m: Modulation, places: Places, kept: KeptKeys) -> None:
        """Keep the keys and values of those places, where the block reads x."""
        normed = modulated(x, at_places(m.shift_attn, places), at_places(m.gain_attn, places))[None]
        kept.put(places, self._heads(unit(self.wk(normed))), self._heads(self.wv(normed)))

    def forward_among(self, x: Features, m: Modulation, drops: Drops, places: Places, kept: KeptKeys) -> Features:
        """`forward` at some places, where the block reads x; it knows the others by their keys and values.

        The keys and values of these places are kept too.
        """
        normed = modulated(x, at_places(m.shift_attn, places), at_places(m.gain_attn, places))[None]
        kept = kept.put(places, self._heads(unit(self.wk(normed))), self._heads(self.wv(normed)))
        q = by_row(self._heads(unit(self.wq(normed))), places)
        drops = drops.at(places)
        attended = _attend(q, kept.k, kept.v, drops).flatten(0, 1)[places.slots]
        features = torch.addcmul(x, at_places(m.gate_attn, places), drop(self.wo(attended), drops.branch))
        shift, gain, gate = (at_places(v, places) for v in (m.shift_mlp, m.gain_mlp, m.gate_mlp))
        return torch.addcmul(features, gate, self._swiglu(modulated(features, shift, gain), drops))

    def _heads(self, projected: Float[Tensor, "B N P"]) -> Heads:
        return projected.unflatten(-1, (self.num_heads, -1))

    def _swiglu(self, x: Tensor, drops: Drops) -> Tensor:
        hidden = drop(gated(self.w1(x), self.w3(x)), drops.branch)
        if drops.kept_hidden is not None:
            hidden = hidden * drops.kept_hidden
        return self.w2(hidden)


class RMSNorm(nn.Module):
    """The weight of a norm; `modulated` does the rest."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


def _attend(q: Heads, k: Keys, v: Keys, drops: Drops) -> Float[Tensor, "B N D"]:
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    if not drops.weights and drops.kept_weights is None:
        mixed = attend(q, k, v)
    elif drops.kept_weights is None:
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=drops.weights)
    else:
        weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
        mixed = (weights * drops.kept_weights) @ v
    return mixed.transpose(1, 2).flatten(2)
