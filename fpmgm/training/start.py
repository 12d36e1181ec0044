"""Where a run starts: fresh weights or another model's, and the frozen teacher beside it."""

import json
from dataclasses import fields, replace

from tokenizers import Tokenizer

from fpmgm.backbones.dit import MDLMConfig, mdlm
from fpmgm.checkpoint import Model, find_folder, load, read_config
from fpmgm.consistency import DISTANCES
from fpmgm.convert import check_map, to_fixed_point
from fpmgm.data.text import PackedText
from fpmgm.denoiser import Denoiser
from fpmgm.layer_map import LayerMap
from fpmgm.training.config import EMA, INIT, SELF, Training

OF_STATES = {name for name, of_states in DISTANCES.items() if of_states}
"""Distances that compare hidden states, so that student and teacher must be of one width."""
TRAINING_ONLY = {"dropout", "frozen_dropout"}
"""Settings of a network that its weights do not depend on."""


def check_named_models(config: Training) -> None:
    """A ValueError if the run cannot start from its `init` or learn from its teacher, before anything is loaded."""
    if config.init:
        source = read_config(find_folder(config.init))
        if config.init_map:
            check_map(source, LayerMap.parse(config.init_map))
        _check_length(f"init {config.init}", source, config)
        if not config.init_map:
            # The text tells its own symbols, later.
            network = replace(config.network, vocab_size=source.vocab_size, mask_id=source.mask_id)
            _check_network(config.init, source, network)
    if name := _teacher_name(config):
        source = read_config(find_folder(name))
        if source.is_causal:
            raise ValueError(f"teacher {name} is a causal model; a teacher must be a masked one")
        _check_length(f"teacher {name}", source, config)
        if config.consistency.distance in OF_STATES and source.width != config.model.width:
            raise ValueError(
                f"teacher {name} is {source.width} wide, and the run {config.model.width}; between states of different "
                f"width there is no {config.consistency.distance}: give --consistency.distance kl"
            )
        if config.init:
            _check_alike(config.init, name)
            _check_symbols(name, source, read_config(find_folder(config.init)))


def first_weights(config: Training, network: MDLMConfig, text: PackedText) -> Denoiser:
    """The denoiser before the first update."""
    if not config.init:
        denoiser = mdlm(network, seed=config.seed, embeddings=config.embedding_start)
        if denoiser.injection and config.injection_start == "mean":
            denoiser.injection.set_exact(0.5, 0.5)
        return denoiser
    model = load(config.init)
    check_tokenizer(f"init {config.init}", model, text)
    if config.init_map:
        model = to_fixed_point(model, LayerMap.parse(config.init_map), injection=network.injection)
    _check_network(config.init, model.config, network)
    denoiser = mdlm(replace(network, vocab_size=model.config.vocab_size))
    denoiser.load_state_dict(model.denoiser.state_dict())
    return denoiser


def named_teacher(config: Training, network: MDLMConfig, text: PackedText) -> Denoiser | None:
    """The frozen model that the run learns from, if it names one."""
    name = _teacher_name(config)
    if not name:
        return None
    model = load(name)
    check_tokenizer(f"teacher {name}", model, text)
    _check_symbols(name, model.config, network)
    return model.denoiser.eval().requires_grad_(False)


def check_tokenizer(who: str, model: Model, text: PackedText) -> None:
    """A ValueError if a model reads text otherwise than the run does."""
    if not model.tokenizer:
        return
    if not reads_alike(Tokenizer.from_str(model.tokenizer), text.tokenizer):
        raise ValueError(f"{who} has another tokenizer than the run; give --data.tokenizer its tokenizer.json")


def _check_network(init: str, source: MDLMConfig, network: MDLMConfig) -> None:
    for field in fields(MDLMConfig):
        theirs, ours = getattr(source, field.name), getattr(network, field.name)
        if theirs != ours and field.name not in TRAINING_ONLY:
            raise ValueError(f"init {init} has {field.name} {theirs}, and the run has {ours}")


def _check_symbols(teacher: str, theirs: MDLMConfig, ours: MDLMConfig) -> None:
    if (theirs.vocab_size, theirs.mask_id) != (ours.vocab_size, ours.mask_id):
        raise ValueError(
            f"teacher {teacher} has {theirs.vocab_size} symbols, of which {theirs.mask_id} is the mask, and the run "
            f"has {ours.vocab_size} and {ours.mask_id}; a teacher must have the student's"
        )


def _check_alike(init: str, teacher: str) -> None:
    """A ValueError if the student's start and its teacher read text differently, before any text is fetched."""
    files = [find_folder(name) / "tokenizer.json" for name in (init, teacher)]
    if not all(file.is_file() for file in files):
        return
    if not reads_alike(*(Tokenizer.from_file(str(file)) for file in files)):
        raise ValueError(f"teacher {teacher} has another tokenizer than init {init}; a teacher must have the student's")


def reads_alike(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether two tokenizers cut any text into the same symbols, by all that they are made of."""
    ours, theirs = (json.loads(each.to_str()) for each in (one, other))
    return all(ours[part] == theirs[part] for part in ("normalizer", "pre_tokenizer", "model", "added_tokens"))


def _teacher_name(config: Training) -> str:
    name = config.consistency.teacher
    if not config.consistency.weight or name in (SELF, EMA):
        return ""
    return config.init if name == INIT else name


def _check_length(who: str, source: MDLMConfig, config: Training) -> None:
    if source.length != config.data.length:
        raise ValueError(f"{who} is for sequences of {source.length} tokens, and the run has {config.data.length}")
