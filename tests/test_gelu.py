"""The MLP with the tanh GELU: equal to torch's own layers, and by oneDNN where that is faster."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.flop_counter import FlopCounterMode

from fpmgm import products
from fpmgm.gelu import GeluMLP
from fpmgm.randomness import generator

WIDTH = 64
ROWS = (2, 128)  # the fewest that oneDNN is asked for


@pytest.fixture(autouse=True)
def on_intel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch's own products are fast, so that only the GELU is a reason for oneDNN."""
    monkeypatch.setattr(products, "is_slow_here", lambda: False)


needs_onednn = pytest.mark.skipif(not products.has_onednn(), reason="torch has no such operation here, or no use")


def given(width: int = WIDTH) -> Tensor:
    return torch.randn(*ROWS, width, generator=generator(1))


def mlp() -> GeluMLP:
    made = GeluMLP(WIDTH, 4 * WIDTH)
    with torch.no_grad():
        for index, parameter in enumerate(made.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator(2, index)) * WIDTH**-0.5)
    return made


def plain(made: GeluMLP, x: Tensor) -> Tensor:
    found: Tensor = made[2](F.gelu(made[0](x), approximate="tanh"))
    return found


def is_by_onednn(call: Callable[[], object]) -> bool:
    with torch.autograd.profiler.profile() as watched:
        call()
    return any(event.name == "mkldnn::_linear_pointwise" for event in watched.function_events)


def test_the_mlp_is_linear_gelu_linear_with_and_without_gradients() -> None:
    made, x = mlp(), given().requires_grad_()
    torch.testing.assert_close(made(x), plain(made, x), rtol=0, atol=0)
    learned = [x, *made.parameters()]
    for one, other in zip(*(torch.autograd.grad(f.sum(), learned) for f in (made(x), plain(made, x))), strict=True):
        assert torch.equal(one, other)
    with torch.no_grad():
        torch.testing.assert_close(made(x), plain(made, x), rtol=1e-5, atol=3e-6)


@needs_onednn
def test_where_nothing_is_learned_the_gelu_is_a_part_of_the_product() -> None:
    made, x = mlp(), given()
    assert not is_by_onednn(lambda: made(x))
    with torch.no_grad():
        assert is_by_onednn(lambda: made(x))
    made.requires_grad_(False)
    assert is_by_onednn(lambda: made(x))


@torch.no_grad()
@pytest.mark.parametrize("case", ["few", "strided", "double", "bfloat16", "autocast", "missing", "rounded"])
def test_elsewhere_it_is_the_plain_form_to_the_bit(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, x = mlp(), given()
    if case == "few":
        x = x[:1]
    elif case == "strided":
        x = given(2 * WIDTH)[..., ::2]
    elif case in ("double", "bfloat16"):
        made, x = made.to(getattr(torch, case)), x.to(getattr(torch, case))
    elif case == "missing":
        monkeypatch.setattr(products, "has_onednn", lambda: False)
    elif case == "rounded":  # a layer of another class has a way of its own
        made[0].__class__ = type("Rounded", (nn.Linear,), {})
    with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
        assert not is_by_onednn(lambda: made(x))
        assert torch.equal(made(x), plain(made, x))


@torch.no_grad()
def test_what_counts_operations_sees_them() -> None:
    with FlopCounterMode(display=False) as counter:
        mlp()(given())
    assert counter.get_total_flops() == 2 * 2 * 4 * WIDTH**2 * 256
