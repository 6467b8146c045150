"""Inputs of `ctc_loss` of tensors, which `tests/references/record.py` passes to PyTorch as well."""

from __future__ import annotations

import zlib
from itertools import product
from typing import Any, NamedTuple

import numpy as np

REDUCTIONS = ("none", "mean", "sum")


class Lengths(NamedTuple):
    """The shape of the log-probabilities, the targets, and the lengths of both."""

    shape: tuple[int, ...]
    targets: Any
    input_lengths: list[int]
    target_lengths: list[int]
    blank: int = 0


LENGTHS = {
    "rows": Lengths((6, 3, 4), [[1, 2, 2], [3, 1, 0], [2, 0, 0]], [6, 5, 2], [3, 2, 1]),
    "joined": Lengths((6, 3, 4), [1, 2, 2, 3, 1, 2], [6, 5, 2], [3, 2, 1]),
    "last class is blank": Lengths((5, 2, 3), [[0, 1], [1, 1]], [5, 4], [2, 2], 2),
    # not as the last label: PyTorch then drops one of two shares of the last frame from the gradient
    "blank among the targets": Lengths((5, 2, 3), [[1, 0], [1, 2]], [5, 5], [2, 2], 1),
    "no labels": Lengths((4, 2, 3), [[1, 2], [1, 1]], [4, 3], [0, 2]),
    "too few frames": Lengths((4, 2, 3), [[1, 1, 1], [2, 1, 0]], [4, 4], [3, 2]),
    "one sample": Lengths((5, 4), [1, 3, 3], [5], [3]),
    "one sample without a path": Lengths((2, 4), [1, 3, 3], [2], [3]),
}

CASES = [
    (name, reduction, zero) for name, reduction, zero in product(LENGTHS, REDUCTIONS, (False, True)) if not zero or "few" in name or "path" in name
]


def scores(name: str) -> np.ndarray[Any, Any]:
    """Return numbers whose log-softmax is the input of the case."""
    return np.random.RandomState(zlib.crc32(name.encode())).standard_normal(LENGTHS[name].shape)


def weights(count: int) -> np.ndarray[Any, Any]:
    """Return the factors of the losses in the sum that is differentiated."""
    return np.arange(1.0, count + 1)
