"""The fused cross entropy: values and gradients of the plain one, whatever the parts."""

import weakref
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode

from fpmgm import head_loss
from fpmgm.head_loss import weighted_nll
from fpmgm.masking import without_mask
from fpmgm.randomness import generator


def some(dtype: torch.dtype = torch.float64) -> Any:
    rng = generator(0)
    features, weight, bias = (torch.randn(shape, generator=rng, dtype=dtype) for shape in ((7, 5), (9, 5), (9,)))
    tokens = torch.randint(0, 8, (7,), generator=rng)
    weights = torch.rand(7, generator=rng)
    return tuple(tensor.requires_grad_() for tensor in (features, weight, bias)), tokens, weights


def fused(learned: Any, tokens: Any, weights: Any, mask_id: int | None) -> Any:
    features, weight, bias = learned
    return weighted_nll(features, weight, bias, tokens, weights, mask_id=mask_id)


def plain(learned: Any, tokens: Any, weights: Any, mask_id: int | None) -> Any:
    logits = F.linear(*learned)
    if mask_id is not None:
        logits = without_mask(logits, mask_id=mask_id)
    return (weights * F.cross_entropy(logits, tokens, reduction="none")).sum()


@pytest.mark.parametrize("at_once", [9, 27, 1 << 20])  # one row, three, all
@pytest.mark.parametrize("mask_id", [None, 8])
def test_value_and_gradients_are_those_of_plain_cross_entropy(
    monkeypatch: pytest.MonkeyPatch, at_once: int, mask_id: int | None
) -> None:
    monkeypatch.setattr(head_loss, "LOGITS_AT_ONCE", at_once)
    learned, tokens, weights = some()
    found = fused(learned, tokens, weights, mask_id)
    expected = plain(learned, tokens, weights, mask_id)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    ours = torch.autograd.grad(3 * found, learned)  # whatever comes after the loss scales its gradients
    theirs = torch.autograd.grad(3 * expected, learned)
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-8)


def test_no_two_parts_have_logits_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_loss, "LOGITS_AT_ONCE", 2 * 9)
    learned, tokens, weights = some(torch.float32)
    with Alive(2 * 9) as watched:
        fused(learned, tokens, weights, 8)
    assert watched.most == 1


class Alive(TorchDispatchMode):
    """Counts tensors of one size that are there at the same time."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.most = size, 0
        self.made: list[weakref.ref[torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.numel() == self.size:
            self.made.append(weakref.ref(out))
        found = [tensor for each in self.made if (tensor := each()) is not None]
        self.most = max(self.most, len({tensor.data_ptr() for tensor in found}))
        return out


def test_no_position_costs_nothing() -> None:
    learned, _, _ = some(torch.float32)
    nothing = learned[0][:0]
    _, weight, bias = learned
    found = weighted_nll(nothing, weight, bias, torch.zeros(0, dtype=torch.long), torch.zeros(0), mask_id=8)
    assert float(found.detach()) == 0
    (by_weight,) = torch.autograd.grad(found, learned[1])
    assert not by_weight.any()


def test_under_autocast_products_are_bf16_and_the_rest_is_not() -> None:
    learned, tokens, weights = some(torch.float32)
    exact = fused(learned, tokens, weights, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = fused(learned, tokens, weights, 8)
    assert found.dtype == torch.float32
    assert float(found.detach()) != float(exact.detach())
    assert float(found.detach()) == pytest.approx(float(exact.detach()), rel=0.02)
    for own, other in zip(torch.autograd.grad(found, learned), torch.autograd.grad(exact, learned), strict=True):
        assert own.dtype == torch.float32
        torch.testing.assert_close(own, other, rtol=0.1, atol=0.05)
