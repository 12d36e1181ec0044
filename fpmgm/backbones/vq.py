"""A small convolutional autoencoder with a codebook (VQ): images become a grid of codes, and codes images.

The encoder and the decoder are plain torch. While it learns, the codebook is that of `vector-quantize-pytorch`, which
moves codes to what they stand for and revives dead ones; to encode and decode, a table of codes is enough.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from fpmgm.backbones.network import Vocabulary
from fpmgm.budget import Cost
from fpmgm.schema import require

Images = Float[Tensor, "B C H W"]  # from -1 to 1
Latents = Float[Tensor, "B K h w"]
Codes = Int[Tensor, "B h w"]
GROUPS = 8
"""Of the group norms; the channels are a multiple of it."""
CODEBOOK = "_codebook"
"""What vector-quantize-pytorch calls the part of it that holds the codes."""


@dataclass(frozen=True, kw_only=True)
class VQNetwork:
    """The shape of an autoencoder, whatever its images. The defaults fit images of 28 to 32 pixels."""

    channels: int = 32
    """Channels of the first stage. Each further stage has twice as many."""
    num_stages: int = 2
    """How often height and width are halved."""
    num_blocks: int = 1
    """Residual blocks in a stage."""
    num_codes: int = 256
    """The number of codes."""
    code_width: int = 16
    """The width of a code."""
    codebook_decay: float = 0.99
    """How slowly a code follows the mean of what it stands for."""
    revive_below: float = 2.0
    """A code that stands for fewer latents of a batch than this, averaged over updates, is put in the place of a
    latent of the batch."""

    is_causal: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require("channels", self.channels, GROUPS, 4096)
        require("num_stages", self.num_stages, 1, 8)
        require("num_blocks", self.num_blocks, 1, 64)
        require("num_codes", self.num_codes, 2, 1 << 20)
        require("code_width", self.code_width, 1, 4096)
        if self.channels % GROUPS:
            raise ValueError(f"channels is {self.channels}; it must be a multiple of {GROUPS}")
        if not 0 <= self.codebook_decay < 1:
            raise ValueError(f"codebook_decay is {self.codebook_decay}; it must be at least 0 and below 1")
        if not self.revive_below >= 0:
            raise ValueError(f"revive_below is {self.revive_below}; it must be 0 (never) or above")

    @property
    def width(self) -> int:
        """Of the last stage."""
        return self.channels << (self.num_stages - 1)

    def fit(self, vocabulary: Vocabulary) -> "VQConfig":
        """The autoencoder of this shape for such images."""
        if vocabulary.shape is None:
            raise ValueError("an autoencoder learns from pixels, and this data has none; give image data")
        channels, height, width = vocabulary.shape
        sizes: dict[str, Any] = {"image_channels": channels, "image_height": height, "image_width": width}
        return VQConfig(**{**vars(self), **sizes})


@dataclass(frozen=True, kw_only=True)
class VQConfig(VQNetwork):
    """An autoencoder for images of one size."""

    model_type: ClassVar[str] = "fpmgm-vq"

    image_channels: int = 1
    image_height: int = 28
    image_width: int = 28

    def __post_init__(self) -> None:
        super().__post_init__()
        require("image_channels", self.image_channels, 1, 4)
        for name in ("image_height", "image_width"):
            require(name, getattr(self, name), 1, 1 << 14)
            if getattr(self, name) % self.factor:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; {self.num_stages} stages need a multiple of {self.factor}"
                )

    @property
    def factor(self) -> int:
        """How many pixels a code is high and wide."""
        return 1 << self.num_stages

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of codes."""
        return self.image_height // self.factor, self.image_width // self.factor

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.image_channels, self.image_height, self.image_width

    @property
    def vocabulary(self) -> Vocabulary:
        """Of what it learns from: pixels, which have 256 values."""
        channels, height, width = self.shape
        return Vocabulary(size=257, mask_id=256, length=channels * height * width, shape=self.shape)

    @property
    def cost(self) -> Cost:
        return Cost(2 * self.num_stages * self.num_blocks, 0, 0)

    @property
    def kind(self) -> str:
        return "VQ autoencoder"

    @property
    def training_only(self) -> frozenset[str]:
        return frozenset({"codebook_decay", "revive_below"})

    def told_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def build(self, *, seed: int = 0) -> Any:
        """An autoencoder with fresh weights and a table of codes: it encodes and decodes."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return Autoencoder(self)

    def multiply_adds(self, *, num_iters: int, num_positions: int, length: int | None = None) -> int:
        """Of encoding and decoding an image; every convolution counts its products."""
        counted = 0

        def count(layer: nn.Module, _: Any, out: Tensor) -> None:
            nonlocal counted
            if isinstance(layer, nn.Conv2d):
                counted += layer.weight.numel() * out.shape[-2] * out.shape[-1]

        with torch.device("meta"):
            network = Autoencoder(self)
            for layer in network.modules():
                layer.register_forward_hook(count)
            network.decode_latents(network.encoder(torch.empty(1, *self.shape)))
        return counted

    def for_timing(self, length: int) -> "VQConfig":
        return replace(self)


class Residual(nn.Module):
    """Two convolutions beside the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(GROUPS, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm2 = nn.GroupNorm(GROUPS, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, h: Tensor) -> Tensor:
        h_inner = self.conv1(F.silu(self.norm1(h)))
        return h + self.conv2(F.silu(self.norm2(h_inner)))


def _encoder(config: VQConfig) -> nn.Sequential:
    layers: list[nn.Module] = []
    before = config.image_channels
    for stage in range(config.num_stages):
        channels = config.channels << stage
        layers += [nn.Conv2d(before, channels, 4, stride=2, padding=1)]
        layers += [Residual(channels) for _ in range(config.num_blocks)]
        before = channels
    return nn.Sequential(*layers, nn.GroupNorm(GROUPS, before), nn.SiLU(), nn.Conv2d(before, config.code_width, 1))


def _decoder(config: VQConfig) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(config.code_width, config.width, 3, padding=1)]
    for stage in reversed(range(config.num_stages)):
        channels, after = config.channels << stage, config.channels << max(stage - 1, 0)
        layers += [Residual(channels) for _ in range(config.num_blocks)]
        if stage == 0:
            layers += [nn.GroupNorm(GROUPS, channels), nn.SiLU()]
            after = config.image_channels
        layers += [nn.Conv2d(channels, 4 * after, 3, padding=1), nn.PixelShuffle(2)]
    return nn.Sequential(*layers)


class Autoencoder(nn.Module):
    """Encoder, codebook and decoder. A codebook that learns works on the tables that are kept here."""

    codebook: Tensor
    is_started: Tensor

    def __init__(self, config: VQConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = _encoder(config)
        self.decoder = _decoder(config)
        self.register_buffer("codebook", torch.randn(config.num_codes, config.code_width))
        self.register_buffer("code_counts", torch.zeros(config.num_codes))
        self.register_buffer("code_sums", torch.zeros(config.num_codes, config.code_width))
        self.register_buffer("is_started", torch.zeros(1))

    def encode(self, images: Images) -> Codes:
        """The nearest code of every latent."""
        latents = self.encoder(images)
        flat = latents.permute(0, 2, 3, 1).flatten(0, 2)  # (B h w, K)
        distance = self.codebook.square().sum(dim=1) - 2 * flat @ self.codebook.T
        return distance.argmin(dim=1).view(latents.shape[0], *latents.shape[2:])

    def decode(self, codes: Codes) -> Images:
        """The image that codes stand for."""
        return self.decode_latents(self.codebook[codes].permute(0, 3, 1, 2))

    def decode_latents(self, latents: Latents) -> Images:
        found: Images = self.decoder(latents)
        return found

    @property
    def quantizer(self) -> nn.Module:
        """The codebook of vector-quantize-pytorch, which shares its state with the tables of this network.

        It is made anew for each use, so that all it knows is in this network's buffers: what is saved is all there is.
        """
        from vector_quantize_pytorch import VectorQuantize

        config = self.config
        quantizer = VectorQuantize(
            dim=config.code_width,
            codebook_size=config.num_codes,
            accept_image_fmap=True,
            decay=config.codebook_decay,
            threshold_ema_dead_code=config.revive_below,
            kmeans_init=not bool(self.is_started),
            commitment_weight=1.0,
        )
        book = getattr(quantizer, CODEBOOK)
        for name, ours in (("embed", "codebook"), ("cluster_size", "code_counts"), ("embed_avg", "code_sums")):
            setattr(book, name, getattr(self, ours)[None])
        quantizer.train(self.training)
        return quantizer.to(self.codebook.device)

    def forward(self, images: Images) -> tuple[Images, Codes, Float[Tensor, ""]]:
        """Images made of their own codes, the codes, and how far latents are from them: the pass that learns."""
        latents, codes, apart = self.quantizer(self.encoder(images))
        if self.training:
            self.is_started.fill_(1)
        return self.decode_latents(latents), codes, apart.sum()
