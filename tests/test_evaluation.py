import math

import pytest
import torch

from fpmgm.evaluation.diversity import unigram_entropy


def test_the_entropy_of_l_distinct_tokens_is_log_l() -> None:
    assert unigram_entropy(torch.arange(37)[None]).item() == pytest.approx(math.log(37), rel=1e-6)


def test_entropy_counts_each_sequence_by_itself() -> None:
    tokens = torch.tensor([[7, 7, 7, 7], [1, 1, 2, 2], [1, 1, 1, 2]])
    quarter = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert unigram_entropy(tokens).tolist() == pytest.approx([0, math.log(2), quarter], abs=1e-6)
