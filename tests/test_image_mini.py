"""The report on images, with runs of two updates on the digits of scikit-learn."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fpmgm.backbones.classifier import ClassifierNetwork
from fpmgm.data.images import ImagesConfig
from fpmgm.data.pixels import PixelsConfig
from fpmgm.evaluation.rows import read_rows
from fpmgm.experiments import image_mini
from fpmgm.experiments.image_mini import FP, FROM_START, SHAPES, STAGES, ImageMini
from fpmgm.experiments.image_pages import FINDINGS
from fpmgm.recipes import RECIPES
from fpmgm.recipes.images import MINI
from fpmgm.training.loop import train
from tests.test_image_training import digits

SMALL: dict[str, Any] = {"updates": 2, "batch_size": 4, "validation_sequences": 8, "trackers": ()}
NAMES = ("fashion-fp", "fashion-maskgit", "fashion-maskgit-6", "fashion", "fashion-control", "fashion-from-start")


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageMini:
    """Few lines of every table, of networks that are 16 wide."""
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    tokenizer = train(digits(tmp_path), "test", card_samples=1)
    judge = replace(
        RECIPES["fashion-classifier"],
        **SMALL,
        model=ClassifierNetwork(channels=8, num_stages=2),
        data=PixelsConfig(source="digits"),
        out=str(tmp_path / "judge"),
    )
    train(judge, "test", card_samples=1)
    data = ImagesConfig(source="digits", tokenizer=str(tokenizer), num_codes=16, grid=(2, 2))
    narrow = replace(MINI, width=16, num_heads=2, mlp_multiple=8)
    for name in NAMES:
        recipe = RECIPES[name]
        assert not hasattr(recipe.model, "num_codes")
        shape: Any = recipe.model
        model = replace(shape, width=16, num_heads=2, mlp_multiple=8)
        monkeypatch.setitem(RECIPES, name, replace(recipe, model=model, data=data, **SMALL))
    short = [replace(each, changes={**each.changes, "updates": 2}) for each in FROM_START[:1]]
    shapes = [replace(each, changes={"model": replace(narrow, num_pre=1, num_post=1)}) for each in SHAPES[:1]]
    monkeypatch.setattr(image_mini, "FROM_START", tuple(short))
    monkeypatch.setattr(image_mini, "SHAPES", tuple(shapes))
    monkeypatch.setattr(image_mini, "STAGES", STAGES[:1])
    monkeypatch.setattr(image_mini, "BUDGETS", (24,))
    monkeypatch.setattr(image_mini, "ABLATION_BUDGETS", (24,))
    return ImageMini(
        folder=tmp_path / "report",
        runs=tmp_path / "runs",
        num_samples=10,
        num_rest=8,
        inception_samples=0,
        judge=str(tmp_path / "judge"),
    )


@pytest.mark.slow
def test_the_report_on_images_has_all_tables_and_measures_nothing_twice(report: ImageMini) -> None:
    file = report.run()
    text = file.read_text()
    for title in ("Networks, reuse", "Blocks before and after", "Kinds of consistency", "Real images", "uncurated"):
        assert title in text
    assert f"| {FP.name} | three-state | 3 |" in text
    assert "no L_CONS, as many updates" in text
    assert FINDINGS in text
    for name in ("main.png", "real.png", "samples-0.png"):
        assert (report.folder / name).stat().st_size > 0
    rows = read_rows(report.folder / "rows.jsonl")
    (report.folder / FINDINGS).write_text("What holds.\n")
    assert "What holds." in report.run().read_text()
    assert read_rows(report.folder / "rows.jsonl") == rows
