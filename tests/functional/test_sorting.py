"""Sorting, distinct elements and einsum, compared with NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from everywhere import Case, compare
from ranks import with_ranks

from jobflow import functional as F
from jobflow.core.errors import ShapeError
from jobflow.functional.creation import tensor

RANDOM = np.random.default_rng(4)
X, TIES = RANDOM.normal(size=(4, 6)), np.array([[3, 1, 3, 2], [1, 1, 0, 0]])

CASES: list[Case] = [
    (lambda x: x.sort()[0], np.sort, (X,)),
    (lambda x: x.sort(0, descending=True).values, lambda x: -np.sort(-x, 0), (X,)),
    (lambda x: F.sort(x, 1)[1], lambda x: np.argsort(x, 1, kind="stable"), (TIES,)),
    (lambda x: F.argsort(x, descending=True), lambda x: np.argsort(-x, kind="stable"), (TIES,)),
    (lambda x: x.topk(2)[0], lambda x: -np.sort(-x)[:, :2], (X,)),
    (lambda x: F.topk(x, 3, 0, largest=False).indices, lambda x: np.argsort(x, 0)[:3], (X,)),
    (lambda x: F.kthvalue(x, 3, 1).values, lambda x: np.sort(x)[:, 2], (X,)),
    (lambda x: x.unique(), np.unique, (TIES,)),
    (lambda x: F.unique(x, return_inverse=True)[1], lambda x: np.unique(x, return_inverse=True)[1].reshape(x.shape), (TIES,)),
    (lambda x: F.unique(x, return_counts=True, dim=1)[1], lambda x: np.unique(x, return_counts=True, axis=1)[1], (TIES,)),
    (
        lambda x, v: F.searchsorted(x, v, right=True),
        lambda x, v: np.searchsorted(x, v, "right"),
        (np.arange(5.0), np.array([[0.0, 2.5], [9.0, -1.0]])),
    ),
    (F.searchsorted, lambda x, v: np.zeros(v.shape, np.int64), (np.zeros((2, 0)), np.array([[0.0, 2.5, 1.0], [9.0, -1.0, 0.0]]))),
]


def test_sorting_equals_numpy() -> None:
    compare(2, CASES)


EQUATIONS = {
    "ij,jk->ik": ((2, 3), (3, 4)), "bij,bjk->bik": ((2, 3, 4), (2, 4, 5)), "...ij,jk": ((2, 2, 3), (3, 2)),
    "bhqd,bhkd->bhqk": ((2, 2, 3, 4), (2, 2, 5, 4)),
    "ii->i": ((3, 3),), "ii": ((3, 3),), "ij->": ((3, 2),), "ij->ji": ((3, 2),), "ij,ij->ij": ((2, 3), (2, 3)), "i,j->ji": ((2,), (3,)),
    "...a,...a->...": ((2, 1, 3), (2, 4, 3)), "bi,ij,bj->b": ((4, 2), (2, 3), (4, 3)),
}  # fmt: skip


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation: str) -> None:
    arrays = [RANDOM.normal(size=shape) for shape in EQUATIONS[equation]]
    compare(2, [(lambda *xs: F.einsum(equation, *xs), lambda *xs: np.einsum(equation, *xs), arrays)])


@with_ranks(1)
def test_invalid_sorting_arguments_raise() -> None:
    x = tensor(X)
    for wrong, words in (
        (lambda: x.topk(7), "k=7 is not between 0 and the 6"),
        (lambda: F.kthvalue(x, 0), "k=0 is out of range, 1 to 6"),
        (lambda: F.einsum("ij,jk->ik", x, x), r"the axis 'j' has 6 elements in one tensor and 4 in another"),
        (lambda: F.einsum("ijk->i", x), r"one letter per axis of its tensor float64\[4,6\]"),
        (lambda: F.einsum("ij->k", x), "must have distinct letters of the operands"),
        (lambda: F.einsum("ij,jk", x), "the equation has 2 terms for 1 tensor; write one term per tensor"),
    ):
        with pytest.raises(ShapeError, match=words):
            wrong()
