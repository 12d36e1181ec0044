"""The layers of MDLM's network. Its block is attention and MLP, modulated and gated, at all positions or at some."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from fpmgm.backbones.attention import attend
from fpmgm.backbones.kept import Heads, KeptKeys, Keys, Projected, by_row
from fpmgm.gelu import GeluMLP
from fpmgm.products import Linear, linear
from fpmgm.sums import added
from fpmgm.types import Features, Hidden, PerSequence, Places, Tokens

Vector = Float[Tensor, "#B #L D"]  # a modulation: one per sequence, or one for all
Angles = Float[Tensor, "#B N 1 d"]
Seen = Bool[Tensor, "B 1 1 L"]  # the keys that no position of a sequence may see are False: its padding


class Modulation(NamedTuple):
    """What adaLN gives a block: shift, scale and gate of each of its two branches."""

    shift_attn: Vector
    scale_attn: Vector
    gate_attn: Vector
    shift_mlp: Vector
    scale_mlp: Vector
    gate_mlp: Vector


class Rotation(NamedTuple):
    """Rotary position embedding as the cosines and sines of every position."""

    cos: Angles
    sin: Angles

    def __call__(self, heads: Heads) -> Heads:
        first, second = heads.chunk(2, dim=-1)
        return heads * self.cos + torch.cat([-second, first], dim=-1) * self.sin

    def at(self, index: Tensor) -> "Rotation":
        num = len(self.cos)  # one for all sequences, or one each
        sequence = 0 if num == 1 else torch.arange(num, device=index.device)[:, None]
        return Rotation(self.cos[sequence, index], self.sin[sequence, index])

    def at_flat(self, places: Places) -> "Rotation":
        """The angles of those places, in row-major order, as of one sequence."""
        sequence, position = places.sequences if len(self.cos) > 1 else 0, places.flat % places.length
        return Rotation(self.cos[sequence, position][None], self.sin[sequence, position][None])


def rotary_frequencies(head_width: int, device: torch.device | None = None) -> Float[Tensor, " F"]:
    """The angle of every pair of a head's numbers from one position to the next; the checkpoints' inv_freq."""
    return 10_000.0 ** -(torch.arange(0, head_width, 2, device=device, dtype=torch.float32) / head_width)


def rotation_of(z: Tokens, head_width: int, dtype: torch.dtype, position_ids: Tokens | None) -> Rotation:
    """Rotary angles over the whole head width, halves rotated (not pairs), in float32 whatever the weights are."""
    frequencies = rotary_frequencies(head_width, z.device)
    places = torch.arange(z.shape[1], device=z.device)[None] if position_ids is None else position_ids
    angles = places.to(torch.float32)[..., None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)[:, :, None]
    return Rotation(angles.cos().to(dtype), angles.sin().to(dtype))


def modulate(h: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """h (1 + scale) + shift."""
    return torch.addcmul(shift, h, 1 + scale)


def drop(branch: Tensor, dropout: float) -> Tensor:
    """The branch with dropout, if there is any."""
    return F.dropout(branch, dropout) if dropout else branch


def at_places(vector: Vector, places: Places) -> Float[Tensor, "#M D"]:
    """A modulation at the chosen places."""
    if vector.shape[:2] == (1, 1):
        return vector[0]
    return places.take(vector) if vector.shape[1] > 1 else vector[places.sequences, 0]


class Block(nn.Module):
    """Pre-norm attention and MLP, each modulated and gated."""

    modulating = "adaLN_modulation"
    """The layer that makes modulations; tokens pass all the others."""

    def __init__(self, width: int, num_heads: int, cond_width: int, *, is_causal: bool = False) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.is_causal = is_causal
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.attn_qkv = Linear(width, 3 * width, bias=False)
        self.attn_out = Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.mlp = GeluMLP(width, 4 * width)
        self.adaLN_modulation = zero_linear(cond_width, 6 * width)  # the checkpoints' name

    def modulation(self, c: Float[Tensor, "B C"]) -> Modulation:
        return Modulation(*self.adaLN_modulation(c)[:, None].chunk(6, dim=-1))

    def project(self, h: Hidden, m: Modulation, rotation: Rotation) -> Projected:
        """What attention reads of h."""
        q, k, v = self._project(h, m)
        return Projected(rotation(q), rotation(k), v)

    def project_same(self, h: Hidden, m: Modulation, rotation: Rotation, shape: torch.Size) -> Projected:
        """`project` of sequences that have the same h at every position: one of them is given."""
        q, k, v = (part.expand(*shape, -1, -1) for part in self._project(h, m))
        return Projected(rotation(q), rotation(k), v.contiguous())

    def _project(self, h: Hidden, m: Modulation) -> Projected:
        """`project` before queries and keys are rotated."""
        qkv = self.attn_qkv(modulate(self.norm1(h), m.shift_attn, m.scale_attn))
        return Projected(*self._heads(qkv).chunk(3, dim=2))

    def project_at(self, h: Hidden, m: Modulation, rotation: Rotation, places: Places) -> Projected:
        """`project` at some places, in row-major order, as of one sequence."""
        vectors = (at_places(vector, places)[None] for vector in m)
        return self.project(places.take(h)[None], Modulation(*vectors), rotation.at_flat(places))

    def forward(
        self,
        h: Hidden,
        m: Modulation,
        rotation: Rotation,
        dropout: float,
        seen: Seen | None = None,
        projected: Projected | None = None,
    ) -> Hidden:
        """Attention, then the MLP. `projected` is what attention reads of h, if it is known already."""
        q, k, v = self.project(h, m, rotation) if projected is None else projected
        is_causal = self.is_causal and seen is None  # torch takes a mask or a flag, not both
        if seen is not None and self.is_causal:
            seen = seen & torch.ones(h.shape[1], h.shape[1], dtype=torch.bool, device=h.device).tril()
        mixed = self.attn_out(_attend(q, k, v, seen, is_causal=is_causal))
        h = torch.addcmul(h, m.gate_attn, drop(mixed, dropout))
        return self._add_mlp(h, m.shift_mlp, m.scale_mlp, m.gate_mlp, dropout)

    def forward_at(
        self,
        h: Hidden,
        m: Modulation,
        rotation: Rotation,
        dropout: float,
        places: Places,
        seen: Seen | None = None,
    ) -> Features:
        """`forward` at some places: keys and values everywhere; queries, output and MLP only there.

        Sequences have different numbers of places: queries are those of `by_row`, filled up to the largest number.
        """
        width, index = h.shape[-1], places.by_row
        normed = modulate(self.norm1(h), m.shift_attn, m.scale_attn)
        k, v = self._heads(linear(normed, self.attn_qkv.weight[width:])).chunk(2, dim=2)
        asking = normed.gather(1, index[..., None].expand(-1, -1, width))
        q = self._heads(linear(asking, self.attn_qkv.weight[:width]))
        sees = torch.arange(h.shape[1], device=h.device) <= index[:, None, :, None] if self.is_causal else None
        sees = seen if sees is None else sees if seen is None else sees & seen
        attended = _attend(rotation.at(index)(q), rotation(k), v, sees).flatten(0, 1)[places.slots]
        mixed = self.attn_out(attended)
        features = torch.addcmul(places.take(h), at_places(m.gate_attn, places), drop(mixed, dropout))
        shift, scale, gate = (at_places(v, places) for v in (m.shift_mlp, m.scale_mlp, m.gate_mlp))
        return self._add_mlp(features, shift, scale, gate, dropout)

    def keep_keys(self, x: Features, m: Modulation, rotation: Rotation, places: Places, kept: KeptKeys) -> None:
        """Keep the keys and values of those places, where the block reads x."""
        normed = modulate(self.norm1(x), at_places(m.shift_attn, places), at_places(m.scale_attn, places))
        k, v = self._heads(linear(normed, self.attn_qkv.weight[x.shape[-1] :])[None]).chunk(2, dim=2)
        kept.put(places, rotation.at_flat(places)(k), v)

    def forward_among(
        self,
        x: Features,
        m: Modulation,
        rotation: Rotation,
        places: Places,
        kept: KeptKeys,
        dropout: float = 0.0,
        seen: Seen | None = None,
    ) -> Features:
        """`forward` at some places, where the block reads x; it knows the others by their keys and values.

        The keys and values of these places are kept too. Attention is not causal.
        """
        normed = modulate(self.norm1(x), at_places(m.shift_attn, places), at_places(m.scale_attn, places))
        q, k, v = self._heads(self.attn_qkv(normed)[None]).chunk(3, dim=2)
        rotation = rotation.at_flat(places)
        kept = kept.put(places, rotation(k), v)
        attended = _attend(by_row(rotation(q), places), kept.k, kept.v, seen).flatten(0, 1)[places.slots]
        features = torch.addcmul(x, at_places(m.gate_attn, places), drop(self.attn_out(attended), dropout))
        shift, scale, gate = (at_places(v, places) for v in (m.shift_mlp, m.scale_mlp, m.gate_mlp))
        return self._add_mlp(features, shift, scale, gate, dropout)

    def _heads(self, projected: Float[Tensor, "B N P"]) -> Heads:
        return projected.unflatten(-1, (-1, self.norm1.weight.shape[0] // self.num_heads))

    def _add_mlp(self, h: Tensor, shift: Tensor, scale: Tensor, gate: Tensor, dropout: float) -> Tensor:
        branch = self.mlp(modulate(self.norm2(h), shift, scale))
        return added(h, gate, drop(branch, dropout))


def _attend(
    q: Heads, k: Keys, v: Keys, sees: Bool[Tensor, "B 1 #N L"] | None = None, *, is_causal: bool = False
) -> Float[Tensor, "B N D"]:
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    mixed = attend(q, k, v, sees, is_causal=is_causal)
    return mixed.transpose(1, 2).flatten(2)


def zero_linear(fan_in: int, fan_out: int) -> nn.Linear:
    """A linear layer that starts at 0."""
    linear = nn.Linear(fan_in, fan_out)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


class Embedding(nn.Module):
    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(vocab_size, width))
        nn.init.kaiming_uniform_(self.embedding, a=math.sqrt(5))

    def forward(self, z: Tokens) -> Hidden:
        return F.embedding(z, self.embedding)


class TimeEmbedder(nn.Module):
    """Sinusoids of the noise level sigma, cosines first, through a small MLP."""

    num_sinusoids = 256
    max_period = 10_000.0

    def __init__(self, cond_width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(self.num_sinusoids, cond_width), nn.SiLU(), nn.Linear(cond_width, cond_width)
        )

    def forward(self, sigma: PerSequence) -> Float[Tensor, "B C"]:
        half = self.num_sinusoids // 2
        steps = torch.arange(half, device=sigma.device, dtype=torch.float32) / half
        angles = sigma[:, None] * torch.exp(-math.log(self.max_period) * steps)
        sinusoids = torch.cat([angles.cos(), angles.sin()], dim=-1)
        return self.mlp(sinusoids.to(next(self.mlp.parameters()).dtype))


class OutputLayer(nn.Module):
    def __init__(self, width: int, vocab_size: int, cond_width: int) -> None:
        super().__init__()
        self.norm_final = nn.LayerNorm(width, bias=False)
        self.linear = zero_linear(width, vocab_size)
        self.adaLN_modulation = zero_linear(cond_width, 2 * width)
