"""What `convert` converts: a model of ours or of other code, and the codec that goes with it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fpmgm.backbones import MODEL_TYPES, NetworkConfig
from fpmgm.backbones.maskgit import MaskGITConfig
from fpmgm.checkpoint import Model, load_folder, read_config
from fpmgm.codecs import Codec, ImageCodec, TextCodec, load_codec
from fpmgm.data.assets import fetch
from fpmgm.data.images import tokenizer_named
from fpmgm.data.tokenizing import KNOWN
from fpmgm.interop.foreign import config_of, load_foreign, num_symbols, read_foreign
from fpmgm.interop.halton import FILE as HALTON_FILE
from fpmgm.interop.halton import is_halton, load_halton, maskgit_of
from fpmgm.interop.stored import Foreign
from fpmgm.places import find_folder
from fpmgm.schema import read_json, read_text
from fpmgm.symbols import Symbols, load_tokenizer, symbols_of

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model that is to be converted, and what to say of where it came from."""

    model: Model
    format: str
    weights: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the user says of a source."""

    source: str
    tokenizer: str = AUTO
    num_heads: int | None = None
    length: int | None = None
    mask_id: int | None = None


Check = Callable[[NetworkConfig], None]
"""A ValueError if the network cannot become what is asked for."""


def read_source(told: Told, check: Check) -> Source:
    """The model that is named, checked before its weights are read."""
    place = Path(told.source)
    if not place.exists() and place.suffix in (".ckpt", ".pt", ".pth", ".bin", ".safetensors"):
        raise ValueError(f"no file at {place}")
    place = place if place.is_file() else find_folder(told.source)
    config_file = place / "config.json"
    if place.is_dir() and config_file.is_file() and read_json(config_file).get("model_type") in list(MODEL_TYPES):
        return _ours(told, place, check)
    if not config_file.is_file() and (place / HALTON_FILE).is_file():
        place = place / HALTON_FILE
    foreign = read_foreign(place)
    return _halton(told, foreign, check) if is_halton(foreign) else _mdlm(told, foreign, check)


def _ours(told: Told, folder: Path, check: Check) -> Source:
    for name in ("num_heads", "length", "mask_id"):
        if getattr(told, name) is not None:
            raise ValueError(f"{name} is given, but {folder} is a model folder of ours and says it itself")
    config = read_config(folder)
    check(config)
    codec = None if told.tokenizer == AUTO else _codec_for(told.tokenizer, config)
    model = load_folder(folder)
    if codec is not None:
        is_alike = model.codec is None or codec.is_alike(model.codec)  # other tokens would be split otherwise
        model = replace(model, codec=codec, data=model.data if is_alike else None)
    return Source(model=model, format="model folder of fpmgm", weights="as they are")


def _codec_for(name: str, config: NetworkConfig) -> Codec:
    """The codec that the user names, if it fits the network."""
    if isinstance(config, MaskGITConfig):
        return _image_codec(name, config)
    content = _named_tokenizer(name)
    _check_tokenizer(content, config.vocabulary.size, config.vocabulary.mask_id)
    return TextCodec(content)


def _image_codec(name: str, config: MaskGITConfig) -> ImageCodec:
    """The codec of a model, or an image tokenizer whose classes are called by their numbers."""
    codec = load_codec(find_folder(name))
    if not isinstance(codec, ImageCodec):
        codec = ImageCodec(tokenizer_named(name), tuple(str(index) for index in range(config.num_classes)))
    codec.check(config.vocabulary, name)
    return codec


def _halton(told: Told, foreign: Foreign, check: Check) -> Source:
    config = maskgit_of(foreign, num_heads=told.num_heads, length=told.length, mask_id=told.mask_id)
    check(config)
    codec, note = None, "no image tokenizer: the file has none, so the model writes codes; --tokenizer names one"
    if told.tokenizer != AUTO:
        codec, note = _image_codec(told.tokenizer, config), f"image tokenizer {told.tokenizer}"
    heads = "" if told.num_heads else f"num_heads {config.num_heads} (by the width), "
    notes = (note, f"the source does not say, so as in Halton-MaskGIT: {heads}dropout {config.dropout}")
    model = Model(denoiser=load_halton(foreign, config), config=config, codec=codec)
    return Source(model=model, format=foreign.format, weights="as published", notes=notes)


def _mdlm(told: Told, foreign: Foreign, check: Check) -> Source:
    size = num_symbols(foreign)
    tokenizer, note = _find_tokenizer(told.tokenizer, foreign.tokenizer, size)
    mask_id = _find_mask(told, tokenizer, size)
    config = config_of(foreign, mask_id=mask_id, num_heads=told.num_heads, length=told.length)
    check(config)
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


def _find_tokenizer(name: str, own: str, size: int) -> tuple[str, str]:
    """The content of tokenizer.json, empty if there is none to be had, and a note about it."""
    if name != AUTO:
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


def _find_mask(told: Told, tokenizer: str, size: int) -> int:
    masks = [mask_id for mask_id, known_size in KNOWN.values() if known_size == size]
    if tokenizer:
        masks = [_check_tokenizer(tokenizer, size, told.mask_id).mask_id]
    elif told.mask_id is not None:
        masks = [told.mask_id]
    if not masks:
        raise ValueError(
            f"{told.source} has {size} symbols, neither GPT-2's nor BERT's; "
            "give --tokenizer, or --mask-id to say which of them is the mask"
        )
    return masks[0]


def _check_tokenizer(content: str, size: int, mask_id: int | None) -> Symbols:
    symbols = symbols_of(load_tokenizer(content))
    if symbols.size != size or mask_id not in (None, symbols.mask_id):
        asked = f"{size} symbols" if mask_id is None else f"{size} symbols with the mask {mask_id}"
        raise ValueError(f"the tokenizer has {symbols.size} symbols with the mask {symbols.mask_id}, the model {asked}")
    return symbols
