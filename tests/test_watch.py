"""Runs that are watched by their frontier: what is measured, which model is kept, when they end."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fpmgm.backbones.dit import Network
from fpmgm.checkpoint import load
from fpmgm.data.text import TextConfig
from fpmgm.evaluation.evaluator import evaluator_for
from fpmgm.files import append_line
from fpmgm.objectives import NextToken
from fpmgm.training import loop
from fpmgm.training.config import Training
from fpmgm.training.loop import train
from fpmgm.training.optim import OptimConfig
from fpmgm.training.watch import Watch, Watched

VERSE = "".join(f"line {i} of a poem about the {word}\n" for i in range(300) for word in ("sea", "sky", "old oak"))
FIXED = Network(width=16, num_heads=2, num_pre=1, num_fp=1, num_post=1, cond_width=8, dropout=0.0)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "verse.txt").write_text(VERSE)
    run = Training(
        out=str(tmp_path / "run"),
        model=FIXED,
        data=TextConfig(source=str(tmp_path / "verse.txt"), tokenizer="bpe-300", length=16),
        optim=OptimConfig(lr=3e-2, warmup=2, ema=0.5),
        updates=12,
        batch_size=4,
        checkpoint_every=1,
        validate_every=100,
        validation_sequences=8,
        trackers=(),
    )
    causal = replace(FIXED, num_pre=2, num_fp=0, num_post=0, is_causal=True)
    judge = train(replace(run, model=causal, objective=NextToken(), out=str(tmp_path / "judge"), updates=2), "judge")
    watch = Watch(
        every=3, budgets=(6, 12), temperatures=(0.6, 0.8, 1.0, 1.2), num_samples=8, judge=str(judge), patience=9
    )
    return replace(run, watch=watch)


def rows_of(config: Training) -> list[dict[str, float]]:
    return [json.loads(line) for line in (Path(config.out) / "watched.jsonl").read_text().splitlines()]


def given_scores(monkeypatch: pytest.MonkeyPatch, scores: dict[int, float]) -> None:
    """Let the measurements of a run find these."""

    def measure(self: Watched, model: object, update: int) -> float:
        append_line(self.folder / "watched.jsonl", json.dumps({"update": update, "score": scores[update]}))
        return scores[update]

    monkeypatch.setattr(Watched, "measure", measure)


def test_a_frontier_is_measured_at_the_start_and_after_every_so_many_updates(config: Training) -> None:
    train(config, "test")
    rows = rows_of(config)
    assert [row["update"] for row in rows] == [0, 3, 6, 9, 12]
    assert rows[0]["score"] == 0
    assert all(ratio == pytest.approx(1) for ratio in dict(rows[0])["ratios"].values())  # type: ignore[attr-defined]


def test_a_run_that_is_watched_in_bfloat16_is_measured_so_and_learns_the_same(config: Training) -> None:
    exact = load(train(replace(config, updates=3), "test")).denoiser.state_dict()
    watch = replace(config.watch, compute="bfloat16")
    other = replace(config, updates=3, watch=watch, out=f"{config.out}-16")
    rounded = load(train(other, "test")).denoiser
    assert all(torch.equal(exact[name], weights) for name, weights in rounded.state_dict().items())
    numbers = [np.load(Path(run.out) / "watched" / "update-00000003.npz")["nats-6"] for run in (config, other)]
    assert not np.array_equal(*numbers)
    assert np.isfinite(numbers[1]).all()


def test_the_model_with_the_best_frontier_is_kept(config: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    given_scores(monkeypatch, {0: 0.0, 3: -0.2, 6: -0.5, 9: -0.4, 12: -0.1})
    kept = load(train(config, "test")).denoiser.state_dict()
    snapshot = load(Path(config.out) / "snapshots" / "update-00000006").denoiser.state_dict()
    assert all(torch.equal(kept[name], snapshot[name]) for name in kept)
    card = (Path(config.out) / "model" / "README.md").read_text()
    assert "6 updates of 4 sequences" in card
    evaluator = evaluator_for("text")
    batch = config.data.load().measured(config.validation_sequences)
    found = evaluator.validate(load(Path(config.out) / "model").denoiser, batch, num_iters=config.validation_iters)
    assert f"{found.value:.2f} ± " in card


def test_a_run_ends_when_its_frontier_has_not_got_better_for_long(
    config: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_scores(monkeypatch, {0: 0.0, 3: -0.5, 6: -0.4, 9: -0.3, 12: -0.9})
    config = replace(config, watch=replace(config.watch, patience=2))
    train(config, "test")
    assert [row["update"] for row in rows_of(config)] == [0, 3, 6, 9]
    train(config, "test")  # it stays ended
    assert [row["update"] for row in rows_of(config)] == [0, 3, 6, 9]


def killed_at(update: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    original = loop.Run.update

    def dies(self: loop.Run, index: int) -> dict[str, float]:
        if index == update:
            raise KeyError("killed")
        return original(self, index)

    monkeypatch.setattr(loop.Run, "update", dies)
    return lambda: monkeypatch.setattr(loop.Run, "update", original)


@pytest.mark.slow
def test_a_watched_run_that_was_killed_ends_as_one_left_alone(
    config: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = replace(config, out=str(tmp_path / "whole"))
    train(whole, "test")
    revive = killed_at(7, monkeypatch)
    with pytest.raises(KeyError):
        train(config, "test")
    revive()
    train(config, "test")
    assert rows_of(config) == rows_of(whole)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": -1}, "watch.every"),
        ({"every": 5}, "there is no watch.judge"),
        ({"every": 5, "judge": "auto", "temperatures": (1.0,)}, "two temperatures"),
        ({"patience": 0}, "watch.patience"),
        ({"seed": -3}, "watch.seed"),
        ({"temperatures": (-1.0, 1.0)}, "temperature is -1"),
        ({"temperatures": (1.0, 1.0)}, "give each of them once"),
    ],
)
def test_a_watch_that_measures_nothing_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Watch(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"judge": "nosuch"}, "judge is 'nosuch'"),
        ({"judge": "stories"}, "stories is a masked model; a judge must be causal"),
        ({"judge": "stories-source-ids"}, "reads only models that write the source's own ids, and this run writes bpe"),
        ({"budgets": (1,)}, "budget"),
        ({"budgets": (6, 10**12)}, "budget"),
    ],
)
def test_a_watch_that_cannot_be_is_refused_before_anything_is_written(
    config: Training, settings: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fpmgm.evaluation.judges.hub_answers", lambda: False)
    monkeypatch.setattr(TextConfig, "load", lambda *_: pytest.fail("read text"))
    with pytest.raises(ValueError, match=message):
        train(replace(config, watch=replace(config.watch, **settings)), "test")
    assert not Path(config.out).exists()
