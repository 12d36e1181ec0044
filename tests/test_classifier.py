"""The classifier that judges images: its network, what it minimises, and how it is measured."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fpmgm.backbones.classifier import ClassifierConfig, ClassifierNetwork
from fpmgm.backbones.network import Vocabulary
from fpmgm.checkpoint import load
from fpmgm.data.pixels import PixelsConfig
from fpmgm.evaluation.classification import ClassificationEvaluator, classified
from fpmgm.evaluation.evaluator import evaluator_of
from fpmgm.evaluation.image_judges import load_classifier
from fpmgm.randomness import generator
from fpmgm.recipes.images import FASHION_CLASSIFIER
from fpmgm.training.classification import Classification, moved
from fpmgm.training.config import Training
from fpmgm.training.loop import train
from fpmgm.types import Batch
from tests.images import random_images

SMALL = ClassifierConfig(
    channels=8, num_stages=2, num_features=12, dropout=0.0, image_height=8, image_width=8, num_classes=3
)


def small_training(out: Path, **changes: Any) -> Training:
    """A classifier of digits that learns within seconds."""
    small = Training(
        model=ClassifierNetwork(channels=16, num_stages=2, num_features=32, dropout=0.0),
        data=PixelsConfig(source="digits"),
        objective=Classification(shift=0),
        optim=replace(FASHION_CLASSIFIER.optim, lr=1e-2, warmup=5, ema=0.9),
        updates=40,
        batch_size=32,
        checkpoint_every=20,
        validate_every=20,
        trackers=(),
        out=str(out),
    )
    return replace(small, **changes)


def test_images_move_down_and_right_by_their_offsets_and_some_are_mirrored() -> None:
    image = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3).expand(3, -1, -1, -1)
    offsets = torch.tensor([[1, 0], [0, -1], [0, 1]])
    found = moved(image, offsets, torch.tensor([False, False, True]))
    assert found[0, 0].tolist() == [[0, 0, 0], [1, 2, 3], [4, 5, 6]]
    assert found[1, 0].tolist() == [[2, 3, 0], [5, 6, 0], [8, 9, 0]]
    assert found[2, 0].tolist() == [[0, 3, 2], [0, 6, 5], [0, 9, 8]]


def test_colours_of_an_image_move_together() -> None:
    images = random_images(4, size=8, channels=3)
    found = moved(images, torch.zeros(4, 2, dtype=torch.long), torch.zeros(4, dtype=torch.bool))
    assert torch.equal(found, images)


def test_parts_of_a_batch_add_up_to_its_loss_and_accuracy() -> None:
    network, images = SMALL.build(), random_images(6, size=8).flatten(1).long()
    batch = Batch(x=images, label=torch.tensor([0, 1, 2, 0, 1, 2]))
    objective = Classification(shift=1, flip=True)
    views = objective.draw(network, batch, rng=generator(0))
    whole = objective.loss(network, batch.x, views)
    parts = [objective.loss(network, batch.x[part], views.rows(part)) for part in (slice(0, 6, 2), slice(1, 6, 2))]
    assert sum(part.total.item() for part in parts) == pytest.approx(whole.total.item(), rel=1e-5)
    assert sum(part.terms["accuracy"].item() for part in parts) == pytest.approx(whole.terms["accuracy"].item())


def test_without_flip_no_image_is_mirrored_and_data_without_classes_is_refused() -> None:
    batch = Batch(x=torch.zeros(50, 64, dtype=torch.long), label=torch.zeros(50, dtype=torch.long))
    assert not Classification().draw(None, batch, rng=generator(0)).is_flipped.any()
    assert 10 < Classification(flip=True).draw(None, batch, rng=generator(0)).is_flipped.sum() < 40
    with pytest.raises(ValueError, match="a classifier learns classes, and this data has none"):
        Classification().draw(None, batch.x, rng=generator(0))
    with pytest.raises(ValueError, match=r"objective\.shift is -1; it must be 0"):
        Classification(shift=-1)


def test_a_classifier_fits_the_size_of_its_images_and_refuses_what_is_none() -> None:
    vocabulary = Vocabulary(size=257, mask_id=256, length=3 * 32 * 40, num_classes=4, shape=(3, 32, 40))
    config = ClassifierNetwork().fit(vocabulary)
    assert config.vocabulary == vocabulary
    found = config.build()(torch.zeros(2, 3, 32, 40))
    assert (found.features.shape, found.logits.shape) == ((2, 128), (2, 4))
    with pytest.raises(ValueError, match="from the pixels of images of at least two classes"):
        ClassifierNetwork().fit(replace(vocabulary, num_classes=1))
    with pytest.raises(ValueError, match="image_height is 4; 3 stages need at least 8"):
        ClassifierNetwork().fit(replace(vocabulary, shape=(1, 4, 40)))


def test_the_multiply_adds_of_a_classifier_are_those_counted_by_hand() -> None:
    stages = 8 * 8 * 9 * 1 * 8 + 4 * 4 * 9 * 8 * 16
    assert SMALL.multiply_adds(num_iters=0, num_positions=0) == stages + 16 * 4 * 12 + 12 * 3


def test_the_accuracy_is_the_share_of_images_that_are_right() -> None:
    network, images = SMALL.build(), random_images(300, size=8)
    taken = classified(network, images).logits.argmax(dim=1)
    label = torch.where(torch.arange(300) < 60, (taken + 1) % 3, taken)
    found = ClassificationEvaluator().validate(network, Batch(x=images.flatten(1).long(), label=label), num_iters=0)
    assert found.value == pytest.approx(0.8)
    assert found.error == pytest.approx((0.8 * 0.2 / 300) ** 0.5)


def test_a_classifier_learns_digits_in_the_one_loop_and_becomes_a_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    folder = train(small_training(tmp_path / "run"), "fashion-classifier")
    model = load(folder)
    assert isinstance(evaluator_of(model.config, model.speech), ClassificationEvaluator)
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["validation"] > 0.7
    assert "| 9 | 0." in model.card or "| 9 | 1." in model.card
    judge = load_classifier(str(folder))
    assert (judge.shape, judge.class_names) == ((1, 8, 8), tuple("0123456789"))
    look = judge.look(random_images(5, size=8))
    assert look.features.shape == (5, 32)
    assert look.probabilities is not None
    assert look.probabilities.sum(axis=1) == pytest.approx(1)


def test_a_stopped_run_of_a_classifier_goes_on_as_if_it_had_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    whole = train(small_training(tmp_path / "whole", updates=6), "own")
    cut = small_training(tmp_path / "cut", updates=6)
    train(cut, "own", is_over=lambda _: True)
    assert len((tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()) == 1
    again = train(cut, "own")
    for name, tensor in load(whole).denoiser.state_dict().items():
        assert torch.equal(load(again).denoiser.state_dict()[name], tensor)
