"""Folders of images: squares of them, and draws that are the same whenever an image is read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobflow.core.errors import ArgumentError, DataError
from jobflow.data import Samples, open_reader
from jobflow.data.digits import originals

Image = pytest.importorskip("PIL.Image")


def opened(path: Path, **arguments: Any) -> Samples:
    samples = open_reader("images", path=str(path), **arguments)
    assert isinstance(samples, Samples)
    return samples


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty real digits, 8 pixels wide and 12 high, as files of several kinds in folders of their classes."""
    root = tmp_path_factory.mktemp("digits")
    images, labels = originals()
    for i in range(40):
        directory = root / f"digit{labels[i]}"
        directory.mkdir(exist_ok=True)
        picture = np.zeros((12, 8, 3), np.uint8)
        picture[2:10] = images[i, :, :, None] * 15
        Image.fromarray(picture).save(directory / f"{i:02}.{'png' if i % 2 else 'bmp'}")
    (root / "digit0" / "notes.txt").write_text("no image")
    (root / ".hidden").mkdir()
    return root


def test_images_and_their_classes(folder: Path) -> None:
    samples = opened(folder, size=8, channels=1)
    assert {name: str(field) for name, field in samples.fields.items()} == {"images": "float32[1,8,8]", "labels": "int32[]"}
    assert len(samples) == 40 and samples.facts == {"classes": [f"digit{i}" for i in range(10)]}
    images, labels = originals()
    batch = samples.read(np.arange(40))
    order = sorted(range(40), key=lambda i: (labels[i], i))
    assert batch["labels"].tolist() == labels[order].tolist()
    np.testing.assert_allclose(batch["images"][:, 0], images[order] * 15 / 255, atol=1e-6)
    assert list(samples.read([3], fields=["labels"])) == ["labels"]


def test_numbers_are_centred_per_channel(folder: Path) -> None:
    plain = opened(folder, size=8).read([4])["images"]
    shifted = opened(folder, size=8, mean=[0.1, 0.2, 0.3], deviation=[1, 2, 4]).read([4])["images"]
    np.testing.assert_allclose(shifted, (plain - np.array([0.1, 0.2, 0.3])[:, None, None]) / np.array([1, 2, 4])[:, None, None], atol=1e-6)


def test_images_are_scaled_to_their_shorter_side(folder: Path) -> None:
    assert opened(folder, size=16).read([0])["images"].shape == (1, 3, 16, 16)
    wide = opened(folder, size=6, resize=16).read([0, 1])["images"]
    assert wide.shape == (2, 3, 6, 6) and wide.max() > 0.2, "the middle of the digit"


def test_draws_are_a_function_of_seed_epoch_and_number(folder: Path) -> None:
    options: dict[str, Any] = {"size": 8, "resize": 10, "crop": "random", "flip": True}
    samples, whole = opened(folder, **options), np.arange(40)
    first = samples.read(whole, epoch=1)["images"]
    assert np.array_equal(first[[7, 3]], opened(folder, **options).read([7, 3], epoch=1)["images"]), "whoever reads, and with whatever else"
    for other in (samples.read(whole, epoch=2)["images"], opened(folder, **options, seed=5).read(whole, epoch=1)["images"]):
        assert sum(np.array_equal(a, b) for a, b in zip(first, other, strict=True)) < 12


def test_half_of_the_images_are_mirrored(folder: Path) -> None:
    plain = opened(folder, size=8).read(np.arange(40))["images"]
    samples = opened(folder, size=8, flip=True)
    mirrored = [
        np.array_equal(a, b[:, :, ::-1]) and not np.array_equal(a, b) for a, b in zip(samples.read(np.arange(40))["images"], plain, strict=True)
    ]
    assert 8 < sum(mirrored) < 32


def test_classes_may_be_chosen_and_images_without_classes_read(folder: Path) -> None:
    some = opened(folder, size=8, classes=["digit7", "digit1"])
    assert set(some.read(np.arange(len(some)))["labels"].tolist()) == {0, 1} and some.facts == {"classes": ["digit7", "digit1"]}
    alone = opened(folder / "digit3", size=8, labels=False)
    assert list(alone.fields) == ["images"] and len(alone) == len(list((folder / "digit3").iterdir()))
    assert len(opened(folder, size=8, split="validation", validation_every=4)) == 10


def test_wrong_folders_raise(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    for arguments, kind, message in (
        ({"path": str(tmp_path / "none")}, DataError, "there is no folder .*none"),
        ({"path": str(tmp_path)}, DataError, 'cats contains no image for class "cats"'),
        ({"path": str(tmp_path / "cats")}, DataError, "create one per class, or set labels: false"),
        ({"path": str(folder), "classes": ["dogs"]}, DataError, 'there is no folder .*dogs for class "dogs"'),
        ({"path": str(folder), "size": 8, "resize": 4}, ArgumentError, "size 8 must be at least 1 and at most resize 4"),
        ({"path": str(folder), "mean": [0.5]}, ArgumentError, "mean must have a number for each of 3 channels"),
        ({"path": str(folder), "deviation": [1, 0, 1]}, ArgumentError, "deviation must have a number"),
        ({"path": str(folder), "crop": "anywhere"}, ArgumentError, 'crop must be "center" or "random"'),
    ):
        with pytest.raises(kind, match=message):
            open_reader("images", **arguments)


def test_a_damaged_image_is_named(folder: Path, tmp_path: Path) -> None:
    whole = next((folder / "digit5").glob("*.png")).read_bytes()
    (tmp_path / "a").mkdir()
    for content in (whole[:-30], whole[: len(whole) // 2], b"none"):
        (tmp_path / "a" / "0.png").write_bytes(content)
        with pytest.raises(DataError, match=r"0\.png cannot be read as an image"):
            opened(tmp_path, size=8).read([0])


def test_a_missing_pillow_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ModuleNotFoundError, match=r'reader "images" needs pillow: pip install "jobflow-sbp\[train\]"'):
        open_reader("images", path="x")
