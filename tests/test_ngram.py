import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from fpmgm.evaluation.ngram import KneserNey, kneser_ney, stupid_backoff


def some_rows(seed: int = 0, num: int = 40, length: int = 12, vocab: int = 5) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = np.zeros((num, length), np.int64)
    for i in range(1, length):  # a chain with memory, so that contexts matter
        rows[:, i] = (rows[:, i - 1] * 2 + rng.integers(0, 2, num)) % vocab
    return rows


def slow_probability(rows: np.ndarray, n: int, vocab: int, context: tuple[int, ...], word: int) -> float:
    """Interpolated Kneser-Ney from its definition, with dictionaries."""
    grams: Counter[tuple[int, ...]] = Counter()
    for row in rows.tolist():
        padded = [row[0]] * (n - 1) + row
        for i in range(len(row)):
            grams[tuple(padded[i : i + n])] += 1
    by_length = {n: grams}
    for length in range(n - 1, 0, -1):
        before = defaultdict(set)
        for gram in by_length[length + 1]:
            before[gram[1:]].add(gram[0])
        by_length[length] = Counter({gram: len(words) for gram, words in before.items()})
    p = 1 / vocab
    for length in range(1, n + 1):
        counts = by_length[length]
        once, twice = (sum(count == k for count in counts.values()) for k in (1, 2))
        discount = once / (once + 2 * twice) if once else 0.5
        h = context[len(context) - (length - 1) :] if length > 1 else ()
        following = {gram[-1]: count for gram, count in counts.items() if gram[:-1] == h}
        if following:
            total = sum(following.values())
            p = max(following.get(word, 0) - discount, 0) / total + discount * len(following) / total * p
    return p


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_the_model_is_kneser_ney_from_its_definition(n: int) -> None:
    rows, held_out = some_rows(), some_rows(seed=9, num=3)
    nats = kneser_ney(rows, n=n, vocab_size=5).nats(held_out)
    for r, row in enumerate(held_out.tolist()):
        padded = [row[0]] * (n - 1) + row
        for i, word in enumerate(row):
            expected = slow_probability(rows, n, 5, tuple(padded[i : i + n - 1]), word)
            assert nats[r, i] == pytest.approx(-math.log(expected))


def slow_score(rows: np.ndarray, vocab: int, context: tuple[int, ...], word: int) -> float:
    """Stupid backoff from its definition, with a dictionary for every length."""
    counts: Counter[tuple[int, ...]] = Counter()
    n = len(context) + 1
    for row in rows.tolist():
        padded = [row[0]] * (n - 1) + row
        for i in range(len(row)):
            for length in range(1, n + 1):
                counts[tuple(padded[i + n - length : i + n])] += 1
    for dropped in range(n):
        h = context[dropped:]
        total = sum(count for gram, count in counts.items() if gram[:-1] == h)
        if counts[*h, word]:
            return 0.4**dropped * counts[*h, word] / total
    return 0.4**n / vocab


@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_scores_are_stupid_backoff_from_its_definition(n: int) -> None:
    rows, held_out = some_rows(num=12), some_rows(seed=9, num=3)
    held_out[0, 4] = 6  # a word that never was
    nats = stupid_backoff(rows, n=n, vocab_size=7).nats(held_out)
    for r, row in enumerate(held_out.tolist()):
        padded = [row[0]] * (n - 1) + row
        for i, word in enumerate(row):
            assert nats[r, i] == pytest.approx(-math.log(slow_score(rows, 7, tuple(padded[i : i + n - 1]), word)))


def test_probabilities_of_the_next_word_add_up_to_one() -> None:
    model = kneser_ney(some_rows(), n=3, vocab_size=7)
    for start in ([0, 1, 2, 0], [0, 4, 4, 4], [6, 6, 5, 0]):  # seen, rare and unseen contexts
        rows = np.array([[*start[:3], word] for word in range(7)])
        assert np.exp(-model.nats(rows)[:, 3]).sum() == pytest.approx(1)


def test_longer_contexts_predict_a_chain_better() -> None:
    rows, held_out = some_rows(num=400), some_rows(seed=5, num=50)
    nats = [float(kneser_ney(rows, n=n, vocab_size=5).nats(held_out).mean()) for n in (1, 2)]
    assert nats[1] < 0.7 * nats[0]


def test_a_vocabulary_too_large_for_the_order_is_refused() -> None:
    with pytest.raises(ValueError, match="5-grams over 50258 symbols do not fit"):
        kneser_ney(some_rows(), n=5, vocab_size=50258)
    assert isinstance(kneser_ney(some_rows(), n=5, vocab_size=2048), KneserNey)
