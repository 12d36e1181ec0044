"""Model folders: config, weights and tokenizer in one place, as a hub repository stands. No pickle is ever read."""

import json
import os
import shutil
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fpmgm.backbones.dit import MDLMConfig, mdlm
from fpmgm.denoiser import Denoiser

KIND = "fpmgm-mdlm"


def save_model(
    denoiser: Denoiser,
    config: MDLMConfig,
    folder: Path,
    *,
    tokenizer: str = "",
    card: str = "",
    generation: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write a model folder, whole or not at all: beside its place first, then renamed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        (scratch / "config.json").write_text(json.dumps({"model_type": KIND, **asdict(config)}, indent=1) + "\n")
        (scratch / "generation_config.json").write_text(json.dumps(generation or {}, indent=1) + "\n")
        tensors = {name: tensor.detach().cpu().to(dtype).contiguous() for name, tensor in denoiser.state_dict().items()}
        save_file(tensors, scratch / "model.safetensors", metadata={"format": "pt"})
        if tokenizer:
            (scratch / "tokenizer.json").write_text(tokenizer)
        (scratch / "README.md").write_text(card)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(scratch, folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def load_model(folder: Path) -> tuple[Denoiser, MDLMConfig]:
    """The denoiser of a model folder, in float32, ready to sample from."""
    config = read_config(folder)
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ValueError(f"{folder} has no model.safetensors{_pickle_hint(folder)}")
    try:
        tensors = load_file(weights)
    except SafetensorError as error:
        raise ValueError(f"{weights} is truncated or not a safetensors file: {error}") from error
    denoiser = mdlm(config)
    expected = {name: tensor.shape for name, tensor in denoiser.state_dict().items()}
    found = {name: tensor.shape for name, tensor in tensors.items()}
    wrong = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
    if wrong:
        raise ValueError(
            f"{weights} does not fit its config.json: {len(wrong)} tensors are missing, extra or of another shape, "
            f"such as {wrong[0]}"
        )
    denoiser.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return denoiser.eval(), config


def read_config(folder: Path) -> MDLMConfig:
    """The network of a model folder."""
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError(f"{folder} is not a model folder: it has no config.json{_pickle_hint(folder)}")
    try:
        settings = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    if not isinstance(settings, dict) or settings.pop("model_type", None) != KIND:
        raise ValueError(f"{file} is of another kind of model; fpmgm reads model_type {KIND}")
    names = {field.name for field in fields(MDLMConfig)}
    if set(settings) != names:
        wrong = sorted(set(settings) ^ names)
        raise ValueError(f"{file} has missing or unknown settings: {', '.join(wrong)}")
    return MDLMConfig(**settings)


def _pickle_hint(folder: Path) -> str:
    pickles = [file.name for file in folder.glob("*") if file.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl")]
    return f"; {pickles[0]} is a pickle, and pickles are never read" if pickles else ""
