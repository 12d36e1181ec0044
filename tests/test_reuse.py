import pytest
import torch

from fpmgm.randomness import generator
from fpmgm.reuse import ThreeStateReuse, full_reuse, no_reuse, reuse_by_name, three_state_reuse
from fpmgm.types import Solved

MASK = 9


def gamma_by_hand(rule: ThreeStateReuse, z: list[int], z_last: list[int]) -> list[float]:
    """Algorithm 1, lines 10 to 12, one position at a time."""
    v = sum(token != MASK for token in z) / len(z)
    gamma = []
    for token, last in zip(z, z_last, strict=True):
        if token == last and token != MASK:
            gamma.append(rule.visible)
        elif token == last:
            gamma.append(rule.masked_min + (rule.masked_max - rule.masked_min) * v)
        else:
            gamma.append(rule.changed_min + (rule.changed_max - rule.changed_min) * v)
    return gamma


def gamma_of(rule: ThreeStateReuse, z: list[list[int]], z_last: list[list[int]]) -> torch.Tensor:
    """With h_pre = 0 and h_star = 1 the mix is gamma itself."""
    shape = (len(z), len(z[0]), 2)
    last = Solved(z=torch.tensor(z_last), h_star=torch.ones(shape))
    return rule(torch.zeros(shape), torch.tensor(z), last, mask_id=MASK)[..., 0]


@pytest.mark.parametrize(
    ("z", "z_last"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4]),  # all unchanged
        ([MASK] * 4, [MASK] * 4),  # all still masked
        ([1, 2, MASK, MASK], [1, MASK, MASK, 3]),  # unchanged, revealed, masked, remasked
        ([1, 2, 3, 4], [4, 3, 2, 1]),  # all replaced
    ],
)
@pytest.mark.parametrize("rule", [ThreeStateReuse(), ThreeStateReuse(visible=0.9, changed_min=0.0, changed_max=0.3)])
def test_three_state_reuse_matches_algorithm_1(rule: ThreeStateReuse, z: list[int], z_last: list[int]) -> None:
    torch.testing.assert_close(gamma_of(rule, [z], [z_last])[0], torch.tensor(gamma_by_hand(rule, z, z_last)))


def test_the_coefficients_are_the_papers_at_both_ends() -> None:
    nothing_visible = gamma_of(three_state_reuse, [[MASK] * 1000], [[MASK] * 1000])
    assert nothing_visible.unique().item() == pytest.approx(0.75)
    almost_all = gamma_of(three_state_reuse, [[MASK] + [1] * 9999], [[MASK] + [1] * 9998 + [2]])
    assert almost_all[0, 0].item() == pytest.approx(0.90, abs=1e-4)
    assert almost_all[0, 1].item() == 1
    assert almost_all[0, -1].item() == pytest.approx(0.2)


def test_the_visible_fraction_is_that_of_the_sequence_not_of_the_batch() -> None:
    z = [[MASK, MASK, MASK, MASK], [1, 2, 3, MASK]]
    gamma = gamma_of(ThreeStateReuse(), z, z)
    assert gamma[0, 3].item() == pytest.approx(0.75)
    assert gamma[1, 3].item() == pytest.approx(0.75 + 0.15 * 0.75)


def test_reuse_mixes_the_last_solution_into_the_pre_layer_output() -> None:
    rng = generator(0)
    h_pre, h_star = torch.randn(1, 2, 3, generator=rng), torch.randn(1, 2, 3, generator=rng)
    z = torch.tensor([[1, 5]])
    last = Solved(z=torch.tensor([[1, MASK]]), h_star=h_star)
    h = three_state_reuse(h_pre, z, last, mask_id=MASK)
    torch.testing.assert_close(h[:, 0], h_star[:, 0])
    torch.testing.assert_close(h[:, 1], 0.2 * h_star[:, 1] + 0.8 * h_pre[:, 1])


@pytest.mark.parametrize("name", ["none", "full", "three-state"])
def test_the_first_step_starts_at_the_pre_layer_output(name: str) -> None:
    h_pre = torch.randn(1, 2, 3, generator=generator(0))
    assert torch.equal(reuse_by_name(name)(h_pre, torch.tensor([[1, MASK]]), None, mask_id=MASK), h_pre)


def test_no_reuse_takes_nothing_and_full_reuse_everything() -> None:
    z = torch.tensor([[1, MASK]])
    last = Solved(z=torch.tensor([[2, 3]]), h_star=torch.ones(1, 2, 3))
    h_pre = torch.zeros(1, 2, 3)
    assert torch.equal(no_reuse(h_pre, z, last, mask_id=MASK), h_pre)
    assert torch.equal(full_reuse(h_pre, z, last, mask_id=MASK), last.h_star)


def test_a_coefficient_out_of_range_and_a_misspelt_rule_are_refused() -> None:
    with pytest.raises(ValueError, match=r"masked_max is 1\.2; it must lie between 0 and 1"):
        ThreeStateReuse(masked_max=1.2)
    with pytest.raises(ValueError, match="did you mean 'three-state'"):
        reuse_by_name("three_state")
