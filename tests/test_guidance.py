from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from fpmgm.backbones.maskgit import MaskGITConfig
from fpmgm.budget import Cost
from fpmgm.denoiser import Denoiser
from fpmgm.draws import exact
from fpmgm.guidance import Asked, Guidance, doubled
from fpmgm.injection import Injection
from fpmgm.masking import without_mask
from fpmgm.randomness import Streams, generator
from fpmgm.reuse import Reuse, full_reuse, no_reuse, three_state_reuse
from fpmgm.sampling import Sampled, Step, even_times, sample
from fpmgm.solvers import anderson, picard
from fpmgm.transitions import Ancestral, Confidence, Halton, Transition
from fpmgm.types import NO_CLASS, Logits, Places, State
from tests.conftest import Build
from tests.given import LENGTH, MASK, NUM_SYMBOLS, GivenBackbone

CONFIG = MaskGITConfig(
    vocab_size=9,
    mask_id=8,
    length=16,
    num_classes=3,
    width=24,
    num_heads=3,
    num_pre=1,
    num_fp=1,
    num_post=1,
    mlp_multiple=8,
    dropout=0.0,
)
LABELS = torch.tensor([0, 2, 1, NO_CLASS])
HALTON = Halton(height=4, width=4)


def network(**changes: Any) -> Denoiser:
    """A small network with classes, a register and weights that are nowhere 0."""
    denoiser = replace(CONFIG, **changes).build()
    rng = generator(3)
    with torch.no_grad():
        for parameter in denoiser.parameters():
            parameter.copy_(0.15 * torch.randn(parameter.shape, generator=rng))
    return denoiser.eval()


def run(denoiser: Denoiser, iterations: Sequence[int], **options: Any) -> tuple[Sampled, list[Step]]:
    steps: list[Step] = []
    z = torch.full((len(LABELS), 16), 8)
    z[1, :5] = 3
    fixed: dict[str, Any] = {"times": even_times(len(iterations)), "iterations": iterations, "on_step": steps.append}
    rules = {"transition": HALTON, "label": LABELS, "rng": Streams.of(0, range(len(z))), **options}
    return sample(denoiser, z, **fixed, **rules), steps


class Noting:
    """A transition that keeps the logits it is given."""

    def __init__(self, inner: Transition) -> None:
        self.inner, self.logits = inner, list[Tensor]()

    def positions(self, state: State, t: float, t_next: float, *, rng: Streams) -> Tensor:
        return self.inner.positions(state, t, t_next, rng=rng)

    def write(self, state: State, logits: Logits, places: Places, t: float, t_next: float, *, rng: Streams) -> State:
        self.logits.append(logits)
        return self.inner.write(state, logits, places, t, t_next, rng=rng)


def chain(
    denoiser: Denoiser, steps: Sequence[Step], iterations: Sequence[int], label: Tensor, reuse: Reuse, solver: Any
) -> list[tuple[Tensor, Tensor]]:
    """(h*, logits) of every step of one chain by itself, along the sequences that the guided one went through."""
    found, z_last, h_last = [], steps[0].z, None
    for step, num_iters, (t, _) in zip(steps, iterations, pairwise(even_times(len(iterations))), strict=True):
        cond = denoiser.condition(step.z, t, label)
        h_pre = h_star = denoiser.pre(step.z, cond)
        if num_iters:
            h_init = h_pre
            if h_last is not None and reuse is full_reuse:
                h_init = h_last
            if h_last is not None and reuse is three_state_reuse:
                h_init = h_last.clone()
                for row, (now, before) in enumerate(zip(step.z, z_last, strict=True)):
                    v = float((now != 8).float().mean())
                    for j in range(16):  # the register stays as it was
                        gamma = 0.2 if now[j] != before[j] else 0.75 + 0.15 * v if now[j] == 8 else 1.0
                        h_init[row, j] = gamma * h_last[row, j] + (1 - gamma) * h_pre[row, j]
            h_star = solver(denoiser.fixed_point_map(h_pre, cond), h_init, num_iters).h
        is_wanted = torch.zeros_like(step.z, dtype=torch.bool)
        is_wanted.view(-1)[step.places.flat[: sum(step.places.counts[: len(step.z)])]] = True
        found.append((h_star, exact(denoiser.head(denoiser.post(h_star, cond, is_wanted)))))
        z_last, h_last = step.z, h_star
    return found


@pytest.mark.parametrize(
    ("reuse", "solver", "transition", "rule"),
    [
        (no_reuse, picard, HALTON, "constant"),
        (full_reuse, picard, HALTON, "constant"),
        (three_state_reuse, picard, HALTON, "constant"),
        (three_state_reuse, anderson, HALTON, "ramp"),
        (three_state_reuse, partial(picard, tolerance=0.3), Confidence(), "late"),
        (full_reuse, picard, Ancestral(), "late"),
    ],
)
@torch.no_grad()
def test_guidance_under_every_reuse_rule_equals_two_separate_chains(
    reuse: Reuse, solver: Any, transition: Transition, rule: Any
) -> None:
    denoiser = network()
    iterations = (4, 3, 2, 2, 1)
    noting = Noting(transition)
    guidance = Guidance(weight=1.5, rule=rule)
    _, steps = run(denoiser, iterations, reuse=reuse, solver=solver, transition=noting, guidance=guidance)
    nothing = torch.full_like(LABELS, NO_CLASS)
    cond, uncond = (chain(denoiser, steps, iterations, each, reuse, solver) for each in (LABELS, nothing))
    assert not torch.allclose(cond[-1][0], uncond[-1][0], atol=1e-2)  # the class matters
    for index, step in enumerate(steps):
        both = torch.cat([cond[index][0], uncond[index][0]])
        torch.testing.assert_close(step.solution.h, both, atol=1e-5, rtol=1e-5)
        w = {"constant": 1.5, "ramp": 1.5 * index / 4, "late": 1.5 * (index >= 3)}[rule]
        expected = without_mask((1 + w) * cond[index][1] - w * uncond[index][1], mask_id=8)
        torch.testing.assert_close(noting.logits[index], expected, atol=1e-4, rtol=1e-4)
        assert step.weight == pytest.approx(w)


@torch.no_grad()
def test_a_plain_stack_is_guided_by_the_same_loop() -> None:
    denoiser = network(num_pre=3, num_fp=0, num_post=0)
    noting = Noting(HALTON)
    _, steps = run(denoiser, (0,) * 4, transition=noting, guidance=Guidance(weight=0.7))
    nothing = torch.full_like(LABELS, NO_CLASS)
    cond, uncond = (chain(denoiser, steps, (0,) * 4, each, no_reuse, picard) for each in (LABELS, nothing))
    for index, logits in enumerate(noting.logits):
        expected = without_mask(1.7 * cond[index][1] - 0.7 * uncond[index][1], mask_id=8)
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rule", ["constant", "ramp", "late"])
def test_a_weight_of_0_is_the_conditional_model_bit_for_bit_and_runs_nothing_twice(rule: Any) -> None:
    denoiser = network()
    plain, plain_steps = run(denoiser, (3, 2, 1), reuse=three_state_reuse)
    zero, zero_steps = run(denoiser, (3, 2, 1), reuse=three_state_reuse, guidance=Guidance(weight=0.0, rule=rule))
    assert torch.equal(plain.z, zero.z)
    for one, other in zip(plain_steps, zero_steps, strict=True):
        assert torch.equal(one.solution.h, other.solution.h)  # of the same shape, so nothing is doubled


def test_guidance_doubles_what_is_computed_and_not_the_budget() -> None:
    denoiser = network()
    plain, plain_steps = run(denoiser, (3, 2, 1), reuse=three_state_reuse)
    guided, steps = run(denoiser, (3, 2, 1), reuse=three_state_reuse, guidance=Guidance(weight=1.0))
    assert guided.block_evals.tolist() == plain.block_evals.tolist() == [12] * 4
    for one, two in zip(plain_steps, steps, strict=True):
        assert two.solution.row_evals == 2 * one.solution.row_evals
        assert two.places.counts == one.places.counts * 2
        assert len(two.z) == len(one.z)


def test_a_sequence_whose_halves_stop_apart_is_charged_for_the_longer_one() -> None:
    tolerant = partial(picard, tolerance=0.1)
    sampled, steps = run(network(), (8,) * 3, solver=tolerant, guidance=Guidance(weight=1.0))
    iterations = torch.stack([step.solution.num_iters for step in steps])
    assert not torch.equal(iterations[:, :4], iterations[:, 4:])
    most = torch.maximum(iterations[:, :4], iterations[:, 4:]).sum(dim=0)
    assert torch.equal(sampled.block_evals, 3 * 2 + most)
    assert torch.equal(sampled.unspent, 3 * 10 - sampled.block_evals)


@pytest.mark.parametrize(
    ("reuse", "rows"), [(no_reuse, [4, 4, 8, 8]), (full_reuse, [8] * 4), (three_state_reuse, [8] * 4)]
)
def test_late_guidance_runs_the_second_half_early_only_to_keep_its_solver_state(reuse: Reuse, rows: list[int]) -> None:
    _, steps = run(network(), (2, 2, 2, 2), reuse=reuse, guidance=Guidance(weight=2.0, rule="late"))
    assert [len(step.solution.h) for step in steps] == rows
    assert [step.weight for step in steps] == [0, 0, 2, 2]


@pytest.mark.parametrize(
    ("guidance", "num_steps", "weights"),
    [
        (Guidance(weight=2.0), 3, (2, 2, 2)),
        (Guidance(weight=2.0, rule="ramp"), 5, (0, 0.5, 1, 1.5, 2)),
        (Guidance(weight=2.0, rule="ramp"), 1, (2,)),
        (Guidance(weight=2.0, rule="late"), 5, (0, 0, 0, 2, 2)),
        (Guidance(weight=2.0, rule="late", begin=0.25), 4, (0, 2, 2, 2)),
        (Guidance(weight=2.0, rule="late", begin=0.0), 2, (2, 2)),
        (Guidance(weight=2.0, rule="late", begin=1.0), 3, (0, 0, 2)),
        (Guidance(weight=2.0, rule="late"), 1, (2,)),
    ],
)
def test_every_rule_reaches_the_whole_weight_at_the_last_step(
    guidance: Guidance, num_steps: int, weights: tuple[float, ...]
) -> None:
    assert guidance.weights(num_steps) == pytest.approx(weights)


class TwoTables(GivenBackbone):
    """Log-probabilities of one table for class 0, and of another for no class."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.other = GivenBackbone(num_blocks, seed=1).get_buffer("log_p")
        self.is_conditional = torch.tensor([True])

    def condition(self, z: Tensor, t: Any, label: Any = None) -> Any:
        self.is_conditional = label != NO_CLASS
        return super().condition(z, t)

    def embed(self, z: Tensor) -> Tensor:
        tables = self.get_buffer("log_p"), self.other
        cond, uncond = (table[tuple(z.unbind(1))] for table in tables)
        return torch.where(self.is_conditional[:, None, None], cond, uncond)


@pytest.mark.parametrize("fp", [False, True])
def test_known_logits_of_both_halves_give_the_mixed_distribution(fp: bool) -> None:
    injection = Injection("add", NUM_SYMBOLS + 1, has_projection=False)
    injection.set_exact(0.05, 0.95)
    denoiser = (
        Denoiser(TwoTables(3), Cost(1, 1, 1), injection=injection) if fp else Denoiser(TwoTables(2), Cost(2, 0, 0))
    )
    num = 3000
    z = torch.full((num, LENGTH), MASK)
    drawn = sample(
        denoiser,
        z,
        times=(1.0, 0.0),
        iterations=(8 if fp else 0,),
        transition=Ancestral(),
        rng=Streams.of(0, range(num)),
        label=torch.zeros(num, dtype=torch.long),
        guidance=Guidance(weight=1.5),
    ).z
    backbone = denoiser.backbone
    assert isinstance(backbone, TwoTables)
    cond, uncond = (
        table[(MASK,) * LENGTH][:, :NUM_SYMBOLS] for table in (backbone.get_buffer("log_p"), backbone.other)
    )
    expected = (2.5 * cond - 1.5 * uncond).softmax(dim=-1)
    found = torch.stack([(drawn == token).float().mean(dim=0) for token in range(NUM_SYMBOLS)], dim=-1)
    torch.testing.assert_close(found, expected, atol=0.04, rtol=0)
    assert not torch.allclose(found, cond.softmax(dim=-1), atol=0.1)


def test_doubled_places_are_those_of_the_doubled_map() -> None:
    positions = torch.rand(5, 7, generator=generator(0)) < 0.4
    positions[2] = False
    found, expected = doubled(Places.of(positions)), Places.of(torch.cat([positions, positions]))
    assert torch.equal(found.flat, expected.flat)
    assert torch.equal(found.slots, expected.slots)
    assert (found.counts, found.length) == (expected.counts, expected.length)
    chosen = found.by_row.flatten()[found.slots]
    assert torch.equal(chosen, expected.by_row.flatten()[expected.slots])


def test_one_half_alone_is_not_mixed() -> None:
    places = Places.of(torch.ones(1, 2, dtype=torch.bool))
    logits = torch.randn(2, 4, generator=generator(0))
    assert Asked(z=torch.zeros(1, 2, dtype=torch.long), label=None, places=places).mixed(logits) is logits


def test_guidance_that_cannot_be_is_refused(small_model: Build) -> None:
    with pytest.raises(ValueError, match=r"cfg_weight is -1\.0; it must be a number, 0 or more"):
        Guidance(weight=-1.0)
    with pytest.raises(ValueError, match="cfg_weight is nan"):
        Guidance(weight=float("nan"))
    with pytest.raises(ValueError, match="unknown guidance 'rampe'; did you mean 'ramp'"):
        Guidance(rule="rampe")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"guidance_begin is 1\.5; it must lie between 0 and 1"):
        Guidance(begin=1.5)
    with pytest.raises(ValueError, match="no classes are given; give a label for each sequence, or a weight of 0"):
        run(network(), (1,), label=None, guidance=Guidance(weight=1.0))
    z = torch.full((1, 16), 11)
    rules: dict[str, Any] = {"times": (1.0, 0.0), "iterations": (1,), "transition": Ancestral()}
    rules |= {"rng": Streams.of(0, [0]), "label": torch.tensor([0]), "guidance": Guidance(weight=1.0)}
    with pytest.raises(ValueError, match="this network knows no classes"):
        sample(small_model(), z, **rules)
