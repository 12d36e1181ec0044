"""Model folders: config, weights and tokenizer in one place, as a hub repository stands. No pickle is ever read."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from fpmgm.backbones import MODEL_TYPES, NetworkConfig
from fpmgm.backbones.network import Learned
from fpmgm.budget import ALLOCATIONS
from fpmgm.codecs import Codec, load_codec
from fpmgm.codecs.codec import Starts
from fpmgm.data import DataConfig, data_config
from fpmgm.devices import check_pair, device_named
from fpmgm.draws import Draw
from fpmgm.files import whole_folder, write_tensors
from fpmgm.guidance import Guidance, GuidanceName
from fpmgm.int8 import in_precision
from fpmgm.names import choose
from fpmgm.places import BUNDLED as BUNDLED
from fpmgm.places import convert_hint, find_folder
from fpmgm.reuse import CHANGED, MASKED, ThreeStateReuse
from fpmgm.schema import MAX_BUDGET, field_value, read_json, read_object, require, shortened
from fpmgm.solvers import check_tolerance
from fpmgm.transitions import TransitionName

SINCE = {"embedding_start", "injection_start", "gate_start"}
"""Settings that folders written before 2026-11-17 lack; they matter to fresh weights only."""
DEFAULT = "stories"
"""The bundled model that is meant when none is named."""
CURVES = "curves.png"
MODEL_FILES = (
    *("config.json", "generation_config.json", "model.safetensors", "README.md", CURVES),
    *("tokenizer.json", "image_codec.json", "image_tokenizer.safetensors", "pixels.json", "samples.png"),
)
"""What a model folder holds; other files in it belong to somebody else."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A denoiser with all that goes with it."""

    denoiser: Learned
    config: NetworkConfig
    codec: Codec | None = None
    """Between people and tokens; None if the folder has none, so that the model can only be sampled as tokens."""
    data: DataConfig | None = None
    """What it was trained on, and which of it was held out."""
    generation: dict[str, Any] = field(default_factory=dict)
    card: str = ""

    def save(self, folder: str | Path, *, dtype: torch.dtype = torch.float32, overwrite: bool = False) -> None:
        """Write a model folder, whole or not at all.

        A model that is there is replaced, and files that are not of the model are kept. Another folder that is not
        empty is refused, unless `overwrite` asks to write the model among its files.
        """
        folder = Path(folder)
        if not overwrite:
            check_place(folder)
        with whole_folder(folder, MODEL_FILES) as scratch:
            self.write(scratch, dtype)

    def write(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """Write the files of the model into a new folder."""
        network: Any = self.config
        settings = {"model_type": self.config.model_type, **asdict(network)}
        if self.data is not None:
            data: Any = self.data
            settings["data"] = {"data_type": self.data.data_type, **asdict(data)}
        tensors = {name: t.detach().cpu().to(dtype).contiguous() for name, t in self.denoiser.state_dict().items()}
        write_tensors(tensors, folder / "model.safetensors")
        texts = {
            "config.json": json.dumps(settings, indent=1) + "\n",
            "generation_config.json": json.dumps(self.generation, indent=1) + "\n",
            "README.md": self.card,
            **(self.codec.files if self.codec else {}),
        }
        for name, text in texts.items():
            (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.denoiser.parameters()).device

    @property
    def has_ends(self) -> bool:
        """Whether it has learned where a sequence ends, so that what comes after its first end is not shown."""
        return self.data is not None and self.data.has_ends

    @property
    def is_begun(self) -> bool:
        """Whether all its training sequences began with the first symbol, which was given."""
        return self.data is not None and self.data.is_begun

    def starts(self, request: Mapping[str, Any], num_samples: int) -> Starts:
        """What is given of each sequence that is asked for, masks elsewhere.

        A model of documents is given their first symbol, as in training. It is the only thing that tells a network with
        relative positions where a sequence begins.
        """
        asked = self.speech.starts(request, self.config.vocabulary, num_samples)
        if not self.is_begun or self.speech.first is None:
            return asked
        mask_id, first = self.config.vocabulary.mask_id, self.speech.first
        rows = [[first, *row[1:]] if row[0] == mask_id else row for row in asked.tokens]
        return replace(asked, tokens=rows)

    @property
    def speech(self) -> Codec:
        """The codec, where there must be one."""
        if self.codec is None:
            raise ValueError("the model has no tokenizer, so it cannot read or write anything but numbers of tokens")
        return self.codec


def check_place(folder: Path) -> None:
    """A ValueError if a model cannot be written to a place without taking someone else's files for its own."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give a folder for the model")
    if folder.is_dir() and any(folder.iterdir()) and not _is_model(folder):
        raise ValueError(
            f"{folder} is not empty and holds no model; give another folder, or overwrite=True to write among its files"
        )


def _is_model(folder: Path) -> bool:
    try:
        return "model_type" in read_json(folder / "config.json")
    except (OSError, ValueError):
        return False


def load(source: str | Path = DEFAULT, *, device: str = "auto", dtype: str = "float32") -> Model:
    """A model by name: a bundled one, a model folder, or a repository on the hub, in this order.

    `device` is auto (CUDA, then MPS, then the CPU), cpu, mps, cuda or cuda:1; `dtype` float32, bfloat16, float16,
    float64 or, on the CPU, int8. Tokens are drawn in float64 whatever the dtype is.
    """
    place = device_named(device)
    check_pair(place, dtype)
    model = load_folder(find_folder(str(source)))
    return replace(model, denoiser=in_precision(model.denoiser, place, dtype))


@lru_cache(maxsize=64)
def weights_of(model: str) -> str:
    """What tells the weights of a model from any others."""
    file = find_folder(model) / "model.safetensors"
    if not file.is_file():
        raise ValueError(f"{file.parent} has no model.safetensors")
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]


def load_folder(folder: Path) -> Model:
    """The model of a folder, in float32, on the CPU, ready to sample from."""
    config, data = read_settings(folder)
    weights = _read_weights(folder, config)
    denoiser = config.build()
    shapes = {name: tensor.shape for name, tensor in denoiser.state_dict().items()}
    _check_shapes(folder / "model.safetensors", shapes, weights)
    denoiser.load_state_dict(weights)
    card = folder / "README.md"
    return Model(
        denoiser=denoiser.eval(),
        config=config,
        codec=_read_codec(folder, config),
        data=data,
        generation=read_generation(folder),
        card=card.read_text(encoding="utf-8", errors="replace") if card.is_file() else "",
    )


def _read_weights(folder: Path, config: NetworkConfig) -> dict[str, torch.Tensor]:
    """The weights in a folder, if they are as large as those of the network, which is built later."""
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ValueError(f"{folder} has no model.safetensors{pickle_hint(folder)}")
    try:
        tensors = load_file(weights)
    except SafetensorError as error:
        raise ValueError(f"{weights} is truncated or not a safetensors file: {error}") from error
    expected = {f"backbone.{name}": size for name, size in config.told_shapes().items()}
    _check_shapes(weights, expected, {name: tensor for name, tensor in tensors.items() if name in expected})
    return {name: tensor.float() for name, tensor in tensors.items()}


def _check_shapes(file: Path, expected: Mapping[str, Sequence[int]], tensors: Mapping[str, torch.Tensor]) -> None:
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    shapes = {name: tuple(shape) for name, shape in expected.items()}
    wrong = sorted(name for name in {*shapes, *found} if shapes.get(name) != found.get(name))
    if wrong:
        raise ValueError(
            f"{file} does not fit its config.json: {len(wrong)} tensors are missing, extra or of another shape, "
            f"such as {wrong[0]}"
        )


def _read_codec(folder: Path, config: NetworkConfig) -> Codec | None:
    """The codec of a folder, if it fits the network; None if there is none."""
    codec = load_codec(folder)
    if codec is not None:
        codec.check(config.vocabulary, str(folder / next(iter(codec.files))))
    return codec


def read_config(folder: Path) -> NetworkConfig:
    """The network of a model folder."""
    return read_settings(folder)[0]


def read_settings(folder: Path) -> tuple[NetworkConfig, DataConfig | None]:
    """The network of a model folder, and the data it was trained on if that is told."""
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError(f"{folder} is not a model folder: it has no config.json{pickle_hint(folder)}")
    settings = read_json(file)
    kind = settings.pop("model_type", None)
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        known = ", ".join(MODEL_TYPES)
        raise ValueError(
            f"{file} has model_type {shortened(kind)}; fpmgm knows {known}"
            f"{convert_hint(folder, {'model_type': kind, **settings})}"
        )
    data = settings.pop("data", None)
    config = MODEL_TYPES[kind]
    missing = sorted({field.name for field in fields(config)} - set(settings) - SINCE)  # type: ignore[arg-type]
    if missing:  # a default would be a guess
        raise ValueError(f"{file} lacks settings: {', '.join(missing)}")
    return read_object(config, settings, str(file)), _read_data(data, f"{file}: data")


def _read_data(settings: Any, where: str) -> DataConfig | None:
    if settings is None:
        return None
    return data_config(field_value(settings, dict, where), where)


def read_generation(folder: Path) -> dict[str, Any]:
    """The settings of generation_config.json; none if there is no such file."""
    file = folder / "generation_config.json"
    if not file.is_file():
        return {}
    settings = read_json(file)
    where = f"{file}: defaults"
    read_object(SavedDefaults, field_value(settings.get("defaults", {}), dict, where), where)
    budgets = field_value(settings.get("budgets", {}), dict, f"{file}: budgets")
    for budget, saved in budgets.items():
        where = f"{file}: budgets: {shortened(budget)}"
        read_object(Saved, field_value(saved, dict, where), where)
    return settings


@dataclass(frozen=True, kw_only=True)
class SavedDefaults:
    """How a model is best sampled: settings that generation_config.json keeps, for users who leave them open."""

    transition: TransitionName | None = None
    temperature: float | None = None
    cfg_weight: float | None = None
    guidance: GuidanceName | None = None
    reuse_masked: tuple[float, float] | None = None
    reuse_changed: tuple[float, float] | None = None
    tolerance: float | None = None

    def __post_init__(self) -> None:
        ThreeStateReuse.of(self.reuse_masked or MASKED, self.reuse_changed or CHANGED)
        check_tolerance(self.tolerance or 0.0)
        Draw(temperature=1.0 if self.temperature is None else self.temperature)
        Guidance(weight=self.cfg_weight or 0.0)


@dataclass(frozen=True, kw_only=True)
class Saved(SavedDefaults):
    """How a budget is best spent, as `sweep --save` found it and generation_config.json keeps it."""

    steps: int
    allocation: str

    def __post_init__(self) -> None:
        super().__post_init__()
        require("steps", self.steps, 1, MAX_BUDGET)
        choose("allocation", self.allocation, ALLOCATIONS)


def pickle_hint(folder: Path) -> str:
    """What to add to a complaint about a folder that holds a pickle."""
    pickles = [file.name for file in folder.glob("*") if file.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl")]
    return f"; {pickles[0]} is a pickle, and pickles are never read" if pickles else ""
