"""The convert command: a model of ours or of other code becomes a plain or fixed-point model of ours, or goes back."""

import json
import sys
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from fpmgm.analysis.cka import choose_map
from fpmgm.backbones import NetworkConfig
from fpmgm.backbones.dit import as_mdlm
from fpmgm.backbones.maskgit import MaskGITConfig, as_maskgit
from fpmgm.checkpoint import Model
from fpmgm.commands.convert_source import AUTO, Source, Told, read_source
from fpmgm.devices import device_named
from fpmgm.evaluation.held_out import OWN, check_split, measured_data, measured_on
from fpmgm.injection import INJECTIONS, InjectionName
from fpmgm.interop.conversion import check_map, check_mix, is_exact, to_fixed_point
from fpmgm.interop.foreign import check_hub_form, write_hub_folder
from fpmgm.interop.halton import check_halton_form, write_halton
from fpmgm.interop.layer_map import LayerMap
from fpmgm.names import choose
from fpmgm.provenance import provenance
from fpmgm.randomness import generator

FIRST_MIDDLE_LAST = "first/middle/last"
NUM_SEQUENCES = 128
"""Held-out sequences that `auto` compares layers on, as many as `analyse` does."""
TEXT, IMAGES = "text-generation", "unconditional-image-generation"
"""What the hub calls models that write either."""
ADAPT = "A converted fixed-point model is where adaptation starts: before it, its samples are of little use."


@dataclass(frozen=True, kw_only=True)
class ConvertCommand:
    """Turn an MDLM or a MaskGIT, of ours or of public code, into a fixed-point or plain model of ours, or back."""

    source: Annotated[str, tyro.conf.Positional]
    """A Lightning .ckpt of MDLM, a .pth of Halton-MaskGIT, either of them as .safetensors, a hub folder of MDLM or
    SDTT, a model folder of ours, or a hub id owner/name[@revision]."""
    dest: Annotated[str, tyro.conf.Positional]
    """The folder to write; it must not exist."""
    map: str = FIRST_MIDDLE_LAST
    """Which layers of the source become the blocks before, inside and after the fixed point, counted from 1: for
    example 1/6/12 or 1,2/6,7/11,12. first/middle/last is 1/6/12 of 12 layers, as in the paper. auto finds the map by
    CKA, as `analyse` does. none keeps the plain stack."""
    data: str = OWN
    """The text that --map auto compares layers on: a corpus by name, a file or a folder. With auto, it is what the
    model was trained on, split as in training."""
    split: str = AUTO
    """Which part of `data` is used: all, held-out (as in training), or train, valid or test. With auto, it is held-out
    for a corpus and for what the model was trained on, and all for another file."""
    a: float = 0.5
    """The injection starts as a h + b h_pre, exactly. With 1 and 0 the fixed-point layers are looped without their
    input."""
    b: float = 0.5
    """The share of h_pre in that sum."""
    injection: InjectionName = "mlp"
    """How the fixed-point map reads its input: mlp (the paper's), linear, add or diagonal. The last brings h_pre to one
    size, so that it starts near a h + b h_pre; a must be below 1."""
    to: str = "fpmgm"
    """The form that is written. fpmgm is a model folder of ours. A plain stack can also become mdlm, the hub's form of
    MDLM, or halton, a checkpoint as the public Halton-MaskGIT code saves it."""
    tokenizer: str = AUTO
    """For text: gpt2, bert or a tokenizer.json. For images: an image tokenizer, or a model that has one. With auto, it
    is the source's own, else gpt2 or bert by the number of symbols, else none."""
    num_heads: int | None = None
    """The number of attention heads. It is needed only if the source does not tell."""
    length: int | None = None
    """The length of sequences. It is needed only if the source does not tell."""
    mask_id: int | None = None
    """The number of the mask symbol. It is needed only if there is no tokenizer and the vocabulary is neither GPT-2's
    nor BERT's."""
    device: str = "auto"
    """Where --map auto compares layers: cpu, cuda, cuda:1 or mps. With auto, it is CUDA, else MPS, else the CPU."""
    json: bool = False
    """Print one JSON object."""

    def __post_init__(self) -> None:
        device_named(self.device)
        choose("format", self.to, {"fpmgm": None, "mdlm": None, "halton": None})
        choose("injection", self.injection, INJECTIONS)
        check_mix(self.a, self.b, self.injection)
        if self.map not in (FIRST_MIDDLE_LAST, "none"):
            if self.map != AUTO:
                LayerMap.parse(self.map)
            if self.to != "fpmgm":
                naming = {"mdlm": "MDLM", "halton": "Halton-MaskGIT"}[self.to]
                raise ValueError(
                    f"map is {self.map}: a fixed-point model has no form in {naming}'s naming; use --map none"
                )
        check_split(self.split)
        if (self.data, self.split) != (OWN, AUTO) and self.map != AUTO:
            raise ValueError(f"data is {self.data}, which only --map auto reads; the map is {self.map}")
        is_changed = (self.a, self.b, self.injection) != (0.5, 0.5, "mlp")
        if self.is_plain and is_changed:
            raise ValueError("a, b and injection are for fixed-point models, and this keeps the plain stack")

    @property
    def is_plain(self) -> bool:
        return self.map == "none" or self.to != "fpmgm"


def run_convert(command: ConvertCommand) -> None:
    """Convert, write and say what was done."""
    dest = Path(command.dest)
    if dest.exists():
        raise ValueError(f"{dest} exists; give a folder that does not, so that nothing is lost")
    told = {field.name: getattr(command, field.name) for field in fields(Told)}
    source = read_source(Told(**told), partial(_check_form, command))
    model = source.model
    layer_map, chosen_on = (None, "") if command.is_plain else _layer_map(command, model)
    if layer_map is not None:
        model = to_fixed_point(model, layer_map, a=command.a, b=command.b, injection=command.injection)
    report = _report(command, source, model, layer_map, chosen_on)
    model = replace(model, card=_card(dest.name, report, model))
    if command.to == "mdlm":
        write_hub_folder(model, dest)
    elif command.to == "halton":
        write_halton(model, dest)
    else:
        model.save(dest)
    if command.json:
        print(json.dumps(report))
        return
    for name, value in report.items():
        lines = value if isinstance(value, list) else [f"{value:,}" if isinstance(value, int) else value]
        for line in lines:
            print(f"{name:18} {line}")


def _layer_map(command: ConvertCommand, model: Model) -> tuple[LayerMap, str]:
    """The layer map, and the data that it was chosen on if it was chosen."""
    if command.map != AUTO:
        return layer_map_named(command.map, model.config), ""
    data, words = measured_data(model, command.data, command.split)
    batch = data.measured(NUM_SEQUENCES)
    where = measured_on(data, batch, words)
    print(f"comparing layers on {where}", file=sys.stderr)
    place = device_named(command.device)
    found = choose_map(model.denoiser.to(place), batch.to(place), rng=generator(0))
    model.denoiser.cpu()
    return found, where


def layer_map_named(text: str, config: NetworkConfig) -> LayerMap:
    """The layer map that the option means for a plain stack."""
    return LayerMap.of_depth(config.cost.pre) if text == FIRST_MIDDLE_LAST else LayerMap.parse(text)


def _check_form(command: ConvertCommand, config: NetworkConfig) -> None:
    """Raise a ValueError if the network cannot become what is asked for, before its weights are read."""
    if command.to == "mdlm":
        check_hub_form(as_mdlm(config))
    elif command.to == "halton":
        check_halton_form(as_maskgit(config))
    elif not command.is_plain:
        named = FIRST_MIDDLE_LAST if command.map == AUTO else command.map
        check_map(config, layer_map_named(named, config))


def _report(
    command: ConvertCommand, source: Source, model: Model, layer_map: LayerMap | None, chosen_on: str
) -> dict[str, Any]:
    before, after = (_num_parameters(one) for one in (source.model, model))
    others = {"mdlm": "MDLM in the hub's naming", "halton": "MaskGIT as a checkpoint of Halton-MaskGIT"}
    kind = others.get(command.to, model.config.kind)
    report: dict[str, Any] = {
        "source": command.source,
        "format": source.format,
        "weights": source.weights,
        "source_blocks": str(source.model.config.cost),
        "source_parameters": before,
        "wrote": command.dest,
        "kind": kind,
        "blocks": str(model.config.cost),
        "parameters": after,
    }
    if layer_map is None:
        return {**report, "notes": list(source.notes)}
    report["layers"] = str(layer_map)
    how = "exactly" if is_exact(command.injection) else "nearly"
    report["injection"] = f"{command.injection}, {how} {command.a:g} h + {command.b:g} h_pre"
    chosen = [f"The layers were chosen by their CKA on {chosen_on}."] if chosen_on else []
    return {**report, "notes": [*source.notes, *chosen, ADAPT]}


def _num_parameters(model: Model) -> int:
    return sum(parameter.numel() for parameter in model.denoiser.parameters())


def _card(name: str, report: dict[str, Any], model: Model) -> str:
    """The README.md of the folder: what it was made of, and how."""
    made = provenance()
    writes = IMAGES if isinstance(model.config, MaskGITConfig) else TEXT
    lines = [
        "---",
        "library_name: fpmgm",
        f"pipeline_tag: {writes}",
        "tags: [fpmgm, masked-diffusion]",
        "---",
        f"# {name}",
        "",
        f"{report['kind']}: {report['blocks']} blocks, {report['parameters']:,} parameters, converted from",
        f"`{report['source']}` ({report['format']}, {report['source_blocks']} blocks, "
        f"{report['source_parameters']:,} parameters; weights: {report['weights']}).",
        "",
    ]
    if "layers" in report:
        lines += [f"Layers (pre/fixed-point/post): {report['layers']}. Injection: {report['injection']}.", ""]
    lines += [f"* {note}" for note in report["notes"]]
    lines += ["", f"Converted by fpmgm {made['fpmgm']}, commit {made['commit'] or 'unknown'}. Nothing was trained.", ""]
    return "\n".join(lines)
