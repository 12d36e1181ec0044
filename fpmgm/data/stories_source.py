"""The source of the corpus `stories`: a small Llama 2, read from llama2.c's binary file and run in plain torch.

Its distribution is known, so the negative log-likelihood of any text of this world is exact. The file holds seven
int32 (width, hidden width, layers, heads, key-value heads, symbols, positions) and then float32 tensors.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from fpmgm.data.assets import fetch
from fpmgm.products import linear

ASSET = "stories15m"
"""The asset that holds its weights and its tokenizer."""
BEGIN = 1
"""The symbol that begins a story, and that the source writes when a story ends."""
EPSILON = 1e-5
HEADER = ("width", "hidden", "num_layers", "num_heads", "num_kv_heads", "num_symbols", "num_positions")

Ids = Int[Tensor, "B L"]
States = Float[Tensor, "*batch D"]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The weights of one block; the matrices that read the same input are joined."""

    attention_norm: Tensor
    query_key_value: Tensor  # (3 D, D)
    output: Tensor
    mlp_norm: Tensor
    gate_and_up: Tensor  # (2 H, D)
    down: Tensor


@dataclass(frozen=True, kw_only=True)
class Source:
    """A causal language model of Llama 2's shape."""

    embedding: Tensor  # (V, D); also the head
    layers: tuple[Layer, ...]
    final_norm: Tensor
    cosines: Tensor  # (positions, half the width of a head)
    sines: Tensor
    num_heads: int

    def to(self, device: torch.device) -> "Source":
        """The same on a device."""
        layers = tuple(Layer(**_moved(layer, device)) for layer in self.layers)
        return Source(**_moved(self, device), layers=layers, num_heads=self.num_heads)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.embedding.device

    @property
    def num_positions(self) -> int:
        return len(self.cosines)

    @property
    def num_symbols(self) -> int:
        return len(self.embedding)


def _moved(weights: Layer | Source, device: torch.device) -> dict[str, Tensor]:
    return {name: value.to(device) for name, value in vars(weights).items() if isinstance(value, Tensor)}


def load_source() -> Source:
    """The source of `stories`, fetched on first use."""
    return read_source(fetch(ASSET) / "model.bin")


def read_source(file: Path) -> Source:
    """A model in the first binary format of llama2.c, with a head that is tied to the embedding."""
    header = dict(zip(HEADER, np.fromfile(file, np.int32, len(HEADER)).tolist(), strict=True))
    if header["num_symbols"] < 0 or header["num_kv_heads"] != header["num_heads"]:
        raise ValueError(f"{file} has a head of its own or shares keys among heads; neither can be read here")
    values = torch.from_numpy(np.fromfile(file, np.float32, offset=4 * len(HEADER)))
    width, hidden, num_layers = header["width"], header["hidden"], header["num_layers"]
    half = width // header["num_heads"] // 2
    shapes = {
        "embedding": (header["num_symbols"], width),
        "attention_norm": (num_layers, width),
        **dict.fromkeys(("query", "key", "value", "output"), (num_layers, width, width)),
        "mlp_norm": (num_layers, width),
        "gate": (num_layers, hidden, width),
        "down": (num_layers, width, hidden),
        "up": (num_layers, hidden, width),
        "final_norm": (width,),
        "cosines": (header["num_positions"], half),
        "sines": (header["num_positions"], half),
    }
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    if sum(sizes) != len(values):
        raise ValueError(f"{file} holds {len(values)} numbers; its header asks for {sum(sizes)}")
    found = {name: part.view(shapes[name]) for name, part in zip(shapes, values.split(sizes), strict=True)}
    return Source(
        embedding=found["embedding"],
        layers=tuple(_layer(found, index) for index in range(num_layers)),
        final_norm=found["final_norm"],
        cosines=found["cosines"],
        sines=found["sines"],
        num_heads=header["num_heads"],
    )


def _layer(found: dict[str, Tensor], index: int) -> Layer:
    return Layer(
        attention_norm=found["attention_norm"][index],
        query_key_value=torch.cat([found[name][index] for name in ("query", "key", "value")]),
        output=found["output"][index],
        mlp_norm=found["mlp_norm"][index],
        gate_and_up=torch.cat([found["gate"][index], found["up"][index]]),
        down=found["down"][index],
    )


def features(source: Source, ids: Ids) -> Float[Tensor, "B L D"]:
    """What the head reads after each token; every row begins with `BEGIN`."""
    if ids.shape[1] > source.num_positions:
        raise ValueError(f"a text has {ids.shape[1]} tokens; the source reads at most {source.num_positions}")
    cosines, sines = source.cosines[: ids.shape[1]], source.sines[: ids.shape[1]]
    h = source.embedding[ids]
    for layer in source.layers:
        query, key, value = projections(source, layer, h, cosines, sines)
        mixed = functional.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True
        )
        h = finished(layer, h, mixed.transpose(1, 2).flatten(2))
    return normed(h, source.final_norm)


def logits(source: Source, ids: Ids) -> Float[Tensor, "B L V"]:
    """The logits of the next token, after each token."""
    return linear(features(source, ids), source.embedding)


def projections(source: Source, layer: Layer, h: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values (..., heads, width of a head), queries and keys turned by their positions."""
    joined = linear(normed(h, layer.attention_norm), layer.query_key_value)
    query, key, value = joined.unflatten(-1, (3, source.num_heads, -1)).unbind(-3)
    return rotated(query, cosines, sines), rotated(key, cosines, sines), value


def finished(layer: Layer, h: Tensor, mixed: Tensor) -> Tensor:
    """The block's output, from its input and the mixed values."""
    h = h + linear(mixed, layer.output)
    gate, up = linear(normed(h, layer.mlp_norm), layer.gate_and_up).chunk(2, dim=-1)
    return h + linear(functional.silu(gate) * up, layer.down)


def normed(h: States, weight: Tensor) -> States:
    """RMSNorm."""
    return functional.rms_norm(h, weight.shape, weight, EPSILON)


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary positions on neighbouring pairs, as llama2.c has them; x is (..., positions, heads, width of a head)."""
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    cosines, sines = cosines[..., None, :], sines[..., None, :]
    return torch.stack([even * cosines - odd * sines, even * sines + odd * cosines], dim=-1).flatten(-2)
