"""What an image tokenizer minimises: the difference between images and what it makes of their codes."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator
from torch.nn import functional as F  # noqa: N812

from fpmgm.codecs.image_tokenizer import to_signed
from fpmgm.objectives import WHOLE, Losses, Moment, WithoutTeacher
from fpmgm.schema import LARGEST_WEIGHT, require
from fpmgm.types import Batch, Tokens


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Nothing is drawn for a batch of images; its size is kept, so that parts add up."""

    num_images: int

    def rows(self, part: slice) -> "Rows":
        return self


@dataclass(frozen=True, kw_only=True)
class Reconstruction(WithoutTeacher):
    """Squared and absolute differences of pixels, from -1 to 1, and how far latents are from their codes.

    This is the plain loss. A perceptual one compares features of a network that was trained on photographs; none that
    would help with small grey images can be had from a package registry.
    """

    absolute: float = 0.3
    """The weight of absolute differences beside squared ones. It keeps edges sharper."""
    commitment: float = 0.25
    """The weight of the squared distance between a latent and its code."""

    is_in_nats = False

    def __post_init__(self) -> None:
        for name in ("absolute", "commitment"):
            require(f"objective.{name}", getattr(self, name), 0, LARGEST_WEIGHT)

    def draw(self, denoiser: Any, batch: Tokens | Batch, *, rng: Generator, moment: Moment = WHOLE) -> Rows:
        return Rows(num_images=len(Batch.of(batch).x))

    def loss(self, denoiser: Any, x: Tokens, noise: Rows, teacher: Any = None) -> Losses:
        """What the images x, rows of pixels, add to the mean of the batch."""
        share = len(x) / noise.num_images
        images = to_signed(x.view(len(x), *denoiser.config.shape))
        made, codes, apart = denoiser(images)
        squared, absolute = F.mse_loss(made, images), F.l1_loss(made, images)
        total = squared + self.absolute * absolute + self.commitment * apart
        used = torch.bincount(codes.flatten(), minlength=denoiser.config.num_codes).count_nonzero()
        terms = {
            "squared": squared.detach() * share,
            "commitment": apart.detach() * share,
            "codebook_use": used / denoiser.config.num_codes * share,
        }
        return Losses(total=total * share, residual=torch.zeros(len(x), device=x.device), terms=terms)
