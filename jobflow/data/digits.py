"""The UCI handwritten digits of the package: their reader, and a substitute for MNIST if MNIST is not available.

The substitute has MNIST's shapes, enlarged and shifted from the 1,797 images of 8x8 pixels. The images are split into train and test *before*
they are multiplied, so no test image is a shifted train image. Each image is scaled to the 20x20 box of MNIST's digits, centred in 28x28, and
shifted by up to 3 pixels in each direction. The shifts of one image differ from each other. The result depends only on the fixed seeds below.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from jobflow.core.errors import ArgumentError
from jobflow.data.samples import Columns

Images: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]

TEST_ORIGINALS = 297
TRAIN_SIZE, TEST_SIZE = 60_000, 10_000
BOX, EDGE = 20, 28
REACH = 3
SPLIT_SEED, TRAIN_SEED, TEST_SEED = 1998, 60, 10
#: sizes and seeds of the splits of the reader
VALIDATION_ORIGINALS = 200
SEEDS = {"train": 60, "validation": 61, "test": 10}


def originals() -> tuple[Images, Images]:
    """Return the 1,797 images, uint8[1797,8,8] with values 0..16, and their labels."""
    with np.load(Path(__file__).with_name("digits.npz")) as archive:
        return archive["images"], archive["labels"]


def divided() -> tuple[Images, Images, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """Return images, labels and a permutation of their indices; the first `TEST_ORIGINALS` indices are the test images."""
    images, labels = originals()
    return images, labels, np.random.RandomState(SPLIT_SEED).permutation(len(images))


def weights(size: int, target: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return the matrix [target, size] of bilinear interpolation between pixel centres, times 2 * target.

    The entries are integers, and therefore equal on all machines.
    """
    unit = 2 * target
    centre = np.clip((2 * np.arange(target) + 1) * size - target, 0, (size - 1) * unit)
    low = np.minimum(centre // unit, size - 2)
    result = np.zeros((target, size), np.int64)
    result[np.arange(target), low] = unit - (centre - low * unit)
    result[np.arange(target), low + 1] = centre - low * unit
    return result


def scaled(images: Images, target: int) -> Images:
    """Scale images of 8x8 pixels with values 0..16 to target x target pixels with values 0..255."""
    w = weights(images.shape[1], target)
    whole = 16 * (2 * target) ** 2
    return np.asarray((w @ images.astype(np.int64) @ w.T * 255 + whole // 2) // whole, dtype=np.uint8)


def expanded(images: Images, labels: Images, size: int, seed: int) -> tuple[Images, Images]:
    """Return `size` shifted copies in random order, uint8[size,28,28], and their labels uint8[size].

    The numbers of copies of two images differ by at most one.
    """
    random = np.random.RandomState(seed)
    side = 2 * REACH + 1
    copies = -(-size // len(images))
    shifts = np.argsort(random.random_sample((len(images), side * side)), axis=1)[:, :copies]
    which = np.tile(np.arange(len(images)), copies)[:size]
    down, right = np.divmod(shifts.T.reshape(-1)[:size], side)
    frame = np.zeros((len(images), EDGE + 2 * REACH, EDGE + 2 * REACH), np.uint8)
    start = (EDGE - BOX) // 2 + REACH
    frame[:, start : start + BOX, start : start + BOX] = scaled(images, BOX)
    windows = np.lib.stride_tricks.sliding_window_view(frame, (EDGE, EDGE), axis=(1, 2))
    order = random.permutation(size)
    return windows[which[order], down[order], right[order]], labels[which[order]]


def like_mnist() -> tuple[tuple[Images, Images], tuple[Images, Images]]:
    """Return ((train images, labels), (test images, labels)) in MNIST's shapes: uint8[60000,28,28] and uint8[10000,28,28]."""
    images, labels, order = divided()
    test, train = order[:TEST_ORIGINALS], order[TEST_ORIGINALS:]
    return (
        expanded(images[train], labels[train], TRAIN_SIZE, TRAIN_SEED),
        expanded(images[test], labels[test], TEST_SIZE, TEST_SEED),
    )


class Digits(Columns):
    """The reader "digits": 1,797 UCI handwritten digits with images float32[1, edge, edge] in 0..1 and labels int32 of 0..9.

    1,300 are for training, 200 for validation and 297 for the test. With `edge` 8 the images have their original size. With 28 they are enlarged
    and shifted to MNIST's shape, and each image yields `copies` shifted images.
    """

    def __init__(self, split: Literal["train", "validation", "test"] = "train", edge: Literal[8, 28] = 28, copies: int = 1) -> None:
        if split not in SEEDS:
            raise ArgumentError(f'reader "digits": split must be one of {", ".join(SEEDS)}, not {split!r}')
        if edge not in (8, 28) or not 1 <= copies <= (1 if edge == 8 else 49):
            raise ArgumentError(f'reader "digits": edge must be 8 with 1 copy, or 28 with 1 to 49 copies, not {edge} with {copies}')
        images, labels, order = divided()
        a, b = TEST_ORIGINALS, TEST_ORIGINALS + VALIDATION_ORIGINALS
        own = {"test": order[:a], "validation": order[a:b], "train": order[b:]}[split]
        images, labels = images[own], labels[own]
        if edge == 28:
            images, labels = expanded(images, labels, len(images) * copies, SEEDS[split])
        arrays = {"images": images[:, None], "labels": labels}
        super().__init__(arrays, {"labels": "int32"}, {"images": 1 / (16 if edge == 8 else 255)}, what=f'reader "digits", split {split}')
