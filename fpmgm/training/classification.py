"""What a classifier of images minimises: the cross entropy of their classes."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int, UInt8
from torch import Generator, Tensor
from torch.nn import functional as F  # noqa: N812

from fpmgm.codecs.image_tokenizer import to_signed
from fpmgm.objectives import WHOLE, Losses, Moment, WithoutTeacher
from fpmgm.types import Batch, Labels, Tokens

Offsets = Int[Tensor, "B 2"]
Flips = Bool[Tensor, " B"]
Pictures = UInt8[Tensor, "B C H W"]


@dataclass(frozen=True, kw_only=True)
class Views:
    """What was drawn for a batch of images: how each is moved, and their classes."""

    label: Labels
    offsets: Offsets  # down and to the right
    is_flipped: Flips
    num_images: int  # of the whole batch

    def rows(self, part: slice) -> "Views":
        """What was drawn for some images; the total stays that of the whole batch."""
        changes: dict[str, Any] = {name: getattr(self, name)[part] for name in ("label", "offsets", "is_flipped")}
        return replace(self, **changes)


@dataclass(frozen=True, kw_only=True)
class Classification(WithoutTeacher):
    """The cross entropy of the classes of images that are moved a little."""

    shift: int = 2
    """Every image is moved by up to so many pixels each way. Pixels that come in are black."""
    flip: bool = False
    """Every other image is mirrored. Do not mirror digits: a mirrored 3 is not a digit."""

    def __post_init__(self) -> None:
        if self.shift < 0:
            raise ValueError(f"objective.shift is {self.shift}; it must be 0 (never) or more pixels")

    def draw(self, denoiser: Any, batch: Tokens | Batch, *, rng: Generator, moment: Moment = WHOLE) -> Views:
        """How the images of a batch are moved."""
        batch = Batch.of(batch)
        if batch.label is None:
            raise ValueError("a classifier learns classes, and this data has none; give images by class")
        num = len(batch.x)
        offsets = torch.randint(-self.shift, self.shift + 1, (num, 2), generator=rng)
        is_flipped = (torch.rand(num, generator=rng) < 0.5) & self.flip
        return Views(label=batch.label.cpu(), offsets=offsets, is_flipped=is_flipped, num_images=num)

    def loss(self, denoiser: Any, x: Tokens, noise: Views, teacher: Any = None) -> Losses:
        """What the images x, rows of pixels, add to the mean of the batch."""
        images = moved(x.to(torch.uint8).reshape(len(x), *denoiser.config.shape), noise.offsets, noise.is_flipped)
        logits = denoiser(to_signed(images)).logits
        label = noise.label.to(x.device)
        total = F.cross_entropy(logits, label, reduction="sum") / noise.num_images
        accuracy = (logits.argmax(dim=1) == label).sum() / noise.num_images
        return Losses(total=total, residual=torch.zeros(len(x), device=x.device), terms={"accuracy": accuracy})


def moved(images: Pictures, offsets: Offsets, is_flipped: Flips) -> Pictures:
    """Images moved down and to the right by their offsets, with 0 where nothing is left, and some of them mirrored."""
    _, _, height, width = images.shape
    rows, columns = (
        torch.arange(size, device=images.device) - offset[:, None].to(images.device)
        for size, offset in zip((height, width), offsets.T, strict=True)
    )  # (B, H) and (B, W): where each pixel comes from
    columns = torch.where(is_flipped[:, None].to(images.device), width - 1 - columns, columns)
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    sequences = torch.arange(len(images), device=images.device)[:, None, None]
    found = images[sequences, :, rows.clamp(0, height - 1)[:, :, None], columns.clamp(0, width - 1)[:, None, :]]
    return found.permute(0, 3, 1, 2) * inside[:, None]  # advanced indices come first, so channels are last
