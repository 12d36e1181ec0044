"""Benchmarks with right answers, through lm-eval: LAMBADA, ARC and others, out of the asset or as the harness has them.

lm-eval is imported where it is used, so that this file can be read without it.
"""

import importlib.util
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fpmgm.checkpoint import DEFAULT, Model, load
from fpmgm.codecs import TextCodec
from fpmgm.data.assets import ASSETS, hub_answers
from fpmgm.data.unpack_tasks import MEMBERS
from fpmgm.devices import OnDevice
from fpmgm.evaluation.harness_scoring import DRAWN, MAX_DRAWS, Scoring, ScoringName
from fpmgm.evaluation.intervals import NORMAL, Interval
from fpmgm.names import choose
from fpmgm.schema import MAX_SAMPLES, require

FILES = Path(__file__).parent / "task_files"
"""A file of lm-eval for every task of the asset; `lm_eval --include_path` takes the folder."""
HARNESS_NAMES = {**{name: name for name in MEMBERS}, "lambada": "lambada_openai", "race": "race"}
"""Our tasks, by the names of lm-eval's own. RACE is in no package: it comes from the hub alone."""
MISSING = "tasks need lm-eval, which is not installed; install it with: pip install 'fpmgm[eval]'"
SourceName = Literal["auto", "asset", "hub"]


@dataclass(frozen=True, kw_only=True)
class TaskSettings(OnDevice):
    """Which questions are asked of which models, and how answers are scored."""

    models: tuple[str, ...] = (DEFAULT,)
    tasks: tuple[str, ...]
    limit: int | None = None
    scoring: ScoringName = "duo"
    draws: int = Scoring.draws
    seed: int = 0
    batch_size: int = Scoring.batch_size
    source: SourceName = "auto"

    def __post_init__(self) -> None:
        if importlib.util.find_spec("lm_eval") is None:
            raise ValueError(MISSING)
        self.check_device()
        require("draws", self.draws, 1, MAX_DRAWS)
        require("task_batch", self.batch_size, 1, MAX_DRAWS)
        require("seed", self.seed, 0, MAX_SAMPLES)
        if self.limit is not None:
            require("limit", self.limit, 1, MAX_SAMPLES)
        choose("scoring", self.scoring, DRAWN)
        self.check_tasks()

    def check_tasks(self) -> None:
        """A ValueError that names the nearest task if one is unknown, or if it cannot be had here."""
        if not self.from_hub:
            for task in self.tasks:
                choose("task", task, HARNESS_NAMES)
                if task not in MEMBERS:
                    raise ValueError(f"{task} is only to be had from the hub, which does not answer or is not asked")
        else:
            own = _harness_tasks()
            for task in self.tasks:
                choose("task", task, HARNESS_NAMES if task not in own else own)

    @property
    def from_hub(self) -> bool:
        """Whether questions come from the hub, as lm-eval's own tasks ask them."""
        return self.source == "hub" or (self.source == "auto" and hub_answers())


@dataclass(frozen=True, kw_only=True)
class TaskRow:
    """What a model answered in one task."""

    model: str
    task: str
    source: str
    """Where the questions come from: a package, or lm-eval's own task and the hub."""
    scoring: str
    draws: int
    """Masks drawn for each continuation; 0 for a causal model, whose scores are exact."""
    seed: int
    num_questions: int
    num_cut: int
    """Questions that were longer than the model reads, and lost their beginning."""
    accuracy: Interval
    """The share of questions answered rightly: the choice with the highest score, or each token of the target."""
    chance: float
    """The accuracy of guessing blindly."""
    length_normalised: Interval | None
    """The accuracy by score over letters of the choice; None where scores are means, or where nothing is chosen."""
    target_nats: float | None
    """-log p of the target, its mean over questions; None where there are choices, or where scores are means."""
    seconds: float


def run_tasks(settings: TaskSettings, on_model: Callable[[str], None] | None = None) -> list[TaskRow]:
    """All tasks of all models. What is wrong with a model is said before any of them is asked anything."""
    for name in settings.models:
        text_codec(load(name, device="cpu"), name)
    rows: list[TaskRow] = []
    for name in settings.models:
        if on_model:
            on_model(name)
        rows += run_model(name, settings)
    return rows


def text_codec(model: Model, name: str) -> TextCodec:
    """The tokenizer of a model that reads text; a ValueError for any other model."""
    if not isinstance(model.codec, TextCodec):
        reads = f"reads {model.codec.kind}" if model.codec else "has no tokenizer"
        raise ValueError(f"{name} {reads}; tasks are texts, so give a model with a tokenizer.json")
    return model.codec


def run_model(name: str, settings: TaskSettings) -> list[TaskRow]:
    """The tasks of one model, each by itself, so that its time is its own."""
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    from fpmgm.evaluation.harness import FpmgmLM

    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it tells of every default that it takes
    asked = FpmgmLM(
        name,
        scoring=settings.scoring,
        draws=settings.draws,
        seed=settings.seed,
        batch_size=settings.batch_size,
        device=settings.device,
        dtype=settings.dtype,
    )
    manager = TaskManager() if settings.from_hub else TaskManager(include_path=str(FILES), include_defaults=False)
    rows = []
    for task in settings.tasks:
        own = HARNESS_NAMES.get(task, task) if settings.from_hub else f"fpmgm_{task}"
        begin = time.perf_counter()
        found = simple_evaluate(
            model=asked, tasks=[own], limit=settings.limit, bootstrap_iters=0, task_manager=manager, log_samples=True
        )
        seconds = time.perf_counter() - begin
        rows += [
            _row(name, task if each == own else each, samples, asked, settings, seconds, len(asked.cut.get(each, ())))
            for each, samples in found["samples"].items()
        ]
    return rows


def _row(
    model: str,
    task: str,
    samples: Sequence[dict[str, Any]],
    asked: Any,
    settings: TaskSettings,
    seconds: float,
    num_cut: int,
) -> TaskRow:
    if "acc" not in samples[0]:
        raise ValueError(f"{task} has no accuracy; give a task with right answers, or call lm_eval --model fpmgm")
    is_mean = asked.convention == "duo"
    has_choices = len(samples[0]["resps"]) > 1
    normalised = [float(each["acc_norm"]) for each in samples if "acc_norm" in each]
    return TaskRow(
        model=model,
        task=task,
        source=f"hub: lm-eval's {HARNESS_NAMES.get(task, task)}" if settings.from_hub else ASSETS["tasks"].package,
        scoring=asked.convention,
        draws=0 if asked.convention == "causal" else asked.scoring.draws,
        seed=asked.scoring.seed,
        num_questions=len(samples),
        num_cut=num_cut,
        accuracy=proportion([float(each["acc"]) for each in samples]),
        chance=sum(1 / len(each["resps"]) for each in samples) / len(samples) if has_choices else 0.0,
        length_normalised=proportion(normalised) if normalised and not is_mean else None,
        target_nats=None if has_choices or is_mean else -_mean_score(samples),
        seconds=seconds,
    )


def _mean_score(samples: Sequence[dict[str, Any]]) -> float:
    return sum(each["filtered_resps"][0][0] for each in samples) / len(samples)


def proportion(outcomes: Sequence[float]) -> Interval:
    """The share of successes and its 95 % interval, Wilson's, which is right for few and for none.

    >>> f"{proportion([1.0] * 30 + [0.0] * 70):.3f}"
    '0.300 [0.219, 0.396]'
    >>> f"{proportion([0.0] * 100):.3f}"
    '0.000 [0.000, 0.037]'
    """
    num, share = len(outcomes), sum(outcomes) / len(outcomes)
    middle = share + NORMAL**2 / (2 * num)
    spread = NORMAL * math.sqrt(share * (1 - share) / num + NORMAL**2 / (4 * num**2))
    scale = 1 + NORMAL**2 / num
    low, high = (middle - spread) / scale, (middle + spread) / scale
    return Interval(value=share, low=min(share, max(0.0, low)), high=max(share, min(1.0, high)))  # up to rounding


def as_json(row: TaskRow) -> dict[str, Any]:
    """The row as JSON holds it."""
    return asdict(row)


def _harness_tasks() -> dict[str, None]:
    """The names of all tasks that lm-eval has."""
    from lm_eval.tasks import TaskManager

    return dict.fromkeys(TaskManager().all_tasks)
