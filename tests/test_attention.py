"""Attention by plain products is torch's own attention, up to the digits of its precision."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from fpmgm.backbones import attention
from fpmgm.backbones.attention import attend
from fpmgm.randomness import generator


def heads(num_queries: int, num_keys: int = 24) -> list[torch.Tensor]:
    return [
        torch.randn(2, 3, num, 8, generator=generator(index))
        for index, num in enumerate([num_queries, num_keys, num_keys])
    ]


@pytest.mark.parametrize("num_queries", [1, 5, 24])
def test_plain_products_in_bfloat16_are_attention_and_have_its_gradients(num_queries: int) -> None:
    exact, rounded = heads(num_queries), [part.bfloat16() for part in heads(num_queries)]
    for part in (*exact, *rounded):
        part.requires_grad_()
    q, k, v = exact
    expected, found = F.scaled_dot_product_attention(q, k, v), attend(*rounded)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, atol=0.03, rtol=0)
    expected.square().sum().backward()
    found.float().square().sum().backward()
    for part, other in zip(exact, rounded, strict=True):
        assert part.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(other.grad.float(), part.grad, atol=0.1, rtol=0.1)


def test_without_gradients_shares_are_those_of_a_softmax_in_float32_to_the_bit() -> None:
    scores = (9 * torch.randn(2, 3, 5, 64, generator=generator(0))).bfloat16()
    exact = torch.softmax(scores.float(), dim=-1).bfloat16()
    assert torch.equal(attention._shares(scores), exact)
    assert torch.equal(attention._shares(scores.requires_grad_()), exact)


def test_plain_products_are_taken_in_bfloat16_only_and_for_short_sequences_without_a_mask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []
    usual = F.scaled_dot_product_attention

    def watched(*args: object, **settings: object) -> torch.Tensor:
        called.append("torch")
        return usual(*args, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", watched)
    q, k, v = heads(24)
    attend(q, k, v)
    assert called == ["torch"]
    attend(q.bfloat16(), k.bfloat16(), v.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        found = attend(q, k, v)
    assert called == ["torch"]
    assert found.dtype == torch.bfloat16
    attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), is_causal=True)
    attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), torch.ones(2, 1, 1, 24, dtype=torch.bool))
    monkeypatch.setattr(attention, "MOST_POSITIONS", 23)
    attend(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert called == ["torch"] * 4
