"""The reader of the handwritten digits that come with jobflow."""

from __future__ import annotations

from typing import Literal

import numpy as np

from jobflow.core.errors import ArgumentError
from jobflow.data.digits import SPLIT_SEED, TEST_ORIGINALS, expanded, originals
from jobflow.data.samples import Columns

VALIDATION_ORIGINALS = 200
SEEDS = {"train": 60, "validation": 61, "test": 10}


class Digits(Columns):
    """The 1,797 UCI handwritten digits: images float32[1, edge, edge] in 0..1 and labels int32 of 0..9.

    1,300 are for training, 200 for validation and 297 for the test.  `edge` is 8, as they were written, or 28: drawn and shifted to MNIST's shape,
    where `copies` shifted images are made of each.
    """

    def __init__(self, split: Literal["train", "validation", "test"] = "train", edge: Literal[8, 28] = 28, copies: int = 1) -> None:
        if split not in SEEDS:
            raise ArgumentError(f'reader "digits": split is {split!r}; it is one of {", ".join(SEEDS)}')
        if edge not in (8, 28) or not 1 <= copies <= (1 if edge == 8 else 49):
            raise ArgumentError(f'reader "digits": edge is 8, of which there is 1 copy, or 28, of which there are up to 49; got {edge} and {copies}')
        images, labels = originals()
        order = np.random.RandomState(SPLIT_SEED).permutation(len(images))
        a, b = TEST_ORIGINALS, TEST_ORIGINALS + VALIDATION_ORIGINALS
        own = {"test": order[:a], "validation": order[a:b], "train": order[b:]}[split]
        images, labels = images[own], labels[own]
        if edge == 28:
            images, labels = expanded(images, labels, len(images) * copies, SEEDS[split])
        arrays = {"images": images[:, None], "labels": labels}
        super().__init__(arrays, {"labels": "int32"}, {"images": 1 / (16 if edge == 8 else 255)}, what=f'reader "digits", split {split}')
