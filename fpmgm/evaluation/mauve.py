"""MAUVE (Pillutla et al., 2021): how close the distribution of sampled texts is to that of real ones.

Features are a judge's, so a score means something beside others of the same judge only. The paper's is GPT-2 Large.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from jaxtyping import Float

from fpmgm.data import Dataset
from fpmgm.evaluation.intervals import Interval
from fpmgm.progress import tracked

TextFeatures = Float[np.ndarray, "_ D"]

FEWEST = 8
"""Texts below which a score means nothing."""


def mauve_score(sampled: TextFeatures, real: TextFeatures, *, seed: int = 0) -> float:
    """Between 0 (nothing in common) and 1 (the same), with the package's own settings."""
    import mauve

    if min(len(sampled), len(real)) < FEWEST:
        raise ValueError(f"{len(sampled)} sampled and {len(real)} real texts; MAUVE needs at least {FEWEST} of each")
    with _silenced_stderr():  # its clustering warns of few points whatever their number
        found = mauve.compute_mauve(p_features=real, q_features=sampled, device_id=-1, seed=seed + 1, verbose=False)
    return float(found.mauve)


@contextmanager
def _silenced_stderr() -> Iterator[None]:
    """Also for code that is not Python's."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def mauve_interval(
    sampled: TextFeatures, real: TextFeatures, *, num_resamples: int = 40, level: float = 0.95, seed: int = 0
) -> Interval:
    """The score and its percentile interval over resampled texts, each clustered with a seed of its own.

    So the interval covers the chance of the clustering too. A resample repeats some texts, which lowers its score: few
    texts give an interval that lies below the value.
    """
    rng = np.random.default_rng(seed)
    drawn = [rng.integers(len(sampled), size=len(sampled)) for _ in range(num_resamples)]
    found = [
        mauve_score(sampled[rows], real, seed=seed + index)
        for index, rows in enumerate(tracked(drawn, "resampling MAUVE"))
    ]
    tail = (1 - level) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    return Interval(value=mauve_score(sampled, real, seed=seed), low=float(low), high=float(high))


def reference_texts(data: Dataset, num: int, *, seed: int = 0) -> list[str]:
    """Held-out sequences as text, drawn once and without replacement."""
    if num > len(data.held_out):
        raise ValueError(f"{num} reference texts asked for; {len(data.held_out)} sequences are held out")
    rows = np.random.default_rng(seed).choice(data.held_out, num, replace=False)
    return [str(data.codec.show(data.tokens(row))) for row in rows.tolist()]
