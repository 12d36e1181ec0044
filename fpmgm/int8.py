"""Weights of 8 bits: the large layers multiply whole numbers, which some processors do several times as fast."""

import torch
from jaxtyping import Float, Int8
from torch import Tensor, nn

from fpmgm.backbones.network import Learned
from fpmgm.denoiser import Denoiser
from fpmgm.devices import check_pair, dtype_named
from fpmgm.injection import MLPInjection

LARGEST = 127


class Int8Linear(nn.Linear):
    """A linear layer whose weights and inputs are rounded to 8 bits, each row of either with a size of its own.

    A row of the input has its own size, so that a sample does not depend on its batch. The float weights stay for what
    reads a part of them. Where gradients are tracked it is the layer that it was made of.
    """

    rounded: Int8[Tensor, "O I"]
    sizes: Float[Tensor, " O"]

    @classmethod
    def of(cls, layer: nn.Linear) -> "Int8Linear":
        """A layer with the same weights."""
        made = cls(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        made.weight, made.bias = layer.weight, layer.bias
        rounded, sizes = _rounded(layer.weight.detach())
        made.register_buffer("rounded", rounded, persistent=False)
        made.register_buffer("sizes", sizes[:, 0], persistent=False)
        return made

    def forward(self, input: Float[Tensor, "*shape I"]) -> Float[Tensor, "*shape O"]:
        if torch.is_grad_enabled():
            return super().forward(input)
        rounded, sizes = _rounded(input.flatten(0, -2))
        whole = torch._int_mm(rounded, self.rounded.t()) * sizes
        found = whole.mul_(self.sizes) if self.bias is None else torch.addcmul(self.bias, whole, self.sizes)
        return found.view(*input.shape[:-1], -1)


def _rounded(rows: Float[Tensor, "N I"]) -> tuple[Int8[Tensor, "N I"], Float[Tensor, "N 1"]]:
    """Rows of whole numbers up to 127, and what each row is to be multiplied by."""
    largest = torch.linalg.vector_norm(rows, ord=torch.inf, dim=-1, keepdim=True)
    sizes = largest.clamp_min(torch.finfo(rows.dtype).tiny * LARGEST) / LARGEST
    return (rows / sizes).round_().to(torch.int8), sizes


def in_precision(denoiser: Learned, device: torch.device, dtype: str) -> Learned:
    """A denoiser on a device, in the precision of that name; with int8 its blocks multiply whole numbers."""
    check_pair(device, dtype)
    denoiser = denoiser.to(device=device, dtype=dtype_named(dtype))
    if dtype == "int8":
        if not isinstance(denoiser, Denoiser):
            raise ValueError(f"dtype is int8, which is for denoisers, and this is a {type(denoiser).__name__}")
        for block in denoiser.backbone.blocks:
            for name, layer in list(block.named_modules()):
                if isinstance(layer, nn.Linear) and name != getattr(block, "modulating", None):
                    block.set_submodule(name, Int8Linear.of(layer))
        if denoiser.injection is not None and isinstance(denoiser.injection.mix, MLPInjection):
            denoiser.injection.mix.set_submodule("fc2", Int8Linear.of(denoiser.injection.mix.fc2))
    return denoiser
