"""What is measured of images: samples beside real ones, and held-out codes; evaluate and sweep of image models."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fpmgm
from fpmgm.__main__ import main
from fpmgm.backbones.classifier import ClassifierConfig
from fpmgm.checkpoint import Model
from fpmgm.codecs.pixels import PixelCodec
from fpmgm.data.images import ImagesConfig
from fpmgm.data.pixels import PixelsConfig, load_pixels
from fpmgm.evaluation import image_judges
from fpmgm.evaluation.chosen import kind_of
from fpmgm.evaluation.evaluator import evaluator_for
from fpmgm.evaluation.held_out import data_for, measured_data
from fpmgm.evaluation.image_judges import ImageJudge, Look, classifier_for, load_classifier, real_images, real_look
from fpmgm.evaluation.images import ImageEvaluator, check_reads, image_codec
from fpmgm.evaluation.likelihood import masked_cross_entropy
from fpmgm.types import Batch
from tests.images import random_images, small_codec, small_image_model

DIGITS = PixelsConfig(source="digits")
NAMES = tuple("0123456789")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("fpmgm.places.BUNDLED", tmp_path / "models")


def image_model(*, fp: bool = True) -> Model:
    """A model that draws nonsense of 8 x 8 pixels, and says that it was trained on digits."""
    model = small_image_model(fp, num_classes=10, size=8)
    codec = replace(image_codec(model), class_names=NAMES)
    data = ImagesConfig(source="digits", tokenizer="none", num_codes=8, grid=codec.grid, num_classes=10)
    return replace(model, codec=codec, data=data)


def save_judge(folder: Path, *, names: tuple[str, ...] = NAMES, size: int = 8) -> str:
    """A classifier of digits with fresh weights."""
    config = ClassifierConfig(
        channels=8, num_stages=2, num_features=6, image_height=size, image_width=size, num_classes=len(names)
    )
    codec = PixelCodec((1, size, size), names)
    Model(denoiser=config.build(), config=config, codec=codec, data=DIGITS).save(folder)
    return str(folder)


@pytest.fixture
def judge(tmp_path: Path) -> str:
    return save_judge(tmp_path / "judge")


def codes_of(model: Model, images: torch.Tensor) -> torch.Tensor:
    return image_codec(model).tokenizer.encode(images)


def test_samples_are_judged_beside_real_images_with_an_interval_each(judge: str) -> None:
    model, evaluator = image_model(), ImageEvaluator(judge=judge)
    evaluator.prepare(model, 30)
    tokens = torch.randint(0, 8, (30, 4), generator=torch.Generator().manual_seed(0))
    found = evaluator.measure(model, tokens, seed=0, labels=[index % 10 for index in range(30)])
    assert set(found) == {"entropy", "accuracy", "frechet", "classifier_score", "density", "coverage"}
    assert all(each.low <= each.value <= each.high for each in found.values())
    assert "accuracy" not in evaluator.measure(model, tokens, seed=0)
    assert evaluator.judged_by() == "fpmgm:judge"
    assert (evaluator.primary.name, evaluator.primary.best) == ("frechet", "lowest")


def test_without_a_judge_only_codes_are_measured_and_no_data_is_asked_for() -> None:
    model, tokens = replace(image_model(), data=None), torch.tensor([[1, 1, 1, 1], [1, 2, 3, 4]])
    found = ImageEvaluator().measure(model, tokens, seed=0)
    assert list(found) == ["entropy"]
    assert found["entropy"].value == pytest.approx(math.log(4) / 2)
    assert ImageEvaluator().diversity(tokens) == pytest.approx(math.log(4) / 2)
    assert ImageEvaluator().references(model, 8) == {}


def test_the_label_accuracy_counts_the_classes_that_the_judge_finds(judge: str) -> None:
    model, evaluator = image_model(), ImageEvaluator(judge=judge)
    tokens = codes_of(model, random_images(40, size=8))
    taken = load_classifier(judge).look(image_codec(model).images(tokens)).classes
    labels = [int(each) if index < 30 else (int(each) + 1) % 10 for index, each in enumerate(taken)]
    assert evaluator.measure(model, tokens, seed=0, labels=labels)["accuracy"].value == pytest.approx(0.75)


def test_real_images_are_near_the_reference_and_never_in_it(judge: str) -> None:
    reference, others = (real_images(DIGITS, 10_000, is_reference=each) for each in (True, False))
    held_out = load_pixels(DIGITS).held_out
    assert len(reference.images) + len(others.images) == len(held_out) == 180
    assert reference.content != others.content
    found = ImageEvaluator(judge=judge).references(image_model(), 80)
    assert list(found) == ["80 real images", "80 real images through the tokenizer"]
    real, made = found.values()
    assert real["frechet"].value < made["frechet"].value  # a tokenizer that was never trained
    assert real["coverage"].value > 0.8


def test_the_features_of_real_images_are_computed_once_for_a_judge_and_a_set() -> None:
    looks: list[int] = []

    def look(images: torch.Tensor) -> Look:
        looks.append(len(images))
        return Look(features=images.flatten(1).numpy().astype(np.float32))

    def seen_by(key: str, num: int) -> Look:
        return real_look(ImageJudge(name="eye", key=key, look=look), real_images(DIGITS, num))

    first, again = seen_by("one", 20), seen_by("one", 20)
    assert looks == [20]
    np.testing.assert_array_equal(first.features, again.features)
    seen_by("other weights", 20)
    seen_by("one", 25)
    assert looks == [20, 20, 25]


def test_inception_adds_fid_kid_precision_and_recall(judge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def features(images: torch.Tensor, *, device: str) -> np.ndarray:
        return images.flatten(1)[:, ::16].numpy().astype(np.float32)

    monkeypatch.setattr(image_judges, "inception_features", features)
    monkeypatch.setattr("fpmgm.evaluation.images.load_inception", lambda device: None)
    model, evaluator = image_model(), ImageEvaluator(inception=True)
    evaluator.prepare(model, 12)
    found = evaluator.measure(model, torch.randint(0, 8, (12, 4)), seed=0, labels=[0] * 12)
    assert set(found) == {"entropy", "fid", "kid", "precision", "recall"}
    assert evaluator.primary.name == "fid"
    both = replace(evaluator, judge=judge)
    assert both.judged_by() == "fpmgm:judge, inception"
    assert both.primary.name == "frechet"
    assert (
        len({json.dumps(each.key()) for each in (evaluator, both, ImageEvaluator(), ImageEvaluator(judge=judge))}) == 4
    )


def test_a_judge_of_other_images_or_classes_is_refused_before_anything_is_drawn(tmp_path: Path, judge: str) -> None:
    model = image_model()
    image_model().save(tmp_path / "model")
    with pytest.raises(ValueError, match="a FP-MaskGIT; images are judged by a classifier, such as fashion-classifier"):
        load_classifier(str(tmp_path / "model"))
    for other, message in (
        (
            save_judge(tmp_path / "large", size=16),
            r"reads images of shape \(1, 16, 16\), and the model draws \(1, 8, 8\)",
        ),
        (save_judge(tmp_path / "classes", names=("a", *NAMES[1:])), "knows other classes than the model, such as a"),
    ):
        with pytest.raises(ValueError, match=message):
            ImageEvaluator(judge=other).prepare(model, 8)
    with pytest.raises(ValueError, match="num_samples is 5; nearest neighbours of images need at least 6"):
        ImageEvaluator(judge=judge).check(5)
    with pytest.raises(ValueError, match="does not tell which images it was trained on"):
        ImageEvaluator(judge=judge).prepare(replace(model, data=None), 8)
    check_reads(ImageJudge(name="inception", key="", look=lambda _: Look(features=np.zeros((1, 1)))), small_codec())


def test_the_bundled_classifier_of_the_models_own_data_judges_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no bundled classifier judges images of digits; train one with fpmgm train "):
        classifier_for(DIGITS)
    save_judge(tmp_path / "models" / "digits-classifier")
    assert classifier_for(DIGITS) == "digits-classifier"
    with pytest.raises(ValueError, match="no bundled classifier judges images of mnist"):
        classifier_for(PixelsConfig(source="mnist"))


def test_held_out_codes_are_validated_by_their_masked_cross_entropy() -> None:
    """A network that knows nothing gives each of the 8 codes the same probability: log 8 nats."""
    model = image_model()
    with torch.no_grad():
        for parameter in model.denoiser.parameters():
            parameter.zero_()
    batch = data_for(model).measured(64)
    found = evaluator_for("image").validate(model.denoiser, batch, num_iters=2)
    assert found.value == pytest.approx(math.log(8), rel=1e-5)
    assert found.error == pytest.approx(0, abs=1e-6)
    assert evaluator_for("image").validated.title == "validation cross entropy, nats a masked token"


def test_the_masked_cross_entropy_is_told_the_classes_and_has_always_the_same_masks() -> None:
    model = image_model()
    batch = data_for(model).measured(40)
    first, again = (masked_cross_entropy(model.denoiser, batch, num_iters=1) for _ in range(2))
    assert first == again
    assert batch.label is not None
    wrong = Batch(x=batch.x, label=(batch.label + 1) % 10)
    assert masked_cross_entropy(model.denoiser, wrong, num_iters=1).value != first.value
    parts = masked_cross_entropy(model.denoiser, batch, num_iters=1, batch_size=7)
    assert parts.value == pytest.approx(first.value, rel=1e-5)
    assert 0 < first.error < first.value


def test_images_are_measured_on_held_out_ones_of_their_own_data_or_of_others(tmp_path: Path) -> None:
    from PIL import Image

    model = image_model()
    data, words = measured_data(model)
    assert words == "what training holds out of digits"
    assert data.rows.shape[1] == 4
    with pytest.raises(ValueError, match="split is all, and models are measured on held-out images only"):
        data_for(model, split="all")
    with pytest.raises(ValueError, match="does not tell what it was trained on; give --data FOLDER"):
        data_for(replace(model, data=None))
    for index, name in enumerate(NAMES):
        (tmp_path / "own" / name).mkdir(parents=True)
        for number, image in enumerate(random_images(3, size=12, seed=index)):
            Image.fromarray(image[0].numpy()).save(tmp_path / "own" / name / f"{number}.png")
    other, words = measured_data(model, str(tmp_path / "own"))
    assert words == f"what training holds out of {tmp_path / 'own'} (the model was trained on digits)"
    assert len(other.rows) == 30


def save_models(tmp_path: Path) -> list[str]:
    names = []
    for name, fp in (("fixed", True), ("plain", False)):
        image_model(fp=fp).save(tmp_path / name)
        names.append(str(tmp_path / name))
    return names


def test_evaluate_measures_image_models_side_by_side(
    tmp_path: Path, judge: str, capsys: pytest.CaptureFixture[str]
) -> None:
    models = save_models(tmp_path)
    asked = ["evaluate", *models, "--budgets", "6", "--num-samples", "8", "--judge", judge]
    assert main([*asked, "--validation-sequences", "16", "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "validation cross entropy, nats a masked token" in shown
    assert "accuracy" in shown
    assert "Fréchet" in shown
    assert all(word in shown for word in ("comparison", "real", "tokenizer"))  # in a narrow column
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["protocol"]["judge"] for row in found["samples"]] == ["fpmgm:judge"] * 2
    assert set(found["references"]) == {"8 real images", "8 real images through the tokenizer"}
    table = (tmp_path / "out" / "table.md").read_text()
    assert "| Fréchet distance |" in table
    assert "perplexity" not in table
    assert (tmp_path / "out" / "quality.png").is_file()


def test_evaluate_from_python_finds_the_bundled_classifier_and_validates_nothing_if_there_is_no_data(
    tmp_path: Path,
) -> None:
    save_judge(tmp_path / "models" / "digits-classifier")
    models = save_models(tmp_path)
    found = fpmgm.evaluate(models[1], budgets=(6,), num_samples=6, data="")
    assert found.validation == ()
    assert found.samples[0].protocol.judge == "fpmgm:digits-classifier"
    assert found.samples[0].metrics["accuracy"].value <= 1


def test_sweep_measures_a_grid_of_guidance(tmp_path: Path, judge: str) -> None:
    models = save_models(tmp_path)
    asked: dict[str, Any] = {"budgets": (6,), "num_samples": 6, "judge": judge, "out": str(tmp_path / "out")}
    found = fpmgm.sweep("grid", models[:1], vary=("cfg_weight=0,1.5",), **asked)
    assert [row.sampling.cfg_weight for row in found.rows] == [0, 1.5]
    assert found.rows[1].multiply_adds == pytest.approx(2 * found.rows[0].multiply_adds)
    assert "frechet" in found.rows[0].metrics
    again = fpmgm.sweep("grid", models[:1], vary=("cfg_weight=0,1.5",), **asked)
    assert again.rows == found.rows  # read, not measured again


def test_text_and_images_are_not_mixed_and_settings_of_the_one_are_refused_for_the_other(
    tmp_path: Path, judge: str, text_model: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    image, _ = save_models(tmp_path)
    text_model.save(tmp_path / "text")
    text = str(tmp_path / "text")
    assert kind_of([image, image]) == "image"
    for asked, message in (
        ([image, text], f"{image} writes image and {text} text; nothing measures both"),
        ([judge], "reads images and draws none; give a model that uses it"),
        ([image, "--mauve"], "MAUVE compares texts, and these models draw images; leave --mauve out"),
        ([image, "--ngram"], "5-gram models count the words of texts"),
        ([text, "--inception"], "Inception looks at images, and these models write text; leave --inception out"),
        ([image], "no bundled classifier judges images of digits; train one with"),
    ):
        assert main(["evaluate", *asked]) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_a_model_card_shows_samples_beside_real_images_or_says_how_to_measure(tmp_path: Path) -> None:
    model = image_model(fp=False)
    data = data_for(model)
    [line] = ImageEvaluator().in_card(model, data)
    assert line.startswith("Label accuracy was not measured: no bundled classifier judges images of digits")
    save_judge(tmp_path / "models" / "digits-classifier")
    lines = ImageEvaluator().in_card(model, data)
    assert "Judged by fpmgm:digits-classifier" in lines[0]
    assert [line.split("|")[1].strip() for line in lines[4:7]] == [
        "200 samples, 96 block evaluations",
        "90 real images",
        "90 real images through the tokenizer",
    ]
    assert "mean squared error" in lines[-1]
