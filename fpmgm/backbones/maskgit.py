"""The backbone of Halton-MaskGIT, tensor for tensor: a bidirectional transformer over a grid of codes, told a class.

Besides the codes it has register tokens, which are positions of hidden states only: `embed` appends them, attention
reads and writes them, and the head never sees them.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from fpmgm.backbones.dit import MAX_PARAMETERS, MAX_SYMBOLS
from fpmgm.backbones.dit_block import Vector, at_places
from fpmgm.backbones.kept import KeptKeys, Memory
from fpmgm.backbones.lean import modulated
from fpmgm.backbones.maskgit_block import Block, Conditioning, Drops
from fpmgm.backbones.network import NetworkConfig, Vocabulary
from fpmgm.budget import Cost
from fpmgm.denoiser import Denoiser
from fpmgm.injection import INJECTIONS, Injection, InjectionName, injection_multiply_adds
from fpmgm.names import choose
from fpmgm.schema import MAX_LENGTH, require
from fpmgm.types import NO_CLASS, Features, Hidden, Labels, PerSequence, Places, Tokens

LIMITS = (
    ("width", 2, 1 << 16),
    ("num_heads", 1, 1 << 12),
    ("num_pre", 0, 1000),
    ("num_fp", 0, 1000),
    ("num_post", 0, 1000),
    ("mlp_multiple", 1, 1 << 16),
    ("num_registers", 0, 1 << 12),
)
"""The least and the most of each size of a network. No machine holds what lies beyond."""
SMALL = 0.02
"""The standard deviation of Halton-MaskGIT's embeddings before training."""
MAX_CLASSES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class MaskGITNetwork:
    """The shape of a network, whatever its codes and classes. The defaults are Halton-MaskGIT-Large's."""

    width: int = 1024
    """The width of hidden states."""
    num_heads: int = 16
    """Attention heads. If they do not divide the width, attention is as wide as whole heads allow."""
    num_pre: int = 24
    """Blocks before the fixed point. For a plain stack, all blocks."""
    num_fp: int = 0
    """Blocks inside the fixed point. 0 makes a plain stack."""
    num_post: int = 0
    """Blocks after the fixed point."""
    injection: InjectionName = "mlp"
    """How the fixed-point map reads its input: `mlp` (the paper's), `linear`, `add` or `diagonal`. Unused by a plain
    stack."""
    has_projection: bool = True
    """Whether G is a linear map; otherwise it is the identity. Unused by a plain stack."""
    mlp_multiple: int = 256
    """The hidden width of the MLP is 8/3 of the width, rounded up to a multiple of this."""
    num_registers: int = 1
    """Learned positions besides those of the grid, which attention reads and writes."""
    dropout: float = 0.1
    """The share of activations that is dropped while the network learns."""
    drops_attention: bool = True
    """Attention's weights are dropped too. Without this, attention is faster, mostly on the CPU."""
    frozen_dropout: bool = False
    """All iterations of a solve share one dropout pattern. Without it, each draws its own."""
    embedding_start: Literal["auto", "small", "normal"] = "auto"
    """How fresh embeddings are drawn: `small` (Halton-MaskGIT's, 0.02 N(0, 1)), `normal` (N(0, 1); the final norm then
    starts at 0.02, so that first logits are as small), or `auto`: normal with a fixed point."""
    injection_start: Literal["random", "mean"] = "random"
    """How a fresh injection starts: `random` (torch's default; of `diagonal` nothing is random) or `mean`, exactly
    (h + u)/2. Unused by a plain stack."""

    def __post_init__(self) -> None:
        for name, least, most in LIMITS:
            require(name, getattr(self, name), least, most)
        blocks = self.num_pre + self.num_fp + self.num_post
        if blocks < 1:
            raise ValueError("num_pre, num_fp and num_post are all 0; a network needs at least 1 block")
        if 18 * blocks * self.width**2 > MAX_PARAMETERS:
            raise ValueError(
                f"{blocks} blocks, {self.width} wide, have {18 * blocks * self.width**2} parameters; "
                f"at most {MAX_PARAMETERS} can be built"
            )
        if self.num_heads > self.width:
            raise ValueError(f"{self.num_heads} heads of a network {self.width} wide; a head is at least 1 wide")
        choose("injection", self.injection, INJECTIONS)
        choose("embedding_start", self.embedding_start, dict.fromkeys(("auto", "small", "normal")))
        choose("injection_start", self.injection_start, dict.fromkeys(("random", "mean")))
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; it must be at least 0 and below 1")

    @property
    def cost(self) -> Cost:
        return Cost(self.num_pre, self.num_fp, self.num_post)

    @property
    def is_causal(self) -> bool:
        """Every position sees every other."""
        return False

    @property
    def mlp_width(self) -> int:
        """Of SwiGLU's hidden product: two thirds of 4 times the width, rounded up."""
        return -(-(8 * self.width // 3) // self.mlp_multiple) * self.mlp_multiple

    @property
    def attention_width(self) -> int:
        """Of all heads together."""
        return self.width // self.num_heads * self.num_heads

    def fit(self, vocabulary: Vocabulary) -> "MaskGITConfig":
        """The network of this shape for such sequences. Without classes it has only the row for no class."""
        sizes: dict[str, Any] = {
            "vocab_size": vocabulary.size,
            "mask_id": vocabulary.mask_id,
            "length": vocabulary.length,
            "num_classes": vocabulary.num_classes,
        }
        return MaskGITConfig(**{**vars(self), **sizes})


SIZES = {
    "tiny": MaskGITNetwork(width=384, num_heads=6, num_pre=6),
    "small": MaskGITNetwork(width=512, num_heads=6, num_pre=12),
    "base": MaskGITNetwork(width=768, num_heads=12, num_pre=12),
    "large": MaskGITNetwork(width=1024, num_heads=16, num_pre=24),
    "xlarge": MaskGITNetwork(width=1152, num_heads=16, num_pre=28),
}
"""The sizes that Halton-MaskGIT names."""


@dataclass(frozen=True, kw_only=True)
class MaskGITConfig(MaskGITNetwork):
    """A MaskGIT or, with num_fp > 0, an FP-MaskGIT. The defaults are the paper's: 4096 codes, 16 x 16, ImageNette."""

    model_type: ClassVar[str] = "fpmgm-maskgit"

    vocab_size: int = 4097
    """Symbols, the mask included."""
    mask_id: int = 4096
    length: int = 256
    """Positions of the grid."""
    num_classes: int = 10
    """Classes that the network may be told; 0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("vocab_size", self.vocab_size, 2, MAX_SYMBOLS)
        require("length", self.length, 1, MAX_LENGTH)
        require("num_classes", self.num_classes, 0, MAX_CLASSES)
        if not 0 <= self.mask_id < self.vocab_size:
            raise ValueError(f"mask_id is {self.mask_id}; it must be below vocab_size {self.vocab_size}")

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(size=self.vocab_size, mask_id=self.mask_id, length=self.length, num_classes=self.num_classes)

    @property
    def kind(self) -> str:
        return "FP-MaskGIT" if self.num_fp else "MaskGIT"

    @property
    def training_only(self) -> frozenset[str]:
        return frozenset({"dropout", "drops_attention", "frozen_dropout", "embedding_start", "injection_start"})

    def told_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of some tensors by which weights of another size are told, before a network is built."""
        shapes: dict[str, tuple[int, ...]] = {
            "cls_emb.weight": (self.num_classes + 1, self.width),
            "tok_emb.weight": (self.vocab_size, self.width),
            "pos_emb.weight": (self.length, self.width),
            "reg_tokens.weight": (self.num_registers, self.width),
        }
        for index in range(self.num_pre + self.num_fp + self.num_post):
            shapes[f"blocks.{index}.w2.weight"] = (self.width, self.mlp_width)
        return shapes

    def build(self, *, seed: int = 0) -> Denoiser:
        """A denoiser with fresh weights."""
        return maskgit(self, seed=seed)

    def for_timing(self, length: int) -> "MaskGITConfig":
        return replace(self, length=length, dropout=0.0)

    def multiply_adds(self, *, num_iters: int, num_positions: int, length: int | None = None) -> int:
        """Of one denoising step for one sequence, with logits at `num_positions` of its `length` positions."""
        length = (length or self.length) + self.num_registers
        square, mlp = self.width * self.attention_width, 3 * self.width * self.mlp_width
        attention = 2 * length * self.attention_width
        block = length * (4 * square + attention + mlp)
        last = 2 * length * square + num_positions * (2 * square + attention + mlp)
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
        modulations = self.width**2 * (6 * num_blocks + 2)
        head = num_positions * self.width * self.vocab_size
        return num_full * block + last + injection + modulations + head


def as_maskgit(config: NetworkConfig) -> MaskGITConfig:
    """The config, where only a MaskGIT will do; a ValueError for any other network."""
    if not isinstance(config, MaskGITConfig):
        raise ValueError(f"this is for MaskGIT and FP-MaskGIT, and the model is a {config.model_type}")
    return config


def maskgit(config: MaskGITConfig, *, seed: int = 0) -> Denoiser:
    """A denoiser with fresh weights: at first every block is the identity.

    >>> with torch.device("meta"):
    ...     fp = maskgit(MaskGITConfig(num_pre=4, num_fp=1, num_post=4))
    >>> f"{sum(p.numel() for p in fp.parameters()):,}"
    '186,221,569'
    """
    with torch.random.fork_rng(devices=[]):  # torch's layers draw their weights from its global generator
        torch.default_generator.manual_seed(seed)
        injection = None
        if config.num_fp:
            injection = Injection(config.injection, config.width, has_projection=config.has_projection)
        backbone = MaskGIT(config)
        if config.embedding_start == "normal" or (config.embedding_start == "auto" and config.num_fp):
            backbone.start_normal()
        if injection and config.injection_start == "mean":
            injection.set_exact(0.5, 0.5)
        return Denoiser(backbone, config.cost, injection=injection, frozen_dropout=config.frozen_dropout)


class AdaNorm(nn.Module):
    """The final norm, modulated by the class; the norm has a bias of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.mlp = nn.Linear(width, 2 * width)

    def modulation(self, c: Float[Tensor, "B D"]) -> tuple[Vector, Vector]:
        """Shift and gain."""
        shift, scale = self.mlp(c)[:, None].chunk(2, dim=-1)
        return torch.addcmul(shift, self.bias, 1 + scale), self.weight * (1 + scale)


class MaskGIT(nn.Module):
    """Halton-MaskGIT's network as a `Backbone`. Its head is the table of tokens, with a bias of its own."""

    def __init__(self, config: MaskGITConfig) -> None:
        super().__init__()
        self.mask_id = config.mask_id
        self.vocab_size = config.vocab_size
        self.max_length = config.length
        self.is_causal = config.is_causal
        self.num_classes = config.num_classes
        self.num_heads = config.num_heads
        self.mlp_width = config.mlp_width
        self.dropout = config.dropout
        self.drops_attention = config.drops_attention
        self.cls_emb = nn.Embedding(config.num_classes + 1, config.width)  # the last row: no class
        self.tok_emb = nn.Embedding(config.vocab_size, config.width)
        self.pos_emb = nn.Embedding(config.length, config.width)
        self.reg_tokens = nn.Embedding(config.num_registers, config.width)
        num_blocks = config.num_pre + config.num_fp + config.num_post
        self.blocks = nn.ModuleList(Block(config.width, config.num_heads, config.mlp_width) for _ in range(num_blocks))
        self.last_norm = AdaNorm(config.width)
        self.head_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self._start()

    def _start(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=SMALL)
        for index in range(len(self.blocks)):
            nn.init.zeros_(self._block(index).mlp.weight)

    def start_normal(self) -> None:
        """Draw embeddings from N(0, 1) anew. The final norm then starts small, so that the first logits are small."""
        for embedding in (self.cls_emb, self.tok_emb, self.pos_emb, self.reg_tokens):
            nn.init.normal_(embedding.weight)
        nn.init.constant_(self.last_norm.weight, SMALL)
        nn.init.zeros_(self.last_norm.mlp.weight)

    def condition(self, z: Tokens, t: float | PerSequence, label: Labels | None = None) -> Conditioning:
        c = F.silu(self.cls_emb(self._class_rows(z, label)))
        shift, gain = self.last_norm.modulation(c)
        rate = self.dropout if self.training else 0.0
        return Conditioning(
            blocks=tuple(self._block(index).modulation(c) for index in range(len(self.blocks))),
            final_shift=shift,
            final_gain=gain,
            drops=Drops(branch=rate, weights=rate if self.drops_attention else 0.0),
            num_heads=self.num_heads,
            mlp_width=self.mlp_width,
        )

    def _class_rows(self, z: Tokens, label: Labels | None) -> Int[Tensor, "#B"]:
        """Rows of the class table: one for the batch if it is told no class."""
        if label is None:
            return torch.full((1,), self.num_classes, device=z.device)
        if label.device.type == "cpu":  # elsewhere the host would wait; labels of a codec are right
            check_labels(label, self.num_classes)
        return torch.where(label == NO_CLASS, self.num_classes, label)

    def embed(self, z: Tokens) -> Hidden:
        if z.shape[1] > self.max_length:
            raise ValueError(f"sequences of {z.shape[1]} tokens; the model takes at most {self.max_length}")
        h = self.tok_emb(z) + self.pos_emb.weight[: z.shape[1]]
        if not len(self.reg_tokens.weight):
            return h
        return torch.cat([h, self.reg_tokens.weight.to(h.dtype).expand(len(z), -1, -1)], dim=1)

    def run_block(self, index: int, h: Hidden, cond: Conditioning) -> Hidden:
        return self._block(index)(h, cond.blocks[index], cond.drops_of(index))

    def run_block_at(self, index: int, h: Hidden, cond: Conditioning, places: Places) -> Features:
        return self._block(index).forward_at(h, cond.blocks[index], cond.drops_of(index), places)

    def memory(self) -> Memory:
        return Memory()

    def run_first(self, z: Tokens, cond: Conditioning, memory: Memory) -> Hidden:
        block, m, h = self._block(0), cond.blocks[0], self.embed(z)
        if not memory.is_for(z):
            memory.begin(z, block.project(h, m))
        places = memory.changed(z, h.shape[1])
        if places is not None:
            memory.write(places, block.project_at(h, m, places))
        return block(h, m, cond.drops_of(0), memory.projected)

    def new_keys(self, index: int, h: Hidden) -> KeptKeys:
        across = self._block(index).wq.out_features
        return KeptKeys.room(h, self.num_heads, across // self.num_heads)

    def keep_keys(self, index: int, x: Features, cond: Conditioning, places: Places, kept: KeptKeys) -> None:
        self._block(index).keep_keys(x, cond.blocks[index], places, kept)

    def run_block_among(self, index: int, x: Features, cond: Conditioning, places: Places, kept: KeptKeys) -> Features:
        return self._block(index).forward_among(x, cond.blocks[index], cond.drops_of(index), places, kept)

    def run_block_keeping(self, index: int, h: Hidden, cond: Conditioning) -> tuple[Hidden, KeptKeys]:
        block, m = self._block(index), cond.blocks[index]
        projected = block.project(h, m)
        return block(h, m, cond.drops_of(index), projected), KeptKeys(projected.k, projected.v, in_place=False)

    def _block(self, index: int) -> Block:
        block = self.blocks[index]
        assert isinstance(block, Block)
        return block

    def finish(self, features: Features, cond: Conditioning, places: Places) -> Features:
        return modulated(features, at_places(cond.final_shift, places), at_places(cond.final_gain, places))

    def head_weights(self) -> tuple[Tensor, Tensor]:
        return self.tok_emb.weight, self.head_bias


def check_labels(label: Labels, num_classes: int) -> None:
    """A ValueError unless every label is a class, or -1 for none. It waits for the label's device."""
    if not label.numel() or NO_CLASS <= int(label.min()) <= int(label.max()) < num_classes:
        return
    known = f"classes 0 to {num_classes - 1}, and -1 for none" if num_classes else "no classes; give -1 or no label"
    raise ValueError(f"labels run from {int(label.min())} to {int(label.max())}; the network knows {known}")
