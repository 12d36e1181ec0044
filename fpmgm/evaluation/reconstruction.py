"""What is measured of an image tokenizer: how far held-out images are from what it makes of their codes."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fpmgm.checkpoint import Model
from fpmgm.codecs.image_tokenizer import to_bytes, to_signed
from fpmgm.codecs.images import as_picture
from fpmgm.data import Dataset
from fpmgm.evaluation.evaluator import Metric, Validation, WithoutSamples
from fpmgm.types import Batch

ERROR = Metric(name="reconstruction", title="reconstruction error", best="lowest")
AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class ReconstructionEvaluator(WithoutSamples):
    """The mean squared error of held-out pixels, from 0 to 1."""

    refusal: ClassVar[str] = "an image tokenizer draws no samples; evaluate a model that uses it, such as fashion"

    @property
    def primary(self) -> Metric:
        return ERROR

    @property
    def validated(self) -> Metric:
        return ERROR

    @torch.no_grad()
    def validate(self, denoiser: Any, batch: Batch, *, num_iters: int) -> Validation:
        """Over these images; their error is that of the mean."""
        errors = []
        for part in batch.x.split(AT_ONCE):
            images = to_signed(part.view(len(part), *denoiser.config.shape))
            made = denoiser.decode(denoiser.encode(images)).clamp(-1, 1)
            errors.append(((made - images) / 2).square().flatten(1).mean(dim=1))
        each = torch.cat(errors).double()
        spread = float(each.std()) if len(each) > 1 else math.inf
        return Validation(value=float(each.mean()), error=spread / math.sqrt(len(each)), num_sequences=len(each))

    def shown(self, model: Model, data: Dataset, num: int) -> tuple[str, list[Any]]:
        """Held-out images, ten in a row, and below each row what the model makes of them."""
        network: Any = model.denoiser
        rows = []
        for start in range(0, num, 10):
            part = torch.from_numpy(data.rows[data.held_out[start : start + 10]].copy())
            images = part.view(len(part), *network.config.shape)
            with torch.no_grad():
                made = to_bytes(network.decode(network.encode(to_signed(images))))
            rows += [as_picture(image) for image in (*images, *made)]
        return "Held-out images; below each row, what the model makes of their codes.", rows

    def in_card(self, model: Model, data: Dataset) -> list[str]:
        """The error again as a ratio of signal to noise, and how many codes held-out images use."""
        network: Any = model.denoiser
        batch = data.measured(2000)
        error = self.validate(network, batch, num_iters=0).value
        with torch.no_grad():
            parts = batch.x.split(AT_ONCE)
            codes = [network.encode(to_signed(part.view(len(part), *network.config.shape))) for part in parts]
        counts = torch.bincount(torch.cat(codes).flatten(), minlength=network.config.num_codes).double()
        shares = counts[counts > 0] / counts.sum()
        perplexity = math.exp(-float((shares * shares.log()).sum()))
        return [
            f"A grid of {network.config.grid[0]} x {network.config.grid[1]} codes. Of {len(batch.x)} held-out images:",
            f"mean squared error {error:.5f} (pixels from 0 to 1), {-10 * math.log10(error):.2f} dB;",
            f"{int((counts > 0).sum())} of {len(counts)} codes are used, as evenly as {perplexity:.0f} equal ones.",
            "The error of a copy would be 0.",
        ]
