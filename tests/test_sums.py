"""Sums that know their parts: the injection that computes again keeps less, and its gradients are plain autograd's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fpmgm import injection
from fpmgm.backbones import dit_block, maskgit_block
from fpmgm.denoiser import Denoiser
from fpmgm.gradients import GRADIENTS, gradient_by_name
from fpmgm.randomness import generator
from fpmgm.solvers import anderson, picard
from fpmgm.sums import added, run_again
from tests.conftest import Build
from tests.images import small_image_model

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def parts(*gate: int) -> Inputs:
    """h, a gate, a branch and a constant."""
    shapes = ((2, 3, 4), gate, (2, 3, 4), (2, 3, 4))
    drawn = [torch.randn(shape, generator=generator(index), dtype=torch.float64) for index, shape in enumerate(shapes)]
    h, gated, branch, constant = (tensor.requires_grad_() for tensor in drawn)
    return h, gated, branch, constant


def mixed(h: Tensor, constant: Tensor) -> Tensor:
    return (h * constant).tanh() * h


def through(h: Tensor, gate: Tensor, branch: Tensor, constant: Tensor) -> Tensor:
    """A sum, and what is made of it twice, as two iterations do."""
    once = run_again(mixed, added(h, gate, branch), constant)
    return run_again(mixed, added(once, gate, branch), constant)


@pytest.mark.parametrize("gate", [(1, 1, 4), (2, 1, 4), (2, 3, 4)])
def test_first_and_second_gradients_of_what_is_made_of_sums_are_those_of_finite_differences(
    gate: tuple[int, ...],
) -> None:
    given = parts(*gate)
    assert torch.autograd.gradcheck(through, given)
    assert torch.autograd.gradgradcheck(through, given)


def test_the_backward_pass_can_be_run_twice() -> None:
    given = parts(1, 1, 4)
    total = through(*given).sum()
    first = torch.autograd.grad(total, given, retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(total, given)))


def network(build: Build, name: str) -> Denoiser:
    if name == "maskgit":
        return small_image_model(num_registers=2).denoiser.double()
    return build(dtype=torch.float64, injection="mlp", num_fp=2 if name == "two blocks" else 1)


def gradients(denoiser: Denoiser, rule: str, solver: Any, *, is_mixed: bool = False) -> list[Tensor]:
    """By all weights, of some number made of the features; of weights that it does not depend on, zeros."""
    rng = generator(3)
    z = torch.randint(0, denoiser.mask_id + 1, (3, denoiser.max_length), generator=rng)
    options: dict[str, Any] = {"num_no_grad": 1, "num_grad": 3, "gradient": gradient_by_name(rule), "solver": solver}
    with torch.autocast("cpu", torch.bfloat16, enabled=is_mixed):
        features = denoiser(z, 0.5, torch.ones_like(z, dtype=torch.bool), **options).features
    aims = torch.randn(features.shape, generator=rng)
    found = torch.autograd.grad((features * aims).sum(), list(denoiser.parameters()), allow_unused=True)
    pairs = zip(found, denoiser.parameters(), strict=True)
    return [torch.zeros_like(weight) if own is None else own for own, weight in pairs]


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, autograd keeps whatever it wants."""

    def switch() -> None:
        monkeypatch.setattr(injection, "run_again", lambda run, h, constant: run(h, constant))
        for module in (dit_block, maskgit_block):
            monkeypatch.setattr(module, "added", torch.addcmul)

    return switch


@pytest.mark.parametrize("name", ["one block", "two blocks", "maskgit"])
@pytest.mark.parametrize(
    ("rule", "solver"),
    [("sjfb", anderson), *((rule, picard) for rule in GRADIENTS)],
)
def test_gradients_of_every_rule_are_those_of_plain_autograd(
    small_model: Build, plain: Callable[[], None], name: str, rule: str, solver: Any
) -> None:
    denoiser = network(small_model, name)
    ours = gradients(denoiser, rule, solver)
    plain()
    assert any(bool(own.any()) for own in ours)
    for own, other in zip(ours, gradients(denoiser, rule, solver), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-12)


def test_gradients_under_autocast_are_those_of_plain_autograd_under_autocast(
    small_model: Build, plain: Callable[[], None]
) -> None:
    denoiser = small_model(injection="mlp")
    ours = gradients(denoiser, "sjfb", picard, is_mixed=True)
    plain()
    for own, other in zip(ours, gradients(denoiser, "sjfb", picard, is_mixed=True), strict=True):
        assert own.dtype == other.dtype == torch.float32
        torch.testing.assert_close(own, other, rtol=0.02, atol=0.01 * float(other.abs().max()))


def kept(denoiser: Denoiser, num_grad: int) -> int:
    """The numbers that autograd keeps of a pass, weights aside."""
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    z = torch.full((2, denoiser.max_length), denoiser.mask_id)
    weights = {parameter.untyped_storage().data_ptr() for parameter in denoiser.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        features = denoiser(z, 0.5, z == denoiser.mask_id, num_no_grad=1, num_grad=num_grad).features
    total = sum(tensor.untyped_storage().nbytes() for address, tensor in saved.items() if address not in weights)
    assert features.requires_grad
    return total // 4


def test_the_papers_injection_keeps_nothing_of_an_iteration_beside_what_its_block_keeps(small_model: Build) -> None:
    diagonal, mlp = ([kept(small_model(injection=kind), num) for num in (2, 3, 4)] for kind in ("diagonal", "mlp"))
    assert mlp[1] - mlp[0] == mlp[2] - mlp[1] <= diagonal[2] - diagonal[1]  # which adds a few numbers a channel
