"""Halton-MaskGIT again, from the description of its parts: tensors under its public names, and a slow network."""

import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from fpmgm.randomness import generator

SIZES = {"width": 32, "depth": 3, "across": 30, "hidden": 88, "codes": 12, "length": 9, "classes": 3, "registers": 1}


def public_tensors(seed: int = 0, **changes: int) -> dict[str, Tensor]:
    """A state dict as the public code has it; by default of 5 or 6 heads, which are 30 of the 32 wide."""
    size = {**SIZES, **changes}
    width, across, hidden = size["width"], size["across"], size["hidden"]
    shapes: dict[str, tuple[int, ...]] = {
        "cls_emb.weight": (size["classes"] + 1, width),
        "tok_emb.weight": (size["codes"] + 1, width),
        "pos_emb.weight": (size["length"], width),
    }
    for layer in range(size["depth"]):
        block = f"transformer.layers.{layer}"
        shapes |= {f"{block}.mlp.1.weight": (6 * width, width), f"{block}.mlp.1.bias": (6 * width,)}
        shapes |= {f"{block}.ln1.weight": (width,), f"{block}.ln2.weight": (width,)}
        shapes |= {f"{block}.attn.{name}.weight": (across, width) for name in ("wq", "wk", "wv")}
        shapes |= {f"{block}.attn.wo.weight": (width, across), f"{block}.ff.w2.weight": (width, hidden)}
        shapes |= {f"{block}.ff.w1.weight": (hidden, width), f"{block}.ff.w3.weight": (hidden, width)}
    shapes |= {"last_norm.norm_final.weight": (width,), "last_norm.norm_final.bias": (width,)}
    shapes |= {"last_norm.mlp.1.weight": (2 * width, width), "last_norm.mlp.1.bias": (2 * width,)}
    shapes |= {"head.bias": (size["codes"] + 1,)}
    if size["registers"]:
        shapes["reg_tokens.weight"] = (size["registers"], width)
    rng = generator(seed)
    tensors = {name: 0.3 * torch.randn(shape, generator=rng) for name, shape in shapes.items()}
    return {**tensors, "head.weight": tensors["tok_emb.weight"]}


def write_public(file: Path, tensors: dict[str, Tensor], prefix: str = "", **changes: Any) -> Path:
    """A checkpoint as the public code saves it."""
    named = {prefix + name: tensor for name, tensor in tensors.items()}
    optimiser = {"state": {0: {"step": 3, "exp_avg": torch.zeros(2)}}, "param_groups": [{"betas": (0.9, 0.999)}]}
    content = {"iter": 7, "global_epoch": 1, "model_state_dict": named, "optimizer_state_dict": optimiser, **changes}
    torch.save(content, file)
    return file


def write_safe(file: Path, tensors: dict[str, Tensor]) -> Path:
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, file)
    return file


class Reference:
    """One sequence, one head and one position at a time, in float64."""

    def __init__(self, tensors: dict[str, Tensor], num_heads: int) -> None:
        self.tensors = {name: tensor.double() for name, tensor in tensors.items()}
        self.num_heads = num_heads
        self.depth = sum(name.endswith("attn.wq.weight") for name in tensors)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", torch.zeros(()))

    def norm(self, x: Tensor) -> Tensor:
        return torch.stack([row / math.sqrt(float((row * row).mean()) + 1e-5) for row in x])

    def attention(self, x: Tensor, name: str) -> Tensor:
        q, k = self.norm(self.linear(x, f"{name}.wq")), self.norm(self.linear(x, f"{name}.wk"))
        v = self.linear(x, f"{name}.wv")
        out = torch.zeros_like(v)
        head_width = v.shape[1] // self.num_heads
        for head in range(self.num_heads):
            part = slice(head * head_width, (head + 1) * head_width)
            for i in range(len(x)):
                scores = torch.stack([q[i, part] @ k[j, part] for j in range(len(x))]) / math.sqrt(head_width)
                out[i, part] = scores.softmax(0) @ v[:, part]
        return self.linear(out, f"{name}.wo")

    def block(self, h: Tensor, layer: int, c: Tensor) -> Tensor:
        name = f"transformer.layers.{layer}"
        shift1, scale1, gate1, shift2, scale2, gate2 = self.linear(c, f"{name}.mlp.1").chunk(6)
        x = self.norm(h) * self.tensors[f"{name}.ln1.weight"] * (1 + scale1) + shift1
        h = h + gate1 * self.attention(x, f"{name}.attn")
        x = self.norm(h) * self.tensors[f"{name}.ln2.weight"] * (1 + scale2) + shift2
        gate = self.linear(x, f"{name}.ff.w1")
        hidden = gate * torch.sigmoid(gate) * self.linear(x, f"{name}.ff.w3")
        return h + gate2 * self.linear(hidden, f"{name}.ff.w2")

    def logits(self, z: Tensor, label: int) -> Tensor:
        """Of one sequence; the label -1 is the last row of the class table."""
        h = self.tensors["tok_emb.weight"][z] + self.tensors["pos_emb.weight"][: len(z)]
        if "reg_tokens.weight" in self.tensors:
            h = torch.cat([h, self.tensors["reg_tokens.weight"]])
        of_class = self.tensors["cls_emb.weight"][label]
        c = of_class * torch.sigmoid(of_class)
        for layer in range(self.depth):
            h = self.block(h, layer, c)
        normed = self.norm(h[: len(z)]) * self.tensors["last_norm.norm_final.weight"]
        shift, scale = self.linear(c, "last_norm.mlp.1").chunk(2)
        finished = (normed + self.tensors["last_norm.norm_final.bias"]) * (1 + scale) + shift
        return self.linear(finished, "head")
