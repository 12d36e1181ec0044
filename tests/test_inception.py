"""Inception's features: the input that it gets, and (marked `network`) the real file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fpmgm.evaluation import inception
from fpmgm.evaluation.frechet import Gaussian, frechet_distance
from fpmgm.evaluation.inception import inception_features, inception_input


def some_images(num: int, channels: int = 1, size: int = 28) -> torch.Tensor:
    return torch.randint(0, 256, (num, channels, size, size), generator=torch.Generator().manual_seed(0)).byte()


@pytest.mark.parametrize("size", [28, 400])
def test_images_are_resized_as_pillow_does_it_without_rounding(size: int) -> None:
    from PIL import Image

    image = some_images(1, size=size)
    found = inception_input(image)
    for_pillow = Image.fromarray(image[0, 0].numpy().astype(np.float32))
    expected = np.asarray(for_pillow.resize((299, 299), Image.Resampling.BICUBIC)).clip(0, 255)
    assert found.shape == (1, 3, 299, 299)
    for colour in found[0]:
        np.testing.assert_allclose(colour * 128 + 128, expected, atol=0.01)


def test_colours_stay_apart_and_other_numbers_of_them_are_refused() -> None:
    image = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    image[:, 1] = 255
    found = inception_input(image)
    assert found.mean(dim=(2, 3)).tolist() == [[-1.0, pytest.approx(127 / 128), -1.0]]
    with pytest.raises(ValueError, match="the images have 4 colours; Inception reads 1 or 3"):
        inception_input(some_images(1, channels=4))


def test_all_images_are_read_in_order_whatever_the_number_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def network(given: torch.Tensor) -> torch.Tensor:
        return given.mean(dim=(2, 3))

    def load(device: str) -> Any:
        return network

    monkeypatch.setattr(inception, "load_inception", load)
    images = some_images(2 * inception.AT_ONCE + 3)
    found = inception_features(images)
    np.testing.assert_allclose(found, inception_input(images).mean(dim=(2, 3)).numpy(), atol=1e-5)


def test_a_file_with_another_hash_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "inception"
    file.write_bytes(b"code of someone else")
    monkeypatch.setattr(inception, "fetch", lambda name: file)
    monkeypatch.setattr(torch.jit, "load", None)
    with pytest.raises(ValueError, match=r"does not have the hash .* so it is not run; remove it"):
        inception.load_inception.__wrapped__("cpu")


@pytest.mark.network
def test_the_real_inception_gives_2048_features_by_which_two_halves_are_near_and_noise_is_far() -> None:
    from sklearn.datasets import load_digits

    digits = torch.from_numpy(load_digits().images * 15.9).byte()[:120, None]
    halves = [Gaussian.of(inception_features(half, device="cpu")) for half in digits.split(60)]
    noise = Gaussian.of(inception_features(some_images(60, size=8), device="cpu"))
    assert halves[0].mean.shape == (2048,)
    near, far = (frechet_distance(halves[0], each) for each in (halves[1], noise))
    assert near < far / 3
