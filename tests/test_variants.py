"""Variants of a recipe compared at equal updates and at equal time: injections, and warm starts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fpmgm import recipes
from fpmgm.backbones.dit import Network
from fpmgm.checkpoint import load
from fpmgm.data.text import TextConfig
from fpmgm.evaluation import sweep
from fpmgm.evaluation.held_out import AUTO, OWN, measured_data
from fpmgm.evaluation.latency import Timing
from fpmgm.evaluation.likelihood import perplexity
from fpmgm.evaluation.side_by_side import VALIDATION_ITERS
from fpmgm.experiments import update_times, variants
from fpmgm.experiments.injections import LONG, NUM_SEEDS, PAIR, SHORT, Injections, of_kind
from fpmgm.experiments.reproduce import Reproduction, reproduce
from fpmgm.experiments.resting import Resting
from fpmgm.experiments.variants import Comparison, variant
from fpmgm.experiments.warm_starts import WarmStarts
from fpmgm.injection import INJECTIONS
from fpmgm.objectives import MaskedCrossEntropy, NextToken
from fpmgm.training import loop
from fpmgm.training.config import Training
from fpmgm.training.loop import train
from fpmgm.training.optim import OptimConfig
from tests.conftest import network_of

VERSE = "".join(f"line {i} of a poem about the {word}\n" for i in range(300) for word in ("sea", "sky", "old oak"))
TINY: dict[str, Any] = {"budgets": (6,), "temperatures": (0.5, 1.5), "num_samples": 4}


def write_metrics(folder: Path, validations: dict[int, float]) -> None:
    """The metrics of a run of 200 updates."""
    folder.mkdir(parents=True)
    rows = []
    for update in range(1, 201):
        row: dict[str, float] = {"update": update, "loss": 1.0, "seconds": 1.0}
        if update in validations:
            row |= {"validation": validations[update], "validation_error": 0.1}
        rows.append(row)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_faster_variant_makes_more_updates_in_equal_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = (variant(name, "poetry", updates=200, num_seeds=2) for name in ("slow", "fast"))
    held = Comparison(title="", folder=tmp_path / "out", runs=tmp_path / "runs", variants=(slow, fast))
    for index, (_, folder) in enumerate(slow.folders(held.runs)):
        write_metrics(folder, {100: 60.0 + index, 200: 40.0})
    for _, folder in fast.folders(held.runs):
        write_metrics(folder, {100: 70.0, 200: 50.0})
    monkeypatch.setattr(variants, "update_seconds", lambda configs: {"slow": 2.0, "fast": 1.5})
    first, second = held.lines()
    assert (first.name, first.time, first.updates) == ("slow", 1.0, 150)
    assert (second.name, second.time, second.updates) == ("fast", 0.75, 200)
    assert first.at_updates == [40.0, 40.0]
    assert first.at_time == [50.0, 50.5]  # half way between its validations
    assert second.at_updates == second.at_time == [50.0, 50.0]
    assert held._model(Path("run"), 124) == "run/snapshots/update-00000100"
    assert held._model(Path("run"), first.updates) == "run/snapshots/update-00000150"
    assert held._model(Path("run"), 176) == "run/model"
    monkeypatch.setattr(variants, "update_seconds", lambda configs: pytest.fail("timed again"))
    assert held.lines() == [first, second]


def test_an_update_that_may_start_warm_takes_the_mean_of_both_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(contestants: dict[str, Any], repeats: int) -> dict[str, Timing]:
        for run in contestants.values():
            run()  # both updates, in the precision of the run
        return {name: Timing((6.0 if name.endswith("1.0") else 2.0,)) for name in contestants}

    monkeypatch.setattr(update_times, "interleave", timed)
    base = Training(
        model=Network(width=16, num_heads=2, num_pre=1, num_fp=1, num_post=1, cond_width=8, dropout=0.0),
        data=TextConfig(source="unread.txt", tokenizer="bpe-300", length=16),
        mixed_precision="bf16",
        batch_size=2,
    )
    warm = replace(base, objective=MaskedCrossEntropy(warm_start=0.25))
    assert update_times.update_seconds({"cold": base, "warm": warm}) == {"cold": 1.0, "warm": 1.5}


def test_every_injection_is_cut_from_one_recipe_and_differs_in_nothing_else() -> None:
    base = recipes.RECIPES["stories-fp"]
    runs = [of_kind(kind, "stories-fp", updates=SHORT, num_seeds=NUM_SEEDS) for kind in INJECTIONS]
    configs = [replace(base, **each.changes) for each in runs]
    assert [network_of(config).injection for config in configs] == ["mlp", "linear", "add", "diagonal"]
    kept: dict[str, Any] = {"injection": "mlp", "injection_start": "mean"}
    assert len({repr(replace(config, model=replace(network_of(config), **kept))) for config in configs}) == 1
    assert {(config.updates, config.optim.decay) for config in configs} == {(SHORT, "constant")}
    assert {each.num_seeds for each in runs} == {3}
    assert (PAIR, LONG) == (("mlp", "diagonal"), 2000)


def test_warm_starts_are_compared_with_the_same_run_without(tmp_path: Path) -> None:
    cold, warm = WarmStarts(folder=tmp_path, runs=tmp_path).variants
    base = recipes.RECIPES["stories-fp"]
    without, with_it = (replace(base, **each.changes) for each in (cold, warm))
    assert with_it.objective.warm_start == 0.5  # type: ignore[union-attr]
    assert replace(with_it, objective=without.objective) == without
    assert (without.init, without.optim.lr) == ("stories-fp", pytest.approx(base.optim.lr / 3))


def test_training_at_rest_is_compared_with_the_same_recipe_without(tmp_path: Path) -> None:
    base = recipes.RECIPES["stories-fp"]
    everywhere, resting = (replace(base, **each.changes) for each in Resting(folder=tmp_path, runs=tmp_path).variants)
    everywhere_learns: Any = base.objective
    assert resting.objective == replace(everywhere_learns, rest=True)
    assert replace(resting, objective=base.objective) == everywhere
    assert everywhere.init == ""


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A small judge, and a small recipe named `tiny`."""
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "verse.txt").write_text(VERSE)
    base = Training(
        model=Network(width=16, num_heads=2, num_pre=1, num_fp=1, num_post=1, cond_width=8, dropout=0.0),
        data=TextConfig(source=str(tmp_path / "verse.txt"), tokenizer="bpe-300", length=16),
        optim=OptimConfig(lr=1e-2, warmup=2, ema=0.9),
        updates=3,
        batch_size=4,
        validation_sequences=8,
        trackers=(),
    )
    monkeypatch.setitem(recipes.RECIPES, "tiny", base)
    causal = replace(network_of(base), num_pre=2, num_fp=0, num_post=0, is_causal=True)
    return str(train(replace(base, model=causal, objective=NextToken(), out=str(tmp_path / "judge")), "judge"))


def forbid_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "measure_cell", lambda *_: pytest.fail("measured again"))
    monkeypatch.setattr(loop.Run, "update", lambda *_: pytest.fail("trained again"))


@pytest.mark.slow
def test_injections_are_trained_and_compared_once(judge: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "out"
    held = Injections(folder=folder, runs=tmp_path / "runs", recipe="tiny", short=4, long=6, num_seeds=2)
    text, found = held.run(judge=judge, **TINY)
    runs = {f"{kind}-{seed}" for kind in INJECTIONS for seed in (0, 1)} | {"mlp--6-updates-0", "diagonal--6-updates-0"}
    assert {folder.name for folder in held.runs.iterdir()} == runs
    assert [line["name"] for line in found["short"]["validation"]] == list(INJECTIONS)
    assert [line["name"] for line in found["long"]["validation"]] == ["mlp, 6 updates", "diagonal, 6 updates"]
    for words in ("equal-updates", "equal-time"):
        assert len(found["short"][words]) == 4 * 3  # every pair, from both sides
        assert (folder / words / "README.md").is_file()
        assert (folder / "long" / words / "README.md").is_file()
        assert f"(long/{words}/README.md)" in text
    assert "(long/validation.png)" in text
    assert (folder / "validation.png").stat().st_size > 0
    json.dumps(found)
    forbid_work(monkeypatch)
    assert held.run(judge=judge, **TINY) == (text, found)


@pytest.mark.slow
def test_warm_starts_are_trained_and_sampled_with_every_reuse_once(
    judge: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = WarmStarts(
        folder=tmp_path / "out",
        runs=tmp_path / "runs",
        recipe="tiny",
        start="",
        updates=4,
        num_seeds=2,
        budgets=(6, 12),
    )
    text, found = held.run(judge=judge, **TINY)
    assert [line["name"] for line in found["validation"]] == ["cold", "warm"]
    assert len(found["reuse"]) == 2 * 3 * 2
    assert all(len(row["entropy"]) == 2 for row in found["reuse"])
    for name in ("cold", "warm"):
        for reuse in ("none", "full", "three-state"):
            assert f"| {name} | {reuse} |" in text
    forbid_work(monkeypatch)
    assert held.run(judge=judge, **TINY) == (text, found)


@pytest.mark.slow
def test_training_at_rest_is_validated_with_every_position_iterated(
    judge: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small: dict[str, Any] = {"recipe": "tiny", "data": recipes.RECIPES["tiny"].data, "updates": 4, "num_seeds": 2}
    held = Resting(folder=tmp_path / "out", runs=tmp_path / "runs", budgets=(6,), **small)
    settings = {name: value for name, value in TINY.items() if name != "budgets"}
    text, found = held.run(judge=judge, **settings)
    assert [row["name"] for row in found["finished"]] == ["everywhere", "resting"]
    for row in found["finished"]:
        for seed, validated in enumerate(row["validated"]):
            model = load(str(held.runs / f"{row['name']}-{seed}" / "model"))
            data, _ = measured_data(model, OWN, AUTO)
            batch = data.measured(len(data.held_out))
            own, at_rest = (
                perplexity(model.denoiser, batch, num_iters=VALIDATION_ITERS, rest=rest).value for rest in (False, True)
            )
            assert validated["value"] == pytest.approx(own, rel=1e-6)
            assert own != pytest.approx(at_rest, rel=1e-6)
    forbid_work(monkeypatch)
    assert held.run(judge=judge, **settings) == (text, found)


def test_the_reports_are_known_by_name_and_need_a_judge() -> None:
    with pytest.raises(ValueError, match="unknown report 'warm-start'; did you mean 'warm-starts'"):
        Reproduction(report="warm-start")
    with pytest.raises(ValueError, match="report injections compares generative perplexities; give --judge"):
        reproduce(Reproduction(report="injections", judge=""))


def test_a_setting_that_a_report_does_not_use_is_refused() -> None:
    with pytest.raises(ValueError, match="dtype is bfloat16, and injections does not use it"):
        Reproduction(report="injections", dtype="bfloat16")
