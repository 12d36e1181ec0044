"""Sampling of image models: their grid, their classes, guidance by settings, and what a model's file decides."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fpmgm.checkpoint import Model, load, read_generation
from fpmgm.evaluation.sweep import MultiplyAdds
from fpmgm.generation import Sampling, generate, with_saved_settings
from fpmgm.sampling import Step
from fpmgm.transitions import halton_order
from tests.images import random_images, small_image_model


@pytest.fixture(scope="module")
def model() -> Model:
    return small_image_model()


def revealed(steps: list[Step], row: int) -> list[list[int]]:
    return [(step.z[row] != step.z_next[row]).nonzero()[:, 0].tolist() for step in steps]


def test_an_image_model_fills_its_grid_in_halton_order_unless_told_otherwise(model: Model) -> None:
    steps: list[Step] = []
    out = generate(model, budget=24, on_step=steps.append)
    assert (out.sampling.transition, out.sampling.grid) == ("halton", (4, 4))
    order = iter(halton_order(4, 4))
    assert revealed(steps, 0) == [sorted(next(order) for _ in cells) for cells in revealed(steps, 0)]
    other = generate(model, budget=24, transition="ancestral")
    assert (other.sampling.transition, other.sampling.grid) == ("ancestral", None)


def test_a_text_model_is_still_ancestral(text_model: Model) -> None:
    assert generate(text_model, budget=12).sampling.transition == "ancestral"


@pytest.mark.parametrize("schedule", ["arccos", "cosine"])
def test_images_are_also_filled_by_confidence_on_the_schedules_of_images(model: Model, schedule: str) -> None:
    steps: list[Step] = []
    generate(model, budget=24, transition="confidence", schedule=schedule, on_step=steps.append)
    counts = [len(cells) for cells in revealed(steps, 0)]
    assert sum(counts) == 16
    assert counts[0] <= counts[-1]


def test_a_rolled_order_begins_somewhere_else_for_every_sample_and_goes_round(model: Model) -> None:
    steps: list[Step] = []
    options: dict[str, Any] = {"budget": 48, "steps": 16, "num_samples": 6, "halton_roll": True}
    out = generate(model, on_step=steps.append, **options)
    order = list(halton_order(4, 4))
    begins = []
    for row in range(6):
        cells = [cell for (cell,) in revealed(steps, row)]  # one a step
        begin = order.index(cells[0])
        assert cells == order[begin:] + order[:begin]
        begins.append(begin)
    assert len(set(begins)) > 1
    assert out.tokens == generate(model, batch_size=2, **options).tokens  # a sample does not depend on its batch
    assert out.tokens != generate(model, **{**options, "seed": 1}).tokens


def test_a_rolled_order_takes_no_number_from_the_streams_of_its_samples(model: Model) -> None:
    """So a sample whose order is rolled by nothing is the one without a roll."""
    plain, rolled = (generate(model, budget=12, num_samples=64, halton_roll=roll) for roll in (False, True))
    same = [one == other for one, other in zip(plain.tokens, rolled.tokens, strict=True)]
    steps: list[Step] = []
    generate(model, budget=48, steps=16, num_samples=64, halton_roll=True, batch_size=64, on_step=steps.append)
    unrolled = [revealed(steps[:1], row)[0] == [halton_order(4, 4)[0]] for row in range(64)]
    assert any(unrolled)
    assert all(is_same for is_same, is_unrolled in zip(same, unrolled, strict=True) if is_unrolled)
    assert not all(same)


def test_every_sample_has_its_class_and_the_class_changes_the_sample(model: Model) -> None:
    assert generate(model, num_samples=5, budget=12).labels == [0, 1, 2, 0, 1]
    out = generate(model, num_samples=2, budget=12, classes=("star", 0))
    assert out.labels == [2, 2, 0, 0]
    assert out.tokens[:2] != generate(model, num_samples=2, budget=12, classes="circle").tokens
    with pytest.raises(ValueError, match="unknown class 'stra'; did you mean 'star'"):
        generate(model, classes="stra")


@pytest.mark.parametrize("settings", [{}, {"halton_roll": True}, {"transition": "confidence"}, {"cfg_weight": 2.0}])
def test_given_cells_never_change(model: Model, settings: dict[str, Any]) -> None:
    image = random_images(1)[0, 0].numpy()
    hole = np.zeros((16, 16), bool)
    hole[4:13, 4:13] = True  # touches nine cells
    steps: list[Step] = []
    asked: dict[str, Any] = {"inpaint": image, "inpaint_mask": hole, "num_samples": 3, "budget": 24, **settings}
    generate(model, on_step=steps.append, **asked)
    is_given = steps[0].z != model.denoiser.mask_id
    assert is_given.sum(dim=1).tolist() == [7] * 3
    for step in steps:
        assert torch.equal(step.z_next[is_given], steps[0].z[is_given])
    assert not (steps[-1].z_next == model.denoiser.mask_id).any()


def test_images_are_shown_when_they_are_asked_for(model: Model) -> None:
    out = generate(model, num_samples=2, budget=12)
    assert [image.shape for image in out.shown] == [(16, 16)] * 2
    with pytest.raises(ValueError, match="these samples are no texts"):
        _ = out.texts


def test_guidance_by_settings_is_that_of_the_sampler(model: Model) -> None:
    for settings, weights in (
        ({"cfg_weight": 3.0}, [3.0] * 4),
        ({"cfg_weight": 3.0, "guidance": "ramp"}, [0.0, 1.0, 2.0, 3.0]),
        ({"cfg_weight": 3.0, "guidance": "late"}, [0.0, 0.0, 3.0, 3.0]),
        ({"cfg_weight": 3.0, "guidance": "late", "guidance_begin": 0.75}, [0.0, 0.0, 0.0, 3.0]),
        ({"cfg_weight": 0.0}, [0.0] * 4),
        ({}, [0.0] * 4),
    ):
        steps: list[Step] = []
        chosen: dict[str, Any] = settings
        generate(model, budget=24, on_step=steps.append, **chosen)
        assert [step.weight for step in steps] == weights
        assert {len(step.solution.h) for step in steps} == ({2} if "cfg_weight" in settings and weights[-1] else {1})


def test_multiply_adds_count_both_halves_and_the_budget_does_not(model: Model) -> None:
    counts = []
    for weight in (0.0, 1.0):
        spent = MultiplyAdds(model)
        out = generate(model, budget=24, num_samples=2, cfg_weight=weight, on_step=spent)
        assert out.block_evals == 24
        counts.append(spent.total)
    assert counts[1] == 2 * counts[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cfg_weight": -1.0}, "cfg_weight is -1.0; it must be a number, 0 or more"),
        ({"guidance": "ramp"}, "guidance is ramp, and without a cfg_weight above 0 nothing is guided; give one"),
        ({"cfg_weight": 1.0, "guidance_begin": 0.2}, "guidance_begin is 0.2, and only late guidance uses it"),
        ({"cfg_weight": 1.0, "guidance": "late", "guidance_begin": 2.0}, "it must lie between 0 and 1"),
        ({"cfg_weight": 1.0, "guidance": "lat"}, "unknown guidance 'lat'; did you mean 'late'"),
        ({"transition": "confidence", "halton_roll": True}, "halton_roll is True, and transition confidence does not"),
        ({"prompts": "a"}, "unknown setting 'prompts'"),
        ({"grid": (4, 5)}, "of 4 x 5 cells cannot fill 16 positions"),
    ],
)
def test_settings_that_make_no_sense_are_refused(model: Model, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate(model, budget=12, **settings)


def test_guidance_of_a_model_without_classes_is_refused(text_model: Model) -> None:
    with pytest.raises(ValueError, match=r"cfg_weight is 1\.5, and this model knows no classes to guide to; leave it"):
        generate(text_model, budget=12, cfg_weight=1.5)
    with pytest.raises(ValueError, match="this model knows no classes"):
        generate(small_image_model(num_classes=0), budget=12, cfg_weight=1.5)


DEFAULTS = {"cfg_weight": 1.5, "guidance": "ramp", "temperature": 0.9, "transition": "confidence"}
FILE = {"defaults": DEFAULTS, "budgets": {"24": {"steps": 3, "allocation": "fixed", "cfg_weight": 0.5}}}


def test_what_a_user_leaves_open_a_models_file_decides_and_nothing_else() -> None:
    found = with_saved_settings(FILE, Sampling(budget=12), (4, 4))
    assert {name: getattr(found, name) for name in DEFAULTS} == DEFAULTS
    assert (found.steps, found.allocation) == (None, "decreasing")
    own: dict[str, Any] = {"cfg_weight": 0.0, "temperature": 1.0, "transition": "halton"}
    found = with_saved_settings(FILE, Sampling(budget=12, **own), (4, 4))
    assert {name: getattr(found, name) for name in own} == own
    assert found.guidance == "auto"  # with a weight of 0 there is nothing to guide
    late = with_saved_settings(FILE, Sampling(budget=12, guidance="late"), (4, 4))
    assert (late.guidance, late.cfg_weight) == ("late", 1.5)


def test_what_a_models_file_says_for_a_budget_comes_before_its_defaults() -> None:
    found = with_saved_settings(FILE, Sampling(budget=24), (4, 4))
    assert (found.steps, found.allocation, found.cfg_weight, found.temperature) == (3, "fixed", 0.5, 0.9)
    assert with_saved_settings(FILE, replace(found, steps=2), (4, 4)).steps == 2


@pytest.mark.parametrize("generation", [FILE, {}])
@pytest.mark.parametrize("grid", [(4, 4), None])
def test_settings_that_are_decided_stay_as_they_are(generation: dict[str, Any], grid: tuple[int, int] | None) -> None:
    once = with_saved_settings(generation, Sampling(), grid)
    assert with_saved_settings(generation, once, grid) == once


def test_a_models_defaults_are_saved_with_it_and_used(model: Model, tmp_path: Path) -> None:
    defaults = {"cfg_weight": 1.5, "guidance": "late", "temperature": 0.8}
    replace(model, generation={"defaults": defaults}).save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    out = generate(loaded, budget=12, num_samples=4)
    same: dict[str, Any] = defaults
    assert out.tokens == generate(model, budget=12, num_samples=4, **same).tokens
    plain = generate(loaded, budget=12, num_samples=4, cfg_weight=0.0, temperature=1.0)
    assert plain.tokens == generate(model, budget=12, num_samples=4).tokens


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ({"cfg_wait": 1}, "defaults has unknown settings: 'cfg_wait'"),
        ({"cfg_weight": "much"}, "defaults: cfg_weight is 'much'; it must be a finite number"),
        ({"cfg_weight": -2}, "defaults: cfg_weight is -2.0; it must be a number, 0 or more"),
        ({"guidance": "often"}, "defaults: guidance is 'often'; it must be one of 'constant', 'ramp', 'late'"),
        ({"transition": "haltn"}, "defaults: transition is 'haltn'; it must be one of 'ancestral'"),
        ({"temperature": -1}, "defaults: temperature is -1.0; it must be 0"),
        ([], "defaults is .*; it must be an object"),
    ],
)
def test_defaults_that_cannot_be_are_refused_with_the_file(tmp_path: Path, defaults: Any, message: str) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"defaults": defaults}))
    with pytest.raises(ValueError, match=message):
        read_generation(tmp_path)
