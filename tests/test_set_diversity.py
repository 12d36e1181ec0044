"""Diversity between samples, against a slow count, and metrics that have its intervals."""

import numpy as np
import torch

from fpmgm.evaluation.diversity import set_diversity
from fpmgm.evaluation.intervals import jackknife
from fpmgm.evaluation.text import measure
from fpmgm.randomness import generator


def slowly(tokens: torch.Tensor, n: int) -> tuple[float, float]:
    """Distinct n-grams of all, and what samples share, one n-gram at a time."""
    grams = [[tuple(row[i : i + n]) for i in range(len(row) - n + 1)] for row in tokens.tolist()]
    everything = [gram for own in grams for gram in own]
    shared = [
        np.mean([any(gram in other for place, other in enumerate(grams) if place != index) for gram in own])
        for index, own in enumerate(grams)
    ]
    return len(set(everything)) / len(everything), float(np.mean(shared))


def test_diversity_between_samples_is_what_a_slow_count_finds_with_and_without_each_sample() -> None:
    tokens = torch.randint(0, 5, (8, 11), generator=generator(0))
    for n in (2, 3):
        found = set_diversity(tokens, n)
        assert np.allclose((found.distinct, found.overlap), slowly(tokens, n))
        without = [slowly(torch.cat([tokens[:i], tokens[i + 1 :]]), n) for i in range(len(tokens))]
        assert np.allclose(found.distinct_without, [each for each, _ in without])
        assert np.allclose(found.overlap_without, [each for _, each in without])


def test_a_model_that_repeats_one_story_is_seen_though_its_entropy_is_high() -> None:
    various = torch.randint(0, 4096, (16, 64), generator=generator(1))
    repeated = various[:1].repeat(16, 1)
    found, seen = measure(various), measure(repeated)
    assert abs(found["entropy"].value - seen["entropy"].value) < 0.1
    assert (found["overlap_4"].value, seen["overlap_4"].value) == (0, 1)
    assert (found["set_distinct_4"].value, seen["set_distinct_4"].value) == (1, 1 / 16)


def test_texts_that_begin_alike_are_seen_though_they_go_on_differently() -> None:
    various = torch.randint(0, 4096, (16, 64), generator=generator(1))
    alike = various.clone()
    alike[:4, :12] = various[0, :12]
    found, seen = measure(various), measure(alike)
    assert (found["shared_openings"].value, seen["shared_openings"].value) == (0, 1 / 4)
    assert seen["overlap_4"].value < 0.05
    alike[1, 11] += 1
    assert measure(alike)["shared_openings"].value == 3 / 16


def test_the_interval_of_shared_n_grams_is_no_narrower_than_other_samples_say() -> None:
    """The jackknife errs to the safe side, here by a half."""
    rng, values, widths = generator(2), [], []
    for _ in range(60):
        found = set_diversity(torch.randint(0, 6, (24, 24), generator=rng), 4)
        interval = jackknife(found.overlap, found.overlap_without)
        values.append(interval.value)
        widths.append((interval.high - interval.low) / (2 * 1.96))
    assert 0.8 < np.mean(widths) / np.std(values) < 2
