"""Models of other code: Lightning checkpoints of the public MDLM code, hub folders in MDLM's and in SDTT's naming.

All three hold the same tensors under other prefixes. Sizes are read from the tensors and must agree with the settings;
every tensor must have its name and shape, with none missing and none left over.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fpmgm.backbones.dit import MDLMConfig, as_mdlm, mdlm, rotary_frequencies
from fpmgm.checkpoint import MODEL_FILES, Model, check_place, pickle_hint
from fpmgm.denoiser import Denoiser
from fpmgm.files import whole_folder, write_tensors
from fpmgm.interop.pickled import Inert, read_pickled
from fpmgm.schema import read_json, read_text

FREQUENCIES = "rotary_emb.inv_freq"
WRAPPERS = ("module", "_orig_mod", "backbone")  # of DDP, torch.compile and Lightning, in any order and number
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
NUM_LISTED = 20


@runtime_checkable
class Stored(Protocol):
    """A tensor that is still on disk."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def read(self) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class SafeTensor:
    """A tensor of a safetensors file."""

    file: Path
    name: str
    shape: tuple[int, ...]

    def read(self) -> Tensor:
        """The tensor itself."""
        with safe_open(self.file, "pt") as file:
            return file.get_tensor(self.name)


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """A model of other code, of which only names, shapes and settings have been read."""

    place: Path
    format: str
    tensors: Mapping[str, Stored]
    """By MDLM's names, without prefixes."""
    average: tuple[Stored, ...] = ()
    """The moving average of the parameters (EMA), in their order; empty if there is none."""
    settings: Mapping[str, Any]
    """What the source says of its network, by our names."""
    tokenizer: str = ""


def read_foreign(place: Path) -> Foreign:
    """The model of a checkpoint file or a hub folder, its tensors unread."""
    return _read_lightning(place) if place.is_file() else _read_hub_folder(place)


def config_of(source: Foreign, *, mask_id: int, num_heads: int | None = None, length: int | None = None) -> MDLMConfig:
    """The network that the tensors and settings describe; heads and length may be told where they do not."""
    told = {"num_heads": num_heads, "length": length}
    known: dict[str, Any] = dict(_sizes(source))
    for origin, facts in (("its settings say", source.settings), ("you say", told)):
        for name, value in facts.items():
            if value is not None and known.setdefault(name, value) != value:
                raise ValueError(f"{source.place}: {origin} that {name} is {value}, but it is {known[name]}")
    for name in ("num_heads", "length"):
        if name not in known:
            raise ValueError(f"{source.place} does not say its {name}; give --{name.replace('_', '-')}")
        if known[name] < 1:
            raise ValueError(f"{name} is {known[name]}; it must be at least 1")
    config = MDLMConfig(**known, mask_id=mask_id)
    _check_shapes(source, config)
    return config


def num_symbols(source: Foreign) -> int:
    """The size of its vocabulary, the mask included."""
    return _sizes(source)["vocab_size"]


def load_foreign(source: Foreign, config: MDLMConfig) -> Denoiser:
    """The denoiser with the source's weights, read one by one."""
    denoiser = mdlm(config)
    with torch.no_grad():
        for index, (name, parameter) in enumerate(denoiser.named_parameters()):
            stored = source.average[index] if source.average else source.tensors[name.removeprefix("backbone.")]
            tensor = stored.read()
            if not tensor.is_floating_point():
                raise ValueError(f"{source.place}: {name} holds {tensor.dtype}; weights are floating-point numbers")
            parameter.copy_(tensor)
    return denoiser.eval()


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


def _read_lightning(file: Path) -> Foreign:
    content = read_pickled(file)
    weights = content.get("state_dict") if isinstance(content, dict) else None
    if not isinstance(weights, dict):
        raise ValueError(f"{file} is no Lightning checkpoint: it holds no state_dict")
    hyper_parameters = _opened(content.get("hyper_parameters"))
    config = hyper_parameters.get("config", hyper_parameters) if isinstance(hyper_parameters, dict) else None
    return Foreign(
        place=file,
        format="Lightning checkpoint",
        tensors=_by_mdlm_names(file, weights),
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
        tensors=_by_mdlm_names(folder, _safe_tensors(folder)),
        settings=settings,
        tokenizer=read_text(tokenizer) if tokenizer.is_file() else "",
    )


def _safe_tensors(folder: Path) -> dict[str, SafeTensor]:
    file = folder / "model.safetensors"
    if not file.is_file():
        raise ValueError(f"{folder} has no model.safetensors{pickle_hint(folder)}")
    try:
        with safe_open(file, "pt") as opened:
            shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{file} is truncated or not a safetensors file: {error}") from error
    return {name: SafeTensor(file=file, name=name, shape=shape) for name, shape in shapes.items()}


def _by_mdlm_names(place: Path, tensors: Mapping[Any, Any]) -> dict[str, Stored]:
    """The tensors without the names of what they were wrapped in."""
    found: dict[str, Stored] = {}
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, Stored):
            raise ValueError(f"{place}: {name!r} in its state_dict is no tensor")
        parts = name.split(".")
        while parts[0] in WRAPPERS and len(parts) > 1:
            parts.pop(0)
        short = ".".join(part for part in parts if part != "_orig_mod")  # compiled block by block
        if short in found:
            raise ValueError(f"{place} holds {short} twice, once as {name}")
        found[short] = tensor
    return found


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
    shapes = {name: tensor.shape for name, tensor in source.tensors.items()}
    embedding, cond = shapes.get("vocab_embed.embedding", ()), shapes.get("sigma_map.mlp.2.bias", ())
    blocks = [int(found[1]) for name in shapes if (found := re.match(r"blocks\.(\d+)\.", name))]
    if len(embedding) != 2 or len(cond) != 1 or not blocks:
        raise ValueError(
            f"{source.place} is no MDLM: of vocab_embed.embedding, sigma_map.mlp.2.bias and blocks.0 not all are "
            f"there; it holds {_listed(sorted(shapes))}"
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
    found = {name: tensor.shape for name, tensor in source.tensors.items() if name != FREQUENCIES}
    other = [name for name in expected if name in found and expected[name] != found[name]]
    problems = {
        "missing": [name for name in expected if name not in found],
        "extra": [name for name in found if name not in expected],
        "of another shape": [f"{name} ({_size(found[name])}, not {_size(expected[name])})" for name in other],
    }
    if any(problems.values()):
        told = "; ".join(f"{kind}: {_listed(names)}" for kind, names in problems.items() if names)
        raise ValueError(f"{source.place} is no MDLM of {config.num_pre} blocks, {config.width} wide; {told}")
    if source.average and len(source.average) != len(expected):
        raise ValueError(f"{source.place}: its EMA holds {len(source.average)} tensors, its network {len(expected)}")
    for shadow, (name, shape) in zip(source.average, expected.items(), strict=False):
        if shadow.shape != shape:
            raise ValueError(f"{source.place}: its EMA has {_size(shadow.shape)} where {name} has {_size(shape)}")


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NUM_LISTED} more" if len(names) > NUM_LISTED else ""
    return ", ".join(names[:NUM_LISTED]) + more if names else "nothing"
