"""Files as other code writes them, of random tensors: Lightning checkpoints of MDLM, hub folders of MDLM and SDTT."""

import json
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from fpmgm.backbones.dit import MDLMConfig
from fpmgm.backbones.dit_block import rotary_frequencies
from fpmgm.denoiser import Denoiser

FOREIGN_CLASSES = (
    ("omegaconf.dictconfig", "DictConfig"),
    ("omegaconf.nodes", "AnyNode"),
    ("omegaconf.base", "ContainerMetadata"),
    ("transformers.models.gpt2.tokenization_gpt2_fast", "GPT2TokenizerFast"),
)


def mdlm_tensors(denoiser: Denoiser, config: MDLMConfig, prefix: str = "backbone.") -> OrderedDict[str, Tensor]:
    """The tensors of a plain stack in the order and under the names of the public code, its buffer included."""
    found = {name.removeprefix("backbone."): tensor for name, tensor in denoiser.state_dict().items()}
    names = list(found)
    names.insert(names.index("blocks.0.norm1.weight"), "rotary_emb.inv_freq")
    found["rotary_emb.inv_freq"] = rotary_frequencies(config.width // config.num_heads)
    return OrderedDict((prefix + name, found[name].clone()) for name in names)


def hub_config(config: MDLMConfig) -> dict[str, Any]:
    return {
        "_name_or_path": "kuleshov-group/mdlm-owt",
        "architectures": ["MDLM"],
        "auto_map": {
            "AutoConfig": "configuration_mdlm.MDLMConfig",
            "AutoModelForMaskedLM": "modeling_mdlm.MDLM",
        },
        "cond_dim": config.cond_width,
        "dropout": config.dropout,
        "hidden_dim": config.width,
        "model_length": config.length,
        "model_type": "mdlm",
        "n_blocks": config.num_pre,
        "n_heads": config.num_heads,
        "return_dict": False,
        "time_conditioning": config.time_conditioning,
        "torch_dtype": "float32",
        "transformers_version": "4.38.2",
        "vocab_size": config.vocab_size,
    }


def hydra_config(config: MDLMConfig) -> dict[str, Any]:
    """What a dump of a training configuration holds, references to other settings included."""
    return {
        "mode": "train",
        "time_conditioning": config.time_conditioning,
        "T": 0,
        "data_preprocess": {"seq_len": "${model.length}", "legacy_start_end_bos": True},
        "tokenizer": {"name": "gpt2"},
        "model": {
            "name": "small",
            "type": "ddit-orig",
            "hidden_size": config.width,
            "cond_dim": config.cond_width,
            "length": config.length,
            "n_blocks": config.num_pre,
            "n_heads": config.num_heads,
            "scale_by_sigma": True,
            "dropout": config.dropout,
            "causal": True,
            "tie_word_embeddings": False,
        },
        "parameterization": {"name": "multi-round-sdtt", "start_from_hf": True},
    }


def write_hub(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any], tokenizer: str = "") -> Path:
    folder.mkdir()
    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    if tokenizer:
        (folder / "tokenizer.json").write_text(tokenizer)
    return folder


def write_lightning(file: Path, content: Mapping[str, Any], config: MDLMConfig | None = None) -> Path:
    """A checkpoint with the given entries and all that Lightning adds, of classes that are not to be had here."""
    with foreign_classes() as classes:
        whole: dict[str, Any] = {
            "epoch": 0,
            "global_step": 1000,
            "pytorch-lightning_version": "2.2.1",
            "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"current": {"ready": 1}}}},
            "optimizer_states": [
                {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"betas": (0.9, 0.999)}]}
            ],
            "sampler": {"random_state": torch.zeros(5056, dtype=torch.uint8), "counter": 7},
            "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(3.0), "dirpath": Path("/x").name}},
            **content,
        }
        if config is not None:
            tokenizer = _made(classes["GPT2TokenizerFast"], {"vocab": {"a": 0}, "raw": b"\x00\xff", "seen": {1, 2}})
            whole["hyper_parameters"] = {"config": _omega(classes, hydra_config(config)), "tokenizer": tokenizer}
        torch.save(whole, file)
    return file


@contextmanager
def foreign_classes() -> Iterator[dict[str, type]]:
    """Classes that can be pickled by name while this lasts, and not be found afterwards."""
    classes, before = {}, {}
    for module, name in FOREIGN_CLASSES:
        parts = module.split(".")
        for package in (".".join(parts[:end]) for end in range(1, len(parts) + 1)):
            if package not in before:
                before[package] = sys.modules.get(package)
                sys.modules[package] = ModuleType(package)
        classes[name] = type(name, (), {"__module__": module})
        setattr(sys.modules[module], name, classes[name])
    try:
        yield classes
    finally:
        for package, was in before.items():
            if was is None:
                del sys.modules[package]
            else:
                sys.modules[package] = was


def _omega(classes: Mapping[str, type], content: Any, parent: Any = None) -> Any:
    """OmegaConf's containers: their content in `_content`, values in `_val`, each with its parent and metadata."""
    metadata = _made(classes["ContainerMetadata"], {"ref_type": Any, "object_type": dict, "flags": {}, "key": None})
    if not isinstance(content, dict):
        return _made(classes["AnyNode"], {"_metadata": metadata, "_parent": parent, "_val": content})
    node = _made(classes["DictConfig"], {"_metadata": metadata, "_parent": parent, "_flags_cache": None})
    vars(node)["_content"] = {key: _omega(classes, value, node) for key, value in content.items()}
    return node


def _made(made: type, state: Mapping[str, Any]) -> Any:
    instance = made()
    vars(instance).update(state)
    return instance
