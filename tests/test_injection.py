import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812

from fpmgm.injection import DiagonalInjection, Injection, LinearInjection, MLPInjection
from fpmgm.randomness import generator
from tests.conftest import Build

WIDTH = 8
EXACT = ["mlp", "linear", "add"]


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


def diagonal(injection: Injection) -> DiagonalInjection:
    assert isinstance(injection.mix, DiagonalInjection)
    return injection.mix


@torch.no_grad()
def test_the_diagonal_injection_is_its_formula_one_number_at_a_time() -> None:
    injection, h, h_pre = build("diagonal")
    mix, found = diagonal(injection), injection(h, injection.constant(h_pre))
    u = injection.project(h_pre)
    for place in ((0, 0), (1, 2)):
        size = math.sqrt(sum(float(number) ** 2 for number in u[place]) / WIDTH)
        for channel in range(WIDTH):
            a = math.exp(-math.exp(float(mix.log_rate[channel])))
            b, e = float(mix.scale[channel]), float(u[place][channel]) / size
            assert float(found[place][channel]) == pytest.approx(a * float(h[place][channel]) + b * e, rel=1e-4)


@given(
    log_rate=st.lists(st.floats(allow_nan=False, width=32), min_size=WIDTH, max_size=WIDTH),
    scale=st.floats(-100, 100, width=32),
)
def test_the_diagonal_injection_is_a_contraction_whatever_its_parameters(log_rate: list[float], scale: float) -> None:
    injection, h, h_pre = build("diagonal")
    mix = diagonal(injection)
    with torch.no_grad():
        mix.log_rate.copy_(torch.tensor(log_rate))
        mix.scale.fill_(scale)
        assert bool(((mix.decay > 0) & (mix.decay < 1)).all())
        constant = injection.double().constant(h_pre.double())
        one, other = (injection(each.double(), constant) for each in (h, 2 - h))
    assert float((one - other).norm()) <= 0.9991 * float((2 * h - 2).norm())


def test_a_fresh_diagonal_injection_has_nothing_random_and_forgets_h_by_the_root_of_5() -> None:
    injection = Injection("diagonal", WIDTH)
    h, h_pre = torch.randn(2, 2, 3, WIDTH, generator=generator(0))
    e = h_pre / h_pre.square().mean(dim=-1, keepdim=True).sqrt()
    torch.testing.assert_close(injection(h, injection.constant(h_pre)), h / math.sqrt(5) + e)


@pytest.mark.parametrize("has_projection", [True, False])
def test_an_exact_diagonal_injection_brings_h_pre_to_one_size(has_projection: bool) -> None:
    injection, h, h_pre = build("diagonal", has_projection=has_projection)
    injection.set_exact(0.3, -2.0)
    size = h_pre.square().mean(dim=-1, keepdim=True).sqrt()
    torch.testing.assert_close(injection(h, injection.constant(h_pre)), 0.3 * h - 2 * h_pre / size)


@pytest.mark.parametrize("a", [0.0, 1.0, -0.5, 7.0])
def test_a_diagonal_injection_that_would_not_shrink_h_is_refused(a: float) -> None:
    injection, *_ = build("diagonal")
    before = [parameter.clone() for parameter in injection.parameters()]
    with pytest.raises(ValueError, match=f"a is {a:g}, and the injection diagonal always shrinks h"):
        injection.set_exact(a, 0.5)
    assert all(map(torch.equal, before, injection.parameters()))


def test_the_diagonal_injection_keeps_its_output_for_the_backward_pass_and_not_its_input() -> None:
    injection, h, h_pre = build("diagonal")
    constant, kept = injection.constant(h_pre), set()

    def keep(tensor: Tensor) -> Tensor:
        kept.add(tensor.data_ptr())
        return tensor

    h.requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = injection(h, constant)
    assert {out.data_ptr(), constant.data_ptr()} <= kept
    assert h.data_ptr() not in kept


def test_gradients_of_the_diagonal_injection_are_those_of_finite_differences() -> None:
    injection, h, h_pre = build("diagonal")
    injection = injection.double()
    names, weights = zip(*injection.named_parameters(), strict=True)

    def whole(h: Tensor, h_pre: Tensor, *weights: Tensor) -> Tensor:
        given = dict(zip((f"each.{name}" for name in names), weights, strict=True))
        return functional_call(_Whole(injection), given, (h, h_pre))

    inputs = [each.double().requires_grad_() for each in (h, h_pre)]
    assert torch.autograd.gradcheck(whole, (*inputs, *weights))


class _Whole(nn.Module):
    """An injection from h and h_pre to what the blocks read."""

    def __init__(self, each: Injection) -> None:
        super().__init__()
        self.each = each

    def forward(self, h: Tensor, h_pre: Tensor) -> Tensor:
        return self.each(h, self.each.constant(h_pre))


def test_a_solve_with_the_diagonal_injection_reads_h_pre_once(
    small_model: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    original = DiagonalInjection.constant

    def counted(mix: DiagonalInjection, u: Tensor) -> Tensor:
        calls.append(u.shape)
        return original(mix, u)

    monkeypatch.setattr(DiagonalInjection, "constant", counted)
    denoiser = small_model(injection="diagonal")
    z = torch.full((2, 16), 11)
    denoiser(z, 1.0, z == 11, num_no_grad=2, num_grad=3)
    assert len(calls) == 1


@pytest.mark.parametrize("kind", EXACT)
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
    [("mlp", 4, 3), ("linear", 1, 2), ("add", 0, 1), ("diagonal", 0, 1)],
)
def test_an_iteration_and_a_solve_cost_what_was_counted_by_hand(kind: str, in_loop: int, once: int) -> None:
    injection, h, h_pre = build(kind)
    unit = h[..., 0].numel() * WIDTH**2  # multiply-adds of one D x D layer
    constant = injection.constant(h_pre)
    assert multiply_adds(lambda: injection.constant(h_pre)) == once * unit
    assert multiply_adds(lambda: injection(h, constant)) == in_loop * unit


@pytest.mark.parametrize(("kind", "once"), [("mlp", 2), ("linear", 1), ("add", 1), ("diagonal", 1)])
def test_folded_an_injection_says_the_same_and_a_solve_costs_a_layer_less(kind: str, once: int) -> None:
    injection, h, h_pre = build(kind)
    expected = injection.constant(h_pre)
    mixed = injection(h, expected)
    with injection.folded():
        torch.testing.assert_close(injection.constant(h_pre), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(injection(h, expected), mixed, rtol=1e-5, atol=1e-5)
        assert multiply_adds(lambda: injection.constant(h_pre)) == once * h[..., 0].numel() * WIDTH**2
    assert injection.constant(h_pre).requires_grad  # as it was


def test_weights_that_change_after_folding_are_read_anew() -> None:
    injection, h, h_pre = build("mlp")
    with injection.folded():
        pass
    injection.set_exact(0.5, 2.0)
    torch.testing.assert_close(injection(h, injection.constant(h_pre)), 0.5 * h + 2 * h_pre)
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
