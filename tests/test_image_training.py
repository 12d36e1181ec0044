"""Training on images: the tokenizer, then a network of its codes, in the one loop."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fpmgm
from fpmgm.backbones.maskgit import MaskGITNetwork
from fpmgm.backbones.vq import VQNetwork
from fpmgm.checkpoint import load
from fpmgm.data.images import ImagesConfig, tokenizer_named
from fpmgm.data.pixels import PixelsConfig
from fpmgm.gradients import IterationCounts
from fpmgm.objectives import MaskedCrossEntropy
from fpmgm.post_training.consistency import DISTANCES, Consistency
from fpmgm.randomness import generator
from fpmgm.training import loop
from fpmgm.training.config import Training
from fpmgm.training.loop import train
from fpmgm.training.optim import OptimConfig
from fpmgm.training.reconstruction import Reconstruction
from fpmgm.types import NO_CLASS, Batch
from tests.images import random_images, small_image_model


@pytest.fixture
def tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    return digits(tmp_path)


def digits(place: Path) -> Training:
    """A tokenizer of the digits of scikit-learn, 8 x 8 pixels as 2 x 2 codes."""
    return Training(
        out=str(place / "tokenizer"),
        model=VQNetwork(channels=8, num_stages=2, num_codes=16, code_width=4),
        data=PixelsConfig(source="digits"),
        objective=Reconstruction(),
        optim=OptimConfig(lr=3e-3, warmup=2, ema=0.0),
        updates=9,
        batch_size=16,
        checkpoint_every=3,
        validate_every=4,
        validation_sequences=32,
        trackers=(),
    )


def network_of(tokenizer: Training) -> Training:
    """A small FP-MaskGIT of the tokenizer's codes."""
    base = MaskedCrossEntropy(weighting="masked", schedule="arccos", label_dropout=0.1)
    return replace(
        tokenizer,
        out=str(Path(tokenizer.out).parent / "network"),
        model=MaskGITNetwork(width=16, num_heads=2, num_pre=1, num_fp=1, num_post=1, mlp_multiple=8, dropout=0.1),
        data=ImagesConfig(source="digits", tokenizer=tokenizer.out, num_codes=16, grid=(2, 2), num_classes=10),
        objective=base,
        optim=OptimConfig(lr=3e-3, warmup=2, ema=0.9),
    )


def rows_of(config: Training) -> list[dict[str, float]]:
    lines = (Path(config.out) / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in lines]


class KilledError(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("last", [4])
def test_a_tokenizer_killed_while_it_learns_ends_with_the_codes_of_an_unbroken_run(
    tokenizer: Training, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbroken = replace(tokenizer, out=f"{tokenizer.out}-unbroken")
    train(unbroken, "test")
    update = loop.Run.update

    def killed(self: loop.Run, number: int) -> dict[str, float]:
        if number == last:
            raise KilledError
        return update(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Run, "update", killed)
        with pytest.raises(KilledError):
            train(tokenizer, "test")
    train(tokenizer, "test")
    assert rows_of(tokenizer) == rows_of(unbroken)
    ours, theirs = (load_file(f"{config.out}/model/model.safetensors") for config in (tokenizer, unbroken))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_a_tokenizer_learns_to_draw_what_it_has_not_seen_and_uses_its_codes(tokenizer: Training) -> None:
    train(replace(tokenizer, updates=60), "test")
    rows = rows_of(tokenizer)
    assert rows[-1]["validation"] < 0.6 * rows[3]["validation"]
    assert rows[-1]["codebook_use"] > 0.7
    card = (Path(tokenizer.out) / "model" / "README.md").read_text()
    assert "codes are used" in card
    assert "Reconstruction error" in card
    assert (Path(tokenizer.out) / "model" / "samples.png").read_bytes()[:4] == b"\x89PNG"


def test_a_code_that_nothing_stands_for_is_revived() -> None:
    config = VQNetwork(channels=8, num_stages=2, num_codes=8, code_width=4).fit(
        PixelsConfig(source="digits").vocabulary
    )
    network = config.build().train()
    images = random_images(32, 8).float() / 127.5 - 1
    network(images)
    network.codebook[3] = 1e3  # far from every latent
    network.code_sums[3] = 0.0
    network.code_counts[3] = 0.0
    network(images)
    assert float(network.codebook[3].abs().max()) < 10


def test_the_whole_way_from_pixels_to_samples_runs_in_one_loop(tokenizer: Training) -> None:
    train(tokenizer, "test")
    network = network_of(tokenizer)
    folder = train(network, "test")
    model = load(folder)
    assert model.config.kind == "FP-MaskGIT"
    assert model.codec is not None
    found = fpmgm.generate(model, num_samples=3, budget=12, classes=["3", 7])
    assert [shown.shape for shown in found.shown] == [(8, 8)] * 6
    assert found.labels == [3, 3, 3, 7, 7, 7]
    assert tokenizer_named(str(folder)).weights == tokenizer_named(tokenizer.out).weights


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    """A network of the codes of a tokenizer, both hardly trained."""
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FPMGM_CACHE", str(place / "cache"))
        tokenizer = replace(digits(place), updates=2)
        train(tokenizer, "test")
        base = network_of(tokenizer)
        train(base, "test", card_samples=1)
        yield base


@pytest.mark.parametrize(("distance", "teacher"), [(each, "self") for each in DISTANCES] + [("mse", "ema")])
def test_every_consistency_loss_post_trains_a_network_of_images(
    trained: Training, distance: Any, teacher: str, tmp_path: Path
) -> None:
    assert isinstance(trained.objective, MaskedCrossEntropy)
    objective = Consistency(base=trained.objective, distance=distance, teacher=teacher, weight=1.0)
    stage = replace(trained, init=f"{trained.out}/model", objective=objective, out=str(tmp_path / "stage"))
    train(stage, "test", card_samples=1)
    assert all(row["consistency"] > 0 for row in rows_of(stage))


def test_classes_are_hidden_from_the_network_as_often_as_asked() -> None:
    denoiser = small_image_model().denoiser
    batch = Batch(x=torch.zeros(4000, 16, dtype=torch.long), label=torch.ones(4000, dtype=torch.long))
    told = MaskedCrossEntropy(label_dropout=0.25).draw(denoiser, batch, rng=generator(0)).label
    assert told is not None
    assert set(told.tolist()) == {NO_CLASS, 1}
    assert float((told == NO_CLASS).float().mean()) == pytest.approx(0.25, abs=0.03)
    whole = MaskedCrossEntropy().draw(denoiser, batch, rng=generator(0))
    assert whole.label is batch.label
    assert torch.equal(whole.z, MaskedCrossEntropy(label_dropout=0.25).draw(denoiser, batch, rng=generator(0)).z)
    with pytest.raises(ValueError, match=r"label_dropout is 1\.5; it must be a share"):
        MaskedCrossEntropy(label_dropout=1.5)


def test_the_loss_of_all_positions_asks_for_visible_tokens_too() -> None:
    denoiser = small_image_model().denoiser
    x = torch.randint(0, 8, (6, 16), generator=generator(1))
    label = torch.zeros(6, dtype=torch.long)
    fixed = IterationCounts(no_grad_min=1, no_grad_max=1, grad_min=2, grad_max=2)
    objective = MaskedCrossEntropy(weighting="all", schedule="arccos", iterations=fixed)
    noise = objective.draw(denoiser, Batch(x=x, label=label), rng=generator(2))
    assert bool(noise.asked.all())
    found = denoiser(noise.z, noise.t, noise.asked, label=label, num_no_grad=1, num_grad=2).features
    logits = denoiser.head(found).index_fill(1, torch.tensor([denoiser.mask_id]), -torch.inf)
    by_hand = torch.nn.functional.cross_entropy(logits, x.flatten())
    total = objective.loss(denoiser, x, noise).total
    assert float(total.detach()) == pytest.approx(float(by_hand.detach()), rel=1e-5)


def test_a_tokenizer_of_other_codes_than_the_run_is_refused_before_anything_is_written(tokenizer: Training) -> None:
    train(replace(tokenizer, updates=1), "test")
    wrong = network_of(tokenizer)
    assert isinstance(wrong.data, ImagesConfig)
    wrong = replace(wrong, data=replace(wrong.data, num_codes=32))
    with pytest.raises(ValueError, match=r"set for 32 codes, and tokenizer .* has 16; set --data.num-codes"):
        train(wrong, "test")
    assert not (Path(wrong.out) / "config.json").exists()
