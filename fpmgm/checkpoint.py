"""Model folders: config, weights and tokenizer in one place, as a hub repository stands. No pickle is ever read."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fpmgm.backbones.dit import MDLMConfig, mdlm
from fpmgm.denoiser import Denoiser

KIND = "fpmgm-mdlm"
BUNDLED = Path(__file__).parent / "models"
DEFAULT = "text-mini-cofre"
"""The bundled model that is meant when none is named."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A denoiser with all that goes with it."""

    denoiser: Denoiser
    config: MDLMConfig
    tokenizer: str
    """The content of tokenizer.json; empty if the model has none."""
    generation: dict[str, Any] = field(default_factory=dict)
    card: str = ""

    def save(self, folder: str | Path, *, dtype: torch.dtype = torch.float32) -> None:
        """Write a model folder, whole or not at all."""
        with whole_folder(Path(folder)) as scratch:
            self._write(scratch, dtype)

    def _write(self, folder: Path, dtype: torch.dtype) -> None:
        settings = {"model_type": KIND, **asdict(self.config)}
        (folder / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
        (folder / "generation_config.json").write_text(json.dumps(self.generation, indent=1) + "\n")
        tensors = {name: t.detach().cpu().to(dtype).contiguous() for name, t in self.denoiser.state_dict().items()}
        write_tensors(tensors, folder / "model.safetensors")
        if self.tokenizer:
            (folder / "tokenizer.json").write_text(self.tokenizer)
        (folder / "README.md").write_text(self.card)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A new folder to write to, beside its place; it is renamed at the end, and removed if there was an error."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        yield scratch
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(scratch, folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def write_tensors(tensors: dict[str, torch.Tensor], file: Path) -> None:
    """Write a safetensors file; a full disk is an OSError, as it is for any other file."""
    try:
        save_file(tensors, file, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"cannot write {file}: {error}") from error


def load(source: str | Path = DEFAULT) -> Model:
    """A model by name: a bundled one, a model folder, or a repository on the hub, in this order."""
    return load_folder(find_folder(str(source)))


def find_folder(source: str) -> Path:
    """The model folder of a bundled name, a path or a hub id (owner/name or owner/name@revision), in this order."""
    if (BUNDLED / source / "config.json").is_file():
        return BUNDLED / source
    if Path(source).is_dir():
        return Path(source)
    name, _, revision = source.partition("@")
    if name.count("/") == 1 and not Path(source).exists() and not source.startswith((".", "/")):
        from huggingface_hub import snapshot_download

        files = ["*.json", "*.safetensors", "README.md"]
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=files))
    bundled = sorted(path.name for path in BUNDLED.glob("*")) if BUNDLED.is_dir() else []
    have = f"bundled are {', '.join(bundled)}" if bundled else "none is bundled yet"
    raise ValueError(f"no model at {source!r}; give a model folder or a hub id owner/name ({have})")


def load_folder(folder: Path) -> Model:
    """The model of a folder, in float32, ready to sample from."""
    config = read_config(folder)
    denoiser = mdlm(config)
    denoiser.load_state_dict(_read_weights(folder, denoiser))
    tokenizer = folder / "tokenizer.json"
    generation = folder / "generation_config.json"
    card = folder / "README.md"
    return Model(
        denoiser=denoiser.eval(),
        config=config,
        tokenizer=tokenizer.read_text() if tokenizer.is_file() else "",
        generation=read_json(generation) if generation.is_file() else {},
        card=card.read_text() if card.is_file() else "",
    )


def _read_weights(folder: Path, denoiser: Denoiser) -> dict[str, torch.Tensor]:
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ValueError(f"{folder} has no model.safetensors{pickle_hint(folder)}")
    try:
        tensors = load_file(weights)
    except SafetensorError as error:
        raise ValueError(f"{weights} is truncated or not a safetensors file: {error}") from error
    expected = {name: tensor.shape for name, tensor in denoiser.state_dict().items()}
    found = {name: tensor.shape for name, tensor in tensors.items()}
    wrong = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
    if wrong:
        raise ValueError(
            f"{weights} does not fit its config.json: {len(wrong)} tensors are missing, extra or of another shape, "
            f"such as {wrong[0]}"
        )
    return {name: tensor.float() for name, tensor in tensors.items()}


def read_config(folder: Path) -> MDLMConfig:
    """The network of a model folder."""
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError(f"{folder} is not a model folder: it has no config.json{pickle_hint(folder)}")
    settings = read_json(file)
    if settings.pop("model_type", None) != KIND:
        raise ValueError(f"{file} is of another kind of model; fpmgm reads model_type {KIND}")
    names = {field.name for field in fields(MDLMConfig)}
    if set(settings) != names:
        wrong = sorted(set(settings) ^ names)
        raise ValueError(f"{file} has missing or unknown settings: {', '.join(wrong)}")
    return MDLMConfig(**settings)


def read_json(file: Path) -> dict[str, Any]:
    """The settings in a JSON file."""
    try:
        settings = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{file} holds no settings but a {type(settings).__name__}")
    return settings


def pickle_hint(folder: Path) -> str:
    """What to add to a complaint about a folder that holds a pickle."""
    pickles = [file.name for file in folder.glob("*") if file.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl")]
    return f"; {pickles[0]} is a pickle, and pickles are never read" if pickles else ""
