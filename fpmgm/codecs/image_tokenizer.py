"""Between images and grids of codes: an autoencoder of ours, or a `VQModel` of diffusers."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Int, UInt8
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fpmgm.backbones.vq import Autoencoder, VQConfig
from fpmgm.schema import field_value, read_json, read_object

Bytes = UInt8[Tensor, "B C H W"]
FlatCodes = Int[Tensor, "B L"]
AT_ONCE = 256
"""Images that are encoded or decoded in one pass."""


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


def to_signed(images: Bytes) -> Tensor:
    """Bytes as numbers from -1 to 1."""
    return images.float() / 127.5 - 1


def to_bytes(images: Tensor) -> Bytes:
    """Numbers from -1 to 1 as bytes; those beyond are cut off."""
    return ((images.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


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
        found = cls(read_object(VQConfig, dict(settings), where), weights)
        _ = found.network  # broken weights are refused now
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
            raise ValueError("image_tokenizer.safetensors does not fit image_codec.json: it has other tensors")
        network.load_state_dict(tensors, strict=False)
        return network.eval().requires_grad_(False)

    @torch.no_grad()
    def encode(self, images: Bytes) -> FlatCodes:
        return torch.cat([self.network.encode(to_signed(part)).flatten(1) for part in images.cpu().split(AT_ONCE)])

    @torch.no_grad()
    def decode(self, codes: FlatCodes) -> Bytes:
        grids = codes.cpu().view(len(codes), *self.grid)
        return torch.cat([to_bytes(self.network.decode(part)) for part in grids.split(AT_ONCE)])


def _kept(network: Autoencoder) -> dict[str, Tensor]:
    """What encoding and decoding need of an autoencoder."""
    unused = {"code_counts", "code_sums", "is_started"}
    return {name: tensor for name, tensor in network.state_dict().items() if name not in unused}


@dataclass(frozen=True)
class DiffusersTokenizer:
    """A `VQModel` of diffusers, which must be installed (the extra `image`)."""

    config: dict[str, Any]
    """Its config.json."""
    weights: bytes
    size: int
    """Height and width of the images that it is used for."""

    kind: ClassVar[str] = "diffusers-vq"

    @classmethod
    def read(cls, folder: Path, size: int = 0) -> "DiffusersTokenizer":
        """The model of a folder that diffusers wrote; `size` is that of the images, else what its config says."""
        config = read_json(folder / "config.json")
        file = folder / "diffusion_pytorch_model.safetensors"
        if not file.is_file():
            raise ValueError(f"{folder} has no diffusion_pytorch_model.safetensors; save the VQModel as safetensors")
        return cls(config, file.read_bytes(), size or field_value(config.get("sample_size"), int, f"{folder}: size"))

    @classmethod
    def of(cls, settings: Mapping[str, Any], weights: bytes, where: str) -> "DiffusersTokenizer":
        config = field_value(settings.get("config"), dict, f"{where}: config")
        found = cls(config, weights, field_value(settings.get("size"), int, f"{where}: size"))
        _ = found.grid
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
        factor = 1 << (len(stages) - 1)
        if self.size < 1 or self.size % factor:
            raise ValueError(f"images of {self.size} pixels; this VQModel takes multiples of {factor}")
        return self.size // factor, self.size // factor

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels = field_value(self.config.get("in_channels"), int, "in_channels of the VQModel")
        return channels, self.size, self.size

    @cached_property
    def network(self) -> Any:
        try:
            from diffusers import VQModel
        except ImportError as error:
            raise ValueError(
                "this image tokenizer is a VQModel of diffusers, which is not installed; install fpmgm[image]"
            ) from error
        own = {name: value for name, value in self.config.items() if not name.startswith("_")}
        network: Any = VQModel(**own)
        network.load_state_dict(read_weights(self.weights, "the weights of the VQModel"))
        return network.eval().requires_grad_(False)

    @torch.no_grad()
    def encode(self, images: Bytes) -> FlatCodes:
        found = []
        for part in images.cpu().split(AT_ONCE):
            latents = self.network.encode(to_signed(part)).latents
            _, _, (_, _, codes) = self.network.quantize(latents)
            found.append(codes.view(len(part), -1))
        return torch.cat(found)

    @torch.no_grad()
    def decode(self, codes: FlatCodes) -> Bytes:
        grids, network = codes.cpu().view(len(codes), *self.grid), self.network
        width = network.quantize.vq_embed_dim
        found = []
        for part in grids.split(AT_ONCE):
            latents = network.quantize.get_codebook_entry(part.flatten(), (*part.shape, width))
            found.append(to_bytes(network.decode(latents, force_not_quantize=True).sample))
        return torch.cat(found)


TOKENIZERS: dict[str, type[VQTokenizer] | type[DiffusersTokenizer]] = {
    kind.kind: kind for kind in (VQTokenizer, DiffusersTokenizer)
}


def is_alike(ours: ImageTokenizer, theirs: ImageTokenizer) -> bool:
    """Whether two tokenizers give the same images the same codes, by all that they are made of."""
    same = json.dumps(ours.settings, sort_keys=True) == json.dumps(theirs.settings, sort_keys=True)
    return same and ours.kind == theirs.kind and ours.weights == theirs.weights
