"""Data for the twelve models: files for the readers, and data sets in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

WORDS, LENGTH = 12, 7


def write_files(folder: Path) -> None:
    """Write a table, ratings, a folder of images, arrays and a text."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(32, 3)).round(3)
    lines = [f"{a},{b},{c},{2 * a - b + 0.1 * c:.3f}" for a, b, c in rows.tolist()]
    (folder / "houses.csv").write_text("area,age,rooms,price\n" + "\n".join(lines) + "\n")
    ratings = [f"u{i % 5},i{(3 * i) % 7},{1 + (i * 7) % 5}" for i in range(32)]
    (folder / "ratings.csv").write_text("user,item,rating\n" + "\n".join(ratings) + "\n")
    for number in range(32):
        _write_image(folder / "photos" / f"class{number % 2}" / f"{number}.png", random)
    shapes = {"images": random.random((32, 1, 8, 8)).astype(np.float32), "labels": random.integers(0, 10, 32).astype(np.int32)}
    np.savez(folder / "digits.npz", **shapes)
    (folder / "text.txt").write_text("the cat sat on the mat. the dog sat on the log. " * 12)


def _write_image(path: Path, random: np.random.Generator) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)


class Reviews:
    """A data set as of PyTorch: `len` and `[i]`.  Shorter sentences end with zeros."""

    def __init__(self, size: int = 32) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        random = np.random.default_rng(index)
        tokens = random.integers(1, WORDS, LENGTH)
        label = int(tokens[0] > WORDS // 2)
        tokens[2 + index % (LENGTH - 2) :] = 0
        return {"tokens": tokens, "labels": label}


def waves(size: int = 32) -> dict[str, Any]:
    """Return series and their next values, as a dict of arrays."""
    starts = np.linspace(0, 6, size)[:, None]
    series = np.sin(starts + 0.4 * np.arange(10)).astype(np.float32)
    return {"series": series[:, :9], "labels": series[:, 9]}


def shapes(size: int = 16) -> dict[str, Any]:
    """Return images with a square, and the class of each pixel."""
    random = np.random.default_rng(3)
    images = random.normal(size=(size, 1, 8, 8)).astype(np.float32)
    masks = np.zeros((size, 8, 8), np.int64)
    for i in range(size):
        y, x = i % 4, i // 4 % 4
        masks[i, y : y + 3, x : x + 3] = 1 + i % 2
    return {"images": images + masks[:, None].astype(np.float32), "labels": masks}


def orders(size: int = 32) -> list[tuple[Any, int, Any]]:
    """Return tuples: features, a class and an amount."""
    random = np.random.default_rng(4)
    return [(x := random.normal(size=4).astype(np.float32), int(x[0] > 0), np.float32(x.sum())) for _ in range(size)]
