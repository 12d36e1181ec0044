"""Training in which visible positions rest after the first iteration, against a full computation that is masked."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fpmgm.backbones.dit import Network
from fpmgm.backbones.kept import Projected
from fpmgm.checkpoint import Model
from fpmgm.denoiser import Denoiser
from fpmgm.evaluation.evaluator import evaluator_of
from fpmgm.evaluation.likelihood import perplexity
from fpmgm.gradients import gradient_by_name
from fpmgm.objectives import MaskedCrossEntropy
from fpmgm.positionwise import Resting
from fpmgm.post_training.consistency import Consistency
from fpmgm.post_training.matching import Matching
from fpmgm.post_training.sdtt import SelfDistillation
from fpmgm.randomness import generator
from fpmgm.solvers import picard
from fpmgm.training.config import Training
from fpmgm.types import Batch, Places
from tests.conftest import Build
from tests.images import small_image_model

REST = MaskedCrossEntropy(rest=True)
NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"injection": "mlp"},
    "linear": {"injection": "linear"},
    "add": {"injection": "add"},
    "diagonal": {"injection": "diagonal"},
    "timed": {"injection": "diagonal", "time_conditioning": True},
    "two blocks": {"injection": "mlp", "num_fp": 2},
    "two blocks, diagonal": {"injection": "diagonal", "num_fp": 2},
    "no blocks after": {"injection": "add", "num_post": 0},
}
TIMES = torch.tensor([0.1, 0.4, 0.6, 1.0])


def network(build: Build, name: str) -> Denoiser:
    return small_image_model(num_registers=2).denoiser if name == "maskgit" else build(**NETWORKS[name])


def ragged(denoiser: Denoiser) -> tuple[Tensor, Tensor]:
    """Sequences and what is left of them: of the first nothing is masked, of the last everything."""
    rng = generator(3)
    x = torch.randint(0, denoiser.mask_id, (4, denoiser.max_length), generator=rng)
    is_masked = torch.rand(x.shape, generator=rng) < torch.tensor([0, 0.3, 0.7, 1.1])[:, None]
    return x, x.masked_fill(is_masked, denoiser.mask_id)


def solved_slowly(
    denoiser: Denoiser, h_pre: Tensor, cond: Any, z: Tensor, num_iters: int, first_with: int, *, is_cut: bool
) -> Tensor:
    """Every block runs everywhere in every iteration. After the first one, positions at rest get their state back, and
    they are seen by the keys and values of the first iteration: those of several blocks follow from what the first of
    them read in the first iteration. Iterations before `first_with` have no gradients."""
    f = denoiser.fixed_point_map(h_pre, cond)
    h = h_pre.detach() if is_cut else h_pre
    first_read = first_seen = None
    room = torch.ones(len(z), h.shape[1] - z.shape[1], dtype=torch.bool)
    runs = torch.cat([z == denoiser.mask_id, room], dim=1)[..., None]
    for index in range(num_iters):
        with torch.set_grad_enabled(index >= first_with):
            read = denoiser.inject(h, f.constant)
            first_read = read if first_read is None else first_read
            if len(denoiser.fixed_point_range) == 1:
                image, seen = run_seen_as(denoiser, read, cond, runs, first_seen)
                first_seen = first_seen or seen
            else:
                image = torch.where(runs, read, first_read)
                for block in denoiser.fixed_point_range:
                    image = denoiser.backbone.run_block(block, image, cond)
            h = torch.where(runs, image, h) if index else image
    return h


def run_seen_as(denoiser: Denoiser, read: Tensor, cond: Any, runs: Tensor, seen: Any) -> tuple[Tensor, Any]:
    """The only fixed-point block where positions at rest are seen by those keys and values; and its own ones."""
    index = denoiser.cost.pre
    block: Any = denoiser.backbone.blocks[index]
    if hasattr(cond, "rotation"):
        q, k, v = block.project(read, cond.blocks[index], cond.rotation)
    else:
        q, k, v = block.project(read, cond.blocks[index])
    if seen is not None:
        k, v = (torch.where(runs[..., None], own, first) for own, first in zip((k, v), seen, strict=True))
    options = {"projected": Projected(q, k, v)}
    if hasattr(cond, "rotation"):
        return block(read, cond.blocks[index], cond.rotation, cond.dropout, **options), (k, v)
    return block(read, cond.blocks[index], cond.drops_of(index), **options), (k, v)


def read_slowly(denoiser: Denoiser, z: Tensor, asked: Tensor, rule: str, no_grad: int, grad: int) -> Tensor:
    """The features of a pass that learns."""
    cond = denoiser.condition(z, TIMES, torch.tensor([0, 1, 2, -1]) if hasattr(denoiser.backbone, "cls_emb") else None)
    num_iters = no_grad + grad
    first_with = {"jfb": num_iters - 1, "unrolled": 0}.get(rule, no_grad)
    h = solved_slowly(
        denoiser, denoiser.pre(z, cond), cond, z, num_iters, first_with, is_cut=rule == "sjfb-cut" or first_with > 0
    )
    return denoiser.post(h, cond, asked)


def learned(denoiser: Denoiser, features: Tensor) -> list[Tensor]:
    """The gradients of some number made of the features; of weights that it does not depend on, zeros."""
    aims = torch.randn(features.shape, generator=generator(9))
    found = torch.autograd.grad((features * aims).sum(), list(denoiser.parameters()), allow_unused=True)
    pairs = zip(found, denoiser.parameters(), strict=True)
    return [torch.zeros_like(weight) if each is None else each for each, weight in pairs]


OTHERS = [("sjfb", 0, 1), ("sjfb", 1, 1), ("sjfb-cut", 0, 3), ("sjfb-cut", 2, 2), ("jfb", 0, 1), ("jfb", 1, 2)]
CASES = [(name, "sjfb", *counts) for name in [*NETWORKS, "maskgit"] for counts in ((0, 3), (2, 2))]
CASES += [(name, *case) for name in ("mlp", "two blocks") for case in [*OTHERS, ("unrolled", 2, 2)]]


@pytest.mark.parametrize(("name", "rule", "no_grad", "grad"), CASES)
def test_an_update_with_rest_is_the_full_computation_that_puts_states_at_rest_back(
    small_model: Build, name: str, rule: str, no_grad: int, grad: int
) -> None:
    denoiser = network(small_model, name)
    _, z = ragged(denoiser)
    asked = torch.rand(z.shape, generator=generator(4)) < 0.5  # at rest or not: post reads all states
    expected = read_slowly(denoiser, z, asked, rule, no_grad, grad)
    label = torch.tensor([0, 1, 2, -1]) if name == "maskgit" else None
    counts: dict[str, Any] = {"num_no_grad": no_grad, "num_grad": grad, "gradient": gradient_by_name(rule)}
    found = denoiser(z, TIMES, asked, label=label, rest=True, **counts)
    torch.testing.assert_close(found.features, expected, rtol=1e-5, atol=1e-5)
    assert found.residual.shape == (len(z),)
    for ours, theirs in zip(learned(denoiser, found.features), learned(denoiser, expected), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * max(1.0, float(theirs.abs().max())))


@pytest.mark.parametrize("name", [*NETWORKS, "maskgit"])
def test_training_with_rest_solves_as_the_sampler_does(small_model: Build, name: str) -> None:
    denoiser = network(small_model, name)
    _, z = ragged(denoiser)
    cond = denoiser.condition(z, TIMES)
    with torch.no_grad():
        h_pre = denoiser.pre(z, cond)
        f = denoiser.fixed_point_map(h_pre, cond)
        known = torch.zeros(h_pre.shape[:2], dtype=torch.bool)
        known[:, : z.shape[1]] = z != denoiser.mask_id
        expected = picard(f, h_pre, 4, where=Resting(known=known)).h
        found, _ = denoiser.solve(lambda f, h: picard(f, h, 4), f, h_pre, z, rest=True)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "is_all"),
    [("diagonal", False), ("diagonal", True), ("two blocks", False), ("two blocks", True), ("maskgit", True)],
)
def test_a_batch_may_be_visible_or_masked_everywhere(small_model: Build, name: str, is_all: bool) -> None:
    denoiser = network(small_model, name)
    x, _ = ragged(denoiser)
    z = torch.full_like(x, denoiser.mask_id) if is_all else x
    everywhere = torch.ones_like(z, dtype=torch.bool)
    found = denoiser(z, TIMES, everywhere, num_no_grad=1, num_grad=2, rest=True)
    whole = denoiser(z, TIMES, everywhere, num_grad=3 if is_all else 1)
    torch.testing.assert_close(found.features, whole.features, rtol=1e-5, atol=1e-5)
    found.features.sum().backward()
    block = denoiser.backbone.blocks[denoiser.cost.pre]
    assert all(weight.grad is not None for weight in block.parameters())  # processes wait for the gradient of each


def test_rest_is_off_unless_it_is_asked_for(small_model: Build) -> None:
    denoiser = small_model()
    x, _ = ragged(denoiser)
    noise = replace(MaskedCrossEntropy().draw(denoiser, x, rng=generator(1)), num_no_grad=1, num_grad=2)
    plain, rest = (each.loss(denoiser, x, noise).total for each in (MaskedCrossEntropy(), REST))
    features = denoiser(noise.z, noise.t, noise.asked, num_no_grad=1, num_grad=2).features
    assert torch.equal(plain, MaskedCrossEntropy().score(denoiser, features, x, Places.of(noise.asked), noise))
    assert not torch.isclose(plain, rest, rtol=1e-4)


@pytest.mark.parametrize("rule", ["sjfb", "sjfb-cut", "jfb", "unrolled"])
def test_the_loss_of_parts_adds_up_and_every_weight_learns(small_model: Build, rule: Any) -> None:
    denoiser, objective = small_model(), replace(REST, gradient=rule, warm_start=1.0)
    x, _ = ragged(denoiser)
    noise = objective.draw(denoiser, x, rng=generator(1))
    whole = objective.loss(denoiser, x, noise).total
    parts = [objective.loss(denoiser, x[part], noise.rows(part)).total for part in (slice(0, 1), slice(1, 4))]
    torch.testing.assert_close(torch.stack(parts).sum(), whole)
    whole.backward()
    for name, parameter in denoiser.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", ["mdlm", "two blocks", "maskgit"])
def test_dropout_acts_on_the_positions_that_run(small_model: Build, name: str, frozen: bool) -> None:
    denoiser = small_image_model(num_registers=2, dropout=0.5, frozen_dropout=frozen).denoiser
    if name != "maskgit":
        denoiser = small_model(dropout=0.5, frozen_dropout=frozen, num_fp=2 if name == "two blocks" else 1)
    _, z = ragged(denoiser)
    counts: dict[str, Any] = {"num_no_grad": 1, "num_grad": 2, "rest": True}
    still = denoiser(z, TIMES, z == denoiser.mask_id, **counts).features
    first, second = (denoiser.train()(z, TIMES, z == denoiser.mask_id, **counts).features for _ in range(2))
    assert not torch.allclose(first, still)
    assert not torch.allclose(first, second)


def test_frozen_dropout_is_the_same_in_every_iteration(small_model: Build) -> None:
    """The full computation with the same pattern says what it must give."""
    for denoiser in (
        small_model(dropout=0.5, frozen_dropout=True).train(),
        small_image_model(num_registers=2, dropout=0.5, frozen_dropout=True).denoiser.train(),
    ):
        _, z = ragged(denoiser)
        cond = replace(denoiser.condition(z, TIMES))
        h_pre = denoiser.pre(z, cond)
        torch.manual_seed(0)
        f = denoiser.fixed_point_map(h_pre, cond)
        denoiser.frozen_dropout = False  # f has its pattern; `solved_slowly` shall draw none of its own
        expected = solved_slowly(denoiser, h_pre, f.cond, z, 3, 0, is_cut=False)
        found, _ = denoiser.solve(lambda f, h: picard(f, h, 3), f, h_pre, z, rest=True)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_stages_rest_through_their_base_and_so_do_their_teachers(
    small_model: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    denoiser, teacher, fake = small_model(), small_model(seed=2), small_model(seed=3)
    x, _ = ragged(denoiser)
    asked: list[bool] = []
    original = Denoiser.solve

    def watched(self: Denoiser, *args: Any, rest: bool) -> Any:
        asked.append(rest)
        return original(self, *args, rest=rest)

    monkeypatch.setattr(Denoiser, "solve", watched)
    for rest in (False, True):
        base = MaskedCrossEntropy(rest=rest)
        stages: list[tuple[Any, dict[str, Any], int]] = [
            (Consistency(base=base), {}, 2),
            (SelfDistillation(first_steps=4, base=base), {"teacher": teacher}, 3),
            (Matching(base=base), {"teacher": teacher, "fake": fake}, 3),
        ]
        for objective, others, num_passes in stages:
            asked.clear()
            noise = objective.draw(denoiser, x, rng=generator(1))
            objective.loss(denoiser, x, noise, **others).total.backward()
            assert asked == [rest] * num_passes


def test_a_plain_teacher_of_a_student_that_rests_reads_as_ever(small_model: Build) -> None:
    denoiser, teacher = small_model(), small_model(num_pre=2, num_fp=0, num_post=0)
    x, _ = ragged(denoiser)
    objective = Consistency(base=REST, teacher="other")
    assert objective.loss(denoiser, x, objective.draw(denoiser, x, rng=generator(1)), teacher).total > 0


def test_rest_is_refused_where_it_cannot_be(small_model: Build) -> None:
    plain: dict[str, Any] = {"num_pre": 2, "num_fp": 0, "num_post": 0}
    others: list[dict[str, Any]] = [{"gradient": "implicit"}, {"solver": "anderson"}]
    for settings in others:
        with pytest.raises(ValueError, match=r"rest is set, gradient is .* positions rest with the solver picard"):
            replace(REST, **settings)
    for objective in (REST, Consistency(base=REST)):
        with pytest.raises(ValueError, match="rest is set, and a plain stack has no solver"):
            Training(model=Network(**plain), objective=objective)
    with pytest.raises(ValueError, match=r"0 \+ 0 iterations and positions at rest asked of a plain stack"):
        small_model(**plain)(torch.zeros(1, 16, dtype=torch.long), 0.5, torch.ones(1, 16, dtype=torch.bool), rest=True)


def test_the_bound_follows_the_objective_and_a_reader_may_ask_for_all_positions(
    small_model: Build, text_model: Model
) -> None:
    denoiser = small_model()
    x, _ = ragged(denoiser)
    batch = Batch(x=x.repeat(4, 1))
    everywhere, rest = (
        evaluator_of(text_model.config, text_model.speech, objective=each) for each in (MaskedCrossEntropy(), REST)
    )
    assert rest.validated.title == "validation perplexity (visible positions rest)"
    assert rest == evaluator_of(text_model.config, text_model.speech, objective=Consistency(base=REST))
    found = rest.validate(denoiser, batch, num_iters=3).value
    assert found == perplexity(denoiser, batch, num_iters=3, rest=True).value
    assert found != everywhere.validate(denoiser, batch, num_iters=3).value
    assert rest.validate(denoiser, batch, num_iters=1).value == pytest.approx(
        everywhere.validate(denoiser, batch, num_iters=1).value, rel=1e-5
    )
