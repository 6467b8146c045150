"""Shapes: the splits that a reshape preserves, slices against Python's, composed functions, errors."""

from __future__ import annotations

from typing import Any

import laws
import numpy as np
import pytest

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import Split
from jobflow.core.types import TensorType, float32
from jobflow.ops import shape as sh

X = np.arange(60.0).reshape(4, 3, 5)


pytestmark = pytest.mark.usefixtures("at_once")


def x() -> laws.Result:
    return laws.Result(X)


@pytest.mark.parametrize(
    ("before", "after", "signatures"),
    [
        ((6, 2, 3, 4), (6, 24), ["S(0) -> S(0)", "S(1) -> S(1) (n divides 2)"]),
        ((6, 5, 8), (30, 8), ["S(2) -> S(1)", "S(0) -> S(0) (n divides 6)"]),
        ((30, 8), (6, 5, 8), ["S(1) -> S(2)", "S(0) -> S(0) (n divides 6)"]),
        ((4, 6), (6, 4), ["S(0) -> S(0) (n divides 2)"]),
        ((5, 7), (35,), ["S(0) -> S(0) (n divides 5)"]),
        ((5,), (1, 5, 1), ["S(0) -> S(1)"]),
        ((1,), (), []),
        ((3, 4), (4, 3), []),
        ((0, 3, 4), (0, 12), ["S(0) -> S(0)"]),
        ((0, 3, 4), (12, 0), []),
    ],
)
def test_splits_that_a_reshape_preserves(before: tuple[int, ...], after: tuple[int, ...], signatures: list[str]) -> None:
    rule = sh.Reshape(after).rule(TensorType(before, float32))
    declared = rule.signatures()
    assert [str(s) for s in declared if isinstance(s.inputs[0], Split)] == signatures
    assert {str(s) for s in declared if not isinstance(s.inputs[0], Split)} == {"P -> P", "B -> B"}


def test_reshape_fills_in_one_size() -> None:
    assert sh.reshape(x(), (-1, 5)).shape == (12, 5)
    assert sh.reshape(x(), (2, -1, 5)).shape == (2, 6, 5)
    same = x()
    assert sh.reshape(same, (4, 3, 5)) is same
    for wrong in ((-1, -1), (7, -1), (4, 4)):
        with pytest.raises(ShapeError, match=r"float64\[4,3,5\]"):
            sh.reshape(x(), wrong)


@pytest.mark.parametrize(
    "at",
    [
        np.s_[1:3], np.s_[:, 1:], np.s_[::2, ::2, ::2], np.s_[::-1], np.s_[3:0:-2, :, -3:-1], np.s_[-1:], np.s_[2:2], np.s_[:, :, 4:1:-1],
        np.s_[10:20], np.s_[3::-3, 2::-2],
    ],
    ids=str,
)  # fmt: skip
def test_slices_equal_python(at: Any) -> None:
    slices = at if isinstance(at, tuple) else (at,)
    ours = sh.slice_(x(), [s.start for s in slices], [s.stop for s in slices], [s.step for s in slices])
    np.testing.assert_array_equal(ours.array, X[at])


def test_a_full_slice_is_the_tensor_itself() -> None:
    tensor = x()
    assert sh.slice_(tensor, [0, None], [4, None]) is tensor


def test_functions_equal_numpy() -> None:
    pairs = [
        (sh.transpose(x(), (2, 0, 1)), X.transpose(2, 0, 1)),
        (sh.transpose(x()), X.T),
        (sh.flatten(x(), 1), X.reshape(4, 15)),
        (sh.flatten(x(), 0, 1), X.reshape(12, 5)),
        (sh.expand_dims(x(), -1), X[..., None]),
        (sh.squeeze(laws.Result(X[:1, :, None])), X[0]),
        (sh.squeeze(laws.Result(X[:1, :, None]), (0,)), X[0, :, None]),
        (sh.flip(x(), (0, -1)), np.flip(X, (0, 2))),
        (sh.tile(x(), (2, 1, 3)), np.tile(X, (2, 1, 3))),
        (sh.concat([x(), x()], -1), np.concatenate([X, X], 2)),
        (sh.stack([x(), x(), x()], 1), np.stack([X, X, X], 1)),
        (sh.pad(x(), [(0, 1), (2, 0), (0, 0)], 7.0), np.pad(X, [(0, 1), (2, 0), (0, 0)], constant_values=7)),
        (sh.broadcast_to(laws.Result(X[:, :1]), (2, 4, 3, 5)), np.broadcast_to(X[:, :1], (2, 4, 3, 5))),
    ]
    for ours, theirs in pairs:
        np.testing.assert_array_equal(ours.array, theirs)
    for ours, theirs in zip(sh.split(x(), [1, 3, 1], 2), np.split(X, [1, 4], 2), strict=True):
        np.testing.assert_array_equal(ours.array, theirs)
    for i, part in enumerate(sh.unstack(x(), 1)):
        np.testing.assert_array_equal(part.array, X[:, i])


def test_views_copy_nothing() -> None:
    for op in (sh.Reshape((12, 5)), sh.Transpose((2, 0, 1)), sh.ExpandDims(1), sh.Slice((1, 0, 0), (4, 3, 5), (2, 1, 1))):
        assert np.shares_memory(op.view(X), X)
    with pytest.raises(ValueError):
        sh.Reshape((60,)).view(X.T)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: sh.transpose(x(), (0, 0, 1)), ShapeError, ["transpose", "[0, 0, 1]", "float64[4,3,5]"]),
        (lambda: sh.squeeze(x(), (0,)), ShapeError, ["squeeze", "[0]", "float64[4,3,5]"]),
        (lambda: sh.concat([x(), laws.Result(X[:, :2])], 0), ShapeError, ["concat", "axis 0", "float64[4,3,5]", "float64[4,2,5]"]),
        (lambda: sh.concat([x(), laws.Result(X.astype(int))], 0), DtypeError, ["concat", "int64[4,3,5]", "cast"]),
        (lambda: sh.concat([]), ShapeError, ["concat", "at least one"]),
        (lambda: sh.split(x(), [1, 1], 0), ShapeError, ["split", "[1, 1]", "axis 0"]),
        (lambda: sh.pad(x(), [(0, 0)]), ShapeError, ["pad", "float64[4,3,5]"]),
        (lambda: sh.tile(x(), (2,)), ShapeError, ["tile", "[2]"]),
        (lambda: sh.broadcast_to(x(), (3, 5)), ShapeError, ["broadcast_to", "float64[4,3,5]", "float64[3,5]"]),
        (lambda: sh.expand_dims(x(), 5), ShapeError, ["expand_dims", "axis 5"]),
    ],
)
def test_errors_name_the_operands(call: Any, kind: type[Exception], words: list[str]) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)
