"""Joining and splitting compared with NumPy, in every layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from everywhere import Case, compare
from ranks import on_ranks, with_ranks

from jobflow import functional as F
from jobflow.core.errors import ShapeError
from jobflow.core.types import float32
from jobflow.engine.placements import placement, sbp
from jobflow.functional.creation import tensor

RANDOM = np.random.default_rng(2)
X, Y, LONG = RANDOM.normal(size=(4, 6)), RANDOM.normal(size=(4, 6)), RANDOM.normal(size=(7,))


def last_of(function: Any) -> Any:
    """Return the last piece; pieces are numbered from 1."""
    return lambda *xs: sum((i + 1) * piece for i, piece in enumerate(function(*xs)))


CASES: list[Case] = [
    (lambda x, y: F.cat([x, y], 1), lambda x, y: np.concatenate([x, y], 1), (X, Y)),
    (lambda x, y: F.concat((x, y)), lambda x, y: np.concatenate([x, y]), (X, Y[1:3])),
    (lambda x, y: F.stack([x, y], -1), lambda x, y: np.stack([x, y], -1), (X, Y)),
    (lambda x, y: F.stack([x, y]), lambda x, y: np.stack([x, y]), (X, Y)),
    (lambda x, y: F.hstack([x, y]), lambda x, y: np.hstack([x, y]), (X, Y[:, :2])),
    (lambda x, y: F.vstack([x, y]), lambda x, y: np.vstack([x, y]), (X, Y[0])),
    (last_of(lambda x: x.split(2)), last_of(lambda x: np.split(x, 2)), (X,)),
    (last_of(lambda x: x.split([1, 1, 4], 1)[:2]), last_of(lambda x: (x[:, :1], x[:, 1:2])), (X,)),
    (last_of(lambda x: F.chunk(x, 3, -1)), last_of(lambda x: np.split(x, 3, 1)), (X,)),
    (last_of(lambda x: x.unbind(1)), last_of(lambda x: x.T), (X,)),
    (lambda x: x.narrow(0, 1, 2), lambda x: x[1:3], (X,)),
    (lambda x: F.narrow(x, 1, -3, 2), lambda x: x[:, 3:5], (X,)),
    (lambda x, y: F.meshgrid(x, y)[1], lambda x, y: np.meshgrid(x, y, indexing="ij")[1], (LONG, X[0])),
    (lambda x, y: F.meshgrid(x, y, indexing="xy")[0], lambda x, y: np.meshgrid(x, y)[0], (LONG, X[0])),
]


@pytest.mark.parametrize("n", [2, 3])
def test_joining_equals_numpy(n: int) -> None:
    compare(n, CASES if n == 2 else CASES[::3])


@with_ranks(1)
def test_element_types_and_pieces() -> None:
    assert F.cat([tensor([1, 2]), tensor([0.5])]).dtype == float32
    assert [tuple(part.shape) for part in tensor(LONG).split(3)] == [(3,), (3,), (1,)]
    assert [tuple(part.shape) for part in tensor(LONG).chunk(4)] == [(2,), (2,), (2,), (1,)]
    x = tensor(X)
    assert all(np.shares_memory(part.numpy(), x.numpy()) for part in x.split(3, 1))
    for wrong, words in (
        (lambda: F.cat([]), "at least one"),
        (lambda: F.cat([tensor(X), tensor(LONG)]), "differ in size along another axis"),
        (lambda: F.stack([tensor(X), tensor(X[1:])]), r"all tensors must have the same shape; got float64\[4,6\], float64\[3,6\]"),
        (lambda: tensor(X).split([1, 2]), r"pieces of \[1, 2\] elements do not add up to axis 0"),
        (lambda: tensor(X).narrow(0, 3, 2), "length 2 from start 3 exceeds axis 0"),
    ):
        with pytest.raises(ShapeError, match=words):
            wrong()


def test_splitting_a_split_axis_redistributes_once() -> None:
    def program(rank: int) -> Any:
        x = tensor(np.arange(24.0).reshape(6, 4), placement=placement("cpu", [0, 1]), sbp=sbp.split(0))
        parts = x.chunk(3)
        assert len({id(part.memory) for part in parts}) == 1
        return [part.sbp for part in parts]

    assert on_ranks(2, program)[0] == [(sbp.split(1),)] * 3
