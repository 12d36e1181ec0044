"""Consistency across steps, and the teacher's KL: each distance against a slow reference, and where gradients go."""

import copy
import math
from typing import Any

import pytest
import torch

from fpmgm import objectives
from fpmgm.denoiser import Denoiser
from fpmgm.masking import nested_below
from fpmgm.objectives import MaskedCrossEntropy, Moment
from fpmgm.post_training import consistency as module
from fpmgm.post_training.consistency import DISTANCES, Consistency, PairNoise
from fpmgm.randomness import generator
from fpmgm.types import Batch
from tests.conftest import Build

MASK = 11
PLAIN: dict[str, Any] = {"num_pre": 2, "num_fp": 0, "num_post": 0}


def some_tokens(num: int = 6) -> torch.Tensor:
    return torch.randint(0, 11, (num, 16), generator=generator(0))


def pair_of(x: torch.Tensor, noise: PairNoise) -> tuple[torch.Tensor, torch.Tensor]:
    """The pair that was drawn, which must be one of x, nested."""
    for z in (noise.z, noise.cleaner):
        assert torch.equal(z[z != MASK], x[z != MASK])
    assert bool((noise.z[noise.cleaner == MASK] == MASK).all())
    return noise.z, noise.cleaner


def everywhere(denoiser: Denoiser, z: torch.Tensor, t: torch.Tensor, noise: PairNoise) -> tuple[Any, Any]:
    """(features, logits) at all positions of one pass."""
    counts = {"num_no_grad": noise.num_no_grad, "num_grad": noise.num_grad} if denoiser.cost.fp else {}
    with torch.no_grad():
        features = denoiser(z, t, torch.ones_like(z, dtype=torch.bool), **counts).features
        return features.view(*z.shape, -1), denoiser.head(features).view(*z.shape, -1)


def slow_distance(objective: Consistency, own: Any, other: Any, is_visible: bool, token: int) -> float:
    """Of one position, from (features, logits) of student and teacher, in plain Python."""
    if objective.distance == "squared-norm":
        return float(sum((a - b) ** 2 for a, b in zip(own[0], other[0], strict=True)))
    if objective.distance == "mse":
        return sum((a - b) ** 2 for a, b in zip(own[0], other[0], strict=True)) / len(own[0])
    if objective.distance in ("cosine", "projected-cosine"):
        a, b = (own[0], other[0]) if objective.distance == "cosine" else (own[1], other[1])
        dot = sum(p * q for p, q in zip(a, b, strict=True))
        return 1 - dot / math.sqrt(sum(p * p for p in a) * sum(q * q for q in b))
    tau = objective.temperature
    p, q = ([math.exp(logit / tau) for logit in logits[:MASK]] for logits in (other[1], own[1]))
    p, q = [a / sum(p) for a in p], [a / sum(q) for a in q]
    if is_visible and objective.targets == "subs":
        return -math.log(q[token]) * tau**2
    if objective.distance == "kl-bwd":
        p, q = q, p
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)) * tau**2


OBJECTIVES = [
    Consistency(distance="mse"),
    Consistency(distance="mse", positions="both-masked"),
    Consistency(distance="squared-norm"),
    Consistency(distance="cosine"),
    Consistency(distance="projected-cosine", positions="both-masked"),
    Consistency(distance="kl"),
    Consistency(distance="kl", temperature=1.5, targets="raw"),
    Consistency(distance="kl", temperature=1.5, positions="both-masked"),
    Consistency(distance="kl-bwd", temperature=1.5),
    Consistency(distance="kl-bwd", targets="raw"),
]


@pytest.mark.parametrize("has_teacher", [False, True])
@pytest.mark.parametrize("cut", [{}, PLAIN], ids=["fixed-point", "plain"])
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: f"{o.distance}-{o.positions}-{o.targets}")
def test_every_distance_is_that_of_a_slow_reference(
    small_model: Build, objective: Consistency, cut: dict[str, Any], has_teacher: bool
) -> None:
    denoiser = small_model(**cut)
    teacher = small_model(seed=5, **cut) if has_teacher else None
    x = some_tokens()
    noise = objective.draw(denoiser, x, rng=generator(3))
    found = objective.loss(denoiser, x, noise, teacher)
    noisier, cleaner = pair_of(x, noise)
    own = everywhere(denoiser, noisier, noise.t, noise)
    other = everywhere(teacher or denoiser, cleaner, noise.t_cleaner, noise)
    distances = []
    for b in range(len(x)):
        for i in range(x.shape[1]):
            is_visible = bool(cleaner[b, i] != MASK)
            if noisier[b, i] == MASK and not (is_visible and objective.positions == "both-masked"):
                student, target = ([part[b, i].tolist() for part in each] for each in (own, other))
                distances.append(slow_distance(objective, student, target, is_visible, int(x[b, i])))
    expected = sum(distances) / len(distances)
    assert float(found.terms["consistency"]) == pytest.approx(expected, rel=2e-4, abs=1e-7)
    base = MaskedCrossEntropy()(denoiser, x, rng=generator(3)).total.detach()
    assert float(found.terms["base"]) == pytest.approx(float(base), rel=1e-5)
    assert float(found.total.detach()) == pytest.approx(float(base) + noise.weight * expected, rel=1e-4)


@pytest.mark.parametrize("distance", DISTANCES)
def test_identical_states_cost_nothing(small_model: Build, monkeypatch: pytest.MonkeyPatch, distance: Any) -> None:
    def same(x: Any, u: Any, t: Any, t_cleaner: Any, **how: Any) -> Any:
        noisier, _ = nested_below(x, u, t, t, **how)
        return noisier, noisier

    monkeypatch.setattr(module, "nested_below", same)
    found = Consistency(distance=distance)(small_model(), some_tokens(), rng=generator(2))
    assert float(found.terms["consistency"]) == pytest.approx(0, abs=1e-6)
    assert float(found.terms["base"]) > 1


@pytest.mark.parametrize("has_teacher", [False, True])
@pytest.mark.parametrize("distance", DISTANCES)
def test_gradients_reach_the_noisier_branch_only(small_model: Build, distance: Any, has_teacher: bool) -> None:
    denoiser = small_model(dropout=0.0)
    teacher = small_model(seed=5) if has_teacher else None
    objective = Consistency(distance=distance, weight=1.0)
    noise = objective.draw(denoiser, some_tokens(), rng=generator(3))
    objective.loss(denoiser, some_tokens(), noise, teacher).total.backward()
    found = {name: parameter.grad for name, parameter in denoiser.named_parameters()}
    frozen = copy.deepcopy(teacher or denoiser).requires_grad_(False)  # a teacher that cannot get gradients
    denoiser.zero_grad(set_to_none=True)
    objective.loss(denoiser, some_tokens(), noise, frozen).total.backward()
    for name, parameter in denoiser.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, msg=name)
    if teacher is not None:
        assert all(parameter.grad is None for parameter in teacher.parameters())


def test_the_cleaner_branch_has_no_dropout_and_leaves_the_network_training(small_model: Build) -> None:
    denoiser = small_model(dropout=0.5).train()
    seen = []
    original = denoiser.pre

    def watched(z: torch.Tensor, cond: Any, memory: Any = None) -> Any:
        seen.append(denoiser.training)
        return original(z, cond, memory)

    denoiser.pre = watched  # type: ignore[method-assign]
    Consistency()(denoiser, some_tokens(), rng=generator(0))
    assert seen == [True, False]
    assert denoiser.training


def test_the_weight_rises_over_the_warm_up_and_stays(small_model: Build) -> None:
    objective = Consistency(weight=0.2, warmup=0.4)
    moments = [Moment(update=update, updates=10) for update in range(6)]
    weights = [objective.draw(small_model(), some_tokens(), rng=generator(0), moment=m).weight for m in moments]
    assert weights == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.2, 0.2])


@pytest.mark.parametrize("objective", [OBJECTIVES[0], OBJECTIVES[1], OBJECTIVES[6]], ids=["mse", "both-masked", "kl"])
def test_the_parts_of_a_batch_of_pairs_add_up_to_its_loss(
    small_model: Build, objective: Consistency, monkeypatch: pytest.MonkeyPatch
) -> None:
    denoiser, x = small_model(), some_tokens()
    noise = objective.draw(denoiser, x, rng=generator(1))
    whole = float(objective.loss(denoiser, x, noise).total.detach())
    monkeypatch.setattr(objectives, "LOGITS_AT_ONCE", 60)  # five rows at a time
    parts = [
        objective.loss(denoiser, x[part], noise.rows(part)).total for part in (slice(0, 1), slice(1, 4), slice(4, 6))
    ]
    assert sum(float(part.detach()) for part in parts) == pytest.approx(whole, rel=1e-5)


def test_padding_has_no_part_in_the_distance(small_model: Build) -> None:
    denoiser, x = small_model(), some_tokens()
    x[:, 12:] = 7
    objective = Consistency()
    noise = objective.draw(denoiser, Batch(x=x, counts=x != 7), rng=generator(1))
    noisier, _ = pair_of(x, noise)
    assert noise.num_aligned == int(((noisier == MASK) & (x != 7)).sum())
    found = float(objective.loss(denoiser, x, noise).terms["consistency"])
    unpadded = objective.loss(denoiser, x, objective.draw(denoiser, x, rng=generator(1)))
    assert found != pytest.approx(float(unpadded.terms["consistency"]), rel=1e-3)


def test_a_frozen_teacher_may_have_another_depth(small_model: Build) -> None:
    for student, teacher in ((small_model(), small_model(**PLAIN)), (small_model(**PLAIN), small_model())):
        found = Consistency(distance="kl")(student, some_tokens(), rng=generator(0), teacher=teacher)
        assert math.isfinite(float(found.total.detach()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight": 0.0}, "must be above 0"),
        ({"warmup": 1.5}, "must be a share of the run"),
        ({"temperature": 0.0, "distance": "kl"}, "must be above 0"),
        ({"temperature": 1.5}, "temperature is for distance kl or kl-bwd, and distance is mse"),
        ({"targets": "raw"}, "targets are for distance kl or kl-bwd"),
        ({"distance": "cosin"}, "did you mean 'cosine'"),
        ({"positions": "masked"}, "unknown positions 'masked'"),
        ({"gap_min": 0.4}, "gaps are 0.4 to 0.3"),
        ({"gap_max": 1.2}, "gaps are 0.05 to 1.2"),
    ],
)
def test_settings_out_of_range_are_refused_with_the_reason(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Consistency(**settings)
