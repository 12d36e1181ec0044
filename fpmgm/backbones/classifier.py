"""A small convolutional network that tells the class of an image: the judge of images, trained on the data itself."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fpmgm.backbones.network import Vocabulary
from fpmgm.backbones.vq import GROUPS, Images
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
    """Convolutions, each of which ends with height and width halved."""
    num_features: int = 128
    """What the last layer reads."""
    dropout: float = 0.2
    """The share of features that is dropped while it learns."""

    is_causal: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require("channels", self.channels, GROUPS, 4096)
        require("num_stages", self.num_stages, 1, 8)
        require("num_features", self.num_features, 1, 1 << 16)
        if self.channels % GROUPS:
            raise ValueError(f"channels is {self.channels}; it must be a multiple of {GROUPS}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; it must be at least 0 and below 1")

    @property
    def width(self) -> int:
        """Of its features."""
        return self.num_features

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
            if getattr(self, name) < 1 << self.num_stages:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; {self.num_stages} stages need at least {1 << self.num_stages}"
                )

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
        return Cost(self.num_stages, 0, 0)

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
        """Of one image: the convolutions, each at the size before it is halved, and the two linear layers."""
        before, height, width, counted = self.image_channels, self.image_height, self.image_width, 0
        for stage in range(self.num_stages):
            channels = self.channels << stage
            counted += 9 * before * channels * height * width
            before, height, width = channels, height // 2, width // 2
        return counted + (before * height * width + self.num_classes) * self.num_features

    def for_timing(self, length: int) -> "ClassifierConfig":
        return replace(self, dropout=0.0)


class Classified(NamedTuple):
    """What a classifier finds in images."""

    features: ImageFeatures  # what the last layer reads
    logits: ClassLogits


class Classifier(nn.Module):
    """Convolutions, each with a norm and a maximum over 2 x 2 pixels, then two linear layers.

    Residual stages with a mean over all pixels at the end learned more slowly: 0.84 instead of 0.87 of held-out images
    right after half a minute of one core.
    """

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.config = config
        layers: list[nn.Module] = []
        before = config.image_channels
        for stage in range(config.num_stages):
            channels = config.channels << stage
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.GroupNorm(GROUPS, channels)]
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
            before = channels
        self.stages = nn.Sequential(*layers)
        cells = (config.image_height >> config.num_stages) * (config.image_width >> config.num_stages)
        self.to_features = nn.Linear(before * cells, config.num_features)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(config.num_features, config.num_classes)

    def forward(self, images: Images) -> Classified:
        features = self.to_features(self.stages(images).flatten(1)).relu()
        return Classified(features, self.head(self.dropout(features)))
