from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fpmgm.denoiser import Denoiser
from fpmgm.gradients import GRADIENTS, Gradient, implicit, sjfb
from fpmgm.objectives import MaskedCrossEntropy
from fpmgm.randomness import generator
from fpmgm.solvers import SOLVERS, Solution, Solver, anderson, picard
from fpmgm.types import Map
from tests.conftest import Build

SPLITS = [
    {"num_pre": 3, "num_fp": 0, "num_post": 0},
    {"num_pre": 1, "num_fp": 0, "num_post": 0},
    {"num_pre": 1, "num_fp": 1, "num_post": 1},
    {"num_pre": 0, "num_fp": 2, "num_post": 2},
    {"num_pre": 2, "num_fp": 1, "num_post": 0},
]


def some_tokens(batch: int = 4, length: int = 10) -> Tensor:
    return torch.randint(0, 12, (batch, length), generator=generator(0))


def some_positions(batch: int = 4, length: int = 10) -> Tensor:
    positions = torch.rand(batch, length, generator=generator(1)) < 0.4
    positions[0] = False
    positions[1] = True
    return positions


def counts_for(denoiser: Denoiser) -> dict[str, int]:
    return {"num_no_grad": 1, "num_grad": 2} if denoiser.cost.fp else {}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("time_conditioning", [False, True])
def test_features_at_some_positions_equal_those_of_the_full_computation(
    small_model: Build, split: dict[str, int], time_conditioning: bool
) -> None:
    denoiser = small_model(time_conditioning=time_conditioning, **split)
    z, positions, t = some_tokens(), some_positions(), torch.tensor([0.2, 0.5, 0.7, 1.0])
    everywhere = torch.ones_like(positions)
    full = denoiser(z, t, everywhere, **counts_for(denoiser)).features.unflatten(0, z.shape)
    chosen = denoiser(z, t, positions, **counts_for(denoiser)).features
    torch.testing.assert_close(chosen, full[positions], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        denoiser.head(chosen), denoiser.head(full.flatten(0, 1)).unflatten(0, z.shape)[positions], atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("split", SPLITS)
def test_gradients_at_some_positions_equal_those_of_the_full_computation(
    small_model: Build, split: dict[str, int]
) -> None:
    denoiser = small_model(dtype=torch.float64, **split)
    z, positions = some_tokens(), some_positions()
    chosen = denoiser(z, 0.5, positions, **counts_for(denoiser)).features
    full = denoiser(z, 0.5, torch.ones_like(positions), **counts_for(denoiser)).features[positions.flatten()]
    parameters = [p for name, p in denoiser.named_parameters() if "linear" not in name]
    weights = torch.randn(chosen.shape, generator=generator(2), dtype=torch.float64)
    torch.testing.assert_close(
        torch.autograd.grad((weights * chosen).sum(), parameters, allow_unused=True),
        torch.autograd.grad((weights * full).sum(), parameters, allow_unused=True),
    )


def test_no_position_asked_for_gives_no_feature(small_model: Build) -> None:
    denoiser = small_model()
    z = some_tokens()
    features = denoiser(z, 0.5, torch.zeros_like(z, dtype=torch.bool), num_grad=1).features
    assert features.shape == (0, 32)
    assert denoiser.head(features).shape == (0, 12)


def multiply_adds(call: Callable[[], Any]) -> int:
    # The counter knows attention only as the matrix products of the plain backend.
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        call()
    return counter.get_total_flops() // 2


def test_the_last_block_and_the_head_cost_only_the_positions_asked_for(small_model: Build) -> None:
    denoiser = small_model()
    z = some_tokens(batch=1)
    cond = denoiser.condition(z, 0.5)
    h = denoiser.pre(z, cond)
    width, length = 32, 10

    def cost(num_positions: int) -> int:
        positions = (torch.arange(length) < num_positions)[None]
        return multiply_adds(lambda: denoiser.head(denoiser.post(h, cond, positions)))

    per_position = width * width * (1 + 1 + 8) + 2 * length * width + width * 12  # q, out, mlp; attention; head
    assert cost(7) - cost(3) == 4 * per_position
    assert cost(3) == 2 * length * width * width + 3 * per_position  # keys and values everywhere


def test_an_iteration_costs_one_block_and_four_d_by_d_layers(small_model: Build) -> None:
    denoiser = small_model()
    z = some_tokens(batch=1)
    cond = denoiser.condition(z, 0.5)
    h = denoiser.pre(z, cond)

    def solve(num_iters: int) -> int:
        return multiply_adds(lambda: picard(denoiser.fixed_point_map(h, cond), h, num_iters))

    width, length = 32, 10
    block = length * (12 * width * width + 2 * length * width)
    assert solve(5) - solve(4) == block + 4 * length * width * width
    assert solve(1) == block + (4 + 3) * length * width * width  # G and the u half of fc1: once per solve


@contextmanager
def calls_of(denoiser: Denoiser, part: str) -> Iterator[list[str]]:
    """The names of submodules containing `part`, each time one runs."""
    called: list[str] = []
    handles = [
        module.register_forward_hook(partial(_note, called, name))
        for name, module in denoiser.named_modules()
        if part in name and isinstance(module, nn.Linear)
    ]
    try:
        yield called
    finally:
        for handle in handles:
            handle.remove()


def _note(called: list[str], name: str, *_: Any) -> None:
    called.append(name)


def test_modulations_and_g_are_computed_once_per_step_whatever_the_iterations(small_model: Build) -> None:
    denoiser = small_model()
    z = some_tokens()
    positions = some_positions()
    with calls_of(denoiser, "adaLN_modulation") as modulations, calls_of(denoiser, "project") as projections:
        denoiser(z, 0.5, positions, num_grad=6)
    assert len(modulations) == len(set(modulations)) == 4  # three blocks and the output layer
    assert len(projections) == 1


def test_the_fixed_point_map_of_some_rows_is_that_of_the_batch_at_those_rows(small_model: Build) -> None:
    denoiser = small_model(time_conditioning=True)
    z, rows = some_tokens(), torch.tensor([3, 1])
    cond = denoiser.condition(z, torch.tensor([0.1, 0.4, 0.6, 0.9]))
    h = denoiser.pre(z, cond)
    f = denoiser.fixed_point_map(h, cond)
    torch.testing.assert_close(f(h[rows], rows), f(h)[rows], atol=1e-6, rtol=1e-5)
    assert torch.equal(cond.rows(rows).final_scale, cond.final_scale[rows])
    assert torch.equal(cond.rows(rows).final_shift, cond.final_shift[rows])


def test_forward_runs_all_its_iterations_from_h_pre_and_reports_the_residual(small_model: Build) -> None:
    denoiser = small_model()
    z, positions = some_tokens(), some_positions()
    cond = denoiser.condition(z, 0.5)
    h = denoiser.pre(z, cond)
    solution = picard(denoiser.fixed_point_map(h, cond), h, 5)
    found = denoiser(z, 0.5, positions, num_no_grad=3, num_grad=2)
    torch.testing.assert_close(found.features, denoiser.post(solution.h, cond, positions))
    torch.testing.assert_close(found.residual, solution.residual)


@pytest.mark.parametrize("frozen", [False, True])
def test_frozen_dropout_shares_one_pattern_over_the_iterations_of_a_solve(small_model: Build, frozen: bool) -> None:
    denoiser = small_model(dropout=0.5, frozen_dropout=frozen).train()
    z = some_tokens()
    cond = denoiser.condition(z, 0.5)
    h = denoiser.pre(z, cond)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        f, other = denoiser.fixed_point_map(h, cond), denoiser.fixed_point_map(h, cond)
        assert torch.equal(f(h), f(h)) == frozen
        assert not torch.equal(f(h), other(h))


def test_frozen_dropout_keeps_the_mean_of_a_branch(small_model: Build) -> None:
    denoiser = small_model(dropout=0.3, frozen_dropout=True).train()
    z = some_tokens()
    cond = denoiser.condition(z, 0.5)
    h = denoiser.pre(z, cond)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        frozen = [cond.freeze_dropout(h, range(1, 2)).blocks for _ in range(500)]
    for gate in ("gate_attn", "gate_mlp"):
        mean = torch.stack([getattr(blocks[1], gate) for blocks in frozen]).mean(0)
        before = getattr(cond.blocks[1], gate).expand_as(mean)
        torch.testing.assert_close(mean, before, atol=0.06, rtol=0.2)
        assert not torch.allclose(getattr(frozen[0][1], gate), before)
        assert not torch.equal(getattr(frozen[0][1], gate)[0], getattr(frozen[0][1], gate)[1])  # by sequence
    assert frozen[0][0].gate_mlp is cond.blocks[0].gate_mlp  # other blocks keep theirs


def test_forward_runs_the_solver_and_the_gradient_it_is_given(
    small_model: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    def noted_solver(f: Map, h: Tensor, num_iters: int) -> Solution:
        called.append("solver")
        return picard(f, h, num_iters)

    def noted_gradient(f: Map, h: Tensor, *, num_no_grad: int, num_grad: int, solver: Solver = picard) -> Solution:
        called.append("gradient")
        return solver(f, h, num_no_grad + num_grad)

    z, positions = some_tokens(), some_positions()
    small_model()(z, 0.5, positions, num_grad=2, gradient=noted_gradient, solver=noted_solver)
    assert called == ["gradient", "solver"]
    monkeypatch.setitem(GRADIENTS, "unrolled", noted_gradient)
    monkeypatch.setitem(SOLVERS, "anderson", noted_solver)
    objective = MaskedCrossEntropy(gradient="unrolled", solver="anderson")
    objective(small_model(), some_tokens() % 11, rng=generator(0))
    assert called == ["gradient", "solver"] * 2


@pytest.mark.parametrize("solver", [picard, anderson, partial(picard, tolerance=1e-2)])
@pytest.mark.parametrize("gradient", [sjfb, implicit])
def test_bf16_autocast_keeps_the_residual_stream_in_float32_and_comes_close(
    small_model: Build, solver: Solver, gradient: Gradient
) -> None:
    denoiser = small_model()
    z, positions = some_tokens(), some_positions()
    counts = {"num_no_grad": 1, "num_grad": 3}
    exact = denoiser(z, 0.5, positions, **counts, gradient=gradient, solver=solver).features
    with torch.autocast("cpu", torch.bfloat16):
        features = denoiser(z, 0.5, positions, **counts, gradient=gradient, solver=solver).features
        features.square().sum().backward()
    assert features.dtype == torch.float32
    torch.testing.assert_close(features, exact, atol=0.1, rtol=0.1)


def test_rotary_angles_stay_exact_in_a_bf16_model(small_model: Build) -> None:
    z = torch.zeros(1, 1000, dtype=torch.long)
    exact, rounded = (
        model.condition(z, 0.5).rotation.cos for model in (small_model(), small_model(dtype=torch.bfloat16))
    )
    torch.testing.assert_close(rounded.float(), exact, atol=5e-3, rtol=0)


def test_evaluation_has_no_dropout(small_model: Build) -> None:
    denoiser = small_model(dropout=0.5)
    z, positions = some_tokens(), some_positions()
    first, second = (denoiser(z, 0.5, positions, num_grad=2).features for _ in range(2))
    assert torch.equal(first, second)


def test_iterations_and_architecture_must_fit(small_model: Build) -> None:
    z, positions = some_tokens(), some_positions()
    with pytest.raises(
        ValueError, match="0 iterations without and 0 with gradients; a fixed point needs at least 0 and 1"
    ):
        small_model()(z, 0.5, positions)
    with pytest.raises(ValueError, match="iterations asked of a plain stack"):
        small_model(num_fp=0, num_post=0)(z, 0.5, positions, num_grad=2)
    plain = small_model(num_fp=0, num_post=0)
    with pytest.raises(ValueError, match="a plain stack has no fixed-point map"):
        plain.fixed_point_map(torch.zeros(1, 2, 32), plain.condition(z, 0.5))
