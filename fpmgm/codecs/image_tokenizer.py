"""Between images and grids of codes: an autoencoder of ours, or a `VQModel` of diffusers."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Int, Integer, UInt8
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fpmgm.backbones.vq import Autoencoder, VQConfig
from fpmgm.schema import field_value, read_object

Bytes = UInt8[Tensor, "B C H W"]
FlatCodes = Int[Tensor, "B L"]
PIXELS_AT_ONCE = 1 << 18
"""So many pixels are encoded or decoded in one pass, and an image at least."""


@runtime_checkable
class ImageTokenizer(Protocol):
    """What images are written in. To add one, write this class and enter it in `TOKENIZERS`."""

    kind: ClassVar[str]
    """By which a saved one is known."""

    @property
    def num_codes(self) -> int: ...

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of codes."""
        ...

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images."""
        ...

    @property
    def settings(self) -> dict[str, Any]:
        """All that its weights do not tell, for JSON."""
        ...

    @property
    def weights(self) -> bytes:
        """A safetensors file."""
        ...

    @classmethod
    def of(cls, settings: Mapping[str, Any], weights: bytes, where: str) -> "ImageTokenizer":
        """The tokenizer that was saved so; a ValueError that names the place if it is broken."""
        ...

    def encode(self, images: Bytes) -> FlatCodes:
        """The codes of images, row by row."""
        ...

    def decode(self, codes: FlatCodes) -> Bytes:
        """The images of codes."""
        ...


def to_signed(images: Integer[Tensor, "B C H W"]) -> Tensor:
    """Values of pixels, 0 to 255, as numbers from -1 to 1."""
    return images.float() / 127.5 - 1


def to_bytes(images: Tensor) -> Bytes:
    """Numbers from -1 to 1 as bytes; those beyond are cut off."""
    return ((images.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


def in_passes(tensor: Tensor, tokenizer: ImageTokenizer) -> tuple[Tensor, ...]:
    """A batch of images or codes, cut into parts that fit a pass."""
    _, height, width = tokenizer.image_shape
    return tensor.cpu().split(max(1, PIXELS_AT_ONCE // (height * width)))


def read_weights(weights: bytes, where: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file, in float32."""
    try:
        return {name: tensor.float() for name, tensor in load(weights).items()}
    except SafetensorError as error:
        raise ValueError(f"{where} is truncated or not a safetensors file: {error}") from error


@dataclass(frozen=True)
class VQTokenizer:
    """An autoencoder of ours. Its weights are kept in half precision, and used so everywhere."""

    config: VQConfig
    weights: bytes

    kind: ClassVar[str] = "fpmgm-vq"

    @classmethod
    def made_of(cls, config: VQConfig, network: Autoencoder) -> "VQTokenizer":
        """The tokenizer of a trained network."""
        tensors = {name: tensor.detach().cpu().half().contiguous() for name, tensor in _kept(network).items()}
        return cls(config, save(tensors, metadata={"format": "pt"}))

    @classmethod
    def of(cls, settings: Mapping[str, Any], weights: bytes, where: str) -> "VQTokenizer":
        missing = {field.name for field in fields(VQConfig)} - set(settings)
        if missing:  # a default would be a guess
            raise ValueError(f"{where} lacks settings: {', '.join(sorted(missing))}")
        found = cls(read_object(VQConfig, settings, where), weights)
        try:
            _ = found.network  # broken weights are refused now
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        return found

    @property
    def settings(self) -> dict[str, Any]:
        return asdict(self.config)

    @property
    def num_codes(self) -> int:
        return self.config.num_codes

    @property
    def grid(self) -> tuple[int, int]:
        return self.config.grid

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.config.shape

    @cached_property
    def network(self) -> Autoencoder:
        network: Autoencoder = self.config.build()
        tensors = read_weights(self.weights, "image_tokenizer.safetensors")
        expected = {name: tensor.shape for name, tensor in _kept(network).items()}
        if {name: tensor.shape for name, tensor in tensors.items()} != expected:
            raise ValueError("image_tokenizer.safetensors does not fit these settings: it has other tensors")
        network.load_state_dict(tensors, strict=False)
        return network.eval().requires_grad_(False)

    @torch.no_grad()
    def encode(self, images: Bytes) -> FlatCodes:
        return torch.cat([self.network.encode(to_signed(part)).flatten(1) for part in in_passes(images, self)])

    @torch.no_grad()
    def decode(self, codes: FlatCodes) -> Bytes:
        grids = codes.view(len(codes), *self.grid)
        return torch.cat([to_bytes(self.network.decode(part)) for part in in_passes(grids, self)])


def _kept(network: Autoencoder) -> dict[str, Tensor]:
    """What encoding and decoding need of an autoencoder."""
    unused = {"code_counts", "code_sums", "is_started"}
    return {name: tensor for name, tensor in network.state_dict().items() if name not in unused}


@dataclass(frozen=True)
class DiffusersTokenizer:
    """A `VQModel` of diffusers, which must be installed (the extra `image`).

    Its images run from -1 to 1; if its config says `lookup_from_codebook`, as those of aMUSEd do, from 0 to 1.
    """

    config: dict[str, Any]
    """What a VQModel is built with."""
    weights: bytes
    size: int
    """Height and width of the images that it is used for."""

    kind: ClassVar[str] = "diffusers-vq"

    @classmethod
    def read(cls, folder: Path, size: int = 0) -> "DiffusersTokenizer":
        """The model of a folder that diffusers wrote; `size` is that of the images, else what its config says."""
        if not (folder / "diffusion_pytorch_model.safetensors").is_file():
            raise ValueError(f"{folder} has no diffusion_pytorch_model.safetensors; save the VQModel as safetensors")
        try:
            network, report = vq_model().from_pretrained(
                folder, use_safetensors=True, low_cpu_mem_usage=False, local_files_only=True, output_loading_info=True
            )
        except (OSError, RuntimeError, TypeError, ValueError, SafetensorError) as error:
            raise ValueError(f"{folder} holds no VQModel that diffusers can load: {_first_line(error)}") from error
        if wrong := [name for names in report.values() for name in names]:
            raise ValueError(f"{folder}: its weights do not fit its config.json, such as {wrong[0]}")
        config = {name: value for name, value in network.config.items() if not name.startswith("_")}
        tensors = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
        found = cls(
            json.loads(json.dumps(config)), save(tensors, metadata={"format": "pt"}), size or config["sample_size"]
        )
        _ = found.grid
        return found

    @classmethod
    def of(cls, settings: Mapping[str, Any], weights: bytes, where: str) -> "DiffusersTokenizer":
        config = field_value(settings.get("config"), dict, f"{where}: config")
        found = cls(config, weights, field_value(settings.get("size"), int, f"{where}: size"))
        try:
            _ = found.grid, found.num_codes, found.image_shape, read_weights(weights, "image_tokenizer.safetensors")
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        return found

    @property
    def settings(self) -> dict[str, Any]:
        return {"config": self.config, "size": self.size}

    @property
    def num_codes(self) -> int:
        return field_value(self.config.get("num_vq_embeddings"), int, "num_vq_embeddings of the VQModel")

    @property
    def grid(self) -> tuple[int, int]:
        stages = field_value(self.config.get("block_out_channels"), list, "block_out_channels of the VQModel")
        factor = 1 << max(len(stages) - 1, 0)
        if self.size < 1 or self.size % factor:
            raise ValueError(f"images of {self.size} pixels; this VQModel takes multiples of {factor}")
        return self.size // factor, self.size // factor

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels = field_value(self.config.get("in_channels"), int, "in_channels of the VQModel")
        return channels, self.size, self.size

    @property
    def is_positive(self) -> bool:
        """Whether its images run from 0 to 1."""
        return bool(self.config.get("lookup_from_codebook"))

    @cached_property
    def network(self) -> Any:
        kind, tensors = vq_model(), read_weights(self.weights, "image_tokenizer.safetensors")
        try:
            network: Any = kind(**self.config)
            network.load_state_dict(tensors)
        except (RuntimeError, TypeError, ValueError, KeyError) as error:
            raise ValueError(f"the saved VQModel cannot be built: {_first_line(error)}") from error
        return network.eval().requires_grad_(False)

    @torch.no_grad()
    def encode(self, images: Bytes) -> FlatCodes:
        found = []
        for part in in_passes(images, self):
            latents = self.network.encode(part.float() / 255 if self.is_positive else to_signed(part)).latents
            _, _, (_, _, codes) = self.network.quantize(latents)
            found.append(codes.view(len(part), -1))
        return torch.cat(found)

    @torch.no_grad()
    def decode(self, codes: FlatCodes) -> Bytes:
        network, found = self.network, []
        for part in in_passes(codes.view(len(codes), *self.grid), self):
            latents = network.quantize.embedding(part).permute(0, 3, 1, 2).contiguous()
            told = latents if self.config.get("norm_type") == "spatial" else None
            images = network.decoder(network.post_quant_conv(latents), told)
            found.append(to_bytes(2 * images - 1 if self.is_positive else images))
        return torch.cat(found)


def vq_model() -> Any:
    """The class of diffusers; a ValueError if diffusers is not installed."""
    try:
        from diffusers import VQModel
    except ImportError as error:
        raise ValueError(
            "this image tokenizer is a VQModel of diffusers, which is not installed; install fpmgm[image]"
        ) from error
    return VQModel


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


TOKENIZERS: dict[str, type[ImageTokenizer]] = {kind.kind: kind for kind in (VQTokenizer, DiffusersTokenizer)}


def is_alike(ours: ImageTokenizer, theirs: ImageTokenizer) -> bool:
    """Whether two tokenizers give the same images the same codes, by all that they are made of."""
    same = json.dumps(ours.settings, sort_keys=True) == json.dumps(theirs.settings, sort_keys=True)
    return same and ours.kind == theirs.kind and ours.weights == theirs.weights
