"""Windows of split tensors against NumPy, for all kinds of windows, steps and numbers of ranks."""

from __future__ import annotations

from itertools import product

import laws
import numpy as np
import pytest

from jobflow import scope
from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import B, P, S, Signature
from jobflow.ops.op import sample
from jobflow.ops.scatter import index_add, scatter, scatter_add
from jobflow.ops.slice_update import SliceUpdate, Subscript, slice_update, subscript
from jobflow.ops.slices import Slice, SliceGrad

SIZE = 7
WINDOWS = [(a, b, s) for a, b, s in product(range(SIZE), range(SIZE + 1), (1, 2, 3)) if a <= b and (b - a - 1) % s == 0]


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_every_window_of_a_split_axis(ranks: int) -> None:
    x = np.arange(1.0, SIZE + 1)
    for a, b, s in WINDOWS:
        window = ((a,), (b,), (s,))
        if (a, b, s) != (0, SIZE, 1):
            laws.check_shards(sample(Subscript(*window), x), (ranks,), (Signature((S(0),), (P,)),))
            laws.check_shards(sample(SliceGrad((SIZE,), Slice(*window)), x[a:b:s]), (ranks,), (Signature((B,), (S(0),)),))
            laws.check_shards(sample(SliceUpdate(Slice(*window)), x, -x[a:b:s]), (ranks,), (Signature((S(0), B), (S(0),)),))


@pytest.mark.parametrize("key", [np.s_[1:4, ::2], np.s_[::-1], np.s_[4:1:-2, -3:], np.s_[:, 5:2:-1], np.s_[2:2]], ids=str)
def test_functions(key: tuple[slice, ...] | slice) -> None:
    x, keys = np.arange(30.0).reshape(5, 6), key if isinstance(key, tuple) else (key,)
    edges = [k.start for k in keys], [k.stop for k in keys], [k.step for k in keys]
    expected, v = x.copy(), -1.0 - np.arange(x[key].size).reshape(x[key].shape)
    expected[key] = v
    with scope.using(interpreter=laws.Immediate()):
        np.testing.assert_array_equal(subscript(laws.Result(x), *edges).array, x[key])
        np.testing.assert_array_equal(slice_update(laws.Result(x), laws.Result(v), *edges).array, expected)


def test_scattering() -> None:
    x, ids, v = laws.Result(np.zeros((3, 4))), laws.Result(np.array([[1, 1], [0, 3], [2, 9]])), laws.Result(np.ones((3, 2)))
    with scope.using(interpreter=laws.Immediate()):
        assert scatter(x, -1, ids, v).array.tolist() == [[0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 1, 0]]
        assert scatter_add(x, -1, ids, v).array.tolist() == [[0, 2, 0, 0], [1, 0, 0, 1], [0, 0, 1, 0]]
        assert index_add(x, 1, laws.Result(np.array([2, 2])), v).array.tolist() == [[0, 0, 2, 0]] * 3


def test_mismatched_arguments_raise() -> None:
    x = np.zeros((3, 4))
    with pytest.raises(ShapeError, match=r"float64\[2,1\].*float64\[2,4\]"):
        laws.run(SliceUpdate(Slice((0, 0), (2, 4), (1, 1))), [x, np.zeros((2, 1))])
    with pytest.raises(DtypeError, match=r"int64.*cast"):
        laws.run(SliceUpdate(Slice((0, 0), (2, 4), (1, 1))), [x, np.zeros((2, 4), int)])
    with scope.using(interpreter=laws.Immediate()):
        tensors = [laws.Result(a) for a in (x, np.zeros((2, 2), int), np.zeros((2, 2)))]
        for function in (scatter, scatter_add):
            with pytest.raises(ShapeError, match=rf"{function.__name__}.*along all axes but axis 1"):
                function(tensors[0], 1, *tensors[1:])
