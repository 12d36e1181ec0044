"""Trained reuse: updates whose solver starts as the sampler's does."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fpmgm import objectives
from fpmgm.backbones.dit import Network
from fpmgm.denoiser import Denoiser
from fpmgm.gradients import GRADIENTS, sjfb
from fpmgm.masking import stratified_times
from fpmgm.objectives import MaskedCrossEntropy, Noise
from fpmgm.post_training.consistency import Consistency
from fpmgm.post_training.matching import Matching
from fpmgm.randomness import generator
from fpmgm.solvers import Solution
from fpmgm.training.config import Training
from fpmgm.types import Batch
from tests.conftest import Build

WARM = MaskedCrossEntropy(warm_start=1.0)
MASK = 11


def sequences() -> Tensor:
    return torch.randint(0, MASK, (6, 16), generator=generator(0))


def drawn(objective: MaskedCrossEntropy, denoiser: Denoiser, key: int = 1) -> Noise:
    return objective.draw(denoiser, sequences(), rng=generator(key))


def start_by_hand(denoiser: Denoiser, noise: Noise) -> Tensor:
    """The three-state mix of Algorithm 1 with the solution of the noisier input, one position at a time."""
    assert noise.noisier is not None
    assert noise.t_noisier is not None
    cond = denoiser.condition(noise.noisier, noise.t_noisier)
    h_last = denoiser.pre(noise.noisier, cond)
    f = denoiser.fixed_point_map(h_last, cond)
    for _ in range(noise.num_no_grad + noise.num_grad):
        h_last = f(h_last)
    h_pre = denoiser.pre(noise.z, denoiser.condition(noise.z, noise.t))
    h = h_pre.clone()
    for b, row in enumerate(noise.z.tolist()):
        visible = sum(token != MASK for token in row) / len(row)
        for i, token in enumerate(row):
            share = 1.0 if token != MASK else 0.75 + 0.15 * visible
            share = share if token == noise.noisier[b, i] else 0.2
            h[b, i] = (1 - share) * h_pre[b, i] + share * h_last[b, i]
    return h


def watch_starts(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The states that solvers of learning passes start from, as they come."""
    starts: list[Tensor] = []

    def watched(f: Any, h: Tensor, **counts: Any) -> Solution:
        starts.append(h)
        return sjfb(f, h, **counts)

    monkeypatch.setattr(objectives, "gradient_by_name", lambda _: watched)
    return starts


def gradients(denoiser: Denoiser) -> list[Tensor]:
    """Of every weight; each must have one."""
    found = [parameter.grad for parameter in denoiser.parameters() if parameter.grad is not None]
    assert len(found) == len(list(denoiser.parameters()))
    return found


def test_the_solver_starts_from_the_samplers_mix_with_the_solution_of_a_noisier_input(
    small_model: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    denoiser, starts = small_model(), watch_starts(monkeypatch)
    noise = drawn(WARM, denoiser)
    WARM.loss(denoiser, sequences(), noise)
    with torch.no_grad():
        expected = start_by_hand(denoiser, noise)
    torch.testing.assert_close(starts[0], expected, rtol=1e-5, atol=1e-5)


def test_no_gradient_flows_into_a_warm_start_and_every_weight_still_learns(
    small_model: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    denoiser, starts = small_model(), watch_starts(monkeypatch)
    noise = replace(drawn(WARM, denoiser), num_no_grad=0)
    WARM.loss(denoiser, sequences(), noise).total.backward()
    assert not starts[0].requires_grad
    warm = gradients(denoiser)
    assert all(bool(grad.abs().sum() > 0) for grad in warm)
    denoiser.zero_grad()
    cold = replace(noise, noisier=None, t_noisier=None)
    MaskedCrossEntropy().loss(denoiser, sequences(), cold).total.backward()
    assert starts[1].requires_grad
    assert not all(map(torch.equal, gradients(denoiser), warm))


def test_a_noisier_input_masks_what_the_other_masks_and_more(small_model: Build) -> None:
    noise = drawn(WARM, small_model())
    assert noise.noisier is not None
    assert noise.t_noisier is not None
    assert bool((noise.noisier == MASK)[noise.z == MASK].all())
    gaps = (noise.t_noisier - noise.t)[noise.t < 0.7]
    assert bool(((gaps >= 0.05 - 1e-6) & (gaps <= 0.3 + 1e-6)).all())
    assert float(noise.t_noisier.max()) <= 1
    assert torch.equal(torch.where(noise.noisier == MASK, MASK, sequences()), noise.noisier)


def test_given_tokens_are_masked_in_neither_input(small_model: Build) -> None:
    given = torch.zeros(6, 16, dtype=torch.bool)
    given[:, :5] = True
    noise = WARM.draw(small_model(), Batch(x=sequences(), given=given), rng=generator(1))
    assert noise.noisier is not None
    assert not bool((noise.noisier == MASK)[given].any())


def test_without_warm_starts_nothing_more_is_drawn_and_the_loss_is_the_same_to_the_bit(small_model: Build) -> None:
    denoiser, rng, by_hand = small_model(), generator(1), generator(1)
    noise = MaskedCrossEntropy(warm_start=0.0).draw(denoiser, sequences(), rng=rng)
    MaskedCrossEntropy().iterations(rng=by_hand)
    stratified_times(6, rng=by_hand)
    torch.rand(6, 16, generator=by_hand)
    assert torch.equal(rng.get_state(), by_hand.get_state())
    assert noise.noisier is None
    cold = replace(drawn(WARM, denoiser), noisier=None, t_noisier=None)  # what is drawn before is the same too
    loss, other = (MaskedCrossEntropy().loss(denoiser, sequences(), each).total for each in (noise, cold))
    assert torch.equal(loss, other)


def test_a_share_of_the_updates_starts_warm_and_the_same_key_repeats_which(small_model: Build) -> None:
    denoiser = small_model()
    for share in (0.0, 0.3, 1.0):
        objective = MaskedCrossEntropy(warm_start=share)
        warm, again = ([drawn(objective, denoiser, key).noisier for key in range(200)] for _ in range(2))
        assert [each is not None for each in warm] == [each is not None for each in again]
        assert sum(each is not None for each in warm) / 200 == pytest.approx(share, abs=0.08)
        pairs = zip(warm, again, strict=True)
        assert all(torch.equal(one, two) for one, two in pairs if one is not None and two is not None)


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_every_gradient_rule_takes_a_warm_start(small_model: Build, gradient: Any) -> None:
    denoiser, objective = small_model(), replace(WARM, gradient=gradient)
    noise = drawn(objective, denoiser)
    whole = objective.loss(denoiser, sequences(), noise).total
    parts = [objective.loss(denoiser, sequences()[part], noise.rows(part)).total for part in (slice(0, 1), slice(1, 6))]
    torch.testing.assert_close(torch.stack(parts).sum(), whole)
    whole.backward()
    assert gradients(denoiser)


def test_consistency_starts_its_student_warm_too(small_model: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    denoiser, starts = small_model(), watch_starts(monkeypatch)
    objective = Consistency(base=WARM)
    noise = objective.draw(denoiser, sequences(), rng=generator(1))
    objective.loss(denoiser, sequences(), noise)
    with torch.no_grad():
        torch.testing.assert_close(starts[0], start_by_hand(denoiser, noise), rtol=1e-5, atol=1e-5)


def test_dropout_is_off_where_a_warm_start_is_solved_and_on_again_after(small_model: Build) -> None:
    denoiser = small_model(dropout=0.5).train()
    noise = drawn(WARM, denoiser)
    first, second = (WARM._mixed(denoiser, noise, torch.zeros(6, 16, 32)) for _ in range(2))
    assert torch.equal(first, second)
    assert denoiser.training


def test_a_warm_start_is_refused_where_there_is_no_solver_or_no_share(small_model: Build) -> None:
    plain: dict[str, int] = {"num_pre": 2, "num_fp": 0, "num_post": 0}
    with pytest.raises(ValueError, match=r"warm_start is 1.0, and a plain stack has no solver to start; leave it out"):
        drawn(WARM, small_model(**plain))
    for objective in (WARM, Consistency(base=WARM)):
        with pytest.raises(ValueError, match="a plain stack has no solver to start"):
            Training(model=Network(num_pre=2, num_fp=0, num_post=0), objective=objective)
    with pytest.raises(ValueError, match=r"warm_start is 1.5; it must be a share of the updates, 0 to 1"):
        MaskedCrossEntropy(warm_start=1.5)
    with pytest.raises(ValueError, match=r"base.warm_start is 1.0, and matching starts its solver by inputs `own`"):
        Matching(base=WARM)
