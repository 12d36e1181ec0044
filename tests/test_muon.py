"""The optimiser Muon, and gates that start open."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fpmgm.backbones.dit import MDLMConfig, mdlm
from fpmgm.backbones.maskgit import MaskGITConfig
from fpmgm.denoiser import Denoiser
from fpmgm.randomness import generator
from fpmgm.training.muon import RMS_OF_ADAMW, orthogonal
from fpmgm.training.optim import OptimConfig, optimiser_of, set_learning_rate
from tests.conftest import SMALL, Build


@pytest.mark.parametrize("shape", [(24, 24), (24, 60), (60, 24)])
def test_the_orthogonal_part_has_the_singular_vectors_of_its_matrix_and_singular_values_near_1(
    shape: tuple[int, int],
) -> None:
    matrix = torch.randn(*shape, generator=generator(0))
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    inside = u.T @ orthogonal(matrix) @ v.T
    values = inside.diagonal()
    assert values.min() > 0.5
    assert values.max() < 1.3
    torch.testing.assert_close(inside, torch.diag(values), atol=1e-4, rtol=0)
    torch.testing.assert_close(orthogonal(1000 * matrix), orthogonal(matrix), atol=1e-4, rtol=0)


def test_the_orthogonal_part_in_bfloat16_is_near_that_in_float32_and_no_other() -> None:
    matrix = torch.randn(24, 60, generator=generator(0))
    exact, rounded = orthogonal(matrix), orthogonal(matrix, torch.bfloat16)
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).norm() / exact.norm() < 0.05


def test_muon_moves_by_products_of_the_precision_that_is_asked_for(small_model: Build) -> None:
    name = "backbone.blocks.1.mlp.0.weight"
    exact, rounded = (
        dict(stepped(small_model, OptimConfig(kind="muon", muon_precision=p), num_steps=1).named_parameters())[name]
        for p in ("float32", "bfloat16")
    )
    assert not torch.equal(exact, rounded)
    torch.testing.assert_close(exact, rounded, atol=1e-5, rtol=0)


def stepped(build: Callable[[], Denoiser], config: OptimConfig, *, num_steps: int) -> Denoiser:
    denoiser = build()
    optimiser = optimiser_of(denoiser, config)
    for step in range(num_steps):
        for index, parameter in enumerate(denoiser.parameters()):
            parameter.grad = torch.randn(parameter.shape, generator=generator(step, index))
        set_learning_rate(optimiser, config.lr)
        optimiser.step()
    return denoiser


def test_two_steps_of_muon_are_those_of_its_formula(small_model: Build) -> None:
    config = OptimConfig(kind="muon", lr=1e-2, muon_momentum=0.9, injection_lr=0.5)
    moved = dict(stepped(small_model, config, num_steps=2).named_parameters())
    for index, (name, weight) in enumerate(small_model().named_parameters()):
        if name not in ("backbone.blocks.1.mlp.0.weight", "injection.mix.fc1.weight"):
            continue
        lr = 0.5e-2 if name.startswith("injection") else 1e-2
        first, second = (torch.randn(weight.shape, generator=generator(step, index)) for step in range(2))
        means = (0.1 * first, 0.9 * 0.1 * first + 0.1 * second)
        expected = weight.detach().clone()
        for gradient, mean in zip((first, second), means, strict=True):
            expected -= lr * RMS_OF_ADAMW * max(weight.shape) ** 0.5 * orthogonal(0.1 * gradient + 0.9 * mean)
        torch.testing.assert_close(moved[name].detach(), expected)


def image_model() -> Denoiser:
    return MaskGITConfig(
        vocab_size=9, mask_id=8, length=4, num_classes=2, width=16, num_heads=2, num_pre=1, num_fp=1, num_post=1
    ).build(seed=0)


@pytest.mark.parametrize("kind", ["text", "images"])
def test_muon_moves_only_what_tokens_pass_and_all_else_as_adamw_does(small_model: Build, kind: str) -> None:
    build = small_model if kind == "text" else image_model
    muon, adamw = (
        dict(stepped(build, OptimConfig(kind=name), num_steps=3).named_parameters()) for name in ("muon", "adamw")
    )
    others = {name for name in muon if not torch.equal(muon[name], adamw[name])}
    assert {name for name in others if "injection" in name} == {
        *("injection.project.weight", "injection.mix.fc1.weight", "injection.mix.fc2.weight")
    }
    layers = (
        ("attn_qkv", "attn_out", "mlp.0", "mlp.2") if kind == "text" else ("wq", "wk", "wv", "wo", "w1", "w2", "w3")
    )
    expected = {f"backbone.blocks.{index}.{layer}.weight" for index in range(3) for layer in layers}
    assert {name for name in others if "injection" not in name} == expected


def test_gates_start_where_they_are_told_and_nowhere_else(small_model: Build) -> None:
    shut, opened = mdlm(SMALL), mdlm(replace(SMALL, gate_start=0.7))
    before = shut.state_dict()
    for name, tensor in opened.state_dict().items():
        if name.endswith("adaLN_modulation.bias") and "blocks" in name:
            gates = tensor.chunk(6)
            assert all((gates[index] == 0.7).all() for index in (2, 5))
            assert all((gates[index] == 0).all() for index in (0, 1, 3, 4))
        else:
            assert torch.equal(tensor, before[name])


def test_gates_that_are_no_number_are_refused() -> None:
    with pytest.raises(ValueError, match="gate_start is nan; it must be a finite number"):
        MDLMConfig(gate_start=float("nan"))


def test_an_optimiser_that_nobody_knows_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match="adamw, muon"):
        OptimConfig(kind="sgd")  # type: ignore[arg-type]
