from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from fpmgm.budget import plan
from fpmgm.denoiser import Denoiser
from fpmgm.draws import Draw
from fpmgm.randomness import Streams
from fpmgm.remasking import Remasking, ReMDMCap, ReMDMConf, ReMDMLoop
from fpmgm.reuse import Reuse, full_reuse, no_reuse, three_state_reuse
from fpmgm.sampling import Sampled, Step, even_times, left_to_right, masked_start, sample
from fpmgm.solvers import anderson, picard
from fpmgm.transitions import Ancestral, Confidence, Transition
from fpmgm.types import Logits, Places, Positions, State
from tests.conftest import Build
from tests.given import LENGTH, MASK, Distribution, enumerate_ancestral, given_fixed_point, given_plain, table_of
from tests.test_transitions import Skewed

NUM_DRAWS = 20_000


def outcomes(denoiser: Denoiser, times: Sequence[float], num_iters: int, **options: Any) -> Tensor:
    z = torch.full((NUM_DRAWS, LENGTH), MASK)
    iterations = [num_iters] * (len(times) - 1)
    options = {"transition": Ancestral(), **options}
    rng = Streams.of(0, range(NUM_DRAWS))
    return sample(denoiser, z, times=times, iterations=iterations, rng=rng, **options).z


def p_value(z: Tensor, expected: Distribution) -> float:
    """Chi-square of sampled outcomes against their exact distribution, rare outcomes taken together."""
    seen: dict[tuple[int, ...], int] = {}
    for row in z.tolist():
        seen[tuple(row)] = seen.get(tuple(row), 0) + 1
    assert set(seen) <= set(expected)
    common = [outcome for outcome, p in expected.items() if p * len(z) >= 5]
    observed = [seen.get(outcome, 0) for outcome in common]
    predicted = [expected[outcome] * len(z) for outcome in common]
    observed.append(len(z) - sum(observed))
    predicted.append(max(len(z) - sum(predicted), 1e-9))
    if predicted[-1] < 5:
        observed[-2:], predicted[-2:] = [sum(observed[-2:])], [sum(predicted[-2:])]
    return float(stats.chisquare(observed, predicted, sum_check=False).pvalue)


TIMES = (1.0, 0.7, 0.3, 0.0)


def test_a_plain_denoiser_with_given_probabilities_samples_their_exact_distribution() -> None:
    denoiser = given_plain()
    expected = enumerate_ancestral(table_of(denoiser, 0), TIMES)
    assert sum(expected.values()) == pytest.approx(1)
    assert p_value(outcomes(denoiser, TIMES, 0), expected) > 1e-3
    # Another grid of times has another distribution, and the test tells them apart.
    assert p_value(outcomes(denoiser, (1.0, 0.5, 0.0), 0), expected) < 1e-6


@pytest.mark.parametrize("reuse", [no_reuse, full_reuse, three_state_reuse])
@pytest.mark.parametrize("solver", [picard, anderson])
def test_a_fixed_point_denoiser_with_given_probabilities_samples_their_exact_distribution(
    reuse: Reuse, solver: Callable[..., Any]
) -> None:
    denoiser = given_fixed_point()
    expected = enumerate_ancestral(table_of(denoiser, 8), TIMES)
    assert p_value(outcomes(denoiser, TIMES, 8, reuse=reuse, solver=solver), expected) > 1e-3


@pytest.mark.parametrize(("split", "num_iters"), [((2, 0, 0), 0), ((1, 1, 1), 2)])
def test_a_real_network_samples_the_exact_distribution_of_its_own_probabilities(
    small_model: Build, split: tuple[int, int, int], num_iters: int
) -> None:
    num_pre, num_fp, num_post = split
    denoiser = small_model(
        vocab_size=5, mask_id=MASK, length=3, width=16, num_pre=num_pre, num_fp=num_fp, num_post=num_post, std=0.25
    )
    table = table_of(denoiser, num_iters)
    assert all(float(p.max()) < 0.99 for p in table.values())  # not a foregone conclusion
    assert p_value(outcomes(denoiser, TIMES, num_iters), enumerate_ancestral(table, TIMES)) > 1e-3


def test_a_sampler_that_reveals_5_percent_too_often_is_seen_in_the_counts_of_every_step() -> None:
    def z_scores(transition: Transition) -> list[float]:
        scores = []

        def note(step: Step) -> None:
            masked = int((step.z == MASK).sum())
            p = (step.t - step.t_next) / step.t
            if p < 1:
                scores.append(abs(sum(step.places.counts) - p * masked) / (p * (1 - p) * masked) ** 0.5)

        outcomes(given_plain(), TIMES, 0, transition=transition, on_step=note)
        return scores

    assert max(z_scores(Ancestral())) < 4
    assert min(z_scores(Skewed())) > 4


def trace(denoiser: Denoiser, z: Tensor, iterations: Sequence[int], **options: Any) -> tuple[Sampled, list[Step]]:
    steps: list[Step] = []
    options = {"transition": Ancestral(), "rng": Streams.of(0, range(len(z))), **options}
    sampled = sample(
        denoiser, z, times=even_times(len(iterations)), iterations=iterations, on_step=steps.append, **options
    )
    return sampled, steps


def algorithm_1(
    denoiser: Denoiser, z_of_step: Sequence[Tensor], iterations: Sequence[int]
) -> list[tuple[Tensor, Tensor]]:
    """(h^0, h*) of every step for one sequence, as Algorithm 1 prints it, position by position."""
    times = even_times(len(iterations))
    h_prev: Tensor | None = None
    z_prev: list[int] = []
    solutions = []
    for z, num_iters, (t, _) in zip(z_of_step, iterations, pairwise(times), strict=True):
        cond = denoiser.condition(z, t)
        h_pre = denoiser.pre(z, cond)
        h = h_pre.clone()
        tokens = z[0].tolist()
        if h_prev is not None:
            v = sum(token != denoiser.mask_id for token in tokens) / len(tokens)
            for j, token in enumerate(tokens):
                if token == z_prev[j] != denoiser.mask_id:
                    gamma = 1.0
                elif token == z_prev[j] == denoiser.mask_id:
                    gamma = 0.75 + (0.90 - 0.75) * v
                else:
                    gamma = 0.2
                h[0, j] = gamma * h_prev[0, j] + (1 - gamma) * h_pre[0, j]
        f = denoiser.fixed_point_map(h_pre, cond)
        h_init = h
        for _ in range(num_iters):
            h = f(h)
        h_prev, z_prev = h, tokens
        solutions.append((h_init, h))
    return solutions


@pytest.mark.parametrize(
    "transition",
    [
        Ancestral(),
        Confidence(),
        Remasking(rule=ReMDMCap(eta=0.4)),
        Remasking(rule=ReMDMConf()),
        Remasking(rule=ReMDMLoop(eta=0.3)),
    ],
)
@torch.no_grad()
def test_hidden_states_under_three_state_reuse_are_those_of_algorithm_1(
    small_model: Build, transition: Transition
) -> None:
    denoiser = small_model(time_conditioning=True)
    iterations = (3, 2, 2, 2, 1, 1, 1)
    z = torch.full((1, 16), 11)
    _, steps = trace(denoiser, z, iterations, transition=transition, reuse=three_state_reuse)
    expected = algorithm_1(denoiser, [step.z for step in steps], iterations)
    for step, (h_init, h_star) in zip(steps, expected, strict=True):
        torch.testing.assert_close(step.h_pre, denoiser.pre(step.z, denoiser.condition(step.z, step.t)))
        torch.testing.assert_close(step.h_init, h_init, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(step.solution.h, h_star, atol=1e-5, rtol=1e-5)


def test_remasking_does_mask_visible_tokens_again_in_the_loop(small_model: Build) -> None:
    _, steps = trace(
        small_model(),
        torch.full((4, 16), 11),
        (1,) * 8,
        transition=Remasking(rule=ReMDMCap(eta=0.4)),
        reuse=three_state_reuse,
    )
    assert any(bool(((step.z != 11) & (step.z_next == 11)).any()) for step in steps)


PROMPTS = [[1, 2, 3], [], [5], [0] * 15, [4, 11, 11, 6], [11] * 8 + [7], [2] * 10]


@pytest.mark.parametrize(
    ("transition", "solver"),
    [
        (Ancestral(), picard),
        (Ancestral(), anderson),
        (Ancestral(), partial(picard, tolerance=0.05)),
        (Confidence(), picard),
        (Remasking(rule=ReMDMConf()), picard),
    ],
)
def test_a_sequence_sampled_alone_and_in_a_batch_of_seven_is_the_same(
    small_model: Build, transition: Transition, solver: Callable[..., Any]
) -> None:
    denoiser = small_model()
    options = {"transition": transition, "solver": solver, "reuse": three_state_reuse}
    iterations = (4, 3, 2, 2, 1)
    batch, steps = trace(denoiser, masked_start(denoiser, PROMPTS), iterations, rng=Streams.of(5, range(7)), **options)
    for index, prompt in enumerate(PROMPTS):
        alone, alone_steps = trace(
            denoiser, masked_start(denoiser, [prompt]), iterations, rng=Streams.of(5, [index]), **options
        )
        assert torch.equal(alone.z[0], batch.z[index])
        assert alone.block_evals[0] == batch.block_evals[index]
        for step, alone_step in zip(steps, alone_steps, strict=True):
            torch.testing.assert_close(step.solution.h[index], alone_step.solution.h[0], atol=1e-5, rtol=1e-5)


def test_a_plain_stack_is_sampled_by_the_same_loop_alone_and_in_a_batch(small_model: Build) -> None:
    denoiser = small_model(num_pre=3, num_fp=0, num_post=0)
    batch, steps = trace(denoiser, masked_start(denoiser, PROMPTS), (0,) * 5)
    assert batch.block_evals.tolist() == [15] * 7
    assert batch.unspent.tolist() == [0] * 7
    alone, alone_steps = trace(denoiser, masked_start(denoiser, PROMPTS[:1]), (0,) * 5)
    assert torch.equal(alone.z[0], batch.z[0])
    torch.testing.assert_close(steps[-1].solution.h[0], alone_steps[-1].solution.h[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("transition", [Ancestral(), Confidence(), Remasking(rule=ReMDMCap(eta=0.6))])
def test_prompts_at_any_positions_stay_at_every_step_and_no_mask_survives(
    small_model: Build, transition: Transition
) -> None:
    denoiser = small_model()
    z = masked_start(denoiser, PROMPTS)
    is_given = z != denoiser.mask_id
    sampled, steps = trace(denoiser, z, (1,) * 6, transition=transition)
    for step in steps:
        assert torch.equal(step.z_next[is_given], z[is_given])
    assert not (sampled.z == denoiser.mask_id).any()


def test_each_step_sees_what_the_one_before_wrote(small_model: Build) -> None:
    _, steps = trace(small_model(), torch.full((2, 16), 11), (2, 1, 1))
    assert [step.index for step in steps] == [0, 1, 2]
    assert [(step.t, step.t_next) for step in steps] == list(pairwise(even_times(3)))
    for before, after in pairwise(steps):
        assert torch.equal(before.z_next, after.z)


class DtypeOf:
    """A transition that notes the precision of the logits it is given."""

    def __init__(self) -> None:
        self.seen: set[torch.dtype] = set()
        self.mask_logits: list[float] = []

    def positions(self, state: State, t: float, t_next: float, *, rng: Streams) -> Positions:
        return state.is_masked

    def write(self, state: State, logits: Logits, places: Places, t: float, t_next: float, *, rng: Streams) -> State:
        self.seen.add(logits.dtype)
        self.mask_logits += logits[:, state.mask_id].tolist()
        return state.written(places, logits.argmax(-1))


def test_transitions_get_float64_logits_that_never_propose_the_mask(small_model: Build) -> None:
    transition = DtypeOf()
    trace(small_model(), torch.full((1, 16), 11), (1,), transition=transition)
    assert transition.seen == {torch.float64}
    assert set(transition.mask_logits) == {-torch.inf}


def test_a_tolerance_saves_rows_and_reports_what_was_not_spent(small_model: Build) -> None:
    denoiser = small_model(std=0.05)
    rows = 0

    def count(module: Any, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal rows
        rows += len(arguments[0])

    assert denoiser.injection is not None
    denoiser.injection.register_forward_hook(count)
    z = torch.full((3, 16), 11)
    z[1, :9] = 4
    sampled, _ = trace(denoiser, z, (12,) * 4, solver=partial(picard, tolerance=1e-2), reuse=three_state_reuse)
    allotted = 4 * (1 + 12 + 1)
    assert (sampled.block_evals + sampled.unspent == allotted).all()
    assert (sampled.unspent > 0).all()
    assert rows == int(sampled.block_evals.sum()) - 3 * 4 * 2


@pytest.mark.parametrize("split", [(1, 1, 1), (2, 2, 1), (0, 3, 0), (4, 0, 0)])
def test_a_sample_costs_what_its_plan_says(small_model: Build, split: tuple[int, int, int]) -> None:
    denoiser = small_model(num_pre=split[0], num_fp=split[1], num_post=split[2])
    spending = plan(60, denoiser.cost)
    sampled, _ = trace(denoiser, torch.full((2, 16), 11), spending.iterations)
    assert sampled.block_evals.tolist() == [spending.spent] * 2
    assert sampled.unspent.tolist() == [0, 0]


def test_the_same_seed_gives_the_same_sample_and_another_seed_another(small_model: Build) -> None:
    denoiser = small_model()
    z = torch.full((2, 16), 11)
    first, second, other = (trace(denoiser, z, (2,) * 4, rng=Streams.of(seed, range(2)))[0].z for seed in (0, 0, 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_sampling_turns_dropout_off_and_leaves_the_model_as_it_was(small_model: Build) -> None:
    denoiser = small_model(dropout=0.5).train()
    z = torch.full((2, 16), 11)
    first, second = (trace(denoiser, z, (2,) * 4)[1][-1].solution.h for _ in range(2))
    assert torch.equal(first, second)
    assert not first.requires_grad
    assert denoiser.training

    def fail(step: Step) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        sample(
            denoiser,
            z,
            times=(1.0, 0.0),
            iterations=(1,),
            transition=Ancestral(),
            rng=Streams.of(0, range(2)),
            on_step=fail,
        )
    assert denoiser.training


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_has_diverged_is_reported_not_sampled(small_model: Build, temperature: float) -> None:
    denoiser = small_model()
    with torch.no_grad():
        denoiser.get_parameter("backbone.output_layer.linear.bias").fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="logits are not finite"):
        trace(denoiser, torch.full((1, 16), 11), (1,), transition=Ancestral(draw=Draw(temperature=temperature)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"times": (1.0, 0.5, 0.5, 0.0), "iterations": (1, 1, 1)}, r"times must fall, but 0\.5 follows 0\.5"),
        ({"times": (1.0, 0.2, 0.6, 0.0), "iterations": (1, 1, 1)}, r"times must fall, but 0\.6 follows 0\.2"),
        ({"times": (1.0, 0.1)}, r"times run from 1\.0 to 0\.1; they must start at 1 or below and end at 0"),
        ({"times": (2.0, 0.0)}, r"times run from 2\.0"),
        ({"iterations": (1, 1)}, "2 times make 1 steps, but there are iterations for 2"),
        ({"times": (1.0,), "iterations": ()}, "no denoising step"),
        ({"iterations": (0,)}, r"a model with a fixed point needs at least 1 at every step"),
        ({"rng": Streams.of(0, range(3))}, "3 random streams for 2 sequences"),
        ({"z": torch.full((2, 16), 12)}, "tokens run from 12 to 12; the model knows 0 to 11"),
        ({"z": torch.full((2, 16), -1)}, "tokens run from -1 to -1"),
        ({"z": torch.full((2, 16), 11, dtype=torch.int32)}, r"tokens are torch\.int32; give torch\.long"),
        ({"z": torch.full((0, 16), 11)}, r"tokens have shape \(0, 16\); give at least one sequence"),
        ({"z": torch.full((2, 17), 11)}, "sequences of 17 tokens; the model takes at most 16"),
    ],
)
def test_bad_input_is_refused_with_what_was_given_and_what_would_work(
    small_model: Build, changes: dict[str, Any], message: str
) -> None:
    arguments = {
        "z": torch.full((2, 16), 11),
        "times": (1.0, 0.0),
        "iterations": (1,),
        "transition": Ancestral(),
        "rng": Streams.of(0, range(2)),
    }
    with pytest.raises(ValueError, match=message):
        sample(small_model(), **{**arguments, **changes})


def test_iterations_and_reuse_that_a_plain_stack_would_ignore_are_refused(small_model: Build) -> None:
    denoiser = small_model(num_pre=2, num_fp=0, num_post=0)
    z = torch.full((1, 16), 11)
    for iterations, options in (
        ((2,), {}),
        ((-3,), {}),
        ((0,), {"reuse": three_state_reuse}),
        ((0,), {"solver": anderson}),
    ):
        with pytest.raises(ValueError, match="a plain stack has nothing to solve or reuse"):
            trace(denoiser, z, iterations, **options)


def test_a_prompt_stands_at_the_beginning_and_masks_fill_the_rest(small_model: Build) -> None:
    z = masked_start(small_model(), [[3, 11, 5], []], length=5)
    assert z.tolist() == [[3, 11, 5, 11, 11], [11] * 5]
    assert masked_start(small_model(), [[]]).shape == (1, 16)


def test_a_prompt_longer_than_the_model_or_the_sequence_is_refused(small_model: Build) -> None:
    denoiser = small_model()
    with pytest.raises(ValueError, match="prompt 1 has 17 tokens, but there is room for 16"):
        masked_start(denoiser, [[], [1] * 17])
    with pytest.raises(ValueError, match="prompt 0 has 3 tokens, but there is room for 2"):
        masked_start(denoiser, [[1, 2, 3]], length=2)
    with pytest.raises(ValueError, match="no prompts"):
        masked_start(denoiser, [])
    with pytest.raises(ValueError, match="num_steps is 0"):
        even_times(0)


def test_left_to_right_draws_each_token_from_the_causal_models_own_distribution(small_model: Build) -> None:
    """By chi-square over all pairs of tokens that can follow a given first one."""
    denoiser = small_model(num_pre=2, num_fp=0, num_post=0, is_causal=True, vocab_size=5, mask_id=4, length=3)
    num = 4000
    start = torch.tensor([[2, 4, 4]]).repeat(num, 1)
    out = left_to_right(denoiser, start, draw=Draw(), rng=Streams.of(0, range(num)))
    assert out.block_evals.tolist() == [4] * num
    pairs = torch.cartesian_prod(torch.arange(4), torch.arange(4))
    rows = torch.cat([torch.full((16, 1), 2), pairs], dim=1)
    logits = denoiser.head(denoiser(rows, 0.0, torch.ones_like(rows, dtype=torch.bool)).features).detach()
    log_p = logits.view(16, 3, 5)[..., :4].double().log_softmax(dim=-1)
    expected = num * (log_p[:, 0].gather(1, pairs[:, :1]) + log_p[:, 1].gather(1, pairs[:, 1:])).exp()[:, 0]
    counts = torch.stack([(out.z[:, 1:] == pair).all(dim=1).sum() for pair in pairs])
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 37.7  # 0.999 of chi-square with 15 degrees of freedom


def test_left_to_right_keeps_what_is_given_and_refuses_what_it_cannot_do(small_model: Build) -> None:
    causal = small_model(num_pre=2, num_fp=0, num_post=0, is_causal=True)
    out = left_to_right(causal, torch.tensor([[3, 11, 5, 11]]), draw=Draw(), rng=Streams.of(0, [0]))
    assert out.z[0, [0, 2]].tolist() == [3, 5]
    assert 11 not in out.z[0].tolist()
    with pytest.raises(ValueError, match="needs a first token in every sequence"):
        left_to_right(causal, torch.tensor([[11, 11]]), draw=Draw(), rng=Streams.of(0, [0]))
    with pytest.raises(ValueError, match="for causal models"):
        left_to_right(small_model(), torch.tensor([[1, 11]]), draw=Draw(), rng=Streams.of(0, [0]))
    with pytest.raises(ValueError, match="this model is causal, made to judge text"):
        sample(
            causal,
            torch.tensor([[1, 11]]),
            times=(1.0, 0.0),
            iterations=(0,),
            transition=Ancestral(),
            rng=Streams.of(0, [0]),
        )
