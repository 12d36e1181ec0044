"""Checkpoints of the public Halton-MaskGIT code, read and written.

Such a file says nothing of its network but the shapes of its tensors. All sizes follow from them but the number of
heads, which the public code knows by the width.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fpmgm.backbones.maskgit import SIZES, MaskGITConfig, as_maskgit, maskgit
from fpmgm.checkpoint import Model, check_place
from fpmgm.denoiser import Denoiser
from fpmgm.files import whole_folder
from fpmgm.interop.stored import Foreign, Stored, by_short_names, check_tensors, fill, listed, settled

FORMAT = "Halton-MaskGIT checkpoint"
FILE = "current.pth"
"""What the public code calls the checkpoint in a folder."""
HEADS = {network.width: network.num_heads for network in SIZES.values()}
OF_BLOCK = {"mlp": "mlp.1", "ln1": "ln1", "ln2": "ln2"}
OF_BLOCK |= {name: f"attn.{name}" for name in ("wq", "wk", "wv", "wo")}
OF_BLOCK |= {name: f"ff.{name}" for name in ("w1", "w2", "w3")}
"""The public names of the parts of a block."""
OTHERS = {
    "last_norm.weight": "last_norm.norm_final.weight",
    "last_norm.bias": "last_norm.norm_final.bias",
    "last_norm.mlp.weight": "last_norm.mlp.1.weight",
    "last_norm.mlp.bias": "last_norm.mlp.1.bias",
    "head_bias": "head.bias",
}
TABLE, HEAD = "tok_emb.weight", "head.weight"
"""The table of tokens, and the weight of the head, which is the same tensor."""
REGISTERS = "reg_tokens.weight"


def public_name(name: str) -> str:
    """What the public code calls a tensor of ours.

    >>> public_name("blocks.3.wq.weight"), public_name("head_bias"), public_name("tok_emb.weight")
    ('transformer.layers.3.attn.wq.weight', 'head.bias', 'tok_emb.weight')
    """
    if not name.startswith("blocks."):
        return OTHERS.get(name, name)
    _, index, part, kind = name.split(".")
    return f"transformer.layers.{index}.{OF_BLOCK[part]}.{kind}"


def is_halton(source: Foreign) -> bool:
    """Whether tensors have the names of Halton-MaskGIT."""
    return TABLE in source.tensors and "cls_emb.weight" in source.tensors


def halton_of(file: Path, content: Mapping[Any, Any]) -> Foreign:
    """The model of a checkpoint that has been unpickled, its tensors unread."""
    weights = content.get("model_state_dict")
    if not isinstance(weights, dict):
        raise ValueError(f"{file} is no checkpoint of Halton-MaskGIT: its model_state_dict is no table of tensors")
    found = Foreign(place=file, format=FORMAT, tensors=by_short_names(file, weights), settings={})
    if not is_halton(found):
        raise ValueError(
            f"{file} is no Halton-MaskGIT: {TABLE} and cls_emb.weight are not both there; "
            f"it holds {listed(sorted(found.tensors))}"
        )
    return found


def maskgit_of(
    source: Foreign, *, num_heads: int | None = None, length: int | None = None, mask_id: int | None = None
) -> MaskGITConfig:
    """The network that the tensors describe. If heads are not told, they are those of the public size of that width."""
    sizes = _sizes(source)
    if num_heads is None and sizes["width"] in HEADS:
        num_heads = HEADS[sizes["width"]]
    known = settled(source, sizes, {"num_heads": num_heads, "length": length, "mask_id": mask_id})
    mlp_width = known.pop("mlp_width")
    config = MaskGITConfig(**known)
    if config.mlp_width != mlp_width:
        config = MaskGITConfig(**known, mlp_multiple=mlp_width)
    _check_shapes(source, config)
    return config


def load_halton(source: Foreign, config: MaskGITConfig) -> Denoiser:
    """The denoiser with the source's weights, read one by one."""
    head, table = source.tensors.get(HEAD), source.tensors[TABLE]
    if head is not None and not torch.equal(head.read(), table.read()):
        raise ValueError(f"{source.place}: {HEAD} is not {TABLE}, and Halton-MaskGIT's head is the table of its tokens")

    def stored_of(_: int, name: str) -> Stored | None:
        return source.tensors.get(public_name(name))  # there are no registers if their number is 0

    return fill(source, maskgit(config), stored_of)


def write_halton(model: Model, folder: Path) -> None:
    """Write a plain MaskGIT as the public code saves one: current.pth, which it reads, and the card."""
    check_halton_form(as_maskgit(model.config))
    tensors = {
        public_name(name.removeprefix("backbone.")): tensor.detach().cpu().contiguous()
        for name, tensor in model.denoiser.state_dict().items()
        if tensor.numel()
    }
    tensors[HEAD] = tensors[TABLE]
    content = {"iter": 0, "global_epoch": 0, "model_state_dict": tensors, "optimizer_state_dict": None}
    check_place(folder)
    with whole_folder(folder, (FILE, "README.md")) as scratch:
        torch.save(content, scratch / FILE)
        (scratch / "README.md").write_text(model.card)


def check_halton_form(config: MaskGITConfig) -> None:
    """A ValueError if the public code cannot hold the network."""
    if config.num_fp:
        raise ValueError(f"a fixed-point model ({config.cost} blocks) has no form in Halton-MaskGIT's naming")
    if config.mask_id != config.vocab_size - 1:
        raise ValueError(f"the mask is symbol {config.mask_id}; Halton-MaskGIT's is the last one")


def _sizes(source: Foreign) -> dict[str, int]:
    """What the shapes of the tensors tell."""
    shapes = source.shapes
    blocks = [int(found[1]) for name in shapes if (found := re.match(r"transformer\.layers\.(\d+)\.", name))]
    first = "transformer.layers.0.ff.w1.weight"
    needed = (TABLE, "cls_emb.weight", "pos_emb.weight", first)
    absent = [name for name in needed if len(shapes.get(name, ())) != 2]
    if absent:
        raise ValueError(
            f"{source.place} is no Halton-MaskGIT: it has no table {absent[0]}; it holds {listed(sorted(shapes))}"
        )
    return {
        "vocab_size": shapes[TABLE][0],
        "mask_id": shapes[TABLE][0] - 1,
        "width": shapes[TABLE][1],
        "length": shapes["pos_emb.weight"][0],
        "num_classes": shapes["cls_emb.weight"][0] - 1,
        "num_registers": shapes[REGISTERS][0] if shapes.get(REGISTERS) else 0,
        "num_pre": max(blocks) + 1,
        "mlp_width": shapes[first][0],
    }


def _check_shapes(source: Foreign, config: MaskGITConfig) -> None:
    with torch.device("meta"):
        network = maskgit(config)
    expected = {public_name(n.removeprefix("backbone.")): tuple(p.shape) for n, p in network.named_parameters()}
    if not config.num_registers:
        del expected[REGISTERS]
    found = source.shapes
    if HEAD in found:
        expected[HEAD] = expected[TABLE]
    check_tensors(source, f"Halton-MaskGIT of {config.num_pre} blocks, {config.width} wide", expected, found)
