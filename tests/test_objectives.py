import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import fpmgm
from fpmgm import head_loss, objectives
from fpmgm.masking import SCHEDULES, corrupt, stratified_times, subs
from fpmgm.objectives import MaskedCrossEntropy, NextToken
from fpmgm.randomness import generator
from fpmgm.types import Batch
from tests.conftest import SMALL, Build


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_the_bound_is_mdlms_loss_written_out(small_model: Build, name: Any) -> None:
    schedule = fpmgm.mask_schedule_by_name(name)
    denoiser = small_model(num_pre=2, num_fp=0, num_post=0, time_conditioning=True)
    x = torch.randint(0, 11, (6, 16), generator=generator(0))
    loss = MaskedCrossEntropy(schedule=name)(denoiser, x, rng=generator(1)).total

    rng = generator(1)
    t = stratified_times(6, rng=rng)
    z = corrupt(x, t, mask_id=11, rng=rng, schedule=schedule)
    everywhere = torch.ones_like(z, dtype=torch.bool)
    logits = denoiser.head(denoiser(z, t, everywhere).features).unflatten(0, z.shape)
    log_p = subs(logits.detach(), z, mask_id=11)
    expected = 0.0
    for b in range(6):
        for i in range(16):  # SUBS makes visible positions cost nothing
            expected += -float(log_p[b, i, x[b, i]]) * float(schedule.weight(t)[b]) / x.numel()
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)


def test_the_masked_weighting_is_the_mean_over_masked_tokens(small_model: Build) -> None:
    fresh = fpmgm.mdlm(replace(SMALL, num_pre=2, num_fp=0, num_post=0))
    x = torch.randint(0, 11, (6, 16), generator=generator(0))
    loss = MaskedCrossEntropy(weighting="masked")(fresh, x, rng=generator(1)).total
    assert float(loss.detach()) == pytest.approx(math.log(11), rel=1e-5)


def test_the_bound_of_a_fresh_network_averages_to_log_v() -> None:
    fresh = fpmgm.mdlm(replace(SMALL, num_pre=1, num_fp=0, num_post=0))
    x = torch.randint(0, 11, (64, 16), generator=generator(0))
    with torch.no_grad():
        losses = [float(MaskedCrossEntropy()(fresh, x, rng=generator(i)).total) for i in range(100)]
    assert sum(losses) / 100 == pytest.approx(math.log(11), rel=0.03)


def test_a_batch_without_masks_costs_nothing_and_is_no_nan(small_model: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    clear = replace(fpmgm.mask_schedule_by_name("linear"), masked=lambda t: 0 * t)
    monkeypatch.setitem(SCHEDULES, "linear", clear)
    for weighting in ("bound", "masked"):
        objective = MaskedCrossEntropy(weighting=weighting)
        loss = objective(small_model(), torch.zeros(2, 16, dtype=torch.long), rng=generator(0)).total
        assert float(loss.detach()) == 0


def test_the_parts_of_a_batch_add_up_to_its_loss(small_model: Build) -> None:
    denoiser = small_model()
    x = torch.randint(0, 11, (6, 16), generator=generator(0))
    for weighting in ("bound", "masked"):
        objective = MaskedCrossEntropy(weighting=weighting)
        noise = objective.draw(denoiser, x, rng=generator(1))
        whole = objective.loss(denoiser, x, noise).total
        parts = [objective.loss(denoiser, x[part], noise.rows(part)).total for part in (slice(0, 1), slice(1, 6))]
        torch.testing.assert_close(torch.stack(parts).sum(), whole)


@pytest.mark.parametrize("pad_id", [3, 11])  # a symbol of its own, or the mask
@pytest.mark.parametrize("weighting", ["bound", "masked"])
def test_padding_is_no_part_of_the_loss(small_model: Build, weighting: Any, pad_id: int) -> None:
    denoiser = small_model()
    x = torch.randint(4, 11, (6, 16), generator=generator(0))
    for row, end in enumerate((16, 3, 9, 16, 1, 5)):
        x[row, end:] = pad_id
    objective = MaskedCrossEntropy(weighting=weighting)
    noise = objective.draw(denoiser, Batch(x=x, counts=x != pad_id), rng=generator(1))
    z = noise.z
    asked = (z == 11) & (x != pad_id)
    features = denoiser(
        z, noise.t, torch.ones_like(asked), num_no_grad=noise.num_no_grad, num_grad=noise.num_grad
    ).features
    log_p = fpmgm.subs(denoiser.head(features).view(6, 16, -1), torch.full_like(z, 11), mask_id=11)
    nll = -log_p.gather(2, x[..., None].clamp(max=10))[..., 0]
    weight = 1 / noise.t[:, None].expand_as(nll) if weighting == "bound" else torch.ones_like(nll)
    number = 50 if weighting == "bound" else int(asked.sum())
    expected = (weight * nll)[asked].sum() / number
    torch.testing.assert_close(objective.loss(denoiser, x, noise).total, expected)


def test_padding_is_no_part_of_a_causal_loss(small_model: Build) -> None:
    denoiser = small_model(num_pre=2, num_fp=0, num_post=0, is_causal=True)
    x = torch.randint(4, 11, (2, 16), generator=generator(0))
    x[1, 6:] = 3
    objective = NextToken()
    found = objective.loss(denoiser, x, objective.draw(denoiser, Batch(x=x, counts=x != 3), rng=generator(1))).total
    nll = objectives.next_token_nll(denoiser, x)
    torch.testing.assert_close(found, (nll[0].sum() + nll[1, :5].sum()) / 20)


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_head_run_in_parts_gives_the_same_loss_and_gradients(
    small_model: Build, monkeypatch: pytest.MonkeyPatch, is_causal: bool
) -> None:
    denoiser = small_model(num_pre=2, num_fp=0, num_post=0, is_causal=is_causal, dtype=torch.float64)
    objective = NextToken() if is_causal else MaskedCrossEntropy()
    x = torch.randint(0, 11, (6, 16), generator=generator(0))
    found = []
    for limit in (head_loss.LOGITS_AT_ONCE, 5 * denoiser.vocab_size):
        monkeypatch.setattr(head_loss, "LOGITS_AT_ONCE", limit)
        loss = objective.loss(denoiser, x, objective.draw(denoiser, x, rng=generator(1))).total
        found.append([loss.detach(), *torch.autograd.grad(loss, list(denoiser.parameters()))])
    torch.testing.assert_close(found[0], found[1])


def test_a_loss_of_many_logits_holds_few_of_them_at_a_time(small_model: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    original = torch.Tensor.exp_

    def watched(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel())
        return original(tensor)

    monkeypatch.setattr(torch.Tensor, "exp_", watched)
    monkeypatch.setattr(head_loss, "LOGITS_AT_ONCE", 60)
    MaskedCrossEntropy()(small_model(), torch.zeros(6, 16, dtype=torch.long), rng=generator(1))
    assert len(sizes) > 1
    assert max(sizes) <= 60


def test_the_same_key_repeats_masks_and_iteration_counts(small_model: Build) -> None:
    denoiser = small_model()
    x = torch.randint(0, 11, (4, 16), generator=generator(0))
    first, second = (MaskedCrossEntropy()(denoiser, x, rng=generator(0, 7)).total for _ in range(2))
    assert torch.equal(first, second)


def test_every_parameter_of_a_fixed_point_denoiser_learns(small_model: Build) -> None:
    denoiser = small_model()
    x = torch.randint(0, 11, (4, 16), generator=generator(0))
    MaskedCrossEntropy()(denoiser, x, rng=generator(0)).total.backward()
    for name, parameter in denoiser.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_a_misspelt_weighting_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown weighting 'mask'; did you mean 'masked'"):
        MaskedCrossEntropy(weighting="mask")  # type: ignore[arg-type]
