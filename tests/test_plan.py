"""Plans: operations and memory are counted without running anything, and hours follow from a rate."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fpmgm.__main__ import main
from fpmgm.data.text import TextConfig
from fpmgm.experiments import plan
from fpmgm.experiments.costs import (
    base_of,
    optimiser_multiply_adds,
    parameters_of,
    pass_multiply_adds,
    saved_bytes,
    state_bytes,
    update_multiply_adds,
)
from fpmgm.experiments.plan import Asked, papers_efficiency, plan_of
from fpmgm.experiments.workloads import Updater, random_denoiser
from fpmgm.gradients import IterationCounts
from fpmgm.recipes import RECIPES
from fpmgm.recipes.train import changed
from fpmgm.training.config import Training
from fpmgm.training.folder import settings_of
from fpmgm.training.loop import train
from tests.test_recipes import VERSE

SMALL: dict[str, Any] = {"model": {"width": 16, "num_heads": 2, "cond_width": 8}, "data": {"length": 32}}


def small(recipe: str, **changes: Any) -> Training:
    config: Training = changed(RECIPES[recipe], {**SMALL, **changes})
    return config


def fixed(config: Training, no_grad: int, grad: int) -> Training:
    counts = IterationCounts(no_grad_min=no_grad, no_grad_max=no_grad, grad_min=grad, grad_max=grad)
    return replace(config, objective=replace(base_of(config), iterations=counts))


def addmm_operations(
    added: torch.Size, first: torch.Size, second: torch.Size, *_: Any, out_shape: Any = None, **__: Any
) -> int:
    return 2 * first[0] * first[1] * second[1]


@pytest.mark.parametrize(
    ("recipe", "rest", "no_grad"),
    [("poetry", False, 2), ("poetry-mdlm", False, 2), ("poetry", True, 2), ("poetry", True, 0)],
)
def test_operations_of_an_update_are_those_that_torch_counts(recipe: str, rest: bool, no_grad: int) -> None:
    config = fixed(small(recipe), no_grad, 4)
    config = replace(config, objective=replace(base_of(config), rest=rest))
    update = Updater(random_denoiser(config.network), 8, base_of(config))
    in_place = {torch.ops.aten.addmm_: addmm_operations}  # the head's gradient, which torch leaves out
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter, sdpa_kernel(SDPBackend.MATH):
        update.gradients(no_grad, 4)
    counted = counter.get_total_flops()
    assert 2 * 8 * update_multiply_adds(config) == pytest.approx(counted, rel=0.05)  # masks are not quite the half


@pytest.mark.parametrize("recipe", ["stories-fp", "stories-mdlm"])
def test_operations_of_a_step_of_muon_are_those_that_torch_counts(recipe: str) -> None:
    config = small(recipe, optim={"muon_precision": "float32"})
    update = Updater(random_denoiser(config.network), 1, base_of(config), config.optim)
    update.gradients(0, 2)
    with FlopCounterMode(display=False) as counter:
        update.optimiser.step()
    assert 2 * optimiser_multiply_adds(config) == counter.get_total_flops()
    assert optimiser_multiply_adds(small("poetry", optim={"kind": "adamw"})) == 0


@pytest.mark.parametrize(("recipe", "rest"), [("poetry", False), ("poetry-mdlm", False), ("poetry", True)])
def test_memory_from_shapes_is_what_autograd_really_keeps(recipe: str, rest: bool) -> None:
    config = fixed(small(recipe), 1, 3)
    config = replace(config, objective=replace(base_of(config), rest=rest))
    update = Updater(random_denoiser(config.network), 4, base_of(config))
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        update.gradients(1, 3)
    weights = {parameter.untyped_storage().data_ptr() for parameter in update.denoiser.parameters()}
    real = sum(size for place, size in kept.items() if place not in weights)
    assert saved_bytes(config, 4, 1, 3) == pytest.approx(real, rel=0.1)
    assert saved_bytes(config, 4, 1, 3, mixed=True) < saved_bytes(config, 4, 1, 3)
    assert saved_bytes(config, 8, 1, 3) == pytest.approx(2 * saved_bytes(config, 4, 1, 3), rel=0.1)


def test_passes_without_gradients_cost_a_third_and_keep_nothing() -> None:
    config = small("poetry")
    iteration = pass_multiply_adds(config.network, 2.0, 0.0) - pass_multiply_adds(config.network, 1.0, 0.0)
    few, more, deeper = (update_multiply_adds(fixed(config, *counts)) for counts in ((0, 2), (1, 2), (0, 3)))
    assert more - few == pytest.approx(iteration)
    assert deeper - few == pytest.approx(3 * iteration)
    assert saved_bytes(config, 2, 1, 2) == saved_bytes(config, 2, 3, 2) < saved_bytes(config, 2, 1, 3)


def test_a_teacher_adds_a_pass_and_a_frozen_one_its_weights() -> None:
    base, stage = small("poetry"), small("poetry-cofre")
    objective: Any = stage.objective
    stage = replace(stage, objective=replace(objective, base=base.objective))
    positions = 16.0
    forward = pass_multiply_adds(base.network, 2 + 4.5, positions)
    assert update_multiply_adds(stage) - update_multiply_adds(base) == pytest.approx(forward, rel=1e-3)
    sdtt = small("poetry-sdtt")
    assert state_bytes(sdtt) - state_bytes(replace(sdtt, objective=base.objective)) == 4 * parameters_of(sdtt)


def test_full_size_is_planned_without_weights_and_set_against_the_paper(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "measured_efficiency", lambda *_: pytest.fail("measured"))
    assert main(["plan", "owt", "--hardware", "8xH200", "--micro-batch", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    plain, ours = found["sides"]
    assert (plain["parameters"], ours["parameters"]) == (169_627_218, 104_659_794)
    assert found["ratios"]["parameters"] == pytest.approx(0.617, abs=1e-3)
    assert found["paper"]["ratios"]["hours"] == pytest.approx(0.885, abs=1e-3)
    assert plain["hours"] == pytest.approx(139, rel=1e-6)  # the efficiency is that of this very run
    assert found["efficiency"] == pytest.approx(papers_efficiency())
    assert 0.6 < found["ratios"]["hours"] < 0.9
    assert ours["memory"]["mean"] < ours["memory"]["peak"] < plain["memory"]["peak"]
    assert ours["fits"]
    half = plan_of(Asked(recipe="owt", micro_batch=2, efficiency=2 * found["efficiency"], hardware="4xH200"))
    assert half.sides[0].hours == pytest.approx(139)


def test_a_run_that_was_made_is_checked_against_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    run.mkdir()
    settings = settings_of(replace(RECIPES["poetry"], batch_size=8))
    (run / "config.json").write_text(json.dumps(settings))
    rows = [{"update": i + 1, "loss": 5.0, "seconds": 9.0 if i < 10 else 2.0} for i in range(50)]
    rows[-1] |= {"validation": 3.0, "validation_error": 0.1, "seconds": 99.0}
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = Asked(recipe="poetry", hardware="1xcpu", efficiency=0.5, micro_batch=1, check=(str(run),))
    found = plan_of(asked)
    [checked] = found.checked
    assert (checked.recipe, checked.updates, checked.seconds_per_update) == ("poetry", 39, 2.0)
    planned = found.sides[1].seconds_per_update * 8 / RECIPES["poetry"].batch_size
    assert (checked.planned, checked.ratio) == (pytest.approx(planned), pytest.approx(planned / 2))
    with pytest.raises(ValueError, match="is no run folder"):
        plan_of(replace(asked, check=(str(tmp_path),)))
    monkeypatch.setattr(plan, "measured_efficiency", lambda *_: pytest.fail("measured before the run was looked at"))
    with pytest.raises(ValueError, match="is no run folder"):
        plan_of(replace(asked, efficiency=0.0, measure=True, check=(str(tmp_path),)))
    (run / "config.json").write_text(json.dumps({**settings, "mixed_precision": "bf16"}))
    with pytest.raises(ValueError, match=r"run computed in bfloat16, .*give --precision bf16"):
        plan_of(asked)
    assert plan_of(replace(asked, precision="bf16")).checked[0].recipe == "poetry"
    (run / "config.json").write_text(json.dumps({**settings, "model.width": 12}))
    with pytest.raises(ValueError, match="has another network, length or objective than poetry-mdlm and poetry"):
        plan_of(asked)


@pytest.mark.slow
def test_an_efficiency_is_measured_by_real_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plan.RECIPES, "poetry", small("poetry"))
    monkeypatch.setitem(plan.RECIPES, "poetry-mdlm", small("poetry-mdlm"))
    before = torch.get_num_threads()
    try:
        found = plan_of(Asked(recipe="poetry", hardware="1xcpu", measure=True))
    finally:
        torch.set_num_threads(before)
    assert 0 < found.efficiency < 1
    assert found.efficiency_from == "measured here with poetry"


@pytest.mark.slow
def test_two_runs_of_the_recipes_of_stories_are_checked_against_a_measured_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "verse.txt").write_text(VERSE)
    data = TextConfig(source=str(tmp_path / "verse.txt"), tokenizer="bpe-300", length=32)
    monkeypatch.setattr(plan, "FEWEST_UPDATES", 4)
    runs = []
    for recipe in ("stories-fp", "stories-mdlm"):
        own = small(recipe, data={}, updates=9, batch_size=4, validation_sequences=8, mixed_precision="bf16")
        monkeypatch.setitem(plan.RECIPES, recipe, replace(own, data=data))
        runs.append(
            str(Path(train(replace(own, data=data, out=str(tmp_path / recipe)), recipe, card_samples=1)).parent)
        )
    capsys.readouterr()
    before = torch.get_num_threads()
    try:
        command = [
            "plan",
            "stories-fp",
            "--hardware",
            "1xcpu",
            "--precision",
            "bf16",
            "--measure",
            "--measure-batch",
            "4",
        ]
        assert main([*command, "--check", *runs, "--json"]) == 0
    finally:
        torch.set_num_threads(before)
    checked = json.loads(capsys.readouterr().out)["checked"]
    assert [each["recipe"] for each in checked] == ["stories-fp", "stories-mdlm"]
    assert all(each["updates"] == 6 and each["ratio"] > 0 for each in checked)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"recipe": "owtt"}, "unknown recipe 'owtt'; did you mean 'owt'"),
        ({"hardware": "8xH20"}, "unknown hardware 'h20'; did you mean 'h200'"),
        ({"hardware": "0xH200"}, "hardware is '0xH200'; write a number and a device"),
        ({"hardware": "2xcpu"}, "the efficiency of a CPU is not known; give --measure"),
        ({"measure": True}, "this machine has no GPU; give --efficiency instead"),
        ({"efficiency": 2.0}, "efficiency is 2.0; it must be a share"),
        ({"efficiency": 0.5, "measure": True}, "leave one of the two out"),
    ],
)
def test_what_cannot_be_planned_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Asked(**{"recipe": "owt", **settings})


def test_an_objective_that_is_not_counted_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(ValueError, match="the objective is Reconstruction, whose operations are not counted"):
        plan_of(Asked(recipe="fashion-tokenizer"))
