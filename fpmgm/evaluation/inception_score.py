"""The Inception Score: whether a classifier is sure of each sample, and the samples are of many classes.

Its size depends on the classifier and on the number of classes, which is its upper bound. So the classifier is named
beside every value, and values of different classifiers are never compared.
"""

import numpy as np
from jaxtyping import Float

from fpmgm.evaluation.intervals import Columns, Interval, Means, Statistics, bootstrap

Probabilities = Float[np.ndarray, "N C"]


def inception_score(probabilities: Probabilities, *, splits: int = 1) -> float:
    """exp of the mean KL(p(class | sample) || mean p), averaged over splits; the field takes 10 of 5,000 each."""
    if not 1 <= splits <= len(probabilities):
        raise ValueError(f"splits is {splits}; {len(probabilities)} samples make 1 to {len(probabilities)}")
    parts = np.array_split(_columns(probabilities), splits)
    return float(np.mean([_score(part.mean(axis=0, keepdims=True))[0] for part in parts]))


def score_interval(probabilities: Probabilities, *, seed: int = 0) -> Interval:
    """The score of all samples together, with its interval over samples. Few samples make it a little smaller."""
    return bootstrap(_columns(probabilities), _score, seed=seed)


def _columns(probabilities: Probabilities) -> Columns:
    """What the score is a function of the means of: every sample's sum of p log p, and its p."""
    exact = probabilities.astype(np.float64)
    return np.concatenate([_p_log_p(exact).sum(axis=1, keepdims=True), exact], axis=1)


def _score(means: Means) -> Statistics:
    return np.asarray(np.exp(means[:, 0] - _p_log_p(means[:, 1:]).sum(axis=1)))


def _p_log_p(p: Probabilities) -> Probabilities:
    return np.asarray(p * np.log(np.where(p > 0, p, 1.0)))
