"""The contest: stages trained, measured and laid out by one command."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fpmgm import recipes
from fpmgm.backbones.dit import Network
from fpmgm.data.text import TextConfig
from fpmgm.evaluation import sweep
from fpmgm.evaluation.intervals import Interval
from fpmgm.evaluation.matched import Matched
from fpmgm.evaluation.rows import Match, Row
from fpmgm.evaluation.tables import Noted
from fpmgm.experiments import contest
from fpmgm.experiments.contest import TUNING, Contest, Contestant, over_seeds
from fpmgm.generation import Generated, generate
from fpmgm.objectives import NextToken
from fpmgm.post_training.consistency import Consistency
from fpmgm.post_training.sdtt import SelfDistillation
from fpmgm.training import loop
from fpmgm.training.config import Training
from fpmgm.training.loop import train
from fpmgm.training.optim import OptimConfig
from tests.test_tables import sampled_row

VERSE = "".join(f"line {i} of a poem about the {word}\n" for i in range(300) for word in ("sea", "sky", "old oak"))
NAME = "perplexity_per_sample"
PLAIN = Network(width=16, num_heads=2, num_pre=3, cond_width=8, dropout=0.0)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Contest:
    """A contest of two base models, a stage with two seeds and an adaptation, on a small text."""
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "verse.txt").write_text(VERSE)
    base = Training(
        model=PLAIN,
        data=TextConfig(source=str(tmp_path / "verse.txt"), tokenizer="bpe-300", length=16),
        optim=OptimConfig(lr=1e-3, warmup=2, ema=0.9),
        updates=3,
        batch_size=4,
        validation_sequences=8,
        trackers=(),
    )
    fixed = replace(PLAIN, num_pre=1, num_fp=1, num_post=1)
    plain_model = str(train(replace(base, out=str(tmp_path / "plain")), "plain"))
    fixed_model = str(train(replace(base, model=fixed, out=str(tmp_path / "fixed")), "fixed"))
    judge = replace(base, model=replace(PLAIN, is_causal=True), objective=NextToken(), out=str(tmp_path / "judge"))
    kl = Consistency(weight=0.1, teacher=plain_model, distance="kl")
    stages = {
        "cons": replace(base, init=plain_model, objective=Consistency(weight=0.1)),
        "cofre": replace(base, model=fixed, init=fixed_model, objective=Consistency(weight=0.1)),
        "adapt": replace(base, model=fixed, init=plain_model, init_map="1/2/3", objective=kl),
    }
    for name, recipe in stages.items():
        monkeypatch.setitem(recipes.RECIPES, name, recipe)
    return Contest(
        folder=tmp_path / "out",
        runs=tmp_path / "runs",
        contestants=(
            Contestant(name="MDLM", recipe="cons", is_base=True),
            Contestant(name="FP-MDLM", recipe="cofre", is_base=True),
            Contestant(name="FP-MDLM + L_CONS", recipe="cofre", num_seeds=2, is_headline=True),
            Contestant(name="adapted", recipe="adapt"),
            Contestant(name="adapted, fresh weights", recipe="adapt", changes={"init": "", "init_map": ""}),
        ),
        budgets=(6, 12),
        num_samples=3,
        num_rest=2,
        judge=str(train(judge, "judge")),
        second_judge="",
    )


@pytest.mark.slow
def test_a_contest_trains_measures_and_fills_its_tables_once(small: Contest, monkeypatch: pytest.MonkeyPatch) -> None:
    report = small.run()
    assert "| FP-MDLM + L_CONS | three-state |" in report
    tables = report.split("### ")[1:]
    assert [table.split("\n")[0].split(",")[0].split(" (")[0] for table in tables] == [
        "Validation perplexity",
        "Generative perplexity",
        "Matched: temperature turned until the entropy is that of MDLM at the budget",
    ]
    lines = [line for line in tables[1].splitlines() if line.startswith("| ") and "---" not in line][1:]
    assert len(lines) == 1 + 4 * 3  # the plain stack once, four fixed points with three kinds of reuse
    assert tables[1].count("**") == 2 * 2  # the best of each budget
    assert len([line for line in tables[2].splitlines() if line.startswith("| FP-MDLM + L_CONS")]) == 1
    rows = [json.loads(line) for line in (small.folder / "contest.jsonl").read_text().splitlines()]
    drawn = {(Path(row["model"]).parent.name, row["sampling"]["reuse"], row["protocol"]["num_samples"]) for row in rows}
    assert {each for each in drawn if each[0].startswith("fp-mdlm---")} == {
        ("fp-mdlm---l-cons-0", "three-state", 3),  # the headline: every seed, more samples
        ("fp-mdlm---l-cons-1", "three-state", 3),
        ("fp-mdlm---l-cons-0", "none", 2),
        ("fp-mdlm---l-cons-0", "full", 2),
    }
    assert {number for name, _, number in drawn if not name.startswith("fp-mdlm---")} == {2}
    for name in ("contest.png", "contest.svg", "adaptation.png", "contest.jsonl", "validation.jsonl"):
        assert (small.folder / name).stat().st_size > 0
    seeds = [
        json.loads((folder / "config.json").read_text())["seed"] for folder in sorted(small.runs.glob("fp-mdlm---*"))
    ]
    assert seeds == [0, 1]
    monkeypatch.setattr(sweep, "measure_cell", lambda *_: pytest.fail("measured again"))
    monkeypatch.setattr(loop.Run, "update", lambda *_: pytest.fail("trained again"))
    monkeypatch.setattr(contest, "load", lambda *_: pytest.fail("validated again"))
    assert small.run() == report


@pytest.mark.slow
def test_a_second_judge_reads_the_samples_that_the_first_one_read(
    small: Contest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = tmp_path / "second" / "judge"
    shutil.copytree(small.judge, second)
    drawn = []

    def draw(*arguments: Any, **settings: Any) -> Generated:
        drawn.append(settings)
        return generate(*arguments, **settings)

    monkeypatch.setattr(sweep, "generate", draw)
    report = replace(small, contestants=small.contestants[:3], second_judge=str(second)).run()
    headline = [line for line in report.splitlines() if line.startswith("| FP-MDLM + L_CONS | three-state")]
    assert report.split("### ")[3].count("| none |") == 1  # the second judge reads the usual reuse: of the plain stack
    assert len(headline) == 3  # each judge's, and at matched entropy
    read: dict[str, list[Any]] = {}
    for row in map(json.loads, (small.folder / "contest.jsonl").read_text().splitlines()):
        if row["sampling"]["reuse"] == "three-state" and row["sampling"]["budget"] == 6 and "matched" not in row:
            read.setdefault(Path(row["model"]).parent.name, []).append(row["metrics"])
    first, again = read["fp-mdlm---l-cons-0"]
    assert first == again  # the same samples and, here, the same judge
    assert len(read["fp-mdlm---l-cons-1"]) == 2  # every seed
    assert len([each for each in drawn if each["temperature"] is None]) == 2 * (1 + 3 + 2 + 2)  # once for both judges


@pytest.mark.slow
def test_an_entropy_that_is_met_already_is_not_searched_for(small: Contest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "is_near", lambda *_: True)
    monkeypatch.setattr(sweep, "match_entropy", lambda *_, **__: pytest.fail("searched"))
    report = replace(small, contestants=small.contestants[:3]).run()
    headline = [line for line in report.splitlines() if line.startswith("| FP-MDLM + L_CONS | three-state")]
    assert len(headline) == 2
    assert "not met" not in headline[1]


@pytest.mark.slow
def test_a_search_for_an_entropy_starts_where_that_of_the_last_budget_ended(
    small: Contest, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = []

    def search(*_: Any, start: float, **__: Any) -> Matched:
        starts.append(start)
        return Matched(setting=start - 0.25, entropy=0.0, is_met=False)

    monkeypatch.setattr(contest, "is_near", lambda *_: False)
    monkeypatch.setattr(sweep, "match_entropy", search)
    replace(small, contestants=small.contestants[:3]).run()
    assert starts == [1.0] * 4 + [0.75] * 4  # two budgets; two base models, two seeds of a stage


def test_a_cell_over_seeds_is_their_mean_and_what_their_intervals_span_and_of_one_seed_its_interval() -> None:
    def row(value: float, matched: Match | None = None) -> Row:
        metric = Interval(value=value, low=value - 1, high=value + 1)
        metrics = {NAME: metric, "entropy": Interval(value=4.0, low=3.9, high=4.1)}
        return replace(sampled_row(), metrics=metrics, matched=matched)

    assert over_seeds([row(10.0)], NAME) == Noted(value=10.0, low=9.0, high=11.0, note="(4.00)")
    assert over_seeds([row(10.0), row(16.0)], NAME) == Noted(value=13.0, low=9.0, high=17.0, note="(4.00)")
    far = Match(knob="temperature", entropy=5.0, is_met=False)
    assert over_seeds([row(10.0, far)], NAME).note == "(4.00, not met)"


def test_sdtt_is_tuned_with_as_many_tries_as_l_cons() -> None:
    tries = [each for each in TUNING if not each.is_base]
    configs = [replace(recipes.RECIPES[each.recipe], **each.changes) for each in tries]
    num_sdtt = [isinstance(config.objective, SelfDistillation) for config in configs].count(True)
    num_cons = [isinstance(config.objective, Consistency) for config in configs].count(True)
    assert num_sdtt == num_cons == len(tries) / 2 > 1
    assert len({repr(config) for config in configs}) == len(tries)
