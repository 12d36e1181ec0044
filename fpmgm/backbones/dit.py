"""The backbone of MDLM, tensor for tensor: a diffusion transformer with adaLN, RoPE and a full-width head.

Parameter names, shapes and order are those of the public checkpoints, so that weights move both ways unchanged.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from fpmgm.budget import Cost
from fpmgm.denoiser import Denoiser
from fpmgm.injection import INJECTIONS, Injection
from fpmgm.names import choose
from fpmgm.types import Features, Hidden, PerSequence, Positions, Rows, Tokens

Vector = Float[Tensor, "#B #L D"]  # a modulation: one per sequence, or one for all
Heads = Float[Tensor, "B N H d"]  # N positions
Keys = Float[Tensor, "B L H d"]
Angles = Float[Tensor, "#B N 1 d"]


@dataclass(frozen=True, kw_only=True)
class Network:
    """The shape of a network, whatever its vocabulary. The defaults are MDLM-small's."""

    width: int = 768
    num_heads: int = 12
    num_pre: int = 12
    """Blocks before the fixed point; of a plain stack, all blocks."""
    num_fp: int = 0
    """Blocks inside the fixed point; 0 makes a plain stack."""
    num_post: int = 0
    injection: str = "mlp"
    """How the fixed-point map reads its input: `mlp` (the paper's), `linear` or `add`. Unused by a plain stack."""
    has_projection: bool = True
    """Whether G is a linear map; otherwise it is the identity. Unused by a plain stack."""
    cond_width: int = 128
    time_conditioning: bool = False
    """Whether the blocks see t. MDLM's do not: its time embedder is fed a constant."""
    dropout: float = 0.1
    frozen_dropout: bool = False
    """Whether all iterations of a solve share one dropout pattern; otherwise each draws its own."""

    is_causal: bool = False
    """Whether a position sees only those before it: a causal language model of the same blocks, used as a judge."""

    def __post_init__(self) -> None:
        if self.is_causal and self.num_fp:
            raise ValueError("is_causal is for plain stacks; set num_fp and num_post to 0")
        choose("injection", self.injection, INJECTIONS)
        if self.width % (2 * self.num_heads):
            raise ValueError(f"width {self.width} over {self.num_heads} heads; it must divide into heads of even width")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; it must be at least 0 and below 1")


@dataclass(frozen=True, kw_only=True)
class MDLMConfig(Network):
    """An MDLM or, with num_fp > 0, an FP-MDLM. The defaults are MDLM-small with GPT-2's vocabulary."""

    vocab_size: int = 50258
    """Symbols, the mask included."""
    mask_id: int = 50257
    length: int = 1024
    """The longest sequence."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.mask_id < self.vocab_size:
            raise ValueError(f"mask_id is {self.mask_id}; it must be below vocab_size {self.vocab_size}")


EMBEDDINGS = ("auto", "uniform", "normal")


def mdlm(config: MDLMConfig, *, seed: int = 0, embeddings: str = "auto") -> Denoiser:
    """A denoiser with fresh weights: at first every block is the identity and every logit 0.

    Embeddings are `uniform`, as MDLM's, or `normal`, from N(0, 1) and some twenty times as large. `auto` is `normal`
    with a fixed point, where what the injection adds to every position alike would drown smaller ones (docs/log.md,
    2026-11-16), and `uniform` for a plain stack.

    >>> with torch.device("meta"):
    ...     fp = mdlm(MDLMConfig(num_pre=1, num_fp=1, num_post=1))
    >>> f"{sum(p.numel() for p in fp.parameters()):,}"
    '104,659,794'
    """
    cost = Cost(config.num_pre, config.num_fp, config.num_post)
    with torch.random.fork_rng(devices=[]):  # torch's layers draw their weights from its global generator
        torch.default_generator.manual_seed(seed)
        injection = None
        if config.num_fp:
            injection = Injection(config.injection, config.width, has_projection=config.has_projection)
        backbone = DiT(config)
        if embeddings == "normal" or (embeddings == "auto" and config.num_fp):
            nn.init.normal_(backbone.vocab_embed.embedding)
        return Denoiser(backbone, cost, injection=injection, frozen_dropout=config.frozen_dropout)


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
        return Rotation(self.cos[0, index], self.sin[0, index])


@dataclass(frozen=True, kw_only=True)
class DiTConditioning:
    """All that the blocks need besides h, made once per denoising step."""

    blocks: tuple[Modulation, ...]
    final_shift: Vector
    final_scale: Vector
    rotation: Rotation
    dropout: float  # before each gate; 0 in evaluation

    def rows(self, rows: Rows) -> "DiTConditioning":
        def take(vector: Vector) -> Float[Tensor, "R L D"]:
            return vector if len(vector) == 1 else vector[rows]

        return replace(
            self,
            blocks=tuple(Modulation(*map(take, block)) for block in self.blocks),
            final_shift=take(self.final_shift),
            final_scale=take(self.final_scale),
        )

    def freeze_dropout(self, h: Hidden, blocks: range) -> "DiTConditioning":
        """Dropout multiplies a branch just as its gate does: draw it once, into the gates of those blocks.

        They must then run with no dropout of their own, and no other block may run with this conditioning.
        """

        def dropped(gate: Vector) -> Vector:
            return gate * _dropped(torch.ones_like(h), self.dropout)

        modulations = list(self.blocks)
        for index in blocks:
            m = modulations[index]
            modulations[index] = m._replace(gate_attn=dropped(m.gate_attn), gate_mlp=dropped(m.gate_mlp))
        return replace(self, blocks=tuple(modulations), dropout=0.0)


def _modulate(h: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return torch.addcmul(shift, h, 1 + scale)


def _dropped(branch: Tensor, dropout: float) -> Tensor:
    return F.dropout(branch, dropout) if dropout else branch


def _at(vector: Vector, positions: Positions) -> Float[Tensor, "#M D"]:
    """A modulation at the chosen positions."""
    if vector.shape[:2] == (1, 1):
        return vector[0]
    return vector.expand(*positions.shape, -1)[positions]


class Block(nn.Module):
    """Pre-norm attention and MLP, each modulated and gated."""

    def __init__(self, width: int, num_heads: int, cond_width: int, *, is_causal: bool = False) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.is_causal = is_causal
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.attn_qkv = nn.Linear(width, 3 * width, bias=False)
        self.attn_out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.adaLN_modulation = _zero_linear(cond_width, 6 * width)  # the checkpoints' name

    def modulation(self, c: Float[Tensor, "B C"]) -> Modulation:
        return Modulation(*self.adaLN_modulation(c)[:, None].chunk(6, dim=-1))

    def forward(self, h: Hidden, m: Modulation, rotation: Rotation, dropout: float) -> Hidden:
        qkv = self.attn_qkv(_modulate(self.norm1(h), m.shift_attn, m.scale_attn))
        q, k, v = self._heads(qkv).chunk(3, dim=2)
        mixed = self.attn_out(_attend(rotation(q), rotation(k), v, is_causal=self.is_causal))
        h = torch.addcmul(h, m.gate_attn, _dropped(mixed, dropout))
        return self._add_mlp(h, m.shift_mlp, m.scale_mlp, m.gate_mlp, dropout)

    def forward_at(
        self, h: Hidden, m: Modulation, rotation: Rotation, dropout: float, positions: Positions
    ) -> Features:
        """`forward` at some positions: keys and values everywhere; queries, output and MLP only there."""
        width = h.shape[-1]
        counts = positions.sum(dim=1, keepdim=True)
        most = int(counts.max())
        # Positions vary in number by sequence: queries are padded to the largest number with unchosen positions.
        index = positions.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]
        is_chosen = torch.arange(most, device=h.device) < counts

        normed = _modulate(self.norm1(h), m.shift_attn, m.scale_attn)
        k, v = self._heads(F.linear(normed, self.attn_qkv.weight[width:])).chunk(2, dim=2)
        asking = normed.gather(1, index[..., None].expand(-1, -1, width))
        q = self._heads(F.linear(asking, self.attn_qkv.weight[:width]))
        sees = torch.arange(h.shape[1], device=h.device) <= index[:, None, :, None] if self.is_causal else None
        mixed = self.attn_out(_attend(rotation.at(index)(q), rotation(k), v, sees)[is_chosen])
        features = torch.addcmul(h[positions], _at(m.gate_attn, positions), _dropped(mixed, dropout))
        shift, scale, gate = (_at(v, positions) for v in (m.shift_mlp, m.scale_mlp, m.gate_mlp))
        return self._add_mlp(features, shift, scale, gate, dropout)

    def _heads(self, projected: Float[Tensor, "B N P"]) -> Heads:
        return projected.unflatten(-1, (-1, self.norm1.weight.shape[0] // self.num_heads))

    def _add_mlp(self, h: Tensor, shift: Tensor, scale: Tensor, gate: Tensor, dropout: float) -> Tensor:
        branch = self.mlp(_modulate(self.norm2(h), shift, scale))
        return torch.addcmul(h, gate, _dropped(branch, dropout))


def _attend(
    q: Heads, k: Keys, v: Keys, sees: Bool[Tensor, "B 1 N L"] | None = None, *, is_causal: bool = False
) -> Float[Tensor, "B N D"]:
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    mixed = F.scaled_dot_product_attention(q, k, v, sees, is_causal=is_causal)
    return mixed.transpose(1, 2).flatten(2)


def _zero_linear(fan_in: int, fan_out: int) -> nn.Linear:
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


def rotary_frequencies(head_width: int, device: torch.device | None = None) -> Float[Tensor, " F"]:
    """The angle of every pair of a head's numbers from one position to the next; the checkpoints' inv_freq."""
    return 10_000.0 ** -(torch.arange(0, head_width, 2, device=device, dtype=torch.float32) / head_width)


def _rotation(z: Tokens, head_width: int, dtype: torch.dtype) -> Rotation:
    """Rotary angles over the whole head width, halves rotated (not pairs), in float32 whatever the weights are."""
    frequencies = rotary_frequencies(head_width, z.device)
    angles = torch.outer(torch.arange(z.shape[1], device=z.device, dtype=torch.float32), frequencies)
    angles = torch.cat([angles, angles], dim=-1)[None, :, None]
    return Rotation(angles.cos().to(dtype), angles.sin().to(dtype))


class OutputLayer(nn.Module):
    def __init__(self, width: int, vocab_size: int, cond_width: int) -> None:
        super().__init__()
        self.norm_final = nn.LayerNorm(width, bias=False)
        self.linear = _zero_linear(width, vocab_size)
        self.adaLN_modulation = _zero_linear(cond_width, 2 * width)


class DiT(nn.Module):
    """MDLM's network as a `Backbone`: 130 parameter tensors with 12 blocks; rotary angles are no tensor of it."""

    def __init__(self, config: MDLMConfig) -> None:
        super().__init__()
        self.mask_id = config.mask_id
        self.vocab_size = config.vocab_size
        self.max_length = config.length
        self.is_causal = config.is_causal
        self.time_conditioning = config.time_conditioning
        self.dropout = config.dropout
        self.vocab_embed = Embedding(config.vocab_size, config.width)
        self.sigma_map = TimeEmbedder(config.cond_width)
        self.head_width = config.width // config.num_heads
        num_blocks = config.num_pre + config.num_fp + config.num_post
        self.blocks = nn.ModuleList(
            Block(config.width, config.num_heads, config.cond_width, is_causal=config.is_causal)
            for _ in range(num_blocks)
        )
        self.output_layer = OutputLayer(config.width, config.vocab_size, config.cond_width)

    def condition(self, z: Tokens, t: float | PerSequence) -> DiTConditioning:
        time = torch.as_tensor(t, dtype=torch.float32, device=z.device).reshape(-1)
        sigma = _sigma(time) if self.time_conditioning else time.new_zeros(1)
        c = F.silu(self.sigma_map(sigma))
        shift, scale = self.output_layer.adaLN_modulation(c)[:, None].chunk(2, dim=-1)
        return DiTConditioning(
            blocks=tuple(self._block(index).modulation(c) for index in range(len(self.blocks))),
            final_shift=shift,
            final_scale=scale,
            rotation=_rotation(z, self.head_width, shift.dtype),
            dropout=self.dropout if self.training else 0.0,
        )

    def embed(self, z: Tokens) -> Hidden:
        return self.vocab_embed(z)

    def run_block(self, index: int, h: Hidden, cond: DiTConditioning) -> Hidden:
        return self._block(index)(h, cond.blocks[index], cond.rotation, cond.dropout)

    def run_block_at(self, index: int, h: Hidden, cond: DiTConditioning, positions: Positions) -> Features:
        return self._block(index).forward_at(h, cond.blocks[index], cond.rotation, cond.dropout, positions)

    def _block(self, index: int) -> Block:
        block = self.blocks[index]
        assert isinstance(block, Block)
        return block

    def finish(self, features: Features, cond: DiTConditioning, positions: Positions) -> Features:
        shift, scale = _at(cond.final_shift, positions), _at(cond.final_scale, positions)
        return _modulate(self.output_layer.norm_final(features), shift, scale)

    def head_weights(self) -> tuple[Tensor, Tensor]:
        return self.output_layer.linear.weight, self.output_layer.linear.bias


def _sigma(t: PerSequence, eps: float = 1e-3) -> PerSequence:
    """MDLM's noise level: minus the log of the share kept, which its log-linear noise stops at eps."""
    return -torch.log1p(-(1 - eps) * t)
