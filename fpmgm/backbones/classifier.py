"""A small convolutional network that tells the class of an image: the judge of images, trained on the data itself."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fpmgm.backbones.network import Vocabulary
from fpmgm.backbones.vq import GROUPS, Images, Residual
from fpmgm.budget import Cost
from fpmgm.schema import require

ImageFeatures = Float[Tensor, "B D"]
ClassLogits = Float[Tensor, "B K"]


@dataclass(frozen=True, kw_only=True)
class ClassifierNetwork:
    """The shape of a classifier, whatever its images. The defaults fit images of 28 to 32 pixels."""

    channels: int = 32
    """Of the first stage; every further one has twice as many."""
    num_stages: int = 3
    """How often height and width are halved."""
    num_blocks: int = 1
    """Residual blocks of a stage."""
    dropout: float = 0.1
    """The share of features that is dropped while it learns."""

    is_causal: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require("channels", self.channels, GROUPS, 4096)
        require("num_stages", self.num_stages, 1, 8)
        require("num_blocks", self.num_blocks, 1, 64)
        if self.channels % GROUPS:
            raise ValueError(f"channels is {self.channels}; it must be a multiple of {GROUPS}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; it must be at least 0 and below 1")

    @property
    def width(self) -> int:
        """Of the last stage: the number of features."""
        return self.channels << (self.num_stages - 1)

    def fit(self, vocabulary: Vocabulary) -> "ClassifierConfig":
        """The classifier of this shape for such images."""
        if vocabulary.shape is None or vocabulary.num_classes < 2:
            raise ValueError("a classifier learns from the pixels of images of at least two classes; give such data")
        channels, height, width = vocabulary.shape
        sizes: dict[str, Any] = {"image_channels": channels, "image_height": height, "image_width": width}
        return ClassifierConfig(**{**vars(self), **sizes, "num_classes": vocabulary.num_classes})


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig(ClassifierNetwork):
    """A classifier of images of one size."""

    model_type: ClassVar[str] = "fpmgm-classifier"

    image_channels: int = 1
    image_height: int = 28
    image_width: int = 28
    num_classes: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        require("image_channels", self.image_channels, 1, 4)
        require("num_classes", self.num_classes, 2, 1 << 20)
        for name in ("image_height", "image_width"):
            require(name, getattr(self, name), 1, 1 << 14)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.image_channels, self.image_height, self.image_width

    @property
    def vocabulary(self) -> Vocabulary:
        """Of what it reads: pixels, which have 256 values."""
        channels, height, width = self.shape
        length = channels * height * width
        return Vocabulary(size=257, mask_id=256, length=length, num_classes=self.num_classes, shape=self.shape)

    @property
    def cost(self) -> Cost:
        return Cost(self.num_stages * self.num_blocks, 0, 0)

    @property
    def kind(self) -> str:
        return "Classifier"

    @property
    def training_only(self) -> frozenset[str]:
        return frozenset({"dropout"})

    def told_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def build(self, *, seed: int = 0) -> Any:
        """A classifier with fresh weights."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return Classifier(self)

    def multiply_adds(self, *, num_iters: int, num_positions: int, length: int | None = None) -> int:
        """Of one image; every convolution counts its products."""
        counted = 0

        def count(layer: nn.Module, _: Any, out: Tensor) -> None:
            nonlocal counted
            if isinstance(layer, nn.Conv2d):
                counted += layer.weight.numel() * out.shape[-2] * out.shape[-1]

        with torch.device("meta"):
            network = Classifier(self)
            for layer in network.modules():
                layer.register_forward_hook(count)
            network(torch.empty(1, *self.shape))
        return counted

    def for_timing(self, length: int) -> "ClassifierConfig":
        return replace(self, dropout=0.0)


class Classified(NamedTuple):
    """What a classifier finds in images."""

    features: ImageFeatures  # what the last layer reads
    logits: ClassLogits


class Classifier(nn.Module):
    """Stages of convolutions, a mean over what is left of height and width, and a linear layer."""

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.config = config
        layers: list[nn.Module] = []
        before = config.image_channels
        for stage in range(config.num_stages):
            channels = config.channels << stage
            layers += [nn.Conv2d(before, channels, 3, stride=2, padding=1)]
            layers += [Residual(channels) for _ in range(config.num_blocks)]
            before = channels
        self.stages = nn.Sequential(*layers, nn.GroupNorm(GROUPS, before), nn.SiLU())
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(before, config.num_classes)

    def forward(self, images: Images) -> Classified:
        features = self.stages(images).mean(dim=(2, 3))
        return Classified(features, self.head(self.dropout(features)))
