"""Layer analysis: linear CKA, the states it compares, the boundary and the layer map that follow from it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fpmgm
from fpmgm.__main__ import main
from fpmgm.analysis.cka import choose_map, layer_similarity, linear_cka, map_of, strongest_boundary
from fpmgm.analysis.layers import layer_names, layer_states
from fpmgm.backbones.dit import as_mdlm
from fpmgm.checkpoint import Model
from fpmgm.denoiser import Denoiser
from fpmgm.interop.layer_map import LayerMap
from fpmgm.masking import masked_below
from fpmgm.types import Batch, Places
from tests.conftest import Build

VERSE = "".join(f"line {i} of a poem about the {word}\n" for i in range(400) for word in ("sea", "sky", "old oak"))
PLAIN: dict[str, Any] = {"num_pre": 4, "num_fp": 0, "num_post": 0}


def cka(x: Tensor, y: Tensor) -> float:
    similarity = linear_cka([torch.stack([x, y])])
    assert similarity[0, 1] == similarity[1, 0]
    return float(similarity[0, 1])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=fpmgm.generator(seed), dtype=torch.float64)


def hsic_cka(x: Tensor, y: Tensor) -> float:
    """CKA the other way round: kernels between tokens, centred on both sides, and the trace of their product."""
    centre = torch.eye(len(x), dtype=torch.float64) - 1 / len(x)
    k, m = (centre @ (features @ features.T) @ centre for features in (x.double(), y.double()))
    return float(torch.trace(k @ m) / (torch.trace(k @ k) * torch.trace(m @ m)).sqrt())


def test_the_cka_of_identical_features_is_1_and_of_orthogonal_features_0() -> None:
    x = normal(50, 6)
    assert cka(x, x) == pytest.approx(1, abs=1e-12)
    columns = torch.linalg.qr(torch.cat([torch.ones(50, 1, dtype=torch.float64), normal(50, 12)], dim=1)).Q[:, 1:]
    assert cka(columns[:, :6], columns[:, 6:]) == pytest.approx(0, abs=1e-12)


def test_cka_does_not_see_rotation_scale_or_offset_but_sees_any_other_linear_map() -> None:
    x, y = normal(50, 6), normal(50, 6, seed=1) + normal(50, 6)
    rotation = torch.linalg.qr(normal(6, 6, seed=2)).Q
    assert cka(x, y) < 0.9
    assert cka(-3 * x @ rotation, y) == pytest.approx(cka(x, y), abs=1e-12)
    assert cka(x + 1e6 * normal(6, seed=3), y) == pytest.approx(cka(x, y), abs=1e-8)
    assert cka(x * torch.tensor([9.0, 1, 1, 1, 1, 1]), x) < 0.9


def test_cka_over_batches_in_float32_equals_that_of_token_kernels() -> None:
    states = (normal(3, 64, 8) + normal(1, 64, 8, seed=1) + 10 * normal(3, 1, 8, seed=2)).float()
    similarity = linear_cka(iter(states.split([5, 40, 19], dim=1)))
    assert similarity.dtype == torch.float64
    expected = torch.tensor([[hsic_cka(x, y) for y in states] for x in states])
    torch.testing.assert_close(similarity, expected.double(), rtol=0, atol=1e-7)
    assert similarity[0, 1] < 0.8  # not all alike


def test_features_that_do_not_vary_or_are_no_numbers_have_no_cka() -> None:
    for bad in (torch.zeros(9, 2), torch.full((9, 2), torch.nan), torch.full((9, 2), torch.inf)):
        with pytest.raises(ValueError, match="CKA is undefined"):
            linear_cka([torch.stack([normal(9, 2), bad])])
    with pytest.raises(ValueError, match="no tokens"):
        linear_cka([])


def test_the_states_of_a_plain_stack_are_those_of_its_blocks_run_by_hand(small_model: Build) -> None:
    denoiser = small_model(**PLAIN, time_conditioning=True)
    z = torch.randint(0, 12, (3, 16), generator=fpmgm.generator(0))
    with torch.no_grad():
        states = list(layer_states(denoiser, z, 0.3, num_iters=6))
        cond: Any = denoiser.condition(z, 0.3)
        h = denoiser.backbone.embed(z)
        assert len(states) == len(denoiser.backbone.blocks)
        for block, modulation, state in zip(denoiser.backbone.blocks, cond.blocks, states, strict=True):
            h = block(h, modulation, cond.rotation, 0.0)
            torch.testing.assert_close(state, h)
        everywhere = torch.ones_like(z, dtype=torch.bool)
        features = denoiser(z, 0.3, everywhere).features
        torch.testing.assert_close(
            denoiser.backbone.finish(states[-1][everywhere], cond, Places.of(everywhere)), features
        )
    assert layer_names(denoiser.cost, 6) == ("1", "2", "3", "4")


def test_the_states_of_a_fixed_point_model_are_those_of_its_iterations_and_end_where_it_ends(
    small_model: Build,
) -> None:
    denoiser = small_model(num_pre=2)
    z = torch.randint(0, 12, (3, 16), generator=fpmgm.generator(0))
    everywhere = torch.ones_like(z, dtype=torch.bool)
    with torch.no_grad():
        states = list(layer_states(denoiser, z, 0.3, num_iters=3))
        cond = denoiser.condition(z, 0.3)
        h_pre = denoiser.pre(z, cond)
        torch.testing.assert_close(states[1], h_pre)
        for num_iters in (1, 2, 3):
            solution = fpmgm.picard(denoiser.fixed_point_map(h_pre, cond), h_pre, num_iters)
            torch.testing.assert_close(states[1 + num_iters], solution.h)
        features = denoiser(z, 0.3, everywhere, num_grad=3).features
        torch.testing.assert_close(
            denoiser.backbone.finish(states[-1][everywhere], cond, Places.of(everywhere)), features
        )
    names = ("pre 1", "pre 2", "iteration 1", "iteration 2", "iteration 3", "post 1")
    assert layer_names(denoiser.cost, 3) == names
    assert len(states) == len(names)


def test_layers_are_compared_at_all_positions_of_the_text_masked_at_each_time_whatever_the_batch(
    small_model: Build,
) -> None:
    denoiser = small_model(**PLAIN, dropout=0.5).train()
    x = torch.randint(0, 11, (6, 16), generator=fpmgm.generator(0))
    found = layer_similarity(denoiser, x, rng=fpmgm.generator(1), times=(0.2, 0.8), batch_size=4)
    assert denoiser.training
    denoiser.eval()
    u = torch.rand(x.shape, generator=fpmgm.generator(1))
    for t, similarity in zip(found.times, found.by_time, strict=True):
        z = masked_below(x, u, torch.full((6,), t), mask_id=denoiser.mask_id)
        with torch.no_grad():
            states = [h.reshape(6 * 16, -1) for h in layer_states(denoiser, z, t, num_iters=0)]
        expected = torch.tensor([[hsic_cka(a, b) for b in states] for a in states], dtype=torch.float64)
        torch.testing.assert_close(similarity, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.mean, (found.by_time[0] + found.by_time[1]) / 2)
    assert not torch.allclose(found.by_time[0], found.by_time[1], atol=1e-3)


def two_stages(num_early: int, num_late: int, *, across: float = 0.06) -> Tensor:
    """Early layers 0.81 alike, late layers 0.998."""
    group = torch.tensor([0] * num_early + [1] * num_late)
    similarity = torch.where(group == group[:, None], torch.where(group == 0, 0.81, 0.998), across)
    return similarity.fill_diagonal_(1.0)


@pytest.mark.parametrize("num_early", [1, 2, 5, 10, 11])
def test_the_boundary_of_two_stages_is_found_with_the_similarities_in_and_across_them(num_early: int) -> None:
    boundary = strongest_boundary(two_stages(num_early, 12 - num_early))
    assert boundary.after == num_early
    assert boundary.early == pytest.approx(0.81 if num_early > 1 else 1)
    assert boundary.late == pytest.approx(0.998 if num_early < 11 else 1)
    assert boundary.across == pytest.approx(0.06)
    assert boundary.cka == pytest.approx(0.06)


def test_the_boundary_lies_where_neighbours_are_least_alike_whatever_distant_layers_are() -> None:
    similarity = torch.ones(6, 6) - 0.1 * (torch.arange(6) - torch.arange(6)[:, None]).abs()  # an even drift
    similarity[3, 4] = similarity[4, 3] = 0.85
    similarity[0, 2] = similarity[2, 0] = 0.0
    boundary = strongest_boundary(similarity)
    assert boundary.after == 4
    assert boundary.cka == pytest.approx(0.85)
    assert boundary.across == pytest.approx((0.6 + 0.7 + 0.8 + 0.85 + 0.5 + 0.6 + 0.7 + 0.8) / 8)


def test_the_map_of_the_papers_stages_is_the_papers_and_the_fixed_point_is_never_the_last_layer() -> None:
    assert map_of(two_stages(5, 7)) == LayerMap.parse("1/6/12")
    assert map_of(two_stages(11, 1)).fp[0] < 12
    assert map_of(two_stages(2, 1)) == LayerMap.parse("1/2/3")
    with pytest.raises(ValueError, match="at least 3 layers, and the model has 2"):
        map_of(two_stages(1, 1))
    with pytest.raises(ValueError, match="the number of layers is 1; a boundary needs at least 2"):
        strongest_boundary(two_stages(1, 0))


def let_only_layer_3_do_much(denoiser: Denoiser) -> None:
    with torch.no_grad():
        for index in range(denoiser.cost.pre):
            bias = denoiser.get_parameter(f"backbone.blocks.{index}.adaLN_modulation.bias")
            bias[2 * 32 : 3 * 32] = bias[5 * 32 :] = 30.0 if index == 2 else 0.01  # its gates


def test_a_map_is_chosen_where_the_layers_of_a_model_change(small_model: Build) -> None:
    denoiser = small_model(**{**PLAIN, "num_pre": 6})
    x = torch.randint(0, 11, (8, 16), generator=fpmgm.generator(0))
    let_only_layer_3_do_much(denoiser)
    assert choose_map(denoiser, x, rng=fpmgm.generator(0)) == LayerMap.parse("1/3/6")
    with pytest.raises(ValueError, match="has a fixed point already"):
        choose_map(small_model(), x, rng=fpmgm.generator(0))
    with pytest.raises(ValueError, match="the model is causal"):
        choose_map(small_model(**PLAIN, is_causal=True), x, rng=fpmgm.generator(0))


@torch.no_grad()
def test_padding_has_no_part_in_how_alike_layers_are(small_model: Build) -> None:
    model = small_model(**PLAIN)
    x = torch.randint(0, 11, (4, 16), generator=fpmgm.generator(0))
    counts = torch.arange(16) < torch.tensor([[16], [9], [5], [12]])
    found = layer_similarity(model, Batch(x=x, counts=counts), rng=fpmgm.generator(1), times=(0.5,), batch_size=2)
    z = masked_below(x, torch.rand(x.shape, generator=fpmgm.generator(1)), torch.full((4,), 0.5), mask_id=model.mask_id)
    states = torch.stack([h[counts] for h in layer_states(model, z, 0.5, num_iters=0)])
    torch.testing.assert_close(found.mean, linear_cka([states]).float(), check_dtype=False)
    everywhere = layer_similarity(model, x, rng=fpmgm.generator(1), times=(0.5,))
    assert not torch.allclose(found.mean, everywhere.mean, atol=1e-3)


@pytest.fixture
def verse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "verse.txt").write_text(VERSE)
    return str(tmp_path / "verse.txt")


def plain_model(text_model: Model, small_model: Build) -> Model:
    config = replace(as_mdlm(text_model.config), **PLAIN)
    sizes = {"vocab_size": config.vocab_size, "mask_id": config.mask_id, "length": config.length}
    return replace(text_model, denoiser=small_model(**sizes, **PLAIN), config=config)


@pytest.mark.parametrize("verb", ["analyse", "analyze"])
def test_the_command_writes_json_and_plots_and_says_where_the_boundary_is(
    text_model: Model, small_model: Build, verse: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    plain_model(text_model, small_model).save(tmp_path / "model")
    command = [verb, str(tmp_path / "model"), "cka", "--data", verse, "--num-sequences", "4"]
    assert main([*command, "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert captured.err.splitlines() == [f"comparing layers at t = {t}" for t in (0.1, 0.3, 0.5, 0.7, 0.9)]
    assert found["layers"] == ["1", "2", "3", "4"]
    assert found["times"] == [0.1, 0.3, 0.5, 0.7, 0.9]
    assert found["num_tokens"] == 4 * 24
    mean = torch.tensor(found["cka_by_time"]).mean(0)
    torch.testing.assert_close(torch.tensor(found["cka"]), mean)
    torch.testing.assert_close(torch.tensor(found["consecutive"]), mean.diagonal(1))
    after = found["boundary"]["after"]
    assert found["map"] == f"1/{strongest_boundary(mean, num_late=2).after + 1}/4"
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    agreeing = found["boundary_by_time"].count(after)
    assert f"strongest boundary: between {after} and {after + 1}, CKA {found['consecutive'][after - 1]:.3f}" in printed
    assert f"the same at {agreeing} of 5 times" in printed
    assert f"layer map: {found['map']}" in printed
    assert json.loads((tmp_path / "out" / "cka.json").read_text()) == found
    for name in ("cka-layers", "cka-consecutive"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / "out" / f"{name}.svg").read_text()


def test_a_fixed_point_model_is_analysed_by_iterations_and_has_no_map(
    text_model: Model, verse: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text_model.save(tmp_path / "model")
    command = ["analyse", str(tmp_path / "model"), "cka", "--data", verse, "--num-sequences", "4"]
    assert main([*command, "--json", "--out", str(tmp_path / "out")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["layers"] == ["pre 1", *(f"iteration {index}" for index in range(1, 7)), "post 1"]
    assert found["map"] == ""


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({}, ["ckaa"], "unknown analysis 'ckaa'; did you mean 'cka'?"),
        ({}, ["cka", "--num-sequences", "0"], "0 sequences are asked for; ask for at least 1"),
        ({}, ["cka", "--data", "nowhere.txt"], "no data at 'nowhere.txt'"),
        ({"codec": None}, ["cka"], "the model has no tokenizer"),
        ({}, ["cka", "--out", __file__], "which is a file; give a folder"),
    ],
)
def test_wrong_input_to_analyse_gets_one_line_and_exit_code_2(
    text_model: Model,
    verse: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    arguments: list[str],
    message: str,
) -> None:
    replace(text_model, **changes).save(tmp_path / "model")
    data = [] if "--data" in arguments else ["--data", verse]
    assert main(["analyse", str(tmp_path / "model"), *arguments, *data]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_convert_with_the_map_auto_takes_the_map_that_analyse_finds(
    text_model: Model, small_model: Build, verse: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = plain_model(text_model, small_model)
    let_only_layer_3_do_much(model.denoiser)
    model.save(tmp_path / "model")
    assert main(["analyse", str(tmp_path / "model"), "cka", "--data", verse, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["map"] == "1/3/4"
    command = ["convert", str(tmp_path / "model"), str(tmp_path / "fp"), "--map", "auto", "--data", verse]
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["layers"] == "1/3/4"
    assert any(verse in note for note in report["notes"])
    found = fpmgm.load(tmp_path / "fp").denoiser.state_dict()
    expected = fpmgm.to_fixed_point(model, LayerMap.parse("1/3/4")).denoiser.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        ("model", ["--data", "my.txt"], "data is my.txt, which only --map auto reads"),
        ("model", ["--map", "auto", "--to", "mdlm"], "map is auto: a fixed-point model has no form in MDLM's naming"),
        ("model", ["--map", "auto", "--data", "nowhere.txt"], "no data at 'nowhere.txt'"),
        ("fp", ["--map", "auto"], "the source has a fixed point already"),
        ("mute", ["--map", "auto"], "the model has no tokenizer"),
    ],
)
def test_a_map_that_cannot_be_chosen_gets_one_line_and_exit_code_2(
    text_model: Model,
    small_model: Build,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    source: str,
    arguments: list[str],
    message: str,
) -> None:
    model = plain_model(text_model, small_model)
    models = {"model": model, "fp": text_model, "mute": replace(model, codec=None)}
    models[source].save(tmp_path / "source")
    assert main(["convert", str(tmp_path / "source"), str(tmp_path / "out"), *arguments]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert message in captured.err
    assert not (tmp_path / "out").exists()
