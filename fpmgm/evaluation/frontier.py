"""Frontiers: what entropy a sampler pays for its generative perplexity, and two of them compared at equal entropy.

A low temperature makes any model's text more probable and less diverse, so a perplexity alone says little. The frontier
of a model at a budget has a point for each setting of the sampler, such as a temperature: mean unigram entropy and log
generative perplexity of its samples. Between points it is a straight line. A point that another one beats in both
numbers is left out. (Pynadath, Shi and Zhang, "Generative Frontiers", 2604.02718.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

PerSample = Float[np.ndarray, "S P N"]
"""A number of every sample: by seed, setting of the sampler, and index."""
Points = Float[np.ndarray, "R P"]
"""A number of every point of a frontier, by resample."""
Counts = Int[np.ndarray, "R M"]
"""How often each sample of all seeds is in a resample."""

NARROWEST = 0.01
"""Frontiers that share less than this, in nats, are not compared."""
PLACES = 64
"""Frontiers are compared at so many places, spread evenly over the range that they share."""
RESAMPLES = 2000


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """The samples of one model at one budget: what a judge and a count of tokens say of each, by setting.

    Sample i of seed s has the same random numbers in every setting and every model; that is what pairs them.
    """

    model: str = ""
    budget: int = 0
    nats: PerSample = field(repr=False)
    """Mean -log p of each sample's tokens by the judge; nan where the judge scored none."""
    entropy: PerSample = field(repr=False)
    """Unigram entropy of each sample."""
    has_runs: bool = False
    """Whether each seed has a model of its own, trained with another seed."""

    def __post_init__(self) -> None:
        if self.nats.shape != self.entropy.shape or self.nats.ndim != 3:
            raise ValueError(
                f"nats have shape {self.nats.shape} and entropies {self.entropy.shape}; give both by seed, setting and "
                "sample"
            )
        num_settings, num_samples = self.nats.shape[1:]
        if num_settings < 2 or num_samples < 2:
            raise ValueError(f"a frontier needs 2 settings and 2 samples, and has {num_settings} and {num_samples}")
        if not np.isfinite(self.nats).any(axis=2).all() or not np.isfinite(self.entropy).all():
            raise ValueError(f"some setting of {self.model or 'a frontier'} has no sample with a token to judge")

    @classmethod
    def of(
        cls, nats: Sequence[ArrayLike], entropy: Sequence[ArrayLike], *, model: str = "", budget: int = 0
    ) -> "Frontier":
        """From numbers of each sample, a list of them for each setting; one seed."""
        cubes = (np.stack([np.asarray(each, float) for each in part])[None] for part in (nats, entropy))
        return cls(model=model, budget=budget, nats=next(cubes), entropy=next(cubes))

    @property
    def num_samples(self) -> int:
        """Of a setting, all seeds together."""
        return self.nats.shape[0] * self.nats.shape[2]

    @property
    def entropies(self) -> tuple[float, float]:
        """The lowest and the highest mean entropy that it reaches."""
        return _curve(self, _all(self)).ends


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two frontiers at one budget, compared. Intervals are of 95 %, by a paired bootstrap over samples."""

    model: str
    against: str
    budget: int
    ratio: float | None
    """Generative perplexity of `model` over that of `against` at equal entropy: the geometric mean over the entropies
    that are compared. None if there are none."""
    low: float | None
    high: float | None
    entropy_low: float | None
    """The entropies that are compared, from here"""
    entropy_high: float | None
    """to here."""
    in_band: bool | None
    """Whether all of these lie within the entropies of real text; None if these are not known."""
    entropy_difference: float | None
    """Entropy of `model` less that of `against` at equal perplexity: the mean over the perplexities that are compared.
    None if there are none."""
    difference_low: float | None
    difference_high: float | None
    perplexity_low: float | None
    """The perplexities that are compared, from here"""
    perplexity_high: float | None
    """to here."""
    entropies: tuple[float, float]
    """The lowest and the highest entropy of `model`."""
    against_entropies: tuple[float, float]
    """The same of `against`."""
    by_seed: tuple[float | None, ...]
    """The ratio of each seed alone."""
    num_samples: int
    """Samples of a setting, all seeds together."""

    def turned(self) -> "Pair":
        """The same comparison from the other side."""
        return replace(
            self,
            model=self.against,
            against=self.model,
            ratio=_inverse(self.ratio),
            low=_inverse(self.high),
            high=_inverse(self.low),
            entropy_difference=_negative(self.entropy_difference),
            difference_low=_negative(self.difference_high),
            difference_high=_negative(self.difference_low),
            entropies=self.against_entropies,
            against_entropies=self.entropies,
            by_seed=tuple(map(_inverse, self.by_seed)),
        )


def _inverse(value: float | None) -> float | None:
    return None if value is None else 1 / value


def _negative(value: float | None) -> float | None:
    return None if value is None else -value


class Curve(NamedTuple):
    """Frontiers of resamples: their points in order, entropy and perplexity both rising."""

    entropy: Points
    nats: Points

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest entropy, of the first resample."""
        return float(self.entropy[0, 0]), float(self.entropy[0, -1])

    def swapped(self) -> "Curve":
        """The same with the axes exchanged."""
        return Curve(self.nats, self.entropy)


class Compared(NamedTuple):
    """How much one curve lies above another, by resample, and where that was read; nan where they share nothing."""

    difference: Float[np.ndarray, " R"]
    low: Float[np.ndarray, " R"]
    high: Float[np.ndarray, " R"]


def compare(
    ours: Frontier,
    theirs: Frontier,
    *,
    band: tuple[float, float] | None = None,
    seed: int = 0,
    num_resamples: int = RESAMPLES,
) -> Pair:
    """Generative perplexities at equal entropy and entropies at equal perplexity, over what both frontiers reach.

    A resample draws indices of samples, the same for both frontiers and all their settings. Then it computes all points
    and both comparisons anew. Where each seed has a model of its own, seeds are drawn first. `band` are the entropies
    of real text: what lies outside is left out, unless the frontiers share nothing inside.
    """
    _check_pairing(ours, theirs)
    num_seeds, _, num_samples = ours.nats.shape
    has_runs = ours.has_runs or theirs.has_runs
    counts = resampled(num_seeds, num_samples, has_runs=has_runs, seed=seed, num=num_resamples)
    counts = np.concatenate([_all(ours), counts])  # the first is of the samples as they are
    curves = _curve(ours, counts), _curve(theirs, counts)
    within = band if band and _first(_compared(*curves, band)) is not None else None
    ratio = _compared(*curves, within)
    difference = _compared(curves[0].swapped(), curves[1].swapped())
    ratios, differences = _summary(ratio, exponential=True), _summary(difference)
    return Pair(
        model=ours.model,
        against=theirs.model,
        budget=ours.budget,
        ratio=ratios[0],
        low=ratios[1],
        high=ratios[2],
        entropy_low=_first(ratio, ratio.low),
        entropy_high=_first(ratio, ratio.high),
        in_band=within is not None if band else None,
        entropy_difference=differences[0],
        difference_low=differences[1],
        difference_high=differences[2],
        perplexity_low=_exp(_first(difference, difference.low)),
        perplexity_high=_exp(_first(difference, difference.high)),
        entropies=curves[0].ends,
        against_entropies=curves[1].ends,
        by_seed=_by_seed(ours, theirs, within),
        num_samples=ours.num_samples,
    )


def _check_pairing(ours: Frontier, theirs: Frontier) -> None:
    pairs = [each.nats.shape[::2] for each in (ours, theirs)]
    if pairs[0] != pairs[1]:
        words = " and ".join(f"{seeds} x {samples}" for seeds, samples in pairs)
        raise ValueError(f"there are {words} samples (seeds x samples); pairs need as many of both models")
    if ours.budget != theirs.budget:
        raise ValueError(f"budgets are {ours.budget} and {theirs.budget}; frontiers are compared at one budget")


def _all(frontier: Frontier) -> Counts:
    """Every sample once."""
    return np.ones((1, frontier.num_samples), int)


def resampled(num_seeds: int, num_samples: int, *, has_runs: bool, seed: int, num: int) -> Counts:
    """Indices drawn anew within each seed; if seeds are models of their own, these are drawn before."""
    rng = np.random.default_rng(seed)
    seeds = np.ones((num, num_seeds), int)
    if has_runs:
        seeds = rng.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), size=num)
    drawn = rng.multinomial(num_samples * seeds, np.full(num_samples, 1 / num_samples))
    return drawn.reshape(num, -1)


def _curve(frontier: Frontier, counts: Counts) -> Curve:
    """The points of every resample, by rising entropy, each replaced by the best of those with as much entropy."""
    entropy, nats = means(frontier.entropy, counts), means(frontier.nats, counts)
    order = np.lexsort((-nats, entropy), axis=-1)
    entropy, nats = (np.take_along_axis(each, order, axis=-1) for each in (entropy, nats))
    best = np.minimum.accumulate(nats[:, ::-1], axis=-1)[:, ::-1]
    places = np.where(nats == best, np.arange(nats.shape[1]), nats.shape[1])
    places = np.minimum.accumulate(places[:, ::-1], axis=-1)[:, ::-1]  # where the best of the rest stands
    return Curve(*(np.take_along_axis(each, places, axis=-1) for each in (entropy, nats)))


def means(values: PerSample, counts: Counts) -> Points:
    """The mean of every setting over a resample; samples without a value are left out."""
    flat = values.transpose(1, 0, 2).reshape(values.shape[1], -1)  # (P, M)
    known = np.isfinite(flat)
    total = counts @ np.where(known, flat, 0.0).T
    num = counts @ known.T.astype(int)
    return total / np.maximum(num, 1)


def _compared(ours: Curve, theirs: Curve, within: tuple[float, float] | None = None) -> Compared:
    """The mean height of one curve above the other over what they share, of each resample."""
    low = np.maximum(ours.entropy[:, 0], theirs.entropy[:, 0])
    high = np.minimum(ours.entropy[:, -1], theirs.entropy[:, -1])
    if within:
        low, high = np.maximum(low, within[0]), np.minimum(high, within[1])
    shares = (np.arange(PLACES) + 0.5) / PLACES
    places = low[:, None] + shares * (high - low)[:, None]  # (R, PLACES)
    difference = (_height(ours, places) - _height(theirs, places)).mean(axis=1)
    is_shared: Bool[np.ndarray, " R"] = high - low > 0
    return Compared(np.where(is_shared, difference, np.nan), low, high)


def _height(curve: Curve, places: Float[np.ndarray, "R G"]) -> Float[np.ndarray, "R G"]:
    """The curve of each resample at these places, by straight lines between points."""
    x, y = curve
    right = (places[:, :, None] >= x[:, None, :]).sum(axis=-1).clip(1, x.shape[1] - 1)
    (x0, x1), (y0, y1) = ([np.take_along_axis(each, right - back, axis=1) for back in (1, 0)] for each in (x, y))
    width = x1 - x0
    share = np.where(width > 0, (places - x0) / np.where(width > 0, width, 1.0), 1.0)
    return y0 + share.clip(0, 1) * (y1 - y0)


def _first(compared: Compared, values: Float[np.ndarray, " R"] | None = None) -> float | None:
    """What the samples as they are have; None if the frontiers share too little."""
    values = compared.difference if values is None else values
    return float(values[0]) if compared.high[0] - compared.low[0] >= NARROWEST else None


def _summary(compared: Compared, *, exponential: bool = False) -> tuple[float | None, float | None, float | None]:
    """The value of the samples as they are, and 95 % of what resamples have where they share something."""
    value = _first(compared)
    resampled = compared.difference[1:]
    resampled = resampled[np.isfinite(resampled)]
    if value is None or len(resampled) == 0:
        return None, None, None
    low, high = np.quantile(resampled, [0.025, 0.975])
    found = value, float(low), float(high)
    return (_exp(found[0]), _exp(found[1]), _exp(found[2])) if exponential else found


def _exp(value: float | None) -> float | None:
    return None if value is None else float(np.exp(value))


def _by_seed(ours: Frontier, theirs: Frontier, within: tuple[float, float] | None) -> tuple[float | None, ...]:
    """The ratio of each seed alone."""
    num_seeds, _, num_samples = ours.nats.shape
    alone = np.repeat(np.eye(num_seeds, dtype=int), num_samples, axis=1)  # (S, M)
    compared = _compared(_curve(ours, alone), _curve(theirs, alone), within)
    return tuple(float(np.exp(each)) if np.isfinite(each) else None for each in compared.difference)
