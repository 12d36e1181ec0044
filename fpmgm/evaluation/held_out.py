"""The data that a model is measured on: what training held out, all of a file of text, or a standard split."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from fpmgm.checkpoint import Model
from fpmgm.codecs import Codec, ImageCodec, TextCodec
from fpmgm.data import DataConfig, Dataset
from fpmgm.data.assets import ASSETS, fetch
from fpmgm.data.images import ImagesConfig
from fpmgm.data.pixels import KNOWN
from fpmgm.data.sources import SUFFIXES
from fpmgm.data.stories import STORIES
from fpmgm.data.stories_text import StoriesConfig
from fpmgm.data.text import PAIRS, TextConfig, load_text
from fpmgm.names import choose
from fpmgm.types import Batch

AUTO, ALL, HELD_OUT = "auto", "all", "held-out"
TEST = "held-out-test"
"""Held-out sequences that no validation of training reads."""
OWN = "auto"
"""As a source: the data that the model was trained on."""
STANDARD = ("train", "valid", "test")
SPLITS = (AUTO, ALL, HELD_OUT, TEST, *STANDARD)
"""Which part of a text is measured; the standard ones are files of that name in a corpus or a folder."""
MOST_HELD_OUT = 512
"""So many held-out sequences of a corpus are measured unless another number is given; all of anything else."""
TEST_SEQUENCES = 500
"""So many of `held-out-test`, as the paper's tables of test perplexity have."""


def check_split(split: str) -> None:
    """A ValueError if there is no such split."""
    choose("split", split, dict.fromkeys(SPLITS))


def split_of(source: str, split: str = AUTO) -> str:
    """What `auto` means: what training holds out of a corpus (an asset or a data set of the hub), all of a file."""
    check_split(split)
    if split == AUTO:
        is_corpus = source in (OWN, STORIES, *ASSETS) or source.startswith("hub:")
        return HELD_OUT if is_corpus else ALL
    return split


def data_for(model: Model, source: str = OWN, split: str = AUTO, *, with_training: bool = False) -> Dataset:
    """What a model is measured on, in its own tokens: `held_out` are the rows to measure on.

    `auto` is the data that the model was trained on, split exactly as training had it. The name of that data and any
    path to it mean the same. Any other source but `stories` is read as text. Training rows may be missing, unless
    `with_training` asks for them.
    """
    if split == TEST:
        return _test_rows(data_for(model, source, HELD_OUT, with_training=with_training), source)
    if isinstance(model.speech, ImageCodec):
        return _images_for(model, model.speech, source, split)
    codec, own = text_codec(model), model.data
    if source == OWN and own is None:
        raise ValueError("the model does not tell what it was trained on; give --data FILE, or the name of a corpus")
    source = own_name(model, source)
    split = split_of(OWN if own is not None and source == own.name else source, split)
    if own is not None and source == own.name and split == HELD_OUT:
        return own_data(own if with_training else own.held_out_only(), codec)
    if source == STORIES:
        if split != HELD_OUT:
            raise ValueError(
                f"split is {split}, and models are measured on held-out stories only; give --split held-out"
            )
        stories = StoriesConfig(length=model.config.vocabulary.length)
        found = (stories if with_training else stories.held_out_only()).load(codec)
        return replace(found, is_begun=model.is_begun)
    place = _split_file(source, split) if split in STANDARD else source
    data = load_text(_read_like(own, TextConfig(source=place, length=model.config.vocabulary.length)), codec)
    data = replace(data, is_begun=model.is_begun)  # every row begins with the first symbol, however it is packed
    if split == HELD_OUT:
        return data
    return replace(data, train=np.arange(0), held_out=np.arange(len(data.rows)))


def _test_rows(data: Dataset, source: str) -> Dataset:
    """The same without the held-out sequences that validation reads, as many as it usually reads."""
    validated = data.held_out[:: max(1, len(data.held_out) // MOST_HELD_OUT)][:MOST_HELD_OUT]
    rest = np.setdiff1d(data.held_out, validated)
    if not len(rest):
        raise ValueError(
            f"split is {TEST}, and {source} holds out {len(data.held_out)} sequences, all of which validation reads; "
            "give --split held-out"
        )
    return replace(data, held_out=rest)


def _read_like(own: DataConfig | None, config: TextConfig) -> TextConfig:
    """Another source in the same kind of sequences as a model's own data, if these are pairs or documents with ends."""
    if not isinstance(own, TextConfig) or own.packing not in ("end", PAIRS):
        return config
    return replace(own, source=config.source, length=config.length, content="", validation_documents=0)


def _images_for(model: Model, codec: ImageCodec, source: str, split: str) -> Dataset:
    """Held-out images in a model's codes: of its own data, or of any other images that its tokenizer reads."""
    check_split(split)
    if split not in (AUTO, HELD_OUT):
        raise ValueError(f"split is {split}, and models are measured on held-out images only; give --split held-out")
    own = model.data
    if source == OWN and own is None:
        raise ValueError(
            "the model does not tell what it was trained on; give --data FOLDER, or the name of a data set"
        )
    if own is not None and own_name(model, source) == own.name:
        return own_data(own, codec)
    size = 0 if source in KNOWN else codec.tokenizer.image_shape[1]
    other = ImagesConfig(
        source=source,
        size=size,
        num_codes=codec.tokenizer.num_codes,
        grid=codec.grid,
        num_classes=len(codec.class_names),
    )
    return other.load(codec)


def own_name(model: Model, source: str) -> str:
    """The name of the data that the model was trained on if the source is that data; else the source as it is."""
    own = model.data.name if model.data is not None else source
    is_same_file = os.path.exists(source) and os.path.exists(own) and os.path.samefile(source, own)
    return own if source == OWN or is_same_file else source


def own_data(config: DataConfig, codec: Codec) -> Dataset:
    """The data that a model was trained on; a ValueError that asks for other data if it is gone."""
    try:
        return config.load(codec)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"the model was trained on {config.name}, which cannot be read ({error}); give --data FILE to measure on"
        ) from error


def text_codec(model: Model) -> TextCodec:
    """The codec of a text model; a ValueError if it is none."""
    codec = model.speech
    if not isinstance(codec, TextCodec):
        raise ValueError(f"the model writes {codec.kind}, not text")
    return codec


def _split_file(source: str, split: str) -> str:
    folder = fetch(source) if source in ASSETS else Path(source)
    files = [file for suffix in SUFFIXES if (file := folder / f"{split}{suffix}").is_file()]
    if not files:
        raise ValueError(f"{source} has no split {split!r}: there is no file {split}.txt in it; give --split all")
    return str(files[0])


def measured_data(
    model: Model, source: str = OWN, split: str = AUTO, *, with_training: bool = False
) -> tuple[Dataset, str]:
    """`data_for`, and words for what it is; a source that is not the model's own data is said to be another."""
    data = data_for(model, source, split, with_training=with_training)
    own, name = model.data.name if model.data else "", own_name(model, source)
    is_held_out = name == own or isinstance(model.speech, ImageCodec)
    split = split_of(OWN if is_held_out else name, split)
    if name == STORIES:
        name = f"{STORIES} ({StoriesConfig.note})"
    kinds = {ALL: name, HELD_OUT: f"what training holds out of {name}"}
    kinds[TEST] = f"{kinds[HELD_OUT]} and validation does not read"
    words = kinds.get(split, f"{name}, split {split}")
    if own and not name.startswith(own):
        words += f" (the model was trained on {own})"
    return data, words


def usual_number(source: str, split: str = AUTO) -> int | None:
    """How many sequences are measured unless a number is given: some of a corpus, all (None) of anything else."""
    return {HELD_OUT: MOST_HELD_OUT, TEST: TEST_SEQUENCES}.get(split_of(source, split))


def measured_on(data: Dataset, batch: Batch, words: str) -> str:
    """Which tokens a batch of measured data has, in words."""
    total = len(data.held_out)
    share = "all" if len(batch.x) == total else f"{len(batch.x):,} of {total:,} sequences,"
    return f"{share} {int(batch.is_real.sum()):,} tokens of {words}"
