"""What is asked of frontiers: models, budgets, and what is swept."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fpmgm.checkpoint import DEFAULT, find_folder, read_config
from fpmgm.cluster import OnWorkers
from fpmgm.codecs import TextCodec, load_codec
from fpmgm.devices import DtypeName, check_pair, device_named
from fpmgm.draws import Draw
from fpmgm.evaluation.cells import Cell
from fpmgm.evaluation.chosen import TEXT, kind_of
from fpmgm.evaluation.evaluator import ConventionName
from fpmgm.evaluation.held_out import AUTO, OWN, check_split
from fpmgm.generation import CHOICES, Sampling
from fpmgm.names import choose, short_names
from fpmgm.transitions import TransitionName

TEMPERATURES = (0.7, 0.8, 0.9, 1.0, 1.1)


class Line(NamedTuple):
    """One frontier of a plot: a model, or one of each training seed."""

    name: str
    models: tuple[str, ...]
    transition: str = "auto"


@dataclass(frozen=True, kw_only=True)
class Frontiers(OnWorkers):
    """Which models are compared at equal entropy, and how they are sampled."""

    models: tuple[str, ...] = (DEFAULT,)
    """Bundled models, model folders, or hub ids owner/name. NAME=MODEL,MODEL,... is one frontier of several training
    runs, one for each of the seeds."""
    budgets: tuple[int, ...] = (24, 48, 96, 192)
    """The budgets to sample at, in block evaluations."""
    temperatures: tuple[float, ...] = TEMPERATURES
    """The temperatures to sample at. Each is a point of a frontier."""
    top_ps: tuple[float, ...] = ()
    """Values of top-p to sample at, instead of temperatures. The temperature is 1 then."""
    transitions: tuple[Literal["auto", TransitionName], ...] = ("auto",)
    """By which rule steps reveal tokens, such as ancestral or halton. With auto, each model has its usual one. With
    several, each model is a frontier for each of them."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of the samples. Sample i of a seed has the same random numbers in all models and at all temperatures."""
    num_samples: int = 256
    """Samples of each seed at each point."""
    judge: str = "auto"
    """Who judges samples: stories-source, smollm2, a causal model of ours or one of the hub. With auto, the bundled
    judge does it. stories-source-ids refuses models that do not write the source's own ids."""
    convention: ConventionName = "paper"
    """Which tokens of a text the judge scores. paper: an end-of-text stands before the text, and every token is scored.
    published: as in the code of MDLM, ReMDM and Duo, without the first token and later ends."""
    data: str = OWN
    """Real text to compare with: a corpus by name, a file or a folder. With auto, it is what the first model was
    trained on. If it is empty, there is none."""
    split: str = AUTO
    """Which part of `data` is used: all, held-out, train, valid or test. With auto, it is held-out for a corpus and all
    for a file."""
    dtype: Literal["float64", "float32"] = "float64"
    """The precision that tokens are drawn in. float32 draws as much public code does, and shows that this is too cold
    with many steps."""
    compute: DtypeName = "float32"
    """The precision that networks compute in. bfloat16 is faster on processors that have it."""
    device: str = "auto"
    """Where networks run: cpu, cuda, cuda:1 or mps. With auto, they run on CUDA if that is there, else on MPS, else on
    the CPU."""
    out: str = ""
    """The folder for rows, page, plot and JSON. If the command was stopped, the same call goes on. If it is empty,
    nothing is kept."""

    def __post_init__(self) -> None:
        check_pair(device_named(self.device), self.compute)
        self.check_workers()
        choose("dtype", self.dtype, {"float64": None, "float32": None})
        check_split(self.split)
        if self.top_ps and self.temperatures != TEMPERATURES:
            raise ValueError("temperatures and top_ps are both given; a frontier is swept along one of them")
        for name in ("models", "budgets", "temperatures", "top_ps", "transitions", "seeds"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"{name} are {' '.join(map(str, values))}; give each of them once")
        if not (self.models and self.budgets and self.transitions and self.seeds):
            raise ValueError("models, budgets, transitions and seeds are needed; give at least one of each")
        for name in self.transitions:
            choose("transition", name, CHOICES["transition"])
        if len(self.settings) < 2:
            raise ValueError(f"there is {len(self.settings)} point on a frontier; give at least two {self.knob}s")
        for value in self.settings:
            Draw(**{self.knob: value})  # type: ignore[arg-type]
        if not self.judge:
            raise ValueError("a frontier is made of generative perplexities; give --judge")
        self._check_lines()

    def _check_lines(self) -> None:
        names = [line.name for line in self.lines]
        if len(set(names)) < len(names):
            raise ValueError(f"frontiers are named {', '.join(names)}; give each a name of its own")
        for name, models, _ in self.lines:
            if len(models) not in (1, len(self.seeds)):
                raise ValueError(
                    f"{name} has {len(models)} models and there are {len(self.seeds)} seeds; give one model, or one "
                    "for each seed, as in --seeds 0 1 2"
                )

    @property
    def knob(self) -> Literal["temperature", "top_p"]:
        """What is swept."""
        return "top_p" if self.top_ps else "temperature"

    @property
    def settings(self) -> tuple[float, ...]:
        """The values of what is swept."""
        return self.top_ps or self.temperatures

    @property
    def lines(self) -> tuple[Line, ...]:
        """The frontiers, each with its models and how these reveal tokens."""
        named = [text for text in self.models if "=" in text and not Path(text).exists()]
        short = short_names(text for text in self.models if text not in named)
        lines = [_named_line(text) if text in named else Line(short[text], (text,)) for text in self.models]
        if len(self.transitions) == 1:
            return tuple(line._replace(transition=self.transitions[0]) for line in lines)
        pairs = product(lines, self.transitions)
        return tuple(Line(f"{line.name} ({rule})", line.models, rule) for line, rule in pairs)

    def cells(self) -> list[Cell]:
        """What there is to measure: by line, budget, seed and setting."""
        return [
            Cell(model=line.models[index % len(line.models)], sampling=self._sampling(line, budget, seed, setting))
            for line in self.lines
            for budget in self.budgets
            for index, seed in enumerate(self.seeds)
            for setting in self.settings
        ]

    def _sampling(self, line: Line, budget: int, seed: int, setting: float) -> Sampling:
        swept: dict[str, Any] = {"temperature": 1.0, self.knob: setting, "transition": line.transition}
        return Sampling(budget=budget, seed=seed, precision=self.dtype, **swept)


def _named_line(text: str) -> Line:
    name, _, models = text.partition("=")
    line = Line(name, tuple(models.split(",")))
    if not (name and all(line.models)):
        raise ValueError(f"model is {text!r}; write NAME=MODEL,MODEL, one model for each seed")
    return line


def check_alike(models: Sequence[str]) -> None:
    """A ValueError if models do not all write text of the same symbols and length: their entropies do not compare."""
    if kind_of(models) != TEXT:
        raise ValueError(f"a frontier is made of texts, and {models[0]} draws images; give models that write")
    if why := why_apart(models):
        raise ValueError(f"{why}; give models of one tokenizer and length")


def why_apart(models: Sequence[str]) -> str:
    """Why the entropies of text models do not compare; empty if they do."""
    alike: dict[str, tuple[Any, int]] = {}
    for model in models:
        folder = find_folder(model)
        codec = load_codec(folder)
        symbols = json.loads(codec.content) if isinstance(codec, TextCodec) else None
        alike[model] = (symbols, read_config(folder).vocabulary.length)
    first = models[0]
    for model, (symbols, length) in alike.items():
        if (symbols, length) != alike[first]:
            what = f"lengths of {alike[first][1]} and {length}" if length != alike[first][1] else "other symbols"
            return f"{first} and {model} write {what}, so their entropies do not compare"
    return ""
