"""The tanh GELU and the layers beside it: equal to torch's own, kept once, and by oneDNN where that is faster."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812
from torch.utils.flop_counter import FlopCounterMode

from fpmgm import gelu as gelus
from fpmgm.gelu import GeluMLP, gelu
from fpmgm.injection import MLPInjection
from fpmgm.randomness import generator

WIDTH = 64
ROWS = (2, 512)  # the fewest for all forms

needs_onednn = pytest.mark.skipif(not gelus._has_onednn(), reason="torch has no such operations here, or no use")


def given(width: int = WIDTH, rows: tuple[int, ...] = ROWS, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*rows, width, generator=generator(1), dtype=dtype)


def mlp(width: int = WIDTH) -> GeluMLP:
    made = GeluMLP(width, 4 * width)
    with torch.no_grad():
        for index, parameter in enumerate(made.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator(2, index)) * width**-0.5)
    return made


def injection(width: int = WIDTH) -> MLPInjection:
    made = MLPInjection(width)
    with torch.no_grad():
        for index, parameter in enumerate(made.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator(3, index)) * width**-0.5)
    return made


def plain_mlp(made: GeluMLP, x: Tensor) -> Tensor:
    return made[2](F.gelu(made[0](x), approximate="tanh"))


def plain_injection(made: MLPInjection, h: Tensor, constant: Tensor) -> Tensor:
    hidden = F.linear(h, made.fc1.weight[:, : h.shape[-1]]) + constant
    return made.fc2(F.gelu(hidden, approximate="tanh"))


def operations(call: Callable[[], object]) -> set[str]:
    """The names of all that torch runs."""
    with torch.autograd.profiler.profile() as watched:
        call()
    return {event.name for event in watched.function_events}


def of_onednn(call: Callable[[], object]) -> set[str]:
    return {name for name in operations(call) if name.startswith("mkldnn::_")}


def assert_same_gradients(ours: Tensor, theirs: Tensor, learned: list[Tensor]) -> None:
    outer = torch.randn(ours.shape, generator=generator(4), dtype=ours.dtype)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=3e-6)
    found, expected = (torch.autograd.grad(each, learned, outer) for each in (ours, theirs))
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).norm() / other.norm()) < 1e-6


def test_the_mlp_is_linear_gelu_linear_with_and_without_gradients() -> None:
    made, x = mlp(), given().requires_grad_()
    assert_same_gradients(made(x), plain_mlp(made, x), [x, *made.parameters()])
    with torch.no_grad():
        torch.testing.assert_close(made(x), plain_mlp(made, x), rtol=1e-5, atol=3e-6)


def test_the_injection_is_linear_gelu_linear_with_and_without_gradients() -> None:
    width = 2 * WIDTH  # its hidden layer is twice as wide only
    made, (h, constant) = injection(width), (given(width).requires_grad_(), given(2 * width).requires_grad_())
    learned = [h, constant, made.fc1.weight, *made.fc2.parameters()]
    assert_same_gradients(made(h, constant), plain_injection(made, h, constant), learned)
    with torch.no_grad():
        torch.testing.assert_close(made(h, constant), plain_injection(made, h, constant), rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("kind", ["mlp", "injection"])
def test_gradients_are_those_of_finite_differences(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gelus, "FEWEST_KEPT_ONCE", 0)
    made = (mlp(4) if kind == "mlp" else injection(4)).double()
    inputs = [given(width, (2, 3), torch.float64) for width in ([4] if kind == "mlp" else [4, 8])]
    names = [name for name, _ in made.named_parameters() if name != "fc1.bias"]  # the constant has it
    weights = [dict(made.named_parameters())[name].detach() for name in names]

    def whole(*tensors: Tensor) -> Tensor:
        own = dict(zip(names, tensors[len(inputs) :], strict=True))
        found: Tensor = functional_call(made, own, tensors[: len(inputs)])
        return found

    assert torch.autograd.gradcheck(whole, [tensor.requires_grad_() for tensor in (*inputs, *weights)])


@pytest.mark.parametrize("learned", [("2.weight",), ("2.bias",), ("0.weight", "0.bias"), ()])
def test_frozen_weights_get_no_gradient_and_the_others_get_theirs(learned: tuple[str, ...]) -> None:
    made, x = mlp(), given().requires_grad_(not learned)
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(name in learned)
    asked = [parameter for parameter in made.parameters() if parameter.requires_grad] or [x]
    assert_same_gradients(made(x), plain_mlp(made, x), asked)


@pytest.mark.parametrize("kind", ["mlp", "injection"])
def test_what_the_gelu_returns_is_not_kept(kind: str) -> None:
    made = mlp() if kind == "mlp" else injection()
    inputs = [given()] if kind == "mlp" else [given(), given(2 * WIDTH)]
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // 4
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        made(*(each.requires_grad_() for each in inputs))
    owned = {parameter.data_ptr() for parameter in made.parameters()} | {each.data_ptr() for each in inputs}
    others = [size for place, size in sizes.items() if place not in owned]
    assert others == ([4 * WIDTH * 1024] if kind == "mlp" else [])


@pytest.mark.parametrize("kind", ["mlp", "injection"])
def test_under_autocast_it_is_the_plain_form_to_the_bit(kind: str) -> None:
    made = mlp() if kind == "mlp" else injection()
    inputs = [given()] if kind == "mlp" else [given(), given(2 * WIDTH)]
    with torch.autocast("cpu", torch.bfloat16):
        ours = made(*inputs)
        plain = plain_mlp(made, *inputs) if isinstance(made, GeluMLP) else plain_injection(made, *inputs)
    assert ours.dtype == torch.bfloat16
    assert torch.equal(ours, plain)
    learned = list(made.parameters())[-2:]
    for one, other in zip(*(torch.autograd.grad(each.sum(), learned) for each in (ours, plain)), strict=True):
        assert torch.equal(one, other)


@needs_onednn
def test_without_gradients_the_gelu_is_a_part_of_the_product() -> None:
    made, x, mix = mlp(), given(), injection(2 * WIDTH)
    with torch.no_grad():
        assert of_onednn(lambda: made(x)) == {"mkldnn::_linear_pointwise"}
        assert of_onednn(lambda: mix(given(2 * WIDTH), given(4 * WIDTH))) == {"mkldnn::_convolution_pointwise"}
    made.requires_grad_(False)
    assert of_onednn(lambda: made(x)) == {"mkldnn::_linear_pointwise"}  # nothing is to be learned


@needs_onednn
def test_in_training_the_gelu_is_onednns_on_the_way_there_and_back() -> None:
    made, x = mlp(), given()
    out = made(x)
    assert of_onednn(lambda: made(x)) == {"mkldnn::_convolution_pointwise"}
    assert of_onednn(lambda: out.sum().backward()) == {"mkldnn::_convolution_pointwise"}


@torch.no_grad()
@pytest.mark.parametrize("case", ["few", "strided", "double", "bfloat16", "counted", "missing"])
def test_elsewhere_it_is_the_plain_form_to_the_bit(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, x = mlp(), given()
    if case == "few":
        x = x[:1, :8]
    elif case == "strided":
        x = given(2 * WIDTH)[..., ::2]
        made[0].weight = nn.Parameter(made[0].weight.T.contiguous().T)
    elif case in ("double", "bfloat16"):
        made, x = made.to(getattr(torch, case)), x.to(getattr(torch, case))
    elif case == "missing":
        monkeypatch.setattr(gelus, "_has_onednn", lambda: False)
    if case == "counted":
        with FlopCounterMode(display=False) as counter:
            found = made(x)
        assert counter.get_total_flops() == 2 * 2 * 4 * WIDTH**2 * 1024
    else:
        assert not of_onednn(lambda: made(x)) or case == "strided"  # what the product gives is not strided
        found = made(x)
    torch.testing.assert_close(found, plain_mlp(made, x), rtol=0, atol=3e-6 if case == "strided" else 0)


@pytest.mark.parametrize("width", [32, 40, 384])
@pytest.mark.parametrize("rows", [(0,), (3,), (2, 2048)])
def test_the_gelu_is_torchs_own_whatever_the_shape(width: int, rows: tuple[int, ...]) -> None:
    x = 4 * given(width, rows)
    expected = F.gelu(x, approximate="tanh")
    torch.testing.assert_close(gelu(x), expected, rtol=1e-5, atol=1e-6)
    assert gelu(x.requires_grad_()).requires_grad
