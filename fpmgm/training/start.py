"""Where a run starts: fresh weights or another model's, and the frozen teacher beside it."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fpmgm.backbones import NetworkConfig
from fpmgm.backbones.dit import Network
from fpmgm.backbones.network import Learned, Vocabulary
from fpmgm.budget import plan
from fpmgm.checkpoint import Model, find_folder, load, read_config, read_generation, read_settings
from fpmgm.codecs import load_codec
from fpmgm.data import DataConfig, Dataset
from fpmgm.data.stories_symbols import source_size
from fpmgm.data.tokenizing import KNOWN, trained_size
from fpmgm.denoiser import Denoiser
from fpmgm.evaluation.judges import STORIES_IDS, STORIES_SOURCE, check_judge, judge_named
from fpmgm.interop.conversion import check_map, to_fixed_point
from fpmgm.interop.layer_map import LayerMap
from fpmgm.post_training.consistency import DISTANCES, INIT, Consistency
from fpmgm.post_training.matching import TEACHER, Matching
from fpmgm.training.config import Training
from fpmgm.training.state import check_state

OF_STATES = {name for name, of_states in DISTANCES.items() if of_states}
"""Distances that compare hidden states, so that student and teacher must be of one width."""
RUNS_OWN = ("", "ema", "start")
"""Teachers that are no model of their own."""


def check_named_models(config: Training) -> None:
    """A ValueError if the run cannot start from its `init`, learn from its teacher or be watched, before all else."""
    if config.continue_from:
        check_state(Path(config.continue_from))
    if config.source:
        source = read_config(find_folder(config.source))
        if config.init_map:
            check_map(source, LayerMap.parse(config.init_map))
        _check_length(f"init {config.source}", source, config)
        _check_tokenizer(f"init {config.source}", config.source, config)
        if not config.init_map:
            # The data tells its own symbols, later.
            known = replace(config.data.vocabulary, size=source.vocabulary.size, mask_id=source.vocabulary.mask_id)
            _check_network(config.source, source, config.model.fit(known))
    if name := _teacher_name(config):
        _check_beside(f"teacher {name}", name, config)
        _check_width(name, read_config(find_folder(name)), config)
    if isinstance(config.objective, Matching) and config.objective.fake not in (TEACHER, INIT):
        _check_beside(f"fake {config.objective.fake}", config.objective.fake, config)
    if config.watch.every:
        if not isinstance(config.model, Network):
            raise ValueError(f"watch.every is {config.watch.every}, and this run makes no text; a frontier is of text")
        _check_watch(config, config.model)


def _check_watch(config: Training, network: Network) -> None:
    """A ValueError if the samples of a run cannot be made or judged."""
    judge = judge_named(config.watch.judge)
    check_judge(judge)
    symbols = _made(getattr(config.data, "tokenizer", ""))
    if judge == STORIES_IDS and symbols and not source_size(symbols):
        raise ValueError(
            f"watch.judge {judge} reads only models that write the source's own ids, and this run writes {symbols}; "
            f"{STORIES_SOURCE} judges it through its text"
        )
    for budget in config.watch.budgets:
        plan(budget, network.cost)


def _check_beside(who: str, name: str, config: Training) -> None:
    """A ValueError if a model that takes part in a run beside its own has other symbols or another length."""
    source = read_config(find_folder(name))
    if source.is_causal:
        raise ValueError(f"{who} is a causal model; it must be a masked one")
    _check_length(who, source, config)
    if not config.source:
        _check_tokenizer(who, name, config)
        return
    _check_alike(config.source, who, name)
    _check_symbols(who, source.vocabulary, read_config(find_folder(config.source)).vocabulary)


def seen_before(config: Training) -> str:
    """What there is to say if `init` may have learned from what the run holds out; empty if nothing."""
    before = read_settings(find_folder(config.source))[1] if config.source else None
    data = config.data.placed()
    if before is None or before.name != data.name or before.is_split_as(data):
        return ""
    return (
        f"init {config.source} was trained on {before.name} too, but with another split or packing: it has seen some "
        "of what this run holds out, so validation looks better than it is"
    )


def model_beside(config: Training) -> str:
    """The model that a run must read text as: the one it starts from, else its teacher, else none."""
    return config.source or _teacher_name(config)


def load_data(data: DataConfig, source: str) -> Dataset:
    """The data of a run that must read text as the model `source` does, if there is one.

    A tokenizer that would be trained is that of the model, if the model has one of that name: a tokenizer of other text
    would have other symbols.
    """
    named = getattr(data, "tokenizer", "")
    if not source or not trained_size(named):
        return data.load()
    _, before = read_settings(find_folder(source))
    is_known = named == getattr(before, "tokenizer", "")
    return data.load(load_codec(find_folder(source)) if is_known else None)


def first_weights(config: Training, network: NetworkConfig, data: Dataset) -> Learned:
    """The denoiser before the first update."""
    if not config.source:
        return network.build(seed=config.seed)
    model = load(config.source, device="cpu")
    check_codec(f"init {config.source}", model, data)
    if config.init_map:
        model = to_fixed_point(
            model, LayerMap.parse(config.init_map), injection=getattr(config.model, "injection", "mlp")
        )
    _check_network(config.source, model.config, network)
    denoiser = network.build()
    denoiser.load_state_dict(model.denoiser.state_dict())
    return denoiser


def sampled_as(config: Training) -> dict[str, Any]:
    """What generation_config.json of the run's model says: the transition of the model it starts from, or halton if it
    learned for that order.
    """
    before = read_generation(find_folder(config.source)) if config.source else {}
    transition = before.get("defaults", {}).get("transition")
    if isinstance(config.objective, Matching) and config.objective.order == "halton":
        transition = "halton"
    return {"defaults": {"transition": transition}} if transition else {}


def named_teacher(config: Training, network: NetworkConfig, data: Dataset) -> Denoiser | None:
    """The frozen model that the run learns from, if it names one."""
    name = _teacher_name(config)
    return frozen_model(f"teacher {name}", name, network, data) if name else None


def frozen_model(who: str, name: str, network: NetworkConfig, data: Dataset) -> Denoiser:
    """A model that reads and writes as the run does, in no training; `who` it is, errors say."""
    model = load(name, device="cpu")
    check_codec(who, model, data)
    _check_symbols(who, model.config.vocabulary, network.vocabulary)
    return model.denoiser.eval().requires_grad_(False)


def check_codec(who: str, model: Model, data: Dataset) -> None:
    """A ValueError if a model reads and writes otherwise than the run does."""
    if model.codec is not None and not model.codec.is_alike(data.codec):
        raise ValueError(f"{who} has another tokenizer than the run; give --data.tokenizer the model's own")


def _check_network(init: str, source: NetworkConfig, network: NetworkConfig) -> None:
    if type(source) is not type(network):
        raise ValueError(f"init {init} is a {source.model_type}, and the run has a {network.model_type}")
    settings: Any = network
    for field in fields(settings):
        theirs, ours = getattr(source, field.name), getattr(network, field.name)
        if theirs != ours and field.name not in network.training_only:
            raise ValueError(f"init {init} has {field.name} {theirs}, and the run has {ours}")


def _check_symbols(who: str, theirs: Vocabulary, ours: Vocabulary) -> None:
    if (theirs.size, theirs.mask_id) != (ours.size, ours.mask_id):
        raise ValueError(
            f"{who} has {theirs.size} symbols, of which {theirs.mask_id} is the mask, and the run "
            f"has {ours.size} and {ours.mask_id}; it must have the student's"
        )


def _check_width(teacher: str, source: NetworkConfig, config: Training) -> None:
    objective = config.objective
    if not isinstance(objective, Consistency) or objective.distance not in OF_STATES:
        return
    if source.width != config.model.width:
        raise ValueError(
            f"teacher {teacher} is {source.width} wide, and the run {config.model.width}; between states of different "
            f"width there is no {objective.distance}: give --objective.distance kl"
        )


def _check_alike(init: str, who: str, name: str) -> None:
    """A ValueError if the student's start and another model read and write differently, before any data is fetched."""
    ours, theirs = (load_codec(find_folder(each)) for each in (init, name))
    if ours is not None and theirs is not None and not ours.is_alike(theirs):
        raise ValueError(f"{who} has another tokenizer than init {init}; it must have the student's")


def _check_tokenizer(who: str, name: str, config: Training) -> None:
    """A ValueError if a model has another tokenizer than the run by what both are called, before any text is read."""
    theirs = _made(getattr(read_settings(find_folder(name))[1], "tokenizer", ""))
    ours = _made(getattr(config.data, "tokenizer", ""))
    if theirs and ours and theirs != ours:
        raise ValueError(
            f"{who} has another tokenizer than the run, {theirs} and not {ours}; give --data.tokenizer the model's own"
        )


def _made(tokenizer: str) -> str:
    """The whole name of a tokenizer that is known by it; empty for that of a file."""
    if size := source_size(tokenizer):
        return f"source-{size}"
    return tokenizer if tokenizer in KNOWN or trained_size(tokenizer) else ""


def _teacher_name(config: Training) -> str:
    name = config.objective.teacher_source
    return config.source if name == INIT else "" if name in RUNS_OWN else name


def _check_length(who: str, source: NetworkConfig, config: Training) -> None:
    if source.vocabulary.length != config.data.length:
        raise ValueError(
            f"{who} is for sequences of {source.vocabulary.length} tokens, and the run has {config.data.length}"
        )
