"""How many threads a command uses."""

from dataclasses import replace

import pytest
import torch

from fpmgm.backbones.dit import as_mdlm
from fpmgm.checkpoint import BUNDLED, read_config
from fpmgm.evaluation import threads
from fpmgm.evaluation.threads import ALL, threads_for, use_threads
from fpmgm.recipes import RECIPES

MINI = read_config(BUNDLED / "stories-fp")


def test_small_work_has_one_thread_and_large_work_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "ALL", 7)
    assert [threads_for(MINI, num) for num in (1, 8, 16)] == [1, 1, 7]
    large = RECIPES["owt"].network
    assert [threads_for(replace(as_mdlm(large), length=length), 1) for length in (64, 1024)] == [1, 7]
    assert threads_for(RECIPES["owt-mdlm"].network, 1) == 7


def test_the_number_that_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    try:
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        torch.set_num_threads(2)
        use_threads(MINI, 1)
        assert torch.get_num_threads() == 2
        monkeypatch.delenv("OMP_NUM_THREADS")
        use_threads(MINI, 1)
        assert torch.get_num_threads() == 1
        use_threads(MINI, 64)
        assert torch.get_num_threads() == ALL
    finally:
        torch.set_num_threads(before)
