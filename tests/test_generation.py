import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fpmgm.__main__ import main
from fpmgm.checkpoint import Model
from fpmgm.commands.benchmark import draw
from fpmgm.evaluation.cost import multiply_adds
from fpmgm.generation import TRANSITIONS, decode, encode, generate
from fpmgm.sampling import Step
from tests.conftest import SMALL, Build


@pytest.fixture
def model(text_model: Model) -> Model:
    return text_model


def test_generate_spends_its_budget_and_repeats_with_its_seed(model: Model) -> None:
    first, second, other = (generate(model, num_samples=3, budget=24, seed=seed) for seed in (0, 0, 1))
    assert first.texts == second.texts != other.texts
    assert first.block_evals == 24
    assert (first.steps, len(first.texts)) == (4, 3)
    assert all(model.denoiser.mask_id not in row and len(row) == 24 for row in first.tokens)


def test_a_sample_does_not_depend_on_the_batch_size(model: Model) -> None:
    together, apart = (generate(model, num_samples=5, budget=24, batch_size=size) for size in (5, 2))
    assert together.tokens == apart.tokens


def test_a_prompt_is_what_the_text_begins_with(model: Model) -> None:
    out = generate(model, num_samples=2, prompts=["the old oak", "and the sky"], budget=24)
    assert [text[:11] for text in out.texts] == ["the old oak", "the old oak", "and the sky", "and the sky"]


def test_blanks_are_filled_and_the_rest_stays(model: Model) -> None:
    (text,) = generate(model, infill=["the ___ and the __ oak"], budget=24).texts
    assert text.startswith("the ")
    assert text.endswith(" oak")
    assert " and the " in text
    assert "_" not in text


def test_texts_with_blanks_may_have_different_lengths(model: Model) -> None:
    infill = ["the ___", "the sky and the _ oak"]
    both = generate(model, infill=infill, budget=24)
    assert [len(row) for row in both.tokens] == [len(encode(model, "the ")) + 5, len(both.tokens[1])]
    assert len(both.tokens[0]) != len(both.tokens[1])


@pytest.mark.parametrize("transition", TRANSITIONS)
def test_every_transition_by_name_leaves_no_mask(model: Model, transition: str) -> None:
    out = generate(model, budget=36, transition=transition, top_p=0.9)
    assert model.denoiser.mask_id not in out.tokens[0]


def test_steps_are_handed_to_a_callback(model: Model) -> None:
    steps: list[Step] = []
    generate(model, budget=24, on_step=steps.append)
    assert [step.index for step in steps] == [0, 1, 2, 3]
    assert decode(model, steps[0].z[0].tolist()) == "·" * 24


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 2}, "the smallest feasible budget is 3"),
        ({"prompts": ["the sea " * 30]}, "tokens; the model writes 24, so a prompt may have 22 at most"),
        ({"infill": ["no blank"]}, "has no blank to fill in"),
        ({"infill": ["the _" * 30]}, "tokens; the model takes 22"),
        ({"prompts": ["a"], "infill": ["_"]}, "prompts and infill are both given"),
        ({"bugdet": 2}, "unknown setting 'bugdet'; did you mean 'budget'"),
        ({"transition": "ancestrall"}, "did you mean 'ancestral'"),
        ({"num_samples": 0}, "num_samples is 0"),
    ],
)
def test_wrong_requests_are_refused(model: Model, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate(model, **options)  # type: ignore[arg-type]


def test_the_sample_command_prints_json_and_repeats(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.save(tmp_path / "model")
    command = ["sample", str(tmp_path / "model"), "--json", "--num-samples", "2", "--budget", "30", "--seed", "0"]
    found = []
    for _ in range(2):
        assert main(command) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["texts"] == found[1]["texts"]
    assert len(found[0]["texts"]) == 2
    assert found[0]["block_evals"] == 30
    assert main([*command[:2], "--budget", "1"]) == 2
    assert "smallest feasible budget is 3" in capsys.readouterr().err
    assert main([*command[:2], "--watch", "--budget", "12"]) == 0
    assert "t = 0.50" in capsys.readouterr().out


@pytest.mark.parametrize("injection", ["mlp", "linear", "add"])
@pytest.mark.parametrize("split", [(3, 0, 0), (1, 1, 1), (2, 1, 0), (0, 2, 2)])
def test_multiply_adds_by_formula_are_those_torch_counts(
    small_model: Build, split: tuple[int, int, int], injection: str
) -> None:
    changes: dict[str, Any] = {"num_pre": split[0], "num_fp": split[1], "num_post": split[2], "injection": injection}
    denoiser = small_model(**changes)
    num_iters = 3 if split[1] else 0
    z = torch.full((1, 16), 11)
    positions = (torch.arange(16) < 5)[None]
    folded = denoiser.injection.folded() if denoiser.injection else nullcontext()
    with folded, FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        denoiser.head(denoiser(z, 0.5, positions, num_grad=num_iters).features)
    expected = multiply_adds(replace(SMALL, **changes), num_iters=num_iters, num_positions=5)
    assert counter.get_total_flops() // 2 == expected


@pytest.mark.parametrize("injection", ["mlp", "linear"])
def test_the_projection_before_the_injection_costs_the_sampler_the_same_at_every_budget(
    small_model: Build, injection: str
) -> None:
    def counted(budget: int, *, has_projection: bool) -> int:
        denoiser = small_model(num_pre=1, num_fp=1, num_post=1, injection=injection, has_projection=has_projection)
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            draw(denoiser, 1, budget)
        return counter.get_total_flops()

    extra = [counted(budget, has_projection=True) - counted(budget, has_projection=False) for budget in (12, 24)]
    assert extra[0] == extra[1] > 0
