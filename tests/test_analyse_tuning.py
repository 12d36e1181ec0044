"""`fpmgm tune-reuse`: a proposal, how it is checked on other seeds, and where it is saved."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fpmgm.__main__ import main
from fpmgm.analysis import tuning
from fpmgm.analysis.tuning import Checked, Proposal, Tuned, Tuning, finish, save_proposal, tune
from fpmgm.backbones.dit import as_mdlm
from fpmgm.checkpoint import BUNDLED, Model, load, read_generation
from fpmgm.commands.tune_reuse import described
from fpmgm.evaluation.intervals import Interval
from fpmgm.generation import Sampling, generate, with_saved_settings
from fpmgm.reuse import CHANGED, MASKED
from tests.conftest import Build
from tests.images import small_image_model

TINY: dict[str, Any] = {"budget": 12, "num_fitted": 2, "num_samples": 3, "depth": 7}
WORDS = ["--budget", "12", "--num-fitted", "2", "--num-samples", "3", "--depth", "7"]
NONE = {"seeds": [1], "num_samples": 3}
SAVED = {"reuse_masked": [0.5, 0.6], "reuse_changed": [0.1, 0.1], "tolerance": 0.2}
FILE = {"defaults": SAVED, "budgets": {"24": {"steps": 3, "allocation": "fixed"}}}


def test_a_file_decides_reuse_where_the_user_leaves_it_open_and_only_for_three_state_reuse() -> None:
    found = with_saved_settings(FILE, Sampling(budget=24))
    assert (found.reuse_masked, found.reuse_changed, found.tolerance, found.steps) == ((0.5, 0.6), (0.1, 0.1), 0.2, 3)
    assert hash(found) == hash(with_saved_settings(FILE, found))
    own = with_saved_settings(FILE, Sampling(reuse="three-state", reuse_masked=(0.7, 0.8), tolerance=0.0))
    assert (own.reuse_masked, own.reuse_changed, own.tolerance) == ((0.7, 0.8), (0.1, 0.1), 0.0)
    for settings in (with_saved_settings(FILE, Sampling(reuse="full")), with_saved_settings({}, Sampling())):
        assert (settings.reuse_masked, settings.reuse_changed, settings.tolerance) == (MASKED, CHANGED, None)


def test_samples_of_a_model_with_saved_reuse_are_those_of_its_settings_given_outright(text_model: Model) -> None:
    saved = replace(text_model, generation={"defaults": SAVED})
    given: dict[str, Any] = {"reuse_masked": (0.5, 0.6), "reuse_changed": (0.1, 0.1), "tolerance": 0.2}
    found, same = generate(saved, budget=24, num_samples=2), generate(text_model, budget=24, num_samples=2, **given)
    assert (found.tokens, found.block_evals, found.sampling) == (same.tokens, same.block_evals, same.sampling)
    whole = generate(saved, budget=24, tolerance=0.0)
    assert whole.block_evals == 24


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ({"reuse_masked": [0.5]}, "reuse_masked is .*; it must be a list of 2"),
        ({"reuse_masked": [0.5, 1.5]}, "reuse coefficient masked_max is 1.5; it must lie between 0 and 1"),
        ({"reuse_changed": [-1, 0]}, "reuse coefficient changed_min is -1.0"),
        ({"tolerance": -1}, "tolerance is -1.0; it must be a number, 0 or more"),
    ],
)
def test_saved_reuse_that_cannot_be_is_refused_with_the_file(
    tmp_path: Path, defaults: dict[str, Any], message: str
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"defaults": defaults}))
    with pytest.raises(ValueError, match=message):
        read_generation(tmp_path)


def test_a_proposal_replaces_an_older_one_and_leaves_other_settings(tmp_path: Path) -> None:
    generation = {"defaults": {**SAVED, "temperature": 0.9}, "budgets": FILE["budgets"]}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    file = save_proposal(tmp_path, Proposal(reuse_masked=(0.8, 0.9), reuse_changed=(0.3, 0.3)))
    defaults = {"temperature": 0.9, "reuse_masked": [0.8, 0.9], "reuse_changed": [0.3, 0.3]}
    assert json.loads(file.read_text()) == {"defaults": defaults, "budgets": FILE["budgets"]}


def checked(low: float, high: float, limit: float, best: Any) -> bool:
    interval = Interval(value=(low + high) / 2, low=low, high=high)
    return Checked(name="", default=0.0, proposed=0.0, difference=interval, limit=limit, best=best).is_no_worse


def test_no_worse_means_that_a_difference_beyond_the_limit_is_ruled_out() -> None:
    assert checked(-0.1, 0.04, 0.05, "lowest")
    assert not checked(-0.1, 0.06, 0.05, "lowest")
    assert checked(-0.04, 0.2, -0.05, "highest")
    assert not checked(-0.06, 0.2, -0.05, "highest")


def test_checks_are_paired_and_leave_out_samples_that_nobody_could_judge() -> None:
    ours = {"nats": np.array([1.0, 2.0, np.nan, 4.0]), "entropy": np.arange(4.0)}
    proposed = {"nats": np.array([1.1, 2.1, 3.1, np.nan]), "entropy": np.arange(4.0) + 1}
    asked = Tuning(model="", **TINY)
    nats, entropy = tuning._checks(asked, ours, proposed, is_judged=True)
    assert (nats.default, nats.proposed) == pytest.approx((1.5, 1.6))
    assert (nats.difference.low, nats.difference.high) == pytest.approx((0.1, 0.1))
    assert not nats.is_no_worse
    assert entropy.difference.value == pytest.approx(1.0)
    assert entropy.is_no_worse


def test_the_command_proposes_checks_and_saves_and_sampling_then_uses_it(
    text_model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    text_model.save(folder)
    command = ["tune-reuse", str(folder), *WORDS, "--num-seeds", "1", "--judge", "", "--slack", "10", "--save"]
    assert main([*command, "--out", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "out" / "tune-reuse.json").read_text()) == found
    assert found["is_no_worse"]
    assert found["saved"] == str(folder / "generation_config.json")
    proposal = found["proposal"]
    out = generate(load(folder), budget=12)
    assert [list(out.sampling.reuse_masked or ()), out.sampling.tolerance] == [
        proposal["reuse_masked"],
        proposal["tolerance"],
    ]
    assert found["protocol"]["checked_on"] == {"seeds": [1], "num_samples": 3}
    assert found["block_evals"][1] <= found["block_evals"][0] == 12


def test_a_judge_reads_texts_and_both_numbers_are_told(
    text_model: Model, small_model: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    causal: dict[str, Any] = {"num_pre": 2, "num_fp": 0, "num_post": 0, "is_causal": True}
    config = replace(as_mdlm(text_model.config), **causal)
    sizes = {"vocab_size": config.vocab_size, "mask_id": config.mask_id, "length": config.length}
    replace(text_model, denoiser=small_model(**sizes, **causal), config=config).save(tmp_path / "judge")
    text_model.save(tmp_path / "model")
    command = ["tune-reuse", str(tmp_path / "model"), *WORDS, "--num-seeds", "1", "--judge", str(tmp_path / "judge")]
    assert main(command) == 0
    printed = capsys.readouterr().out
    for words in (
        "the paper's: masked 0.75 to 0.9, changed 0.2, tolerance none",
        "proposed:    masked",
        "unigram entropy:",
    ):
        assert words in printed
    assert "log generative perplexity: " in printed
    assert "saved" not in printed


def test_only_what_is_shown_to_be_no_worse_is_saved(text_model: Model, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    text_model.save(folder)
    asked = Tuning(model=str(folder), save=True, **TINY)
    for high, is_saved in ((0.06, False), (0.04, True)):
        difference = Interval(value=0.0, low=-0.1, high=high)
        check = Checked(name="nats", default=1.0, proposed=1.0, difference=difference, limit=0.05, best="lowest")
        proposal = Proposal(reuse_masked=(0.6, 0.7))
        tuned = Tuned(
            model=str(folder),
            proposal=proposal,
            checks=(check,),
            block_evals=(12.0, 12.0),
            protocol={"checked_on": NONE},
        )
        found = finish(asked, tuned)
        assert (found.saved is not None) is is_saved
        assert ("defaults" in read_generation(folder)) is is_saved
        lines = list(described(found, asks_to_save=True))
        assert lines[-1].startswith("saved in" if is_saved else "nothing was saved: the proposal is not shown")


def test_reuse_of_images_is_checked_by_the_distance_to_the_fixed_points(tmp_path: Path) -> None:
    small_image_model().save(tmp_path / "model")
    tuned = tune(Tuning(model=str(tmp_path / "model"), num_seeds=1, **TINY))
    assert [check.name for check in tuned.checks] == ["KL from the fixed points, nats a token"]
    assert 0 <= tuned.proposal.reuse_masked[0] <= 1


def test_models_of_the_package_plain_stacks_and_wrong_numbers_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = next(file.parent for file in sorted(BUNDLED.glob("*-mdlm/config.json")))
    for words, message in (
        (["fashion", "--save"], f"copy {BUNDLED}/fashion and tune the copy"),
        ([plain.name], "is a plain stack, which has nothing to reuse"),
        (["fashion", "--num-samples", "1"], "num_samples is 1; it must be 2 to"),
        (["fashion", "--slack", "nan"], "slack is nan; it must be 0 to 10"),
        (["fashion", "--out", __file__], "which is a file; give a folder"),
    ):
        assert main(["tune-reuse", *words]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert message in captured.err
    shutil.copytree(BUNDLED / "fashion", tmp_path / "mine")
    assert tuning.check_writable(str(tmp_path / "mine")) == tmp_path / "mine"
