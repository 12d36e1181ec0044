"""What is measured of texts: samples, with bootstrap intervals over them, and likelihood of held-out ones."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from fpmgm.checkpoint import Model, weights_of
from fpmgm.codecs import TextCodec
from fpmgm.data import Dataset
from fpmgm.denoiser import Denoiser
from fpmgm.evaluation.diversity import distinct_counts, repetition, set_diversity, unigram_entropy
from fpmgm.evaluation.evaluator import PAPER, ConventionName, Metric, Validation
from fpmgm.evaluation.held_out import HELD_OUT, data_for, text_codec
from fpmgm.evaluation.intervals import Interval, Means, Statistics, bootstrap, jackknife
from fpmgm.evaluation.judges import (
    STORIES_IDS,
    STORIES_SOURCE,
    Judge,
    Reading,
    check_convention,
    load_judge,
    read_symbols,
)
from fpmgm.evaluation.likelihood import perplexity
from fpmgm.evaluation.mauve import FEWEST, TextFeatures, mauve_interval, reference_texts
from fpmgm.evaluation.shown import samples_of
from fpmgm.masking import BoundName, mask_schedule_by_name
from fpmgm.names import choose
from fpmgm.types import Batch, Tokens

Statistic = Callable[[Means], Statistics]


def _first(means: Means) -> Statistics:
    return means[:, 0]


def _exp_first(means: Means) -> Statistics:
    return np.exp(means[:, 0])


def _exp_ratio(means: Means) -> Statistics:
    return np.exp(means[:, 0] / means[:, 1])


def _ratio(means: Means) -> Statistics:
    return means[:, 0] / means[:, 1]


GENERATIVE = Metric(name="perplexity_per_sample", title="generative perplexity", best="lowest")
ENTROPY = Metric(name="entropy", title="unigram entropy", best="highest")
OPENING = 12
"""Tokens at the beginning of a text: once upon a time there was a girl, and her name."""
DECIMALS = 4
"""Of the numbers of each sample, which rows keep."""
VALIDATED = Metric(name="perplexity", title="validation perplexity", best="lowest")


@dataclass(frozen=True, kw_only=True)
class TextEvaluator:
    """Generative perplexity by a judge, entropy and repetition of samples; perplexity of held-out text."""

    judge: str = ""
    """Who judges the samples: stories-source, smollm2, a causal model of ours, or one of the hub. If it is empty,
    nobody does."""
    convention: ConventionName = "paper"
    """Which tokens of a text the judge scores. paper: an end-of-text stands before the text, and every token is scored.
    published: as in the code of MDLM, ReMDM and Duo, without the first token and later ends."""
    mauve: str = ""
    """The text that MAUVE compares the samples with, by the judge's features. If it is empty, there is no MAUVE."""
    mauve_split: str = HELD_OUT
    """Which part of that text."""
    masking: BoundName = "linear"
    """How many tokens the bound of validation masks at time t: a share of t, or 0.999 t as MDLM (log-linear)."""
    rest: bool = False
    """Whether visible positions rest after the first iteration of validation. Samples do not depend on it."""
    device: str = "auto"
    """Where the judge runs. No result depends on it."""

    def __post_init__(self) -> None:
        if self.mauve and not self.judge:
            raise ValueError("MAUVE needs a judge's features; give --judge")
        check_convention(self.convention, self.judge)
        choose("masking", self.masking, {"linear": None, "log-linear": None})

    @property
    def primary(self) -> Metric:
        return GENERATIVE if self.judge else ENTROPY

    @property
    def validated(self) -> Metric:
        how = [f"{self.masking} masks"] if self.masking != "linear" else []
        how += ["visible positions rest"] if self.rest else []
        return replace(VALIDATED, title=f"{VALIDATED.title} ({', '.join(how)})") if how else VALIDATED

    def judged_by(self) -> str:
        return self._judge().name if self.judge else ""

    def judged_through(self, model: Model) -> str:
        return read_symbols(self._judge(), text_codec(model), [])[1] if self.judge else ""

    def check(self, num_samples: int) -> None:
        if self.mauve and num_samples < FEWEST:
            raise ValueError(f"num_samples is {num_samples}; MAUVE needs at least {FEWEST}")

    def prepare(self, model: Model, num_samples: int) -> None:
        self.check(num_samples)
        self.judged_through(model)  # a judge that does not read this model says so now
        if self.mauve:
            self._real_features(model, num_samples)

    def measure(
        self, model: Model, tokens: Tokens, *, seed: int = 0, labels: Sequence[int] | None = None
    ) -> dict[str, Interval]:
        readings = self._readings(model, tokens)
        metrics = measure(tokens, readings, seed=seed)
        if self.mauve and readings:
            metrics["mauve"] = mauve_interval(_features(readings), self._real_features(model, len(tokens)))
        return metrics

    def per_sample(self, model: Model, tokens: Tokens) -> dict[str, tuple[float | None, ...]]:
        return each_sample(tokens, self._readings(model, tokens))

    def references(self, model: Model, num_samples: int) -> dict[str, dict[str, Interval]]:
        return {}

    def diversity(self, tokens: Tokens) -> float:
        return float(unigram_entropy(tokens).mean())

    def validate(self, denoiser: Denoiser, batch: Batch, *, num_iters: int) -> Validation:
        schedule = mask_schedule_by_name(self.masking)
        found = perplexity(denoiser, batch, num_iters=num_iters, schedule=schedule, rest=self.rest)
        return Validation(**asdict(found))

    def key(self) -> tuple[dict[str, Any], str]:
        """The settings, without younger ones where they are the usual ones: rows of before them are still known."""
        settings: dict[str, Any] = {"judge": self.judge, "mauve": self.mauve}
        if self.mauve_split != HELD_OUT:
            settings["mauve_split"] = self.mauve_split
        if self.convention != PAPER:
            settings["convention"] = self.convention
        elif self.judge not in ("", STORIES_SOURCE, STORIES_IDS):
            settings["ends"] = "all"  # before 2026-11-19, only the first end between documents was scored
        return settings, _judge_weights(self.judge)

    def shown(self, model: Model, data: Dataset, num: int) -> tuple[str, list[Any]]:
        return samples_of(model, num, data)

    def in_card(self, model: Model, data: Dataset) -> list[str]:
        return []

    def _readings(self, model: Model, tokens: Tokens) -> Sequence[Reading] | None:
        if not self.judge:
            return None
        rows = tuple(map(tuple, tokens.tolist()))
        return _read(self.judge, self.device, self.convention, text_codec(model), rows)

    def _judge(self) -> Judge:
        return _judge(self.judge, device=self.device, convention=self.convention)

    def _real_features(self, model: Model, num_samples: int) -> TextFeatures:
        """The judge's features of real texts: as many as there are samples, but at least 256 if there are so many."""
        data = data_for(model, self.mauve, self.mauve_split)
        num = min(max(num_samples, 256), len(data.held_out))
        if num < FEWEST:
            raise ValueError(f"{self.mauve} has {num} {self.mauve_split} sequences; MAUVE needs at least {FEWEST}")
        return _reference_features(self.judge, self.device, self.convention, tuple(reference_texts(data, num)))


_judge = lru_cache(maxsize=2)(load_judge)


@lru_cache(maxsize=2)
def _read(
    judge: str, device: str, convention: str, codec: TextCodec, rows: tuple[tuple[int, ...], ...]
) -> Sequence[Reading]:
    """What a judge finds in samples, kept for the numbers of each of them."""
    return read_symbols(_judge(judge, device=device, convention=convention), codec, [list(row) for row in rows])[0]


@lru_cache(maxsize=4)
def _reference_features(judge: str, device: str, convention: str, texts: tuple[str, ...]) -> TextFeatures:
    return _features(_judge(judge, device=device, convention=convention).read(texts))


def _features(readings: Sequence[Reading]) -> TextFeatures:
    return np.stack([reading.feature.numpy() for reading in readings])


def _judge_weights(judge: str) -> str:
    """A judge of ours counts by its weights, any other by its name."""
    try:
        return weights_of(judge) if judge and judge != "smollm2" else judge
    except (ValueError, OSError):
        return judge


def measure(tokens: Tokens, readings: Sequence[Reading] | None = None, *, seed: int = 0) -> dict[str, Interval]:
    """Metrics of samples by name, each with its interval (95 %); `readings` are a judge's, of the same samples.

    `perplexity_per_token` averages nats over all tokens of all texts (MDLM), `perplexity_per_sample` over each text
    first (the paper, SDTT); both are exponentials. `distinct_2` is the mean over texts of each text's own share of
    different pairs, so that it does not fall with the number of samples. `set_distinct_4`, `overlap_4` and
    `shared_openings` (the share of texts whose first tokens another text has too) tell how different the texts are from
    each other; they compare only sets of as many samples.
    """
    between, opening = set_diversity(tokens, 4), tokens[:, :OPENING]
    begun = set_diversity(opening, opening.shape[1])
    found = {
        "entropy": _interval([unigram_entropy(tokens).numpy()], _first, seed),
        "distinct_2": _interval(_distinct(tokens, 2), _ratio, seed),
        "distinct_3": _interval(_distinct(tokens, 3), _ratio, seed),
        "repetition_4": _interval([repetition(tokens, 4).numpy()], _first, seed),
        "set_distinct_4": _share(between.distinct, between.distinct_without),
        "overlap_4": _share(between.overlap, between.overlap_without),
        "shared_openings": _share(begun.overlap, begun.overlap_without),
    }
    if readings is not None:
        nats = [reading.nats for reading in readings if len(reading.nats)]
        if not nats:
            raise ValueError(f"none of {len(readings)} texts has a token to judge")
        sums, counts = [float(n.double().sum()) for n in nats], [float(len(n)) for n in nats]
        means = [total / count for total, count in zip(sums, counts, strict=True)]
        found["perplexity_per_token"] = _interval([sums, counts], _exp_ratio, seed)
        found["perplexity_per_sample"] = _interval([means], _exp_first, seed)
    return found


def each_sample(tokens: Tokens, readings: Sequence[Reading] | None = None) -> dict[str, tuple[float | None, ...]]:
    """The unigram entropy of each sample and, if a judge read them, the mean nats of its tokens, None without any."""
    found: dict[str, tuple[float | None, ...]] = {
        "entropy": tuple(round(value, DECIMALS) for value in unigram_entropy(tokens).tolist())
    }
    if readings is not None:
        means = (float(reading.nats.double().mean()) if len(reading.nats) else None for reading in readings)
        found["nats"] = tuple(None if mean is None else round(mean, DECIMALS) for mean in means)
    return found


def _share(value: float, without: Statistics) -> Interval:
    """A share of a whole set; its interval ends at 0 and at 1."""
    found = jackknife(value, without)
    return Interval(value=value, low=max(found.low, 0.0), high=min(found.high, 1.0))


def _distinct(tokens: torch.Tensor, n: int) -> list[Any]:
    different, total = distinct_counts(tokens, n)
    return [different.numpy(), np.full(len(tokens), total)]


def _interval(columns: Sequence[Any], statistic: Statistic, seed: int) -> Interval:
    return bootstrap(np.stack([np.asarray(column, float) for column in columns], axis=1), statistic, seed=seed)
