"""SDTT: the teacher's targets against enumeration, its times, its rounds."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from fpmgm.denoiser import Denoiser
from fpmgm.objectives import Moment
from fpmgm.post_training.sdtt import SelfDistillation, StepsNoise, corrected_times, published_times
from fpmgm.post_training.teachers import DIVERGENCES, log_probabilities
from fpmgm.randomness import generator
from tests.conftest import Build

PLAIN: dict[str, Any] = {"num_pre": 2, "num_fp": 0, "num_post": 0}
TINY: dict[str, Any] = {**PLAIN, "vocab_size": 3, "mask_id": 2, "length": 2, "std": 1.0}


def log_p_of(denoiser: Denoiser, z: list[int]) -> torch.Tensor:
    """Log-probabilities at every position of one sequence."""
    tokens = torch.tensor([z])
    with torch.no_grad():
        return log_probabilities(denoiser, denoiser(tokens, 0.5, torch.ones_like(tokens, dtype=torch.bool)).features)


def test_the_teachers_targets_have_the_distribution_found_by_enumeration(small_model: Build) -> None:
    teacher, t, dt, num = small_model(**TINY), 0.6, 0.25, 4000
    chance = [dt / t, dt / (t - dt)]  # of a token's reveal in either step
    first = log_p_of(teacher, [2, 2])
    expected = torch.zeros(2, 3, dtype=torch.float64)  # mean over trajectories of the target's probabilities
    for shown in itertools.product((False, True), repeat=2):
        weight = math.prod(chance[0] if each else 1 - chance[0] for each in shown)
        for tokens in itertools.product((0, 1), repeat=2):
            z, p = [2, 2], weight
            for i in range(2):
                if shown[i]:
                    z[i] = tokens[i]
                    p *= float(first[i, tokens[i]].exp())
                elif tokens[i]:
                    p = 0.0  # nothing is drawn here: count the case once
            second = log_p_of(teacher, z)
            for i in range(2):  # the second step's reveal changes no target: it is the last to speak
                expected[i] += p * (first if shown[i] else second)[i].exp().double()
    objective = SelfDistillation(first_steps=4)
    masked = torch.full((num, 2), 2)
    noise = replace(objective.draw(teacher, masked, rng=generator(1)), t=torch.full((num,), t))
    said = objective.teacher_says(teacher, masked, noise)
    found = log_probabilities(teacher, said.flatten(0, 1)).exp().view(num, 2, 3).double().mean(0)
    torch.testing.assert_close(found, expected, atol=0.01, rtol=0)
    assert not torch.allclose(expected, first.exp().double(), atol=0.02)  # one step would say something else


def test_a_token_once_revealed_keeps_what_was_said_then(small_model: Build) -> None:
    teacher = small_model(**TINY)
    objective = SelfDistillation(first_steps=4)
    z = torch.full((1, 2), 2)
    noise = objective.draw(teacher, z, rng=generator(0))
    reveal = torch.tensor([[[0.0, 1.0], [0.0, 0.0]]])  # the first position in the first step
    noise = replace(noise, t=torch.tensor([0.6]), reveal=reveal, token=torch.full((1, 2, 2), 0.999))
    said = log_probabilities(teacher, objective.teacher_says(teacher, z, noise)[0])
    first = log_p_of(teacher, [2, 2])
    torch.testing.assert_close(said[0], first[0])
    torch.testing.assert_close(said[1], log_p_of(teacher, [1, 2])[1])


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_the_loss_is_the_mean_divergence_over_masked_tokens(small_model: Build, divergence: Any) -> None:
    student, teacher = small_model(**PLAIN), small_model(seed=4, **PLAIN)
    x = torch.randint(0, 11, (5, 16), generator=generator(0))
    objective = SelfDistillation(rounds=2, first_steps=8, divergence=divergence)
    noise = objective.draw(student, x, rng=generator(1), moment=Moment(update=10, updates=20))
    assert noise.dt == 0.25
    found = float(objective.loss(student, x, noise, teacher).total.detach())
    z, masked = noise.z, noise.z == 11
    assert torch.equal(z[~masked], x[~masked])
    with torch.no_grad():
        said = objective.teacher_says(teacher, z, noise)[masked]
        p = log_probabilities(teacher, said)[:, :11].double()
        heard = student(z, noise.t, masked).features
        q = log_probabilities(student, heard)[:, :11].double()
        raw_p, raw_q = teacher.head(said).double(), student.head(heard).double()
        mask_apart = (raw_p[:, 11] - raw_p[:, 0] + p[:, 0]) - (raw_q[:, 11] - raw_q[:, 0] + q[:, 0])
    by_name = {
        "kl-bwd": (q.exp() * (q - p)).sum(1),
        "kl-fwd": (p.exp() * (p - q)).sum(1),
        "mse": (p - q).square().sum(1) / 12,
        "tvd": (p - q).abs().sum(1),
        "mse-with-mask": ((p - q).square().sum(1) + mask_apart.square()) / 12,
        "tvd-with-mask": (p - q).abs().sum(1) + mask_apart.abs(),
    }
    assert found == pytest.approx(float(by_name[divergence].mean()), rel=1e-4)


def test_the_published_times_are_skewed_and_the_corrected_ones_are_where_steps_begin() -> None:
    t = torch.tensor([0.5, 1.0], dtype=torch.float64)
    assert published_times(t, 1e-9, 2).flatten().tolist() == pytest.approx([0.75, 1.0, 0.25, 0.0], abs=1e-6)
    assert published_times(t, 0.1, 2).flatten().tolist() == pytest.approx([0.65, 1.0, 0.15, 0.0])
    assert corrected_times(t, 0.1, 3)[:, 0].tolist() == pytest.approx([0.5, 0.4, 0.3])


def test_steps_double_every_round_and_the_student_then_becomes_the_teacher() -> None:
    objective = SelfDistillation(rounds=3)
    moments = [Moment(update=update, updates=300) for update in range(300)]
    assert [round(1 / objective.step_size(moments[update])) for update in (0, 99, 100, 250)] == [1024, 1024, 512, 256]
    assert [moment.update for moment in moments if objective.next_teacher_at(moment)] == [100, 200]


@pytest.mark.parametrize("cut", [{}, PLAIN], ids=["fixed-point", "plain"])
def test_the_parts_of_a_batch_add_up_and_only_the_student_learns(small_model: Build, cut: dict[str, Any]) -> None:
    student, teacher = small_model(**cut), small_model(seed=4, **cut)
    x = torch.randint(0, 11, (6, 16), generator=generator(0))
    objective = SelfDistillation(first_steps=8, times="published")
    noise: StepsNoise = objective.draw(student, x, rng=generator(1))
    whole = objective.loss(student, x, noise, teacher).total
    parts = [objective.loss(student, x[part], noise.rows(part), teacher).total for part in (slice(0, 2), slice(2, 6))]
    assert sum(float(part.detach()) for part in parts) == pytest.approx(float(whole.detach()), rel=1e-5)
    whole.backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert any(
        float(parameter.grad.abs().sum()) > 0 for parameter in student.parameters() if parameter.grad is not None
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds is 0; it must be 1 to 64"),
        ({"rounds": 4, "first_steps": 8}, "give fewer rounds or more first_steps"),
        ({"num_teacher_steps": 1}, "num_teacher_steps is 1; it must be 2 to 1000000"),
        ({"times": "publshed"}, "did you mean 'published'"),
        ({"divergence": "kl"}, "unknown divergence 'kl'"),
    ],
)
def test_settings_of_sdtt_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SelfDistillation(**settings)
