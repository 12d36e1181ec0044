"""Linear layers in float32: torch's own, and by oneDNN where these are slow and nothing is learned."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.flop_counter import FlopCounterMode

from fpmgm import products
from fpmgm.products import Linear, linear
from fpmgm.randomness import generator

WIDTH = 64
ROWS = (4, 256)  # the fewest that oneDNN is asked for

pytestmark = pytest.mark.skipif(not products.has_onednn(), reason="torch has no such operation here, or no use")


@pytest.fixture(autouse=True)
def on_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "is_slow_here", lambda: True)


def given(width: int = WIDTH) -> Tensor:
    return torch.randn(*ROWS, width, generator=generator(1))


def layer(*, bias: bool = True) -> Linear:
    made = Linear(WIDTH, WIDTH, bias=bias)
    with torch.no_grad():
        for index, parameter in enumerate(made.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator(2, index)))
    return made


def is_by_onednn(call: Callable[[], object]) -> bool:
    with torch.autograd.profiler.profile() as watched:
        call()
    return any(event.name == "mkldnn::_linear_pointwise" for event in watched.function_events)


@pytest.mark.parametrize("bias", [True, False])
def test_where_nothing_is_learned_a_layer_is_that_of_torch_by_onednn(bias: bool) -> None:
    made, x = layer(bias=bias), given()
    with torch.no_grad():
        assert is_by_onednn(lambda: made(x))
        exact = F.linear(x.double(), made.weight.double(), None if made.bias is None else made.bias.double())
        torch.testing.assert_close(made(x).double(), exact, rtol=1e-5, atol=1e-4)
        assert not is_by_onednn(lambda: F.linear(x, made.weight, made.bias))


def test_a_layer_that_learns_has_the_gradients_of_torch() -> None:
    made, x = layer(), given().requires_grad_()
    assert not is_by_onednn(lambda: made(x))
    learned = [x, *made.parameters()]
    ours, theirs = (torch.autograd.grad(f.square().sum(), learned) for f in (made(x), F.linear(x, *learned[1:])))
    assert all(map(torch.equal, ours, theirs))
    assert not is_by_onednn(lambda: made(x.detach()))  # its own weights learn


@torch.no_grad()
@pytest.mark.parametrize("case", ["few", "strided", "part", "double", "bfloat16", "autocast", "missing", "fast"])
def test_elsewhere_it_is_torchs_own_to_the_bit(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, x = layer(), given()
    weight, bias = made.weight.data, made.bias.data
    if case == "few":
        x = x[:3]
    elif case == "strided":
        x = given(2 * WIDTH)[..., ::2]
    elif case == "part":  # the columns of a larger weight
        weight = torch.cat([weight, weight], dim=1)[:, :WIDTH]
    elif case in ("double", "bfloat16"):
        x, weight, bias = (each.to(getattr(torch, case)) for each in (x, weight, bias))
    elif case == "missing":
        monkeypatch.setattr(products, "has_onednn", lambda: False)
    elif case == "fast":
        monkeypatch.setattr(products, "is_slow_here", lambda: False)
    with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
        assert not is_by_onednn(lambda: linear(x, weight, bias))
        assert torch.equal(linear(x, weight, bias), F.linear(x, weight, bias))


@torch.no_grad()
def test_plain_layers_of_another_network_are_quickened_and_no_others() -> None:
    own = type("Own", (nn.Linear,), {})
    network = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ModuleDict({"own": own(WIDTH, WIDTH)})["own"])
    before = network(given())
    products.quicken(network)
    assert [type(layer) for layer in network] == [Linear, own]
    torch.testing.assert_close(network(given()), before, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_what_counts_operations_sees_them() -> None:
    with FlopCounterMode(display=False) as counter:
        layer()(given())
    assert counter.get_total_flops() == 2 * 4 * 256 * WIDTH**2
