"""The staged tuning: one thing at a time, the best kept, ranges widened at their ends, resumable."""

import json
import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fpmgm.__main__ import main
from fpmgm.cluster import Workers
from fpmgm.experiments import tune as tuning
from fpmgm.experiments.tune import Try, Tuning, axes_of, tune
from fpmgm.recipes import RECIPES
from fpmgm.training.config import Training
from tests.test_recipes import VERSE
from tests.test_text_mini import small_models


def made_up(tried: list[str], bad_rate: float = math.inf) -> Any:
    """A landscape whose best is 3 blocks, U(0,4) U(3,6) and a rate of 1.2e-3, and above `bad_rate` nothing."""

    def measured(config: Training, asked: Tuning, *, key: str, stage: str, value: str) -> Try:
        tried.append(f"{stage} {value}")
        counts: Any = config.objective.iterations  # type: ignore[union-attr]
        cost, rate = config.network.cost, config.optim.lr
        score = (cost.pre - 3) ** 2 + abs(counts.grad_max - 6) + abs(math.log2(rate / 1.2e-3))
        is_bad = rate > bad_rate
        return Try(
            key=key, stage=stage, value=value, score=None if is_bad else score, error=0.1, validation=score, updates=5,
            seconds=1.0,
        )  # fmt: skip

    return measured


def test_every_stage_starts_from_the_best_before_it_and_ranges_are_widened_at_their_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    monkeypatch.setattr(tuning, "_measured", made_up(tried))
    config = replace(RECIPES["poetry"], optim=replace(RECIPES["poetry"].optim, lr=3e-4))
    asked = Tuning(recipe="poetry", training=config, updates=5, out=str(tmp_path))
    page = tune(asked)
    assert tried[:4] == [f"blocks before and after {num}" for num in (1, 2, 3, 4)]
    chosen = json.loads((tmp_path / "chosen.json").read_text())
    assert (chosen["model.num_pre"], chosen["model.num_post"], chosen["updates"]) == (3, 3, 5)
    assert chosen["objective.iterations.grad_max"] == 6
    assert chosen["optim.lr"] == pytest.approx(1.2e-3)
    assert "learning rate 0.0024" in tried  # beyond the best, which is then at no end
    text = page.read_text()
    assert text.count("## ") == 3
    assert "    fpmgm tune poetry --updates 5 --widen 3 --seed 0 --training.optim.lr 0.0003\n" in text
    assert "Kept: 0.0012." in text
    num = len(tried)
    assert tune(asked) == page
    assert page.read_text() == text
    assert len(tried) == num  # all of it was in the file
    lines = (tmp_path / "tune.jsonl").read_text().splitlines()
    (tmp_path / "tune.jsonl").write_text("\n".join(lines[:-2]) + "\n")
    tune(asked)
    assert len(tried) == num + 2  # only what was lost
    assert "still lies at an end" not in text
    narrow = tune(replace(asked, widen=0, out=str(tmp_path / "narrow"))).read_text()
    assert "Kept: 2. It still lies at an end of its range after 0 rounds of widening" in narrow
    assert "blocks before and after 3" not in tried[num + 2 :]


def test_workers_share_the_tries_of_a_stage_and_give_the_page_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages: list[list[str]] = []

    class Turned(Workers):
        def run(self, work: Any, what: str, **hooks: Any) -> Any:
            stages.append(list(work))
            return super().run(dict(reversed(work.items())), what, **hooks)  # done in any order

    monkeypatch.setattr(tuning, "_measured", made_up([]))
    asked = Tuning(recipe="poetry", training=RECIPES["poetry"], updates=5, out=str(tmp_path / "one"))
    page = tune(asked).read_text()
    monkeypatch.setattr(Tuning, "open_workers", lambda *_: nullcontext(Turned()))
    assert tune(replace(asked, workers=2, out=str(tmp_path / "two"))).read_text() == page
    assert stages[0] == [f"blocks before and after {num}" for num in (1, 2)]
    with pytest.raises(ValueError, match="workers is 0; it must be 1 to 1024"):
        replace(asked, workers=0)


def test_a_rate_at_which_the_loss_goes_bad_is_never_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_measured", made_up([], bad_rate=5e-4))
    config = replace(RECIPES["poetry"], optim=replace(RECIPES["poetry"].optim, lr=4e-4))
    page = tune(Tuning(recipe="poetry", training=config, updates=5, out=str(tmp_path)))
    assert "the loss went bad" in page.read_text()
    assert json.loads((tmp_path / "chosen.json").read_text())["optim.lr"] == pytest.approx(4e-4)


def test_a_stage_of_consistency_has_weight_temperature_and_gap() -> None:
    names = [axis.name for axis in axes_of(RECIPES["owt-adapt"])]
    assert names == ["weight", "temperature", "largest gap, from 0.05 on"]
    assert [axis.name for axis in axes_of(RECIPES["owt-cofre"])] == ["weight", "largest gap, from 0.05 on"]
    weight, gap = axes_of(RECIPES["owt-cofre"])
    objective: Any = gap.apply(weight.apply(RECIPES["owt-cofre"], 0.316), 0.6).objective
    assert (objective.weight, objective.gap_min, objective.gap_max) == (0.316, 0.05, 0.6)
    assert gap.values == (0.15, 0.3, 0.6)
    assert gap.above(0.6) is None
    with pytest.raises(ValueError, match="has no fixed point and no consistency"):
        Tuning(recipe="owt-mdlm", training=RECIPES["owt-mdlm"])


@pytest.mark.slow
def test_the_command_tunes_by_real_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "verse.txt").write_text(VERSE)
    small = ["--training.model.width", "16", "--training.model.num-heads", "2", "--training.model.cond-width", "8"]
    small += ["--training.data.source", str(tmp_path / "verse.txt"), "--training.data.tokenizer", "bpe-300"]
    small += ["--training.data.length", "16", "--training.batch-size", "4", "--training.validation-sequences", "8"]
    command = ["tune", "poetry", *small, "--updates", "3", "--widen", "0"]
    command += ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    assert main(command) == 0
    assert "README.md" in capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "out" / "tune.jsonl").read_text().splitlines()]
    assert {row["stage"] for row in rows} == {
        "blocks before and after",
        "iterations without and with gradients",
        "learning rate",
    }
    assert all(row["score"] > 0 and row["updates"] == 3 for row in rows)
    monkeypatch.setattr(tuning, "train", lambda *_, **__: pytest.fail("trained again"))
    assert main(command) == 0


@pytest.mark.slow
def test_an_adaptation_is_tuned_by_real_runs_and_their_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    models = small_models(tmp_path / "models")
    config = models["recipes"]["stories-adapt"]
    monkeypatch.setitem(RECIPES, "stories-adapt", config)
    asked = Tuning(
        recipe="stories-adapt", training=config, updates=2, widen=0, budget=9, num_samples=4, judge=models["judge"],
        out=str(tmp_path / "out"), runs=str(tmp_path / "runs"),
    )  # fmt: skip
    text = tune(asked).read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## Weight",
        "## Temperature",
        "## Largest gap, from 0.05 on",
    ]
    assert text.count("samples at 9 blocks") == 3
    monkeypatch.setattr(tuning, "train", lambda *_, **__: pytest.fail("trained again"))
    assert tune(asked).read_text() == text
