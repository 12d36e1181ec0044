from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fpmgm.injection import INJECTIONS, Injection, LinearInjection, MLPInjection
from fpmgm.randomness import generator

WIDTH = 8


def build(kind: str, *, has_projection: bool = True) -> tuple[Injection, Tensor, Tensor]:
    rng = generator(0)
    injection = Injection(kind, WIDTH, has_projection=has_projection)
    with torch.no_grad():
        for parameter in injection.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng))
    return injection, torch.randn(2, 3, WIDTH, generator=rng), torch.randn(2, 3, WIDTH, generator=rng)


def test_the_mlp_injection_is_the_papers_with_the_u_half_taken_out_of_the_loop() -> None:
    injection, h, h_pre = build("mlp")
    assert isinstance(injection.mix, MLPInjection)
    u = injection.project(h_pre)
    expected = injection.mix.fc2(F.gelu(injection.mix.fc1(torch.cat([h, u], dim=-1)), approximate="tanh"))
    torch.testing.assert_close(injection(h, injection.constant(h_pre)), expected)


def test_the_linear_injection_is_one_layer_over_both() -> None:
    injection, h, h_pre = build("linear")
    assert isinstance(injection.mix, LinearInjection)
    expected = injection.mix.fc(torch.cat([h, injection.project(h_pre)], dim=-1))
    torch.testing.assert_close(injection(h, injection.constant(h_pre)), expected)


def test_the_add_injection_starts_half_and_half() -> None:
    injection = Injection("add", WIDTH, has_projection=False)
    h, h_pre = torch.ones(1, 1, WIDTH), 3 * torch.ones(1, 1, WIDTH)
    torch.testing.assert_close(injection(h, injection.constant(h_pre)), 2 * torch.ones(1, 1, WIDTH))


@pytest.mark.parametrize("kind", INJECTIONS)
@pytest.mark.parametrize(("a", "b"), [(1.0, 0.0), (0.5, 0.5), (0.3, -2.0)])
@pytest.mark.parametrize("has_projection", [True, False])
def test_an_exact_injection_returns_a_h_plus_b_h_pre(kind: str, a: float, b: float, has_projection: bool) -> None:
    injection, h, h_pre = build(kind, has_projection=has_projection)
    injection.set_exact(a, b)
    torch.testing.assert_close(injection(h, injection.constant(h_pre)), a * h + b * h_pre, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_is_antisymmetric_up_to_the_identity(approximate: str) -> None:
    x = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    difference = F.gelu(x, approximate=approximate) - F.gelu(-x, approximate=approximate)
    torch.testing.assert_close(difference, x, atol=1e-14, rtol=0)


@pytest.mark.parametrize(
    ("kind", "in_loop", "once"),
    [("mlp", 4, 3), ("linear", 1, 2), ("add", 0, 1)],
)
def test_an_iteration_and_a_solve_cost_what_was_counted_by_hand(kind: str, in_loop: int, once: int) -> None:
    injection, h, h_pre = build(kind)
    unit = h[..., 0].numel() * WIDTH**2  # multiply-adds of one D x D layer
    constant = injection.constant(h_pre)
    assert multiply_adds(lambda: injection.constant(h_pre)) == once * unit
    assert multiply_adds(lambda: injection(h, constant)) == in_loop * unit


@pytest.mark.parametrize(("kind", "once"), [("mlp", 2), ("linear", 1), ("add", 1)])
def test_folded_an_injection_says_the_same_and_a_solve_costs_a_layer_less(kind: str, once: int) -> None:
    injection, h, h_pre = build(kind)
    expected = injection.constant(h_pre)
    with injection.folded():
        torch.testing.assert_close(injection.constant(h_pre), expected, rtol=1e-5, atol=1e-5)
        assert multiply_adds(lambda: injection.constant(h_pre)) == once * h[..., 0].numel() * WIDTH**2
    assert injection.constant(h_pre).requires_grad  # as it was


def test_weights_that_change_after_folding_are_read_anew() -> None:
    injection, _, h_pre = build("mlp")
    with injection.folded():
        pass
    injection.set_exact(0.5, 2.0)
    with torch.no_grad(), injection.folded():
        torch.testing.assert_close(injection.constant(h_pre)[..., :WIDTH], 2 * h_pre)


def multiply_adds(call: Callable[[], Tensor]) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops() // 2


def test_a_misspelt_injection_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="unknown injection 'liner'; did you mean 'linear'"):
        Injection("liner", WIDTH)
