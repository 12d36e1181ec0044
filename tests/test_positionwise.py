from dataclasses import fields
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import fpmgm
from fpmgm.__main__ import main
from fpmgm.checkpoint import Model
from fpmgm.denoiser import Denoiser
from fpmgm.evaluation.sweep import SINCE
from fpmgm.generation import Sampling
from fpmgm.guidance import Guidance
from fpmgm.interop import filled
from fpmgm.positionwise import PositionSettings, Resting, Seen, Where, where_by_name
from fpmgm.randomness import Streams, generator
from fpmgm.remasking import Remasking, ReMDMCap
from fpmgm.reuse import Reuse, full_reuse, no_reuse, three_state_reuse
from fpmgm.sampling import Sampled, Step, even_times, sample
from fpmgm.solvers import Solution, anderson, picard
from fpmgm.transitions import Ancestral, Confidence, Transition
from tests.conftest import Build
from tests.images import small_image_model

CHANGED = Where()
BARE = Where(whole_first=False)
SECOND = Where(whole_every=2)
TOLERANT = Where(changed_and_masked=False, tolerance=0.3)
BOTH = Where(tolerance=0.3)
RULES = {"changed": CHANGED, "bare": BARE, "second": SECOND, "tolerance": TOLERANT, "both": BOTH}


def slow_reference(f: Any, h: Tensor, num_iters: int, where: Resting) -> tuple[Tensor, Tensor]:
    """Compute everything, at positions at rest from what the first block read there last; returns h and the updates of
    every position."""
    denoiser, constant, blocks = f.denoiser, f.constant, f.denoiser.fixed_point_range
    has_one, seen = len(blocks) == 1, where.seen or Seen()
    runs = where.first
    updates = torch.zeros_like(where.known, dtype=torch.long)
    read = denoiser.inject(h, constant) if seen.kept is None or not has_one else seen.kept
    for _ in range(num_iters):
        read = image = torch.where(runs[..., None], denoiser.inject(h, constant), read)
        for index in blocks:
            image = denoiser.backbone.run_block(index, image, f.cond)
        moved = (image - h).norm(dim=-1) / h.norm(dim=-1)
        h = torch.where(runs[..., None], image, h)
        updates += runs
        runs = runs & ~where.known
        if where.tolerance is not None:
            runs = runs & (moved > where.tolerance)
    seen.kept = read
    return h, updates


def slow(f: Any, h: Tensor, num_iters: int, *, where: Resting) -> Solution:
    """A solver that computes everything."""
    h, updates = slow_reference(f, h, num_iters, where)
    nothing = torch.zeros(len(h))
    return Solution(h=h, residual=nothing, num_iters=updates.amax(dim=1), updates=updates.sum(dim=1))


def some_tokens(denoiser: Denoiser, num: int = 4) -> Tensor:
    """Sequences of which different shares are masked: none of the first, all of the last."""
    rng = generator(3)
    length = denoiser.max_length
    z = torch.randint(0, denoiser.mask_id, (num, length), generator=rng)
    is_masked = torch.rand(num, length, generator=rng) < torch.linspace(0, 1, num)[:, None]
    return z.masked_fill(is_masked, denoiser.mask_id)


def network(build: Build, name: str) -> Denoiser:
    if name == "maskgit":
        return small_image_model(num_registers=2).denoiser
    fields: dict[str, dict[str, Any]] = {
        "mdlm": {},
        "timed": {"time_conditioning": True, "injection": "linear"},
        "two blocks": {"num_fp": 2, "injection": "add"},
        "diagonal": {"injection": "diagonal"},
        "plain": {"num_pre": 3, "num_fp": 0, "num_post": 0},
    }
    return build(**fields[name])


@pytest.mark.parametrize("whole_first", [True, False])
@pytest.mark.parametrize("tolerance", [None, 0.2])
@pytest.mark.parametrize("name", ["mdlm", "timed", "two blocks", "diagonal", "maskgit"])
def test_a_solve_in_parts_is_the_full_computation_that_shows_states_at_rest_as_they_last_ran(
    small_model: Build, name: str, tolerance: float | None, whole_first: bool
) -> None:
    denoiser = network(small_model, name)
    z = some_tokens(denoiser)
    label = torch.tensor([0, 1, 2, -1]) if name == "maskgit" else None
    with torch.no_grad():
        cond = denoiser.condition(z, torch.tensor([0.1, 0.4, 0.6, 1.0]), label)
        h_pre = denoiser.pre(z, cond)
        f = denoiser.fixed_point_map(h_pre, cond)
        known = torch.rand(h_pre.shape[:2], generator=generator(5)) < torch.tensor([1.0, 0.2, 0.7, 0.0])[:, None]
        where = Resting(known=known, tolerance=tolerance, whole_first=whole_first)
        found = picard(f, h_pre, 4, where=where)
        expected, updates = slow_reference(f, h_pre, 4, where)
    torch.testing.assert_close(found.h, expected, rtol=1e-5, atol=1e-5)
    assert found.updates is not None
    assert found.updates.tolist() == updates.sum(dim=1).tolist()
    assert found.num_iters.tolist() == updates.amax(dim=1).tolist()
    assert len(set(found.updates.tolist())) > 1  # the sequences need different amounts of work
    if not whole_first:
        torch.testing.assert_close(found.h[known], h_pre[known], rtol=0, atol=0)


def test_nothing_rests_in_a_solve_without_known_positions_and_it_is_that_of_all(small_model: Build) -> None:
    denoiser = small_model()
    z = some_tokens(denoiser)
    with torch.no_grad():
        cond = denoiser.condition(z, 0.5)
        h_pre = denoiser.pre(z, cond)
        f = denoiser.fixed_point_map(h_pre, cond)
        found = picard(f, h_pre, 3, where=Resting(known=torch.zeros(z.shape, dtype=torch.bool)))
        expected = picard(f, h_pre, 3)
    assert torch.equal(found.h, expected.h)
    torch.testing.assert_close(found.residual, expected.residual)
    assert found.num_iters.tolist() == expected.num_iters.tolist() == [3] * 4


def trace(
    denoiser: Denoiser, z: Tensor, iterations: tuple[int, ...] = (3, 2, 3, 2), **options: Any
) -> tuple[Sampled, list[Step]]:
    steps: list[Step] = []
    options = {"transition": Ancestral(), "rng": Streams.of(0, range(len(z))), **options}
    times = even_times(len(iterations))
    return sample(denoiser, z, times=times, iterations=iterations, on_step=steps.append, **options), steps


def assert_same_runs(ours: tuple[Sampled, list[Step]], theirs: tuple[Sampled, list[Step]]) -> None:
    assert torch.equal(ours[0].z, theirs[0].z)
    assert torch.equal(ours[0].position_blocks, theirs[0].position_blocks)
    for step, expected in zip(ours[1], theirs[1], strict=True):
        torch.testing.assert_close(step.solution.h, expected.solution.h, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize(
    ("reuse", "transition"),
    [
        (no_reuse, Ancestral()),
        (full_reuse, Confidence()),
        (three_state_reuse, Remasking(rule=ReMDMCap(eta=0.4))),
    ],
)
def test_samples_are_those_of_the_full_computation_with_every_rule_reuse_and_transition(
    small_model: Build, rule: Where, reuse: Reuse, transition: Transition
) -> None:
    denoiser = small_model()
    z = some_tokens(denoiser)
    options: dict[str, Any] = {"where": rule, "reuse": reuse, "transition": transition}
    assert_same_runs(trace(denoiser, z, **options), trace(denoiser, z, solver=slow, **options))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("reuse", [no_reuse, three_state_reuse])
def test_both_halves_of_guidance_rest_by_themselves(reuse: Reuse, rule: Where) -> None:
    denoiser = small_image_model().denoiser
    z = some_tokens(denoiser, 3)
    options: dict[str, Any] = {
        "where": rule,
        "reuse": reuse,
        "label": torch.tensor([0, 1, 2]),
        "guidance": Guidance(weight=2.0, rule="late"),
    }
    ours = trace(denoiser, z, **options)
    assert_same_runs(ours, trace(denoiser, z, solver=slow, **options))
    assert all(len(step.solution.h) == 2 * len(z) for step in ours[1])  # states are kept from step to step


@pytest.mark.parametrize("rule", [CHANGED, BARE], ids=["changed", "bare"])
def test_given_tokens_are_solved_in_the_first_step_and_rest_afterwards(small_model: Build, rule: Where) -> None:
    denoiser = small_model()
    z = torch.full((2, 16), denoiser.mask_id)
    z[:, :12] = 3
    sampled, steps = trace(denoiser, z, (3, 3, 3), where=rule, reuse=three_state_reuse)
    first, second, third = (step.solution.h[:, :12] for step in steps)
    assert torch.equal(first, second)
    assert torch.equal(first, third)
    assert not torch.equal(first, steps[0].h_pre[:, :12])
    assert steps[0].solution.updates is not None
    assert steps[0].solution.updates.tolist() == [3 * 16] * 2
    assert all(int(step.solution.updates.max()) <= 3 * 4 for step in steps[1:] if step.solution.updates is not None)
    assert sampled.block_evals.tolist() == [15, 15]


def test_of_two_steps_one_has_a_whole_first_iteration(small_model: Build) -> None:
    denoiser = small_model()
    z = torch.full((2, 16), denoiser.mask_id)
    _, steps = trace(denoiser, z, (2, 2, 2, 2), where=SECOND, reuse=three_state_reuse)
    for before, step in pairwise(steps):
        num = ((step.z == denoiser.mask_id) | (step.z != before.z)).sum(dim=1)
        expected = 2 * num if step.index % 2 else 16 + num
        assert step.solution.updates is not None
        assert step.solution.updates.tolist() == expected.tolist()
        assert (num < 16).any() or step.index == 1


def test_a_position_runs_after_the_first_step_if_it_is_masked_or_its_token_is_new(small_model: Build) -> None:
    denoiser = small_model()
    _, steps = trace(denoiser, some_tokens(denoiser), where=CHANGED, reuse=no_reuse)
    for before, step in pairwise(steps):
        runs = (step.z == denoiser.mask_id) | (step.z != before.z)
        is_given = steps[0].z != denoiser.mask_id
        assert step.solution.updates is not None
        num_more = [
            int(count) - int(num) for count, num in zip(step.solution.updates, (~is_given).sum(dim=1), strict=True)
        ]
        num_iters = 2 if step.index % 2 else 3
        assert num_more == [(num_iters - 1) * int(num) for num in runs.sum(dim=1)]
        at_rest = ~runs
        assert torch.equal(step.h_init[at_rest], before.solution.h[at_rest])  # they keep their solution


def test_a_sequence_with_nothing_left_to_iterate_spends_nothing_on_it(small_model: Build) -> None:
    denoiser = small_model()
    z = some_tokens(denoiser)
    sampled, steps = trace(denoiser, z, where=BARE)
    assert not (z[0] == denoiser.mask_id).any()  # all of it is given
    assert [int(step.solution.num_iters[0]) for step in steps] == [3, 0, 0, 0]
    assert int(sampled.block_evals[0]) == 4 * 2 + 3
    assert int(sampled.unspent[0]) == 7


@pytest.mark.parametrize("tolerance", [None, 0.25])
def test_anderson_mixes_the_positions_that_run_alone(small_model: Build, tolerance: float | None) -> None:
    denoiser = small_model()
    z = some_tokens(denoiser)
    known = torch.rand(z.shape, generator=generator(5)) < 0.5
    with torch.no_grad():
        cond = denoiser.condition(z, 0.5)
        h = h_pre = denoiser.pre(z, cond)
        f = denoiser.fixed_point_map(h_pre, cond)
        found = anderson(f, h_pre, 4, memory=3, tolerance=tolerance, where=Resting(known=known, whole_first=False))
        for row in range(len(z)):  # the same by hand: a map of the running positions alone, sequence by sequence
            runs, at = ~known[row], torch.tensor([row])

            def alone(x: Tensor, runs: Tensor = runs, at: Tensor = at, rest: Tensor = h_pre[row], f: Any = f) -> Tensor:
                whole = rest.clone()
                whole[runs] = x[0]
                return f(whole[None], at)[:, runs]

            expected = anderson(alone, h[row, runs][None], 4, memory=3, tolerance=tolerance)
            torch.testing.assert_close(found.h[row, runs], expected.h[0], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(found.h[row, ~runs], h_pre[row, ~runs], rtol=0, atol=0)
            assert int(found.num_iters[row]) == int(expected.num_iters[0])
            torch.testing.assert_close(found.residual[row], expected.residual[0], rtol=1e-4, atol=1e-4)


def test_a_sequence_alone_and_in_a_batch_rests_alike(small_model: Build) -> None:
    denoiser = small_model()
    z = some_tokens(denoiser)
    together, _ = trace(denoiser, z, where=BOTH, reuse=three_state_reuse)
    for row in range(len(z)):
        if (z[row] == denoiser.mask_id).any():
            rng = Streams.of(0, [row])
            alone, _ = trace(denoiser, z[row : row + 1], where=BOTH, reuse=three_state_reuse, rng=rng)
            assert torch.equal(alone.z[0], together.z[row])
            assert int(alone.position_blocks[0]) == int(together.position_blocks[row])


@pytest.mark.parametrize("name", ["mdlm", "maskgit", "plain"])
def test_work_is_counted_where_blocks_ran(small_model: Build, name: str) -> None:
    denoiser = network(small_model, name)
    z = torch.full((2, denoiser.max_length), denoiser.mask_id)
    num = denoiser.max_length + (2 if name == "maskgit" else 0)
    iterations = (0, 0) if name == "plain" else (3, 2)
    sampled, steps = trace(denoiser, z, iterations)
    whole = (2 * 2 if name == "plain" else 2 + 5) * num
    revealed = torch.tensor([step.places.counts for step in steps]).sum(dim=0)
    assert sampled.position_blocks.tolist() == (whole + revealed).tolist()
    assert revealed.tolist() == [denoiser.max_length] * 2


@pytest.mark.parametrize("name", ["mdlm", "maskgit", "plain"])
@pytest.mark.parametrize("transition", [Ancestral(), Remasking(rule=ReMDMCap(eta=0.4))])
def test_projecting_what_changed_gives_the_first_block_of_everything(
    small_model: Build, name: str, transition: Transition
) -> None:
    denoiser = network(small_model, name)
    label = torch.tensor([0, 1, 2, -1]) if name == "maskgit" else None
    options: dict[str, Any] = {"guidance": Guidance(weight=1.0, rule="late")} if name == "maskgit" else {}
    iterations = (0,) * 5 if name == "plain" else (1,) * 5
    num_checked = []

    def check(step: Step) -> None:
        z = torch.cat([step.z] * (len(step.h_pre) // len(step.z)))
        classes = None if label is None else torch.cat([label, torch.full_like(label, -1)])[: len(z)]
        cond = denoiser.condition(z, step.t, classes)
        torch.testing.assert_close(step.h_pre, denoiser.pre(z, cond), rtol=1e-5, atol=1e-5)
        num_checked.append(len(z))

    times, rng = even_times(5), Streams.of(0, range(4))
    z = some_tokens(denoiser)
    options |= {"transition": transition, "label": label}
    sample(denoiser, z, times=times, iterations=iterations, rng=rng, on_step=check, **options)
    assert num_checked == ([4, 4, 4, 8, 8] if name == "maskgit" else [4] * 5)


def test_a_network_that_sees_the_time_remembers_nothing(small_model: Build) -> None:
    assert small_model(time_conditioning=True).memory(torch.device("cpu")) is None
    assert small_model().memory(torch.device("cpu")) is not None
    assert (
        small_model(num_pre=1, num_fp=0, num_post=0).memory(torch.device("cpu")) is None
    )  # `post` runs its only block


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"name": "tolerence"}, "did you mean 'tolerance'"),
        ({"name": "tolerance"}, "solve is tolerance, and no position_tolerance is given"),
        ({"name": "all", "position_tolerance": 0.1}, "position_tolerance is 0.1, and solve all does not use it"),
        ({"name": "all", "whole_first": False}, "every iteration runs everywhere"),
        ({"name": "all", "whole_every": 2}, "whole_every is 2, and with solve all every iteration runs everywhere"),
        ({"name": "changed-and-masked", "whole_every": 0}, "whole_every is 0"),
        ({"name": "changed-and-masked", "whole_every": 2, "whole_first": False}, "leave one of the two out"),
        ({"name": "tolerance", "position_tolerance": 0.1, "whole_every": 2}, "must run every position once"),
        ({"name": "both", "position_tolerance": -1.0}, "position_tolerance is -1.0"),
        ({"name": "tolerance", "position_tolerance": 0.1, "whole_first": False}, "must run every position once"),
        ({"name": "changed-and-masked", "has_solver": False}, "a plain stack leaves nothing to iterate"),
    ],
)
def test_rules_that_leave_nothing_to_iterate_or_to_rest_are_refused(settings: dict[str, Any], complaint: str) -> None:
    defaults: dict[str, Any] = {"position_tolerance": None, "whole_first": True, "has_solver": True}
    with pytest.raises(ValueError, match=complaint):
        where_by_name(**{**defaults, **settings})


def test_a_batch_without_masks_and_a_plain_stack_are_refused(small_model: Build) -> None:
    z = torch.zeros(2, 16, dtype=torch.long)
    with pytest.raises(ValueError, match="no token is masked, so solve changed-and-masked leaves nothing to iterate"):
        trace(small_model(), z, where=CHANGED)
    with pytest.raises(ValueError, match="a plain stack leaves nothing to iterate"):
        trace(small_model(num_pre=3, num_fp=0, num_post=0), z, (0, 0), where=CHANGED)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["stories-mdlm", "--solve", "changed-and-masked"], "a plain stack leaves nothing to iterate; solve all"),
        (
            ["stories-fp", "--solve", "changed-and-masked", "--budget-in", "positions", "--prompt", "One", "One day"],
            "of the tokens of a sequence are given, so that no plan is right for all",
        ),
    ],
)
def test_a_rule_that_leaves_nothing_to_iterate_and_prompts_without_a_plan_get_one_line(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sample", *words]) == 2
    printed = capsys.readouterr()
    assert complaint in printed.err
    assert printed.err.count("\n") == 1
    assert not printed.out


def test_generate_samples_with_the_rule_of_its_settings_and_tells_the_work(text_model: Model) -> None:
    settings: dict[str, Any] = {"num_samples": 3, "budget": 24, "seed": 5}
    everywhere = fpmgm.generate(text_model, **settings)
    at_some = fpmgm.generate(text_model, solve="changed-and-masked", **settings)
    assert at_some.block_evals == everywhere.block_evals == 24
    assert everywhere.position_blocks == (24 - 4) * 24 + 24  # of 4 steps; the last block runs where tokens are revealed
    assert 0.5 * everywhere.position_blocks < at_some.position_blocks < everywhere.position_blocks


@pytest.mark.parametrize("every", [1, 2])
def test_a_budget_in_positions_is_spent_on_as_much_work_as_that_of_all_positions(text_model: Model, every: int) -> None:
    settings: dict[str, Any] = {"num_samples": 16, "budget": 60, "steps": 10, "seed": 5}
    everywhere = fpmgm.generate(text_model, **settings)
    resting: dict[str, Any] = {"solve": "changed-and-masked", "whole_every": every, "budget_in": "positions"}
    by_work = fpmgm.generate(text_model, **resting, **settings)
    assert by_work.steps == everywhere.steps
    assert by_work.block_evals > 1.1 * everywhere.block_evals
    assert 0.9 < by_work.position_blocks / everywhere.position_blocks < 1.05


IN_POSITIONS: dict[str, Any] = {"solve": "changed-and-masked", "budget_in": "positions"}


@pytest.mark.parametrize("every", [1, 2])
def test_what_a_prompt_gives_rests_in_the_plan_of_a_budget_in_positions(text_model: Model, every: int) -> None:
    settings: dict[str, Any] = {"num_samples": 16, "budget": 60, "steps": 10, "seed": 5, "whole_every": every}
    prompt = "the sea and the sky and the old"
    everywhere = fpmgm.generate(text_model, prompts=[prompt], **{**settings, "whole_every": 1})
    nothing_given, given = (
        fpmgm.generate(text_model, prompts=prompts, **IN_POSITIONS, **settings) for prompts in ([], [prompt])
    )
    assert given.given[0] > 0.4 * len(given.tokens[0])
    assert sum(given.iterations) > 1.2 * sum(nothing_given.iterations)
    assert 0.9 < given.position_blocks / everywhere.position_blocks < 1.05


def test_prompts_that_no_plan_in_positions_fits_together_are_refused(text_model: Model) -> None:
    prompts = ["the sea", "the sea and the sky and the old oak"]
    with pytest.raises(ValueError, match=r"of the tokens of a sequence are given, so that no plan is right for all"):
        fpmgm.generate(text_model, prompts=prompts, **IN_POSITIONS)
    assert len(fpmgm.generate(text_model, prompts=prompts, solve="changed-and-masked", budget=24).tokens) == 2


def test_rows_that_are_filled_in_have_the_plan_of_what_is_given_of_them(
    text_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask, spent = text_model.denoiser.mask_id, {}

    def watched(denoiser: Denoiser, z: Tensor, **settings: Any) -> Sampled:
        spent[int((z[0] == mask).sum())] = sum(settings["iterations"]), len(z)
        return sample(denoiser, z, **settings)

    monkeypatch.setattr(filled, "sample", watched)
    rows = [[3] * num + [mask] * (24 - num) for num in (2, 20, 2, 12)]
    sampling = Sampling(budget=48, steps=8, **IN_POSITIONS)
    assert [row[:2] for row in filled.fill_in(text_model.denoiser, rows, sampling)] == [[3, 3]] * 4
    (few, _), (some, _), (many, num_many) = (spent[num] for num in (4, 12, 22))
    assert few > some > many
    assert num_many == 2


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"budget_in": "positions"}, "with solve all every position runs"),
        ({"budget_in": "positions", "solve": "both", "position_tolerance": 0.1}, "saves what nobody can foresee"),
        (
            {"budget_in": "positions", "solve": "changed-and-masked", "transition": "remdm-cap"},
            "remdm-cap masks tokens again by chance",
        ),
        ({"budget_in": "tokens"}, "budget_in"),
        ({"solve": "masked"}, "solve"),
    ],
)
def test_settings_whose_work_cannot_be_foreseen_are_refused(
    text_model: Model, settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        fpmgm.generate(text_model, **settings)


def test_rows_of_a_sweep_at_all_positions_are_known_as_before() -> None:
    assert {field.name for field in fields(PositionSettings)} <= SINCE
