"""The bundled models: what their reports say, and that they are the models the reports are of."""

import json
import math
import re
from typing import Any

import pytest
import torch

from fpmgm.checkpoint import BUNDLED, DEFAULT, load
from fpmgm.codecs import TextCodec
from fpmgm.evaluation.judges import BUNDLED_JUDGE
from fpmgm.evaluation.per_byte import HEADING, bytes_of, card_part, with_part
from fpmgm.generation import Sampling, with_saved_settings
from fpmgm.quickstart import stored_lines
from fpmgm.recipes import RECIPES

NAMES = sorted(folder.name for folder in BUNDLED.iterdir() if folder.is_dir())
TEXTS = [name for name in NAMES if (BUNDLED / name / "tokenizer.json").is_file()]
IMAGES = [name for name in NAMES if (BUNDLED / name / "image_codec.json").is_file()]


def report(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((BUNDLED / name / "report.json").read_text())["validation"][0]
    return found


@pytest.mark.parametrize("name", ["stories-fp", "stories-mdlm"])
def test_base_models_are_better_than_5_gram_models_of_all_training_tokens(name: str) -> None:
    found = report(name)
    assert found["value"] + 2 * found["error"] < min(found["ngram"].values())


def test_models_of_text_of_images_and_a_judge_of_each_are_bundled_and_small() -> None:
    assert {"fashion", "fashion-maskgit"} == set(IMAGES)
    assert {*TEXTS, *IMAGES, "fashion-classifier"} == set(NAMES)
    sizes = {name: sum(file.stat().st_size for file in (BUNDLED / name).iterdir()) for name in NAMES}
    assert sum(sizes.values()) < 45e6
    assert sum(sizes[name] for name in TEXTS) < 33e6
    assert sum(sizes[name] for name in IMAGES) < 12.2e6  # two models with their tokenizer, and their pictures


@pytest.mark.parametrize("name", [*IMAGES, "fashion-classifier"])
def test_cards_of_images_have_the_command_the_curves_samples_and_real_images_beside_them(name: str) -> None:
    card = (BUNDLED / name / "README.md").read_text()
    assert f"fpmgm train {name}" in card
    for picture in ("curves.png", "samples.png"):
        assert f"]({picture})" in card
        assert (BUNDLED / name / picture).read_bytes()[:4] == b"\x89PNG"
    if name in IMAGES:
        for words in (
            "label accuracy",
            "real images",
            "real images through the tokenizer",
            "Its tokenizer makes a mean",
        ):
            assert words in card


def test_the_quick_start_tells_what_the_source_found_in_the_default_model_and_in_its_own_stories() -> None:
    kept = json.loads((BUNDLED / DEFAULT / "report.json").read_text())["frontier"]
    near_one = {point["budget"]: point for point in kept["points"] if point["setting"] == 0.95}
    told = stored_lines()
    assert told.startswith("Stored, not measured now: in held-out stories")
    assert "stories-source, which wrote the stories that were learned, finds" in told
    values = [near_one[budget]["metrics"]["perplexity_per_sample"]["value"] for budget in (24, 48, 96)]
    assert f"{', '.join(f'{value:,.0f}' for value in values)} in samples at budgets 24, 48, 96 (258 each, " in told
    assert "temperature 0.95), and " in told
    assert f"{kept['real']['metrics']['perplexity_per_sample']['value']:.1f} in stories of its own" in told


def test_the_quick_start_tells_what_its_judge_found_in_held_out_stories_as_in_samples() -> None:
    kept = json.loads((BUNDLED / BUNDLED_JUDGE / "report.json").read_text())["held_out"]
    value = kept["metrics"]["perplexity_per_sample"]["value"]
    assert kept["num_texts"] == 256
    assert f"the same small model finds a perplexity of {value:.1f} (256 texts)" in stored_lines()


@pytest.mark.parametrize("name", TEXTS)
def test_cards_have_bits_a_byte_of_the_model_of_5_grams_and_of_the_source(name: str) -> None:
    kept = json.loads((BUNDLED / name / "report.json").read_text())["per_byte"]
    assert card_part(kept, is_bound=name != BUNDLED_JUDGE) in (BUNDLED / name / "README.md").read_text()
    share = kept["num_tokens"] / kept["num_bytes"] / math.log(2)
    assert kept["bits"] == pytest.approx(math.log(report(name)["value"]) * share)
    assert kept["source"] < kept["bits"] < kept["kneser_ney"] < 8


@pytest.mark.parametrize("name", ["stories-fp", "stories-mdlm", "stories-judge"])
def test_the_recipe_of_a_bundled_model_has_its_network_and_its_data(name: str) -> None:
    model, recipe = load(name), RECIPES[name]
    assert model.data == recipe.data
    network: Any = model.config
    assert {each: getattr(network, each) for each in vars(recipe.model)} == vars(recipe.model)


def test_bytes_are_those_of_documents_without_their_ends() -> None:
    codec = load(DEFAULT).codec
    assert isinstance(codec, TextCodec)
    one, two = (codec.encode(text) for text in ("Once upon a time", "The déjà"))
    assert bytes_of([[codec.last, *one, codec.last, *two], one], codec) == 16 + 10 + 16


def test_a_part_of_a_card_stands_before_the_samples_and_replaces_the_one_of_before() -> None:
    before, after = "# one\n\n## Frontier\n\nlines\n\n", "## 20 samples\n\nonce\n"
    with_one = with_part(before + after, f"{HEADING}\n\nold\n")
    assert with_part(with_one, f"{HEADING}\n\nnew\n") == f"{before}{HEADING}\n\nnew\n\n{after}"


@pytest.mark.parametrize("name", ["stories", "stories-fp", "stories-mdlm"])
def test_cards_of_models_that_were_compared_open_with_the_frontier(name: str) -> None:
    card = (BUNDLED / name / "README.md").read_text()
    assert re.findall(r"(?m)^## (.*)", card)[0] == "Frontier"


@pytest.mark.parametrize("name", ["stories", "stories-fp", "stories-mdlm"])
def test_models_of_stories_reveal_tokens_far_apart_unless_they_are_told_otherwise(name: str) -> None:
    generation = load(name).generation
    assert with_saved_settings(generation, Sampling()).transition == "halton"
    assert with_saved_settings(generation, Sampling(transition="ancestral")).transition == "ancestral"
    card = (BUNDLED / name / "README.md").read_text()
    assert card.count(", halton, temperature") == 2


@pytest.mark.parametrize("name", TEXTS)
def test_cards_have_the_command_the_report_the_curves_and_20_samples_at_each_temperature(name: str) -> None:
    card = (BUNDLED / name / "README.md").read_text()
    assert f"fpmgm train {name}" in card
    assert f"{report(name)['value']:.2f}" in card
    is_masked = name != "stories-judge"  # the judge is shown at temperature 1 only
    assert card.count("````text") == (40 if is_masked else 20)
    assert ("## 20 samples at temperature 0.8, uncurated" in card) == is_masked
    assert (BUNDLED / name / "curves.png").stat().st_size > 0


@pytest.mark.parametrize("name", NAMES)
def test_bundled_weights_are_finite_and_half_precision_fits_them(name: str) -> None:
    for tensor in load(name).denoiser.state_dict().values():
        assert bool(tensor.isfinite().all())
        assert torch.equal(tensor, tensor.half().float())
