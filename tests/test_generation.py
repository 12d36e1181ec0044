import json
import math
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import fpmgm
from fpmgm.__main__ import main
from fpmgm.backbones.dit import as_mdlm
from fpmgm.checkpoint import Model
from fpmgm.codecs import TextCodec
from fpmgm.evaluation.held_out import text_codec
from fpmgm.experiments.workloads import draw
from fpmgm.generation import TRANSITIONS, generate
from fpmgm.sampling import Step
from fpmgm.transitions import halton_order
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
    assert text.startswith("the")
    assert text.endswith(" oak")
    assert " and the" in text
    assert "_" not in text


def test_texts_with_blanks_may_have_different_lengths(model: Model) -> None:
    infill = ["the ___", "the sky and the _ oak"]
    both = generate(model, infill=infill, budget=24)
    assert [len(row) for row in both.tokens] == [len(text_codec(model).encode("the")) + 5, len(both.tokens[1])]
    assert len(both.tokens[0]) != len(both.tokens[1])


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("the ___ and the ___", ["the", 3, " and the", 3]),  # the space before a blank is the blank's
        ("the __ _ sea", ["the", 3, " sea"]),  # and so is that between two blanks
        ("_ the sea", [1, " the sea"]),
        ("the s_a", ["the s", 1, "a"]),  # inside a word nothing is taken
        ("the sea\n_ oak", ["the sea\n", 1, " oak"]),  # a new line stays
        ("the sea  _", ["the sea ", 1]),  # of two spaces only the word's own is taken
        ("the _, ", ["the", 1, ","]),
    ],
)
def test_a_blank_takes_the_space_before_it(model: Model, text: str, parts: list[str | int]) -> None:
    starts: list[Step] = []
    generate(model, infill=text, budget=3, on_step=starts.append)
    mask = model.denoiser.mask_id
    ids = [[mask] * part if isinstance(part, int) else text_codec(model).encode(part) for part in parts]
    assert starts[0].z[0].tolist()[1:-1] == [token for part in ids for token in part]


def test_a_space_at_the_end_of_a_prompt_belongs_to_what_follows(model: Model) -> None:
    with_space, without = (generate(model, prompts=[prompt], budget=24) for prompt in ("the sea ", "the sea"))
    assert with_space.tokens == without.tokens


def test_blanks_and_prompts_of_a_tokenizer_without_spaces_are_as_they_were(model: Model) -> None:
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "[MASK]": 3, "the": 4, "sea": 5}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    config = replace(as_mdlm(model.config), vocab_size=6, mask_id=3)
    bert = Model(denoiser=fpmgm.mdlm(config, seed=0).eval(), config=config, codec=TextCodec(words.to_str()))
    starts: list[Step] = []
    generate(bert, infill="the __ sea", budget=3, on_step=starts.append)
    assert starts[0].z[0].tolist() == [1, 4, 3, 3, 5, 2]


def test_one_string_is_one_prompt_and_one_text_with_blanks(model: Model) -> None:
    for name, text in (("prompts", "the old oak"), ("infill", "the _ oak")):
        given: dict[str, Any] = {name: text}
        listed: dict[str, Any] = {name: [text]}
        assert generate(model, budget=24, **given).tokens == generate(model, budget=24, **listed).tokens


def test_seconds_do_not_count_what_a_callback_takes(model: Model) -> None:
    out = generate(model, budget=24, on_step=lambda _: time.sleep(0.5))
    assert out.steps * 0.5 >= 2 > out.seconds


@pytest.mark.parametrize("transition", TRANSITIONS)
def test_every_transition_by_name_leaves_no_mask(model: Model, transition: str) -> None:
    out = generate(model, budget=36, transition=transition, top_p=0.9)
    assert model.denoiser.mask_id not in out.tokens[0]


@pytest.mark.parametrize("rows", [1, 4])
def test_halton_reveals_the_cells_of_its_order_or_of_one_row_and_a_prompt_stays(model: Model, rows: int) -> None:
    steps: list[Step] = []
    grid: dict[str, Any] = {} if rows == 1 else {"grid": (rows, 24 // rows)}
    out = generate(model, budget=40, transition="halton", prompts="the sea", on_step=steps.append, **grid)
    assert out.texts[0].startswith("the sea")
    revealed: list[int] = []
    for step in steps:
        revealed += (step.z[0] != step.z_next[0]).nonzero()[:, 0].tolist()
    given = {index for index, token in enumerate(steps[0].z[0].tolist()) if token != model.denoiser.mask_id}
    by_step = [[int(n) for n in (step.z[0] != step.z_next[0]).nonzero()[:, 0]] for step in steps]
    order = [cell for cell in halton_order(rows, 24 // rows) if cell not in given]
    rest = iter(order)
    assert [sorted(next(rest) for _ in cells) for cells in by_step] == by_step
    assert sorted(revealed) == sorted(order)


def test_the_noise_and_the_schedule_of_confidence_change_what_is_revealed(model: Model) -> None:
    base: dict[str, Any] = {"budget": 40, "transition": "confidence", "num_samples": 4}
    plain, noisy = (generate(model, **base, confidence_noise=noise).tokens for noise in (0.0, 5.0))
    assert plain != noisy
    shares = {}
    for schedule in ("linear", "cosine", "arccos"):
        steps: list[Step] = []
        generate(model, **base, schedule=schedule, on_step=steps.append)
        shares[schedule] = int((steps[len(steps) // 2].z == model.denoiser.mask_id).sum())
    assert shares["cosine"] > shares["linear"]
    assert shares["arccos"] > shares["linear"]


def test_steps_are_handed_to_a_callback(model: Model) -> None:
    steps: list[Step] = []
    generate(model, budget=24, on_step=steps.append)
    assert [step.index for step in steps] == [0, 1, 2, 3]
    assert model.speech.show(steps[0].z[0].tolist()) == "·" * 24


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
        ({"allocation": "decreasin"}, "unknown allocation 'decreasin'; did you mean 'decreasing'"),
        ({"reuse": "ful"}, "unknown reuse 'ful'; did you mean 'full'"),
        ({"solver": "picrad"}, "unknown solver 'picrad'; did you mean 'picard'"),
        ({"schedule": "cosin"}, "unknown schedule 'cosin'; did you mean 'cosine'"),
        ({"nucleus": "strikt", "top_p": 0.9}, "unknown nucleus 'strikt'; did you mean 'strict'"),
        ({"transition": "halton", "grid": (4, 5)}, "of 4 x 5 cells cannot fill 24 positions; it takes 20"),
        ({"transition": "halton", "grid": (0, 24)}, "a grid of 0 x 24 cells"),
        ({"grid": (4, 6)}, r"grid is \(4, 6\), and transition ancestral does not use it; leave it out"),
        ({"confidence_noise": 0.5}, "confidence_noise is 0.5, and transition ancestral does not use it"),
        ({"transition": "confidence", "confidence_noise": math.nan}, "noise is nan; it must be a number"),
        (
            {"transition": "remdm-cap", "t_on": 0.5},
            "t_on is 0.5, and transition remdm-cap does not use",
        ),
        ({"eta": 0.5}, "eta is 0.5, and transition ancestral does not use"),
        ({"transition": "remdm-loop", "t_on": 0.01}, "must satisfy 0 < t_off < t_on < 1"),
        (
            {"transition": "remdm-cap", "schedule": "cosine"},
            "schedule is cosine, and transition remdm-cap does not use",
        ),
        ({"num_samples": 0}, "num_samples is 0"),
        ({"temperature": math.nan}, "temperature is nan; it must be 0"),
        ({"temperature": math.inf}, "temperature is inf; it must be 0"),
        ({"temperature": 1e-308}, "temperature is 1e-308; it must be 0"),
        ({"top_p": math.nan}, "top_p is nan; it must be above 0"),
        ({"tolerance": math.nan}, "tolerance is nan; it must be a number"),
        ({"tolerance": math.inf}, "tolerance is inf; it must be a number"),
        ({"reuse_masked": (math.nan, 0.5)}, "reuse coefficient masked_min is nan"),
        ({"reuse_changed": (0.5, math.inf)}, "reuse coefficient changed_max is inf"),
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


def test_watching_prints_the_finished_text_once(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.save(tmp_path / "model")
    command = ["sample", str(tmp_path / "model"), "--budget", "12", "--prompt", "the old oak"]
    assert main([*command, "--watch"]) == 0
    watched = capsys.readouterr().out
    assert main(command) == 0
    plain = capsys.readouterr().out
    assert watched.count("t = ") == watched.count("t = 0.50") == 1
    assert watched.endswith(plain)
    assert "·" in watched.removesuffix(plain)


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
    expected = replace(SMALL, **changes).multiply_adds(num_iters=num_iters, num_positions=5)
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
