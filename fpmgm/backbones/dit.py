"""The backbone of MDLM, tensor for tensor: a diffusion transformer with adaLN, RoPE and a full-width head.

Parameter names, shapes and order are those of the public checkpoints, so that weights move both ways unchanged.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from fpmgm.backbones.dit_block import (
    Block,
    Embedding,
    Modulation,
    OutputLayer,
    Rotation,
    Seen,
    TimeEmbedder,
    Vector,
    at_places,
    drop,
    modulate,
    rotation_of,
)
from fpmgm.backbones.kept import KeptKeys, Memory
from fpmgm.backbones.network import NetworkConfig, Vocabulary
from fpmgm.budget import Cost
from fpmgm.denoiser import Denoiser
from fpmgm.injection import INJECTIONS, Injection, InjectionName, injection_multiply_adds
from fpmgm.names import choose
from fpmgm.schema import MAX_LENGTH, require
from fpmgm.types import Features, Hidden, Labels, PerSequence, Places, Positions, Rows, Tokens

MAX_SYMBOLS = 1 << 24
MAX_PARAMETERS = 10**11
LIMITS = (
    ("width", 2, 1 << 16),
    ("num_heads", 1, 1 << 12),
    ("num_pre", 0, 1000),
    ("num_fp", 0, 1000),
    ("num_post", 0, 1000),
    ("cond_width", 1, 1 << 16),
)
"""The least and the most of each size of a network. No machine holds what lies beyond."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """The shape of a network, whatever its vocabulary. The defaults are MDLM-small's."""

    width: int = 768
    """The width of hidden states."""
    num_heads: int = 12
    """The number of attention heads."""
    num_pre: int = 12
    """Blocks before the fixed point. For a plain stack, all blocks."""
    num_fp: int = 0
    """Blocks inside the fixed point. 0 makes a plain stack."""
    num_post: int = 0
    """Blocks after the fixed point."""
    injection: InjectionName = "mlp"
    """How the fixed-point map reads its input: `mlp` (the paper's), `linear`, `add` or `diagonal`, which learned better
    and is cheaper where they were compared (docs/results/injections). Unused by a plain stack."""
    has_projection: bool = True
    """Whether G is a linear map; otherwise it is the identity. Unused by a plain stack."""
    cond_width: int = 128
    """The width of the embedding of time."""
    time_conditioning: bool = False
    """Whether the blocks see t. Those of MDLM do not: its time embedder is fed a constant."""
    dropout: float = 0.1
    """The share of activations that is dropped while the network learns."""
    frozen_dropout: bool = False
    """All iterations of a solve share one dropout pattern. Without it, each draws its own."""

    is_causal: bool = False
    """A position sees only those before it. This makes a causal language model of the same blocks, which is used as a
    judge."""
    embedding_start: Literal["auto", "uniform", "normal"] = "auto"
    """How fresh embeddings are drawn: `uniform` (MDLM's), `normal` (N(0, 1)), or `auto`: normal with a fixed point."""
    injection_start: Literal["random", "mean"] = "random"
    """How a fresh injection starts: `random` (torch's default; of `diagonal` nothing is random) or `mean`, exactly
    (h + u)/2. Unused by a plain stack."""
    gate_start: float = 0.0
    """What the gates of fresh blocks start at. At 0, as MDLM's, every block is the identity at first; gates that are
    open from the start spare the updates in which they open."""

    def __post_init__(self) -> None:
        for name, least, most in LIMITS:
            require(name, getattr(self, name), least, most)
        blocks = self.num_pre + self.num_fp + self.num_post
        if blocks < 1:
            raise ValueError("num_pre, num_fp and num_post are all 0; a network needs at least 1 block")
        if 12 * blocks * self.width**2 > MAX_PARAMETERS:
            raise ValueError(
                f"{blocks} blocks, {self.width} wide, have {12 * blocks * self.width**2} parameters; "
                f"at most {MAX_PARAMETERS} can be built"
            )
        if self.is_causal and self.num_fp:
            raise ValueError("is_causal is for plain stacks; set num_fp and num_post to 0")
        choose("injection", self.injection, INJECTIONS)
        choose("embedding_start", self.embedding_start, dict.fromkeys(("auto", "uniform", "normal")))
        choose("injection_start", self.injection_start, dict.fromkeys(("random", "mean")))
        if self.width % (2 * self.num_heads):
            raise ValueError(f"width {self.width} over {self.num_heads} heads; it must divide into heads of even width")
        if not math.isfinite(self.gate_start):
            raise ValueError(f"gate_start is {self.gate_start}; it must be a finite number")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; it must be at least 0 and below 1")

    @property
    def cost(self) -> Cost:
        return Cost(self.num_pre, self.num_fp, self.num_post)

    def fit(self, vocabulary: Vocabulary) -> "MDLMConfig":
        """The network of this shape for such sequences."""
        if vocabulary.num_classes:
            raise ValueError(f"the data has {vocabulary.num_classes} classes, and this network knows none")
        sizes: dict[str, Any] = {
            "vocab_size": vocabulary.size,
            "mask_id": vocabulary.mask_id,
            "length": vocabulary.length,
        }
        return MDLMConfig(**{**vars(self), **sizes})


@dataclass(frozen=True, kw_only=True)
class MDLMConfig(Network):
    """An MDLM or, with num_fp > 0, an FP-MDLM. The defaults are MDLM-small with GPT-2's vocabulary."""

    model_type: ClassVar[str] = "fpmgm-mdlm"

    vocab_size: int = 50258
    """Symbols, the mask included."""
    mask_id: int = 50257
    length: int = 1024
    """The longest sequence."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("vocab_size", self.vocab_size, 2, MAX_SYMBOLS)
        require("length", self.length, 1, MAX_LENGTH)
        if not 0 <= self.mask_id < self.vocab_size:
            raise ValueError(f"mask_id is {self.mask_id}; it must be below vocab_size {self.vocab_size}")

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(size=self.vocab_size, mask_id=self.mask_id, length=self.length)

    @property
    def kind(self) -> str:
        return "Causal" if self.is_causal else "FP-MDLM" if self.num_fp else "MDLM"

    @property
    def training_only(self) -> frozenset[str]:
        return frozenset({"dropout", "frozen_dropout", "embedding_start", "injection_start", "gate_start"})

    def told_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of some tensors by which weights of another size are told, before a network is built."""
        blocks = range(self.num_pre + self.num_fp + self.num_post)
        sizes: dict[str, tuple[int, ...]] = {f"blocks.{index}.norm1.weight": (self.width,) for index in blocks}
        return {
            "vocab_embed.embedding": (self.vocab_size, self.width),
            "sigma_map.mlp.2.bias": (self.cond_width,),
            **sizes,
        }

    def build(self, *, seed: int = 0) -> Denoiser:
        """A denoiser with fresh weights."""
        return mdlm(self, seed=seed)

    def for_timing(self, length: int) -> "MDLMConfig":
        return replace(self, length=length, dropout=0.0)

    def multiply_adds(self, *, num_iters: int, num_positions: int, length: int | None = None) -> int:
        """Of one denoising step for one sequence, with logits at `num_positions` of its `length` positions."""
        length = length or self.length
        square = self.width**2
        block = length * (12 * square + 2 * length * self.width)
        last = 2 * length * square + num_positions * (10 * square + 2 * length * self.width)
        num_blocks = self.num_pre + self.num_fp + self.num_post
        if self.num_fp and not self.num_post:
            last, num_full = 0, self.num_pre + num_iters * self.num_fp
        else:
            num_full = num_blocks - self.num_fp - 1 + num_iters * self.num_fp
        injection = 0
        if self.num_fp:
            injection = length * injection_multiply_adds(
                self.injection, self.width, num_iters=num_iters, has_projection=self.has_projection
            )
        modulations = self.cond_width * (256 + self.cond_width + self.width * (6 * num_blocks + 2))
        head = num_positions * self.width * self.vocab_size
        return num_full * block + last + injection + modulations + head


def as_mdlm(config: NetworkConfig) -> MDLMConfig:
    """The config, where only an MDLM will do; a ValueError for any other network."""
    if not isinstance(config, MDLMConfig):
        raise ValueError(f"this is for MDLM and FP-MDLM, and the model is a {config.model_type}")
    return config


def mdlm(config: MDLMConfig, *, seed: int = 0) -> Denoiser:
    """A denoiser with fresh weights: at first every block is the identity, unless gates start open, and every logit 0.

    Embeddings are `uniform`, as MDLM's, or `normal`, from N(0, 1) and some twenty times as large. `auto` is `normal`
    with a fixed point, where what the injection adds to every position alike would drown smaller ones (docs/log.md,
    2026-11-16), and `uniform` for a plain stack.

    >>> with torch.device("meta"):
    ...     fp = mdlm(MDLMConfig(num_pre=1, num_fp=1, num_post=1))
    >>> f"{sum(p.numel() for p in fp.parameters()):,}"
    '104,659,794'
    """
    with torch.random.fork_rng(devices=[]):  # torch's layers draw their weights from its global generator
        torch.default_generator.manual_seed(seed)
        injection = None
        if config.num_fp:
            injection = Injection(config.injection, config.width, has_projection=config.has_projection)
        backbone = DiT(config)
        if config.embedding_start == "normal" or (config.embedding_start == "auto" and config.num_fp):
            nn.init.normal_(backbone.vocab_embed.embedding)
        if config.gate_start:
            backbone.open_gates(config.gate_start)
        if injection and config.injection_start == "mean":
            injection.set_exact(0.5, 0.5)
        return Denoiser(backbone, config.cost, injection=injection, frozen_dropout=config.frozen_dropout)


@dataclass(frozen=True, kw_only=True)
class DiTConditioning:
    """All that the blocks need besides h, made once per denoising step."""

    blocks: tuple[Modulation, ...]
    final_shift: Vector
    final_scale: Vector
    rotation: Rotation
    dropout: float  # before each gate; 0 in evaluation
    seen: Seen | None = None  # False at padding; None: there is none

    def rows(self, rows: Rows) -> "DiTConditioning":
        def take(vector: Tensor) -> Tensor:
            return vector if len(vector) == 1 else vector[rows]

        return replace(
            self,
            blocks=tuple(Modulation(*map(take, block)) for block in self.blocks),
            final_shift=take(self.final_shift),
            final_scale=take(self.final_scale),
            rotation=Rotation(*map(take, self.rotation)),
            seen=None if self.seen is None else self.seen[rows],
        )

    def freeze_dropout(self, h: Hidden, blocks: range) -> "DiTConditioning":
        """Dropout multiplies a branch just as its gate does: draw it once, into the gates of those blocks.

        They must then run with no dropout of their own, and no other block may run with this conditioning.
        """

        def dropped(gate: Vector) -> Vector:
            return gate * drop(torch.ones_like(h), self.dropout)

        modulations = list(self.blocks)
        for index in blocks:
            m = modulations[index]
            modulations[index] = m._replace(gate_attn=dropped(m.gate_attn), gate_mlp=dropped(m.gate_mlp))
        return replace(self, blocks=tuple(modulations), dropout=0.0)


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

    def open_gates(self, value: float) -> None:
        """Set the gates of fresh blocks."""
        for index in range(len(self.blocks)):
            bias = self._block(index).adaLN_modulation.bias.detach()
            for gate in (2, 5):  # of attention and of the MLP, in the order of `Modulation`
                bias.chunk(6)[gate].fill_(value)

    def condition(
        self,
        z: Tokens,
        t: float | PerSequence,
        label: Labels | None = None,
        *,
        attention_mask: Positions | None = None,
        position_ids: Tokens | None = None,
    ) -> DiTConditioning:
        """What the blocks need besides h. No position sees one where `attention_mask` is False.

        `position_ids` are the positions that rotary angles are computed from; None: 0, 1, 2 and so on.
        """
        if label is not None:
            raise ValueError("this network knows no classes; leave the label out")
        time = torch.as_tensor(t, dtype=torch.float32, device=z.device).reshape(-1)
        sigma = _sigma(time) if self.time_conditioning else time.new_zeros(1)
        c = F.silu(self.sigma_map(sigma))
        shift, scale = self.output_layer.adaLN_modulation(c)[:, None].chunk(2, dim=-1)
        return DiTConditioning(
            blocks=tuple(self._block(index).modulation(c) for index in range(len(self.blocks))),
            final_shift=shift,
            final_scale=scale,
            rotation=rotation_of(z, self.head_width, shift.dtype, position_ids),
            dropout=self.dropout if self.training else 0.0,
            seen=None if attention_mask is None else attention_mask[:, None, None],
        )

    def embed(self, z: Tokens) -> Hidden:
        return self.vocab_embed(z)

    def run_block(self, index: int, h: Hidden, cond: DiTConditioning) -> Hidden:
        return self._block(index)(h, cond.blocks[index], cond.rotation, cond.dropout, cond.seen)

    def run_block_at(self, index: int, h: Hidden, cond: DiTConditioning, places: Places) -> Features:
        return self._block(index).forward_at(h, cond.blocks[index], cond.rotation, cond.dropout, places, cond.seen)

    def memory(self) -> Memory | None:
        return None if self.time_conditioning else Memory()

    def run_first(self, z: Tokens, cond: DiTConditioning, memory: Memory) -> Hidden:
        block, m, h = self._block(0), cond.blocks[0], self.embed(z)
        if not memory.is_for(z):  # all masks have the same queries, keys and values but for their angles
            masks = torch.full_like(z, self.mask_id)
            memory.begin(masks, block.project_same(self.embed(masks[:1, :1]), m, cond.rotation, z.shape))
        places = memory.changed(z, h.shape[1])
        if places is not None:
            memory.write(places, block.project_at(h, m, cond.rotation, places))
        return block(h, m, cond.rotation, cond.dropout, cond.seen, memory.projected)

    def new_keys(self, index: int, h: Hidden) -> KeptKeys:
        return KeptKeys.room(h, self._block(index).num_heads, self.head_width)

    def keep_keys(self, index: int, x: Features, cond: DiTConditioning, places: Places, kept: KeptKeys) -> None:
        self._block(index).keep_keys(x, cond.blocks[index], cond.rotation, places, kept)

    def run_block_among(
        self, index: int, x: Features, cond: DiTConditioning, places: Places, kept: KeptKeys
    ) -> Features:
        block, m = self._block(index), cond.blocks[index]
        return block.forward_among(x, m, cond.rotation, places, kept, cond.dropout, cond.seen)

    def run_block_keeping(self, index: int, h: Hidden, cond: DiTConditioning) -> tuple[Hidden, KeptKeys]:
        block, m = self._block(index), cond.blocks[index]
        projected = block.project(h, m, cond.rotation)
        out = block(h, m, cond.rotation, cond.dropout, cond.seen, projected)
        return out, KeptKeys(projected.k, projected.v, in_place=False)

    def _block(self, index: int) -> Block:
        block = self.blocks[index]
        assert isinstance(block, Block)
        return block

    def finish(self, features: Features, cond: DiTConditioning, places: Places) -> Features:
        shift, scale = at_places(cond.final_shift, places), at_places(cond.final_scale, places)
        return modulate(self.output_layer.norm_final(features), shift, scale)

    def head_weights(self) -> tuple[Tensor, Tensor]:
        return self.output_layer.linear.weight, self.output_layer.linear.bias


def _sigma(t: PerSequence, eps: float = 1e-3) -> PerSequence:
    """MDLM's noise level: minus the log of the share kept, which its log-linear noise stops at eps."""
    return -torch.log1p(-(1 - eps) * t)
