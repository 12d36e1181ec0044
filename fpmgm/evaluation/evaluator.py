"""What the frame knows of measuring: an evaluator for each kind of codec."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from fpmgm.backbones import NetworkConfig
from fpmgm.backbones.classifier import ClassifierConfig
from fpmgm.checkpoint import Model
from fpmgm.codecs import Codec
from fpmgm.data import Dataset
from fpmgm.denoiser import Denoiser
from fpmgm.evaluation.intervals import Interval
from fpmgm.names import choose
from fpmgm.types import Batch, Tokens

ConventionName = Literal["paper", "published"]
PAPER, PUBLISHED = "paper", "published"
"""How judges of text score: see `judges`."""
CLASSIFIER = "classifier"
"""As a kind: a network that tells classes, whatever its codec."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number by which models are compared."""

    name: str
    title: str
    best: Literal["lowest", "highest"]

    def is_worse(self, value: float, limit: float) -> bool:
        """Whether a value lies beyond a limit, on the bad side."""
        return value > limit if self.best == "lowest" else value < limit


@dataclass(frozen=True, kw_only=True)
class Validation:
    """How well a model knows data that it has not seen."""

    value: float
    error: float
    """One standard error."""
    num_sequences: int
    nats_per_token: float | None = None
    """If the value is a perplexity: its logarithm."""


@runtime_checkable
class Evaluator(Protocol):
    """Measures samples, and validates a model on held-out data. It is its own configuration."""

    @property
    def primary(self) -> Metric:
        """What tables mark, sweeps choose by and plots show of samples."""
        ...

    @property
    def convention(self) -> str:
        """How a judge scores, if there are several ways; empty if there is one."""
        ...

    @property
    def validated(self) -> Metric:
        """What validation measures, and the stopping rule of training reads."""
        ...

    def check(self, num_samples: int) -> None:
        """A ValueError if so many samples cannot be measured so."""
        ...

    def prepare(self, model: Model, num_samples: int) -> None:
        """Load what is needed to measure samples of this model; a ValueError before anything is sampled."""
        ...

    def measure(
        self, model: Model, tokens: Tokens, *, seed: int, labels: Sequence[int] | None = None
    ) -> dict[str, Interval]:
        """Metrics of samples by name, each with its interval; `labels` are the classes they were asked to be of."""
        ...

    def per_sample(self, model: Model, tokens: Tokens) -> dict[str, tuple[float | None, ...]]:
        """Numbers of each sample by name, which paired comparisons need; none if there are no such comparisons."""
        ...

    def references(self, model: Model, num_samples: int) -> dict[str, dict[str, Interval]]:
        """The metrics of real data, by what it is; none if nothing is compared with real data."""
        ...

    def diversity(self, tokens: Tokens) -> float:
        """What is matched when models are compared at equal diversity."""
        ...

    def validate(self, denoiser: Denoiser, batch: Batch, *, num_iters: int) -> Validation:
        """How well a network knows these sequences, with so many solver iterations if it has a fixed point."""
        ...

    def key(self) -> tuple[dict[str, Any], str]:
        """What a result depends on besides the samples: settings, for JSON, and the weights of who measures."""
        ...

    def judged_by(self) -> str:
        """Who measures, as rows name it, which may load it; empty if nobody else is asked."""
        ...

    def judged_through(self, model: Model) -> str:
        """What of a model's samples is judged, such as their ids or their text; empty if nobody else is asked."""
        ...

    def shown(self, model: Model, data: Dataset, num: int) -> tuple[str, list[Any]]:
        """What a model card shows: how it was made, and what a person sees of it."""
        ...

    def in_card(self, model: Model, data: Dataset) -> list[str]:
        """Lines of a model card on what else was measured; none if there is nothing to say."""
        ...


def evaluator_of(network: NetworkConfig, codec: Codec, *, objective: Any = None, **settings: Any) -> Evaluator:
    """The evaluator of a network with that codec: one that reads pixels is an autoencoder, or a classifier.

    An objective that masks text as the public code of MDLM does is validated with such masks, and one whose visible
    positions rest with such a solver.
    """
    schedule = getattr(getattr(objective, "base", objective), "schedule", "")
    if codec.kind == "text" and schedule == "log-linear":
        settings = {"masking": schedule, **settings}
    if lets_rest(objective):
        settings = {"rest": True, **settings}
    is_classifier = network.model_type == ClassifierConfig.model_type
    return evaluator_for(CLASSIFIER if is_classifier else codec.kind, **settings)


def lets_rest(objective: Any) -> bool:
    """Whether visible positions rest where an objective, or the masked cross entropy in it, is trained."""
    return bool(getattr(getattr(objective, "base", objective), "rest", False))


class WithoutSamples:
    """What the evaluator of a network that draws nothing says of samples."""

    refusal: ClassVar[str]
    """What to do instead."""
    convention: ClassVar[str] = ""

    def check(self, num_samples: int) -> None:
        raise ValueError(self.refusal)

    def prepare(self, model: Model, num_samples: int) -> None:
        self.check(num_samples)

    def measure(
        self, model: Model, tokens: Tokens, *, seed: int, labels: Sequence[int] | None = None
    ) -> dict[str, Interval]:
        raise ValueError(self.refusal)

    def per_sample(self, model: Model, tokens: Tokens) -> dict[str, tuple[float | None, ...]]:
        return {}

    def references(self, model: Model, num_samples: int) -> dict[str, dict[str, Interval]]:
        return {}

    def diversity(self, tokens: Tokens) -> float:
        raise ValueError(self.refusal)

    def key(self) -> tuple[dict[str, Any], str]:
        return {}, ""

    def judged_by(self) -> str:
        return ""

    def judged_through(self, model: Model) -> str:
        return ""


def evaluator_for(kind: str, **settings: Any) -> Evaluator:
    """The evaluator of what a codec of that kind writes, or of a classifier, with these settings."""
    from fpmgm.evaluation.classification import ClassificationEvaluator
    from fpmgm.evaluation.images import ImageEvaluator
    from fpmgm.evaluation.reconstruction import ReconstructionEvaluator
    from fpmgm.evaluation.text import TextEvaluator

    kinds: dict[str, Callable[..., Evaluator]] = {
        "text": TextEvaluator,
        "image": ImageEvaluator,
        "pixels": ReconstructionEvaluator,
        CLASSIFIER: ClassificationEvaluator,
    }
    return choose("codec", kind, kinds)(**settings)
