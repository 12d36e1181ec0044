"""The optimiser, its learning rate, and the moving average of the weights."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from fpmgm.devices import dtype_named, has_fast_bfloat16
from fpmgm.names import choose
from fpmgm.schema import LARGEST_RATE, require_above
from fpmgm.training.muon import Muon

Tensors = tuple[Tensor, ...] | list[Tensor]


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimiser, with a warm-up, clipping and an exponential moving average (EMA) of the weights."""

    kind: Literal["adamw", "muon"] = "adamw"
    """How gradients move the weights: `adamw`, or `muon`, which moves the matrices of the blocks and of the injection
    by the orthogonal part of their momentum, and all else as AdamW does."""
    muon_momentum: float = 0.95
    """The decay of the mean of gradients in Muon. Unused by AdamW."""
    muon_precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """The products that Muon makes orthogonal parts with. In bfloat16 they take about a third of the time where a
    processor is fast at it, and are within 2 % of those in float32. With auto, they are in bfloat16 there only. Unused
    by AdamW."""
    lr: float = 3e-4
    """The learning rate, at most 1."""
    beta1: float = 0.9
    """The decay of the mean of gradients in AdamW."""
    beta2: float = 0.999
    """The decay of the mean of squared gradients in AdamW."""
    weight_decay: float = 0.0
    """The weight decay of AdamW."""
    warmup: int = 2500
    """Updates over which the learning rate rises from 0."""
    decay: Literal["constant", "cosine"] = "constant"
    """What the learning rate does after the warm-up: it stays (constant), or falls to 0 at the last update (cosine)."""
    injection_lr: float = 1.0
    """The learning rate of the injection, as a multiple of lr. A plain stack has no injection."""
    clip: float = 1.0
    """The largest norm of the gradient. Larger gradients are scaled down to it."""
    ema: float = 0.9999
    """The decay of the moving average of the weights. It rises to this from 0.1, as (1 + n) / (10 + n)."""

    def __post_init__(self) -> None:
        choose("optimiser", self.kind, {"adamw": None, "muon": None})
        choose("muon_precision", self.muon_precision, dict.fromkeys(("auto", "float32", "bfloat16")))
        choose("learning-rate decay", self.decay, {"constant": None, "cosine": None})
        require_above("optim.lr", self.lr, LARGEST_RATE)
        require_above("optim.lr times optim.injection_lr", self.lr * self.injection_lr, LARGEST_RATE)
        if not 0 < self.clip < math.inf:
            raise ValueError(f"optim.clip is {self.clip}; it must be above 0, and finite")
        for name in ("weight_decay", "warmup"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"optim.{name} is {getattr(self, name)}; it must be 0 or above, and finite")
        for name in ("beta1", "beta2", "ema", "muon_momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"optim.{name} is {getattr(self, name)}; it must be at least 0 and below 1")

    def learning_rate(self, update: int, updates: int, *, is_warm: bool = False) -> float:
        """The learning rate of an update, counted from 0, of a run of `updates`, warmed up already or not."""
        warm = 1.0 if is_warm else min(1.0, (update + 1) / max(self.warmup, 1))
        if self.decay == "constant":
            return self.lr * warm
        done = max(0, update - self.warmup) / max(1, updates - self.warmup)
        return self.lr * warm * (1 + math.cos(math.pi * min(done, 1.0))) / 2


def optimiser_of(denoiser: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW as MDLM sets it, or Muon; `set_learning_rate` before each update."""
    found: Any = getattr(denoiser, "injection", None)
    is_injection = {id(parameter) for parameter in found.parameters()} if found else set()
    matrices = {id(matrix) for matrix in matrices_of(denoiser)} if config.kind == "muon" else set()
    groups: list[dict[str, Any]] = []
    for multiple, is_inside in ((1.0, False), (config.injection_lr, True)):
        for is_matrix in (False, True):
            members = [
                parameter
                for parameter in denoiser.parameters()
                if (id(parameter) in is_injection) == is_inside and (id(parameter) in matrices) == is_matrix
            ]
            if members:
                groups.append({"params": members, "multiple": multiple, "is_matrix": is_matrix})
    settings: dict[str, Any] = {
        "lr": config.lr,
        "betas": (config.beta1, config.beta2),
        "weight_decay": config.weight_decay,
    }
    if config.kind == "muon":
        dtype = _muon_dtype(config, next(denoiser.parameters()).device)
        return Muon(groups, momentum=config.muon_momentum, dtype=dtype, **settings)
    return torch.optim.AdamW(groups, **settings)


def _muon_dtype(config: OptimConfig, device: torch.device) -> torch.dtype:
    if config.muon_precision == "auto":
        return torch.bfloat16 if has_fast_bfloat16(device) else torch.float32
    return dtype_named(config.muon_precision)


def matrices_of(denoiser: nn.Module) -> Iterator[Tensor]:
    """The weights of the linear layers that tokens pass in the blocks and in the injection."""
    for name, part in denoiser.named_modules():
        modulating: str | None = getattr(part, "modulating", None)
        if modulating is None and name != "injection":
            continue
        for inside, layer in part.named_modules():
            if isinstance(layer, nn.Linear) and inside != modulating:
                yield layer.weight


def set_learning_rate(optimiser: torch.optim.Optimizer, lr: float) -> None:
    """Set every group to its multiple of lr."""
    for group in optimiser.param_groups:
        group["lr"] = lr * group["multiple"]


def moving_average(model: nn.Module, decay: float) -> AveragedModel:
    """An EMA of the model's weights; call `update_parameters` after each update."""

    @torch.no_grad()
    def average(averaged: Tensors, current: Tensors, num_averaged: Tensor | int) -> None:
        n = int(num_averaged)
        torch._foreach_lerp_(averaged, current, 1 - min(decay, (1 + n) / (10 + n)))

    return AveragedModel(model, multi_avg_fn=average)
