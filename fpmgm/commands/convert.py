"""The convert command: a model of ours or of other code becomes an MDLM or an FP-MDLM of ours, or a hub MDLM."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from fpmgm.analysis.cka import choose_map
from fpmgm.backbones import MODEL_TYPES, NetworkConfig
from fpmgm.backbones.dit import as_mdlm
from fpmgm.checkpoint import Model, find_folder, load_folder, read_config
from fpmgm.codecs import TextCodec
from fpmgm.data.assets import fetch
from fpmgm.data.text import KNOWN
from fpmgm.devices import device_named
from fpmgm.evaluation.held_out import OWN, check_split, measured_data, measured_on
from fpmgm.injection import INJECTIONS, InjectionName
from fpmgm.interop.conversion import check_map, check_mix, to_fixed_point
from fpmgm.interop.foreign import (
    Foreign,
    check_hub_form,
    config_of,
    load_foreign,
    num_symbols,
    read_foreign,
    write_hub_folder,
)
from fpmgm.interop.layer_map import LayerMap
from fpmgm.names import choose
from fpmgm.provenance import provenance
from fpmgm.randomness import generator
from fpmgm.schema import read_json, read_text
from fpmgm.symbols import Symbols, load_tokenizer, symbols_of

FIRST_MIDDLE_LAST = "first/middle/last"
AUTO = "auto"
NUM_SEQUENCES = 128
"""Held-out sequences that `auto` compares layers on, as many as `analyse` does."""
ADAPT = "A converted fixed-point model is where adaptation starts: before it, its samples are of little use."


@dataclass(frozen=True, kw_only=True)
class ConvertCommand:
    """Turn an MDLM of ours, of a Lightning checkpoint or of the hub into an FP-MDLM, an MDLM, or back."""

    source: Annotated[str, tyro.conf.Positional]
    """A Lightning .ckpt, a hub folder of MDLM or SDTT, a model folder of ours, or a hub id owner/name[@revision]."""
    dest: Annotated[str, tyro.conf.Positional]
    """The folder to write; it must not exist."""
    map: str = FIRST_MIDDLE_LAST
    """Layers that become the pre/fixed-point/post blocks, counted from 1: 1/6/12 or 1,2/6,7/11,12; first/middle/last
    (the paper's 1/6/12 of 12); auto: by CKA, as `analyse` finds it; none: keep the plain stack."""
    data: str = OWN
    """The text that --map auto compares layers on: a corpus by name, a file or a folder; auto: what the model was
    trained on, split as in training."""
    split: str = AUTO
    """Which part of `data`: all; held-out (as in training); train, valid or test; auto: held-out of a corpus and of
    what the model was trained on, all of another file."""
    a: float = 0.5
    """The injection starts as a h + b h_pre, exactly: 1 and 0 make a plain loop of the fixed-point layers."""
    b: float = 0.5
    injection: InjectionName = "mlp"
    """mlp (the paper's), linear or add."""
    to: str = "fpmgm"
    """fpmgm: a model folder of ours; mdlm: the hub's MDLM naming, for plain stacks."""
    tokenizer: str = "auto"
    """gpt2, bert or a tokenizer.json; auto: the source's own, else gpt2 or bert by the number of symbols."""
    num_heads: int | None = None
    """Needed only if the source does not tell."""
    length: int | None = None
    """Needed only if the source does not tell."""
    mask_id: int | None = None
    """Which symbol is the mask; needed only without a tokenizer, if the vocabulary is neither GPT-2's nor BERT's."""
    device: str = "auto"
    """Where --map auto compares layers: cpu, cuda, cuda:1 or mps; auto: CUDA, then MPS, then the CPU."""
    json: bool = False
    """Print one JSON object."""

    def __post_init__(self) -> None:
        device_named(self.device)
        choose("format", self.to, {"fpmgm": None, "mdlm": None})
        choose("injection", self.injection, INJECTIONS)
        check_mix(self.a, self.b)
        if self.map not in (FIRST_MIDDLE_LAST, "none"):
            if self.map != AUTO:
                LayerMap.parse(self.map)
            if self.to == "mdlm":
                raise ValueError(f"map is {self.map}: a fixed-point model has no form in MDLM's naming; use --map none")
        check_split(self.split)
        if (self.data, self.split) != (OWN, AUTO) and self.map != AUTO:
            raise ValueError(f"data is {self.data}, which only --map auto reads; the map is {self.map}")
        is_changed = (self.a, self.b, self.injection) != (0.5, 0.5, "mlp")
        if self.is_plain and is_changed:
            raise ValueError("a, b and injection are for fixed-point models, and this keeps the plain stack")

    @property
    def is_plain(self) -> bool:
        return self.map == "none" or self.to == "mdlm"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model that is to be converted, and what to say of where it came from."""

    model: Model
    format: str
    weights: str
    notes: tuple[str, ...] = ()


def run_convert(command: ConvertCommand) -> None:
    """Convert, write and say what was done."""
    dest = Path(command.dest)
    if dest.exists():
        raise ValueError(f"{dest} exists; give a folder that does not, so that nothing is lost")
    source = read_source(command)
    model = source.model
    layer_map, chosen_on = (None, "") if command.is_plain else _layer_map(command, model)
    if layer_map is not None:
        model = to_fixed_point(model, layer_map, a=command.a, b=command.b, injection=command.injection)
    report = _report(command, source, model, layer_map, chosen_on)
    model = replace(model, card=_card(dest.name, report))
    if command.to == "mdlm":
        write_hub_folder(model, dest)
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


def read_source(command: ConvertCommand) -> Source:
    """The model that the command names, checked before its weights are read."""
    place = Path(command.source)
    if not place.exists() and place.suffix in (".ckpt", ".pt", ".pth", ".bin", ".safetensors"):
        raise ValueError(f"no file at {place}")
    place = place if place.is_file() else find_folder(command.source)
    config_file = place / "config.json"
    if place.is_dir() and config_file.is_file() and read_json(config_file).get("model_type") in list(MODEL_TYPES):
        return _ours(command, place)
    return _theirs(command, read_foreign(place))


def _ours(command: ConvertCommand, folder: Path) -> Source:
    for name in ("num_heads", "length", "mask_id"):
        if getattr(command, name) is not None:
            raise ValueError(f"{name} is given, but {folder} is a model folder of ours and says it itself")
    config = read_config(folder)
    _check_form(command, config)
    tokenizer = None if command.tokenizer == "auto" else _named_tokenizer(command.tokenizer)
    if tokenizer is not None:
        _check_tokenizer(tokenizer, config.vocabulary.size, config.vocabulary.mask_id)
    model = load_folder(folder)
    if tokenizer is not None:
        codec = TextCodec(tokenizer)
        is_alike = model.codec is None or codec.is_alike(model.codec)  # other tokens would be split otherwise
        model = replace(model, codec=codec, data=model.data if is_alike else None)
    return Source(model=model, format="model folder of fpmgm", weights="as they are")


def _theirs(command: ConvertCommand, foreign: Foreign) -> Source:
    size = num_symbols(foreign)
    tokenizer, note = _find_tokenizer(command.tokenizer, foreign.tokenizer, size)
    mask_id = _find_mask(command, tokenizer, size)
    config = config_of(foreign, mask_id=mask_id, num_heads=command.num_heads, length=command.length)
    _check_form(command, config)
    unsaid = [f"{name} {getattr(config, name)}" for name in ("dropout", "time_conditioning")]
    unsaid = [text for text in unsaid if text.split()[0] not in foreign.settings]
    notes = [note, f"the source does not say, so as in MDLM: {', '.join(unsaid)}" if unsaid else ""]
    model = Model(
        denoiser=load_foreign(foreign, config), config=config, codec=TextCodec(tokenizer) if tokenizer else None
    )
    weights = "as published"
    if foreign.place.is_file():
        weights = "moving average (EMA)" if foreign.average else "those of the last update: the file has no EMA"
    return Source(model=model, format=foreign.format, weights=weights, notes=tuple(filter(None, notes)))


def _check_form(command: ConvertCommand, config: NetworkConfig) -> None:
    """Raise a ValueError if the network cannot become what is asked for, before its weights are read."""
    if command.to == "mdlm":
        check_hub_form(as_mdlm(config))
    elif not command.is_plain:
        named = FIRST_MIDDLE_LAST if command.map == AUTO else command.map
        check_map(config, layer_map_named(named, config))


def _find_tokenizer(name: str, own: str, size: int) -> tuple[str, str]:
    """The content of tokenizer.json, empty if there is none to be had, and a note about it."""
    if name != "auto":
        return _named_tokenizer(name), f"tokenizer {name}"
    if own:
        return own, "tokenizer of the source"
    known = [known for known, (_, known_size) in KNOWN.items() if known_size == size]
    if not known:
        return "", f"no tokenizer: none is known with {size} symbols, so the model cannot read or write text"
    try:
        return _named_tokenizer(known[0]), f"tokenizer {known[0]}, by the number of symbols"
    except OSError as error:
        return "", f"no tokenizer: {known[0]} cannot be had now ({error}); put its tokenizer.json into the folder"


def _named_tokenizer(name: str) -> str:
    path = fetch(name) if name in KNOWN else Path(name)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise ValueError(f"tokenizer is {name!r}; give gpt2, bert or a tokenizer.json that exists")
    return read_text(path)


def _find_mask(command: ConvertCommand, tokenizer: str, size: int) -> int:
    masks = [mask_id for mask_id, known_size in KNOWN.values() if known_size == size]
    if tokenizer:
        masks = [_check_tokenizer(tokenizer, size, command.mask_id).mask_id]
    elif command.mask_id is not None:
        masks = [command.mask_id]
    if not masks:
        raise ValueError(
            f"{command.source} has {size} symbols, neither GPT-2's nor BERT's; "
            "give --tokenizer, or --mask-id to say which of them is the mask"
        )
    return masks[0]


def _check_tokenizer(content: str, size: int, mask_id: int | None) -> Symbols:
    symbols = symbols_of(load_tokenizer(content))
    if symbols.size != size or mask_id not in (None, symbols.mask_id):
        asked = f"{size} symbols" if mask_id is None else f"{size} symbols with the mask {mask_id}"
        raise ValueError(f"the tokenizer has {symbols.size} symbols with the mask {symbols.mask_id}, the model {asked}")
    return symbols


def _report(
    command: ConvertCommand, source: Source, model: Model, layer_map: LayerMap | None, chosen_on: str
) -> dict[str, Any]:
    before, after = (_num_parameters(one) for one in (source.model, model))
    kind = "MDLM in the hub's naming" if command.to == "mdlm" else model.config.kind
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
    report["injection"] = f"{command.injection}, exactly {command.a:g} h + {command.b:g} h_pre"
    chosen = [f"The layers were chosen by their CKA on {chosen_on}."] if chosen_on else []
    return {**report, "notes": [*source.notes, *chosen, ADAPT]}


def _num_parameters(model: Model) -> int:
    return sum(parameter.numel() for parameter in model.denoiser.parameters())


def _card(name: str, report: dict[str, Any]) -> str:
    """The README.md of the folder: what it was made of, and how."""
    made = provenance()
    lines = [
        "---",
        "library_name: fpmgm",
        "pipeline_tag: text-generation",
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
