"""Models of other code: checkpoints of the public MDLM and Halton-MaskGIT code, hub folders of MDLM and SDTT.

Files of MDLM and SDTT hold the same tensors under other prefixes. Sizes are read from the tensors and must agree with
the settings; every tensor must have its name and shape, with none missing and none left over.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fpmgm.backbones.dit import MDLMConfig, as_mdlm, mdlm
from fpmgm.backbones.dit_block import rotary_frequencies
from fpmgm.checkpoint import MODEL_FILES, Model, check_place, pickle_hint
from fpmgm.denoiser import Denoiser
from fpmgm.files import whole_folder, write_tensors
from fpmgm.interop.halton import halton_of
from fpmgm.interop.pickled import Inert, read_pickled
from fpmgm.interop.stored import (
    Foreign,
    SafeTensor,
    Stored,
    by_short_names,
    check_tensors,
    fill,
    listed,
    safe_tensors,
    settled,
    size,
)
from fpmgm.schema import read_json, read_text

FREQUENCIES = "rotary_emb.inv_freq"
MDLM_NAMES = {
    "vocab_size": "vocab_size",
    "model_length": "length",
    "hidden_dim": "width",
    "cond_dim": "cond_width",
    "n_blocks": "num_pre",
    "n_heads": "num_heads",
    "dropout": "dropout",
    "time_conditioning": "time_conditioning",
}
"""The hub's names of our settings."""
HYDRA_NAMES = {
    "length": "length",
    "hidden_size": "width",
    **{name: MDLM_NAMES[name] for name in ("cond_dim", "n_blocks", "n_heads", "dropout", "time_conditioning")},
}
"""The names of MDLM's and SDTT's training code."""


def read_foreign(place: Path) -> Foreign:
    """The model of a checkpoint file or a hub folder, its tensors unread."""
    if not place.is_file():
        return _read_hub_folder(place)
    if place.suffix == ".safetensors":
        tensors = by_short_names(place, safe_tensors(place))
        return Foreign(place=place, format="safetensors file", tensors=tensors, settings={})
    content = read_pickled(place)
    if isinstance(content, dict) and "model_state_dict" in content and "state_dict" not in content:
        return halton_of(place, content)
    return _read_lightning(place, content)


def config_of(source: Foreign, *, mask_id: int, num_heads: int | None = None, length: int | None = None) -> MDLMConfig:
    """The network that the tensors and settings describe; heads and length may be told where they do not."""
    known = settled(source, _sizes(source), {"num_heads": num_heads, "length": length})
    config = MDLMConfig(**known, mask_id=mask_id)
    _check_shapes(source, config)
    return config


def num_symbols(source: Foreign) -> int:
    """The size of its vocabulary, the mask included."""
    return _sizes(source)["vocab_size"]


def load_foreign(source: Foreign, config: MDLMConfig) -> Denoiser:
    """The denoiser with the source's weights, read one by one."""

    def stored_of(index: int, name: str) -> Stored:
        return source.average[index] if source.average else source.tensors[name]

    return fill(source, mdlm(config), stored_of)


def write_hub_folder(model: Model, folder: Path) -> None:
    """Write a plain MDLM as the hub's MDLM repositories are: their tensor names, their settings."""
    config = as_mdlm(model.config)
    check_hub_form(config)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.denoiser.state_dict().items()}
    tensors[f"backbone.{FREQUENCIES}"] = rotary_frequencies(config.width // config.num_heads)
    code = "kuleshov-group/mdlm-owt--"  # the repository that holds the classes
    settings = {
        "architectures": ["MDLM"],
        "auto_map": {
            "AutoConfig": f"{code}configuration_mdlm.MDLMConfig",
            "AutoModelForMaskedLM": f"{code}modeling_mdlm.MDLM",
        },
        "model_type": "mdlm",
        **{name: getattr(config, ours) for name, ours in MDLM_NAMES.items()},
        "return_dict": False,
        "torch_dtype": "float32",
    }
    check_place(folder)
    with whole_folder(folder, MODEL_FILES) as scratch:
        write_tensors(tensors, scratch / "model.safetensors")
        (scratch / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
        for name, content in (model.codec.files if model.codec else {}).items():
            (scratch / name).write_bytes(content.encode() if isinstance(content, str) else content)
        (scratch / "README.md").write_text(model.card)


def check_hub_form(config: MDLMConfig) -> None:
    """Raise a ValueError if the network cannot be written in MDLM's naming."""
    if config.num_fp:
        blocks = f"{config.num_pre}/{config.num_fp}/{config.num_post}"
        raise ValueError(f"a fixed-point model ({blocks} blocks) has no form in MDLM's naming; only a plain stack has")
    if config.is_causal:
        raise ValueError("a causal model is no MDLM; only a masked plain stack can be written in its naming")


def _read_lightning(file: Path, content: Any) -> Foreign:
    weights = content.get("state_dict") if isinstance(content, dict) else None
    if not isinstance(weights, dict):
        raise ValueError(
            f"{file} is no checkpoint of MDLM or Halton-MaskGIT: it holds no state_dict and no model_state_dict"
        )
    hyper_parameters = _opened(content.get("hyper_parameters"))
    config = hyper_parameters.get("config", hyper_parameters) if isinstance(hyper_parameters, dict) else None
    return Foreign(
        place=file,
        format="Lightning checkpoint",
        tensors=by_short_names(file, weights),
        average=_average(file, content.get("ema")),
        settings=_settings(file, _hydra(config), HYDRA_NAMES),
    )


def _read_hub_folder(folder: Path) -> Foreign:
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is no model folder: it has no config.json{pickle_hint(folder)}")
    content = read_json(folder / "config.json")
    if content.get("model_type") == "mdlm":
        settings, naming = _settings(folder, content, MDLM_NAMES), "MDLM"
    elif isinstance(content.get("model"), dict):
        settings, naming = _settings(folder, _hydra(content), HYDRA_NAMES), "SDTT"
    else:
        kind = content.get("model_type")
        raise ValueError(
            f"{folder / 'config.json'} is of another kind of model ({kind}); "
            f"convert reads {MDLMConfig.model_type}, mdlm and SDTT's"
        )
    tokenizer = folder / "tokenizer.json"
    return Foreign(
        place=folder,
        format=f"hub folder in {naming}'s naming",
        tensors=by_short_names(folder, _tensors_of(folder)),
        settings=settings,
        tokenizer=read_text(tokenizer) if tokenizer.is_file() else "",
    )


def _tensors_of(folder: Path) -> dict[str, SafeTensor]:
    file = folder / "model.safetensors"
    if not file.is_file():
        raise ValueError(f"{folder} has no model.safetensors{pickle_hint(folder)}")
    return safe_tensors(file)


def _average(file: Path, ema: Any) -> tuple[Stored, ...]:
    """The moving averages, which have no names."""
    if ema is None:
        return ()
    shadows = ema.get("shadow_params") if isinstance(ema, dict) else None
    if not isinstance(shadows, list) or not shadows or not all(isinstance(shadow, Stored) for shadow in shadows):
        raise ValueError(f"{file}: its EMA is no list of tensors")
    return tuple(shadows)


def _opened(node: Any) -> Any:
    """What an OmegaConf container or value holds, of which only the state was kept; else the thing itself."""
    if isinstance(node, Inert) and isinstance(node.state, dict):
        return node.state.get("_content", node.state.get("_val"))
    return node


def _hydra(config: Any) -> dict[Any, Any]:
    """The network in a configuration of MDLM's or SDTT's training code."""
    config = _opened(config)
    model = _opened(config.get("model")) if isinstance(config, dict) else None
    if not isinstance(model, dict):
        return {}
    network = {**model, "time_conditioning": config.get("time_conditioning")}
    return {name: _opened(value) for name, value in network.items()}


def _settings(place: Path, content: Mapping[Any, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """What is said of the network, by our names; a reference to another setting (${...}) says nothing."""
    found: dict[str, Any] = {}
    for name, ours in names.items():
        value = content.get(name)
        if value is None or isinstance(value, Inert) or (isinstance(value, str) and value.startswith("${")):
            continue
        is_number = isinstance(value, int) or (ours == "dropout" and isinstance(value, float))
        if isinstance(value, bool) != (ours == "time_conditioning") or not is_number:
            raise ValueError(f"{place}: its setting {name} is {value!r}")
        found[ours] = value
    return found


def _sizes(source: Foreign) -> dict[str, int]:
    """What the shapes of the tensors tell."""
    shapes = source.shapes
    embedding, cond = shapes.get("vocab_embed.embedding", ()), shapes.get("sigma_map.mlp.2.bias", ())
    blocks = [int(found[1]) for name in shapes if (found := re.match(r"blocks\.(\d+)\.", name))]
    if len(embedding) != 2 or len(cond) != 1 or not blocks:
        raise ValueError(
            f"{source.place} is no MDLM: of vocab_embed.embedding, sigma_map.mlp.2.bias and blocks.0 not all are "
            f"there; it holds {listed(sorted(shapes))}"
        )
    sizes = {"vocab_size": embedding[0], "width": embedding[1], "cond_width": cond[0], "num_pre": max(blocks) + 1}
    if FREQUENCIES in shapes:
        sizes["num_heads"] = _num_heads(source, sizes["width"])
    return sizes


def _num_heads(source: Foreign, width: int) -> int:
    frequencies = source.tensors[FREQUENCIES].read().float()
    head_width = 2 * frequencies.numel()
    expected = rotary_frequencies(head_width)
    if frequencies.shape != expected.shape or not torch.allclose(frequencies, expected, rtol=1e-2):
        raise ValueError(f"{source.place}: its {FREQUENCIES} is not that of rotary positions with base 10000")
    if head_width == 0 or width % head_width:
        raise ValueError(
            f"{source.place}: {FREQUENCIES} tells heads of width {head_width}, the network is {width} wide"
        )
    return width // head_width


def _check_shapes(source: Foreign, config: MDLMConfig) -> None:
    with torch.device("meta"):
        network = mdlm(config)
    expected = {name.removeprefix("backbone."): tuple(p.shape) for name, p in network.named_parameters()}
    found = {name: shape for name, shape in source.shapes.items() if name != FREQUENCIES}
    check_tensors(source, f"MDLM of {config.num_pre} blocks, {config.width} wide", expected, found)
    if source.average and len(source.average) != len(expected):
        raise ValueError(f"{source.place}: its EMA holds {len(source.average)} tensors, its network {len(expected)}")
    for shadow, (name, shape) in zip(source.average, expected.items(), strict=False):
        if shadow.shape != shape:
            raise ValueError(f"{source.place}: its EMA has {size(shadow.shape)} where {name} has {size(shape)}")
