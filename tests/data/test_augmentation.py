"""Augmented images: a function of seed, epoch and number of the sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from jobflow.core.errors import ArgumentError
from jobflow.data import Samples, open_reader
from jobflow.data.augmentation import _OPERATIONS, LARGEST


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for i in range(6):
        pixels = np.kron(random.integers(0, 256, (4, 4, 3), np.uint8), np.ones((4, 4, 1), np.uint8))
        Image.fromarray(pixels).save(folder / f"{i}.png")
    Image.fromarray((random.random((16, 16)) * 65535).astype(np.uint16)).save(folder / "6.png")
    return folder


def opened(photos: Path, **arguments: Any) -> Samples:
    samples = open_reader("images", path=str(photos), labels=False, size=12, resize=14, **arguments)
    assert isinstance(samples, Samples)
    return samples


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "arguments", [{"rotation": 30}, {"colour": 0.5}, {"rand_augment": 2}, {"crop": "random", "flip": True, "rotation": 5, "colour": 0.1}]
)
def test_changes_are_a_function_of_seed_epoch_and_number(photos: Path, arguments: dict[str, Any], channels: int) -> None:
    samples = opened(photos, seed=3, channels=channels, **arguments)
    images = samples.read(np.arange(7), epoch=1)["images"]
    assert np.isfinite(images).all() and images.min() >= 0 and images.max() <= 1
    np.testing.assert_array_equal(opened(photos, seed=3, channels=channels, **arguments).read([5, 2], epoch=1)["images"], images[[5, 2]])
    for other in (opened(photos, channels=channels), opened(photos, seed=4, channels=channels, **arguments)):
        assert not np.array_equal(other.read(np.arange(7), epoch=1)["images"], images)
    assert not np.array_equal(samples.read(np.arange(7), epoch=2)["images"], images)


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("index", range(len(_OPERATIONS)))
def test_each_operation_keeps_the_type_of_an_image(photos: Path, index: int, mode: str) -> None:
    image = Image.open(photos / "1.png").convert(mode)
    for sign in (1, -1):
        changed = _OPERATIONS[index](image, 20 / LARGEST, sign)
        assert changed.size == image.size and changed.mode == mode
    same = index in (0, 2) or (index == 5 and mode == "L")  # few pixels are equalized already, and grey has no saturation
    assert np.array_equal(np.asarray(changed), np.asarray(image)) == same


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rotation": 200}, "rotation must be an angle from 0 to 180 degrees, not 200"),
        ({"colour": 1.0}, "colour must be at least 0 and less than 1, not 1.0"),
        ({"rand_augment": -1}, "rand_augment must be a number of operations from 0"),
        ({"rand_augment": 1, "magnitude": 31}, "magnitude from 0 to 30, not 1 and 31"),
    ],
)
def test_wrong_augmentations_raise(photos: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        opened(photos, **arguments)
