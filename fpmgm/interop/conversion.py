"""Conversion: a plain stack becomes a fixed-point model by a layer map (the paper's pretrained model conversion)."""

import math
from dataclasses import replace

import torch

from fpmgm.backbones import NetworkConfig
from fpmgm.backbones.dit import MDLMConfig
from fpmgm.backbones.maskgit import MaskGITConfig
from fpmgm.checkpoint import Model
from fpmgm.denoiser import Denoiser
from fpmgm.injection import Injection, InjectionName
from fpmgm.interop.layer_map import LayerMap
from fpmgm.masking import corrupt
from fpmgm.randomness import generator


def to_fixed_point(
    model: Model, layer_map: LayerMap, *, a: float = 0.5, b: float = 0.5, injection: InjectionName = "mlp"
) -> Model:
    """The fixed-point model made of the mapped layers, with an injection that returns a h + b h_pre, exactly.

    (1, 0) makes it a plain loop of the fixed-point layers; (1/2, 1/2) keeps their input injected. Embeddings, what
    conditions the blocks, and the head are the source's. It needs adaptation before it is of use. The injection
    `diagonal` brings h_pre to one size at every position: its b is multiplied by the mean size of h_pre.
    """
    check_map(model.config, layer_map)
    check_mix(a, b, injection)
    config = replace(
        _as_stack(model.config),
        num_pre=len(layer_map.pre),
        num_fp=len(layer_map.fp),
        num_post=len(layer_map.post),
        injection=injection,
    )
    denoiser = config.build()
    source, weights = model.denoiser.state_dict(), denoiser.state_dict()
    for name, weight in weights.items():
        if name.startswith("backbone."):
            weight.copy_(source[_source_name(name, layer_map)])
    assert denoiser.injection is not None
    denoiser.injection.set_exact(a, b if is_exact(injection) else b * _mean_size(denoiser.eval()))
    return Model(denoiser=denoiser.eval(), config=config, codec=model.codec, data=model.data)


def check_map(config: NetworkConfig, layer_map: LayerMap) -> None:
    """Raise a ValueError if the network cannot be cut by that map."""
    _as_stack(config)
    if config.cost.fp:
        raise ValueError("the source has a fixed point already; a layer map cuts a plain stack")
    if config.is_causal:
        raise ValueError("the source is a causal model; a layer map cuts an MDLM")
    layer_map.check_depth(config.cost.pre)


def _as_stack(config: NetworkConfig) -> MDLMConfig | MaskGITConfig:
    if not isinstance(config, MDLMConfig | MaskGITConfig):
        raise ValueError(f"a layer map cuts an MDLM or a MaskGIT, and the source is a {config.model_type}")
    return config


def check_mix(a: float, b: float, injection: InjectionName) -> None:
    """Raise a ValueError if such an injection cannot start as a h + b h_pre."""
    if not (math.isfinite(a) and math.isfinite(b)):
        raise ValueError(f"(a, b) is ({a}, {b}); both must be finite")
    Injection(injection, 1, has_projection=False).set_exact(a, b)


def is_exact(injection: InjectionName) -> bool:
    """Whether such an injection can return a h + b h_pre at all positions, whatever the size of h_pre there."""
    return injection != "diagonal"


@torch.no_grad()
def _mean_size(denoiser: Denoiser) -> float:
    """The mean over positions of the size (rms) of h_pre, for sequences of any tokens of which half are masked."""
    rng = generator(0)
    z = torch.randint(0, denoiser.vocab_size, (8, denoiser.max_length), generator=rng)
    z = corrupt(z, torch.full((8,), 0.5), mask_id=denoiser.mask_id, rng=rng)
    return float(denoiser.pre(z, denoiser.condition(z, 0.5)).square().mean(dim=-1).sqrt().mean())


def _source_name(name: str, layer_map: LayerMap) -> str:
    """The source's name of a tensor: backbone.blocks.1.norm1.weight is backbone.blocks.5.norm1.weight with 1/6/12."""
    if not name.startswith("backbone.blocks."):
        return name
    backbone, blocks, index, *rest = name.split(".")
    return ".".join([backbone, blocks, str(layer_map.layers[int(index)] - 1), *rest])
