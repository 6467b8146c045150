"""Images of unusual depth and orientation, and odd arguments of their reader."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from odd_files import by_turns, opened

from jobflow.core.errors import ArgumentError, DataError


def _grey(dtype: Any, most: float) -> Any:
    return (np.linspace(0, 1, 16).reshape(4, 4) * most).astype(dtype)


#: (ending, pixels, options of Pillow): the value is that of the pixel by the depth of the file, or the reason for the error
IMAGES: dict[str, tuple[str, Any, Any]] = {
    "png 8": ("png", _grey(np.uint8, 255), 255),
    "png 16": ("png", _grey(np.uint16, 65535), 65535),
    "tiff 16": ("tif", _grey(np.uint16, 65535), 65535),
    "pgm 16": ("pgm", _grey(np.int32, 65535), 65535),
    "dark png 16": ("png", _grey(np.uint16, 200), 65535),
    "tiff 32": ("tif", _grey(np.int32, 2**31 - 1), "its pixels are integers of 32 bits"),
    "tiff float": ("tif", _grey(np.float32, 1), "its pixels are floats"),
}


@pytest.mark.parametrize(("kind", "channels"), by_turns(list(IMAGES), [1, 3]))
def test_images_are_scaled_by_their_depth(kind: str, channels: int, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    ending, pixels, white = IMAGES[kind]
    (tmp_path / "a").mkdir()
    image.fromarray(pixels).save(tmp_path / "a" / f"odd.{ending}")
    samples = opened("images", path=str(tmp_path), size=4, channels=channels)
    if isinstance(white, str):
        with pytest.raises(DataError, match=rf"odd\.tif: {white}.*save it with 8 or 16 bits"):
            samples.read([0])
        return
    for plane in samples.read([0])["images"][0]:
        np.testing.assert_allclose(plane, pixels / white, atol=1e-6)


@pytest.mark.parametrize(("orientation", "ending"), by_turns(range(1, 9), ["jpg", "png", "webp", "tif"]))
def test_images_are_upright(orientation: int, ending: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    turned = pytest.importorskip("PIL.ImageOps")
    pixels = np.zeros((8, 8), np.uint8)
    pixels[:4, :2], pixels[0] = 255, 120
    exif = image.Exif()
    exif[0x0112] = orientation
    (tmp_path / "a").mkdir()
    file = tmp_path / "a" / f"odd.{ending}"
    image.fromarray(pixels).convert("RGB").save(file, exif=exif, **{"jpg": {"quality": 100}, "webp": {"lossless": True}}.get(ending, {}))
    with image.open(file) as opening:
        expected = np.asarray(turned.exif_transpose(opening).convert("L"), np.float32) / 255
    upright = opened("images", path=str(tmp_path), size=8, channels=1).read([0])["images"][0, 0]
    np.testing.assert_allclose(upright, expected, atol=0.02)
    if ending != "tif":  # Pillow turns these itself
        plain = opened("images", path=str(tmp_path), size=8, channels=1, orientation=False).read([0])["images"][0, 0]
        np.testing.assert_allclose(plain, pixels / 255, atol=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": ["a", "a"]}, "classes contains a folder twice: a, a"),
        ({"deviation": [math.nan, 1, 1]}, r"deviation must contain finite numbers, not \[nan, 1, 1\]"),
        ({"mean": [math.inf, 0, 0]}, "mean must contain finite numbers"),
    ],
)
def test_odd_arguments_of_images(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    (tmp_path / "a").mkdir()
    pillow.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "a" / "x.png")
    with pytest.raises(ArgumentError, match=message):
        opened("images", path=str(tmp_path), size=8, **arguments)
