"""Training by name, from Python."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fpmgm
from fpmgm.checkpoint import BUNDLED, find_folder
from fpmgm.codecs import load_codec
from fpmgm.evaluation.evaluator import evaluator_of
from fpmgm.evaluation.text import TextEvaluator
from fpmgm.recipes import RECIPES
from fpmgm.training import loop
from fpmgm.training.metrics import read_metrics
from fpmgm.training.start import check_named_models

VERSE = "".join(f"line {i} of a poem about the {word}\n" for i in range(300) for word in ("sea", "sky", "old oak"))
SMALL: dict[str, Any] = {"width": 16, "num_heads": 2, "cond_width": 8}


def test_train_runs_a_recipe_with_changes_and_returns_where_the_model_is_and_its_last_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "verse.txt").write_text(VERSE)
    changes: dict[str, Any] = {
        "data": {"source": str(tmp_path / "verse.txt"), "tokenizer": "bpe-300", "length": 16},
        "model": SMALL,
        "updates": 3,
        "batch_size": 4,
        "validation_sequences": 8,
        "trackers": (),
        "out": str(tmp_path / "run"),
    }
    found = fpmgm.train("poetry", **changes)
    assert (found.folder, found.model, found.updates) == (tmp_path / "run", tmp_path / "run" / "model", 3)
    last = read_metrics(found.folder)[-1]
    assert (found.loss, found.validation, found.validation_error) == (
        last["loss"],
        last["validation"],
        last["validation_error"],
    )
    model = fpmgm.load(found.model)
    assert (model.config.width, model.config.cost, model.config.vocabulary.length) == (16, fpmgm.Cost(1, 1, 1), 16)
    monkeypatch.setattr(loop.Run, "update", lambda *_: pytest.fail("trained again"))
    data = replace(RECIPES["poetry"].data, **changes["data"])
    own = replace(RECIPES["poetry"], **{**changes, "data": data, "model": replace(RECIPES["poetry"].model, **SMALL)})
    assert fpmgm.train(own) == found  # the same run, by an instance: it is finished


@pytest.mark.parametrize(
    ("recipe", "changes", "message"),
    [
        ("poettry", {}, "unknown recipe 'poettry'; did you mean 'poetry'"),
        ("mine", {}, "mine makes its own recipe of a text; use the command fpmgm train mine"),
        ("poetry", {"updatez": 3}, "unknown field of Training 'updatez'; did you mean 'updates'"),
        ("poetry", {"data": {"lenght": 3}}, "unknown field of TextConfig 'lenght'; did you mean 'length'"),
        ("poetry", {"updates": {"a": 1}}, "updates is {'a': 1}; it has no fields of its own"),
        ("poetry", {"model": {"injection": "liner"}}, "unknown injection 'liner'; did you mean 'linear'"),
        ("poetry", {"optim": {"decay": "cosin"}}, "unknown learning-rate decay 'cosin'; did you mean 'cosine'"),
    ],
)
def test_what_is_no_recipe_or_no_field_of_one_is_refused(recipe: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fpmgm.train(recipe, **changes)


@pytest.mark.parametrize(
    "name", [name for name, recipe in RECIPES.items() if (BUNDLED / (recipe.init or "-")).is_dir()]
)
def test_a_stage_fits_the_bundled_model_that_it_starts_from(name: str) -> None:
    check_named_models(RECIPES[name])


def test_recipes_of_published_runs_mask_and_validate_as_mdlm() -> None:
    codec = load_codec(find_folder("stories-fp"))
    assert codec is not None
    for name, recipe in RECIPES.items():
        objective: Any = recipe.objective
        base = getattr(objective, "base", objective)
        is_published = name.startswith("owt") or name == "lm1b"
        assert (getattr(base, "schedule", "") == "log-linear") == is_published, name
        if is_published:
            assert isinstance(found := evaluator_of(recipe.network, codec, objective=objective), TextEvaluator)
            assert found.masking == "log-linear"
