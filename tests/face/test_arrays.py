"""Array functions of jobs against NumPy: odd arguments, errors, and conventions about shapes and types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jobflow import linalg
from jobflow.core.errors import ArgumentError, DtypeError, JobError, ShapeError
from jobflow.core.types import float32, float64, int8, int32
from jobflow.initializers import constant_initializer
from jobflow.legacy import arrays, variables


def test_cast_and_identity(run: Any) -> None:
    x = np.array([1.5, -2.5], np.float32)
    assert run(lambda t: arrays.cast(t, float32) is t, x)
    assert run(lambda t: arrays.cast(t, int32), x).tolist() == [1, -2]
    assert run(lambda t: arrays.identity(t, "same"), x).tolist() == x.tolist() and run.job.names == ["same"]
    assert [y.tolist() for y in run(lambda a, b: arrays.identity_n([a, b]), [1.0], [2.0])] == [[1], [2]]


def test_constants(run: Any) -> None:
    assert run(lambda: arrays.constant(3, float64, (2, 1))).tolist() == [[3], [3]]
    assert run(lambda: arrays.constant(3, int8)).shape == (1,) and run(lambda: arrays.constant_scalar(3, int8)).dtype == np.int8
    assert run(lambda t: arrays.ones_like(t), np.zeros((2, 2), np.int32)).dtype == np.int32
    assert run(lambda t: arrays.zeros_like(t, float32), np.ones((2, 2), np.int32)).dtype == np.float32
    assert run(lambda t: arrays.constant_like(t, 7), np.zeros(2)).tolist() == [7, 7]
    assert run(lambda: arrays.ones([2], float32)).tolist() == [1, 1] and run(lambda: arrays.zeros([2], float32)).tolist() == [0, 0]
    with pytest.raises(AssertionError, match=r"constant at test_arrays\.py:\d+: dtype must be an element type"):
        run(lambda: arrays.constant(3))


def test_range(run: Any) -> None:
    y = run(lambda: arrays.range(5))
    assert y.dtype == np.int64 and y.tolist() == [0, 1, 2, 3, 4] and run.job.names == ["range"]
    assert run(lambda: arrays.range(2, 9, 3, int32)).tolist() == [2, 5, 8]
    for wrong in ((5, 5), (0, 5, -1), (0.5,)):
        with pytest.raises(ArgumentError, match="range at"):
            run(lambda w=wrong: arrays.range(*w))


def test_reshape(run: Any) -> None:
    x = np.arange(12.0)
    assert run(lambda t: arrays.reshape(t, [3, -1]), x).shape == (3, 4)
    assert run(lambda t: arrays.reshape(t, (np.int64(2), 6)), x).shape == (2, 6)
    assert run(arrays.reshape_like, x, np.zeros((4, 3))).shape == (4, 3)
    for shape in ([5, 2], [-1, -1], [0, -1], [7, -1], -1, [3.0, 4]):
        with pytest.raises(AssertionError, match="reshape at"):
            run(lambda t, s=shape: arrays.reshape(t, s), x)


def test_flatten_squeeze_expand_dims(run: Any) -> None:
    x = np.zeros((2, 1, 3, 1))
    assert run(arrays.flatten, x).shape == (6,)
    assert run(lambda t: arrays.flatten(t, 1, 2), x).shape == (2, 3, 1)
    assert run(arrays.squeeze, x).shape == (2, 3) and run(lambda t: arrays.squeeze(t, [-1]), x).shape == (2, 1, 3)
    assert run(lambda t: arrays.expand_dims(t, -5), x).shape == (1, 2, 1, 3, 1) and run(lambda t: arrays.expand_dims(t, 4), x).shape == (
        2,
        1,
        3,
        1,
        1,
    )
    with pytest.raises(ArgumentError, match="axis"):
        run(lambda t: arrays.squeeze(t, 1), x)
    with pytest.raises(ShapeError, match="size 1"):
        run(lambda t: arrays.squeeze(t, [0]), x)
    with pytest.raises(ShapeError, match="expand_dims at"):
        run(lambda t: arrays.expand_dims(t, 5), x)


def test_transpose(run: Any, rng: Any) -> None:
    x = rng.standard_normal((2, 3, 4))
    assert (run(lambda t: arrays.transpose(t, [2, 0, -2]), x) == x.transpose(2, 0, 1)).all()
    assert run(lambda t: arrays.transpose(t, [0, 1, 2], False, False, "turned"), x).shape == x.shape and run.job.names == ["turned"]
    for perm in (None, [0, 1], [0, 0, 1]):
        with pytest.raises(AssertionError, match="transpose at"):
            run(lambda t, p=perm: arrays.transpose(t, p), x)
    with pytest.raises(NotImplementedError, match="conjugate"):
        run(lambda t: arrays.transpose(t, [0, 1, 2], True), x)


def test_expand_and_broadcast_like(run: Any) -> None:
    x = np.array([[1.0], [2.0]])
    assert (run(lambda t: arrays.expand(t, [3, -1, 4]), x) == np.broadcast_to(x, (3, 2, 4))).all()
    assert run(arrays.broadcast_like, x, np.zeros((5, 2, 3))).shape == (5, 2, 3)
    row = run(lambda t, like: arrays.broadcast_like(t, like, [1]), np.array([1.0, 2.0]), np.zeros((2, 3)))
    assert row.tolist() == [[1, 1, 1], [2, 2, 2]]
    with pytest.raises(ArgumentError, match="expand_size"):
        run(lambda t: arrays.expand(t, [-1, 2, 1]), x)


def test_concat_and_stack(run: Any) -> None:
    a, b = np.ones((2, 3)), np.zeros((2, 1))
    assert run(lambda a, b: arrays.concat([a, b], -1), a, b).shape == (2, 4)
    assert run(lambda a, b: arrays.concat(values=[a, b], axis=1, name="c"), a, b).shape == (2, 4) and run.job.names == ["c"]
    assert run(lambda a: arrays.concat([a]) is a, a)
    assert (run(lambda a: arrays.stack([a, a], 1), a) == np.stack([a, a], 1)).all()
    assert run(lambda a: arrays.stack([a, a]), a).shape == (2, 2, 3)
    with pytest.raises(ArgumentError, match="concat at"):
        run(lambda: arrays.concat([]))
    with pytest.raises(ShapeError, match=r"concat"):
        run(lambda a, b: arrays.concat([a, b], 0), a, b)
    with pytest.raises(ShapeError, match=r"float64\[2,3\], float64\[2,1\]"):
        run(lambda a, b: arrays.stack([a, b]), a, b)


def test_slice(run: Any) -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    assert (run(lambda t: arrays.slice(t, [None, 1, -3], [None, 2, 2]), x) == x[:, 1:3, 1:3]).all()
    assert (run(lambda t: arrays.slice(t, [1, 0, 2], [1, -1, -1]), x) == x[1:, :, 2:]).all()
    assert (run(lambda t: arrays.slice(t, [0, 1, 0], [1, 9, 5]), x) == x[:1, 1:, :]).all()
    for begin, size in (([0, 0], [1, 1]), ([0, 0, 4], [1, 1, 1]), ([0, 0, 0], [1, 0, 1]), ([2, 0, 0], [-1, 1, 1]), (None, [1, 1, 1])):
        with pytest.raises(ValueError, match="slice at"):
            run(lambda t, b=begin, s=size: arrays.slice(t, b, s), x)


def test_slice_v2_and_reverse(run: Any) -> None:
    x = np.arange(24.0).reshape(4, 6)
    assert (run(lambda t: arrays.slice_v2(t, [(None, None, 2)]), x) == x[::2]).all()
    assert (run(lambda t: arrays.slice_v2(t, [(3, None, -2), (-5, -1, 3)]), x) == x[3::-2, -5:-1:3]).all()
    assert (run(lambda t: arrays.slice_v2(t, [(2, -5, -1)]), x) == x[2::-1]).all()
    assert (run(lambda t: arrays.reverse(t, [0, -1]), x) == x[::-1, ::-1]).all() and (run(lambda t: arrays.reverse(t, 1), x) == x[:, ::-1]).all()
    for entry in ((0, 2), (0, 2, 0), (4, None, 1), (0, 5, 1), (2, 1, 1)):
        with pytest.raises(ValueError, match="slice_v2 at"):
            run(lambda t, e=entry: arrays.slice_v2(t, [e]), x)


def test_pads_equal_numpy(run: Any, rng: Any) -> None:
    x = rng.standard_normal((2, 3, 4, 5))
    pairs = [(0, 0), (0, 0), (1, 2), (3, 0)]
    assert (run(lambda t: arrays.pad(t, pairs, 7), x) == np.pad(x, pairs, constant_values=7)).all()
    assert (run(lambda t: arrays.pad_grad(arrays.pad(t, pairs), pairs), x) == x).all()
    sides = ((0, 0), (0, 0), (3, 0), (1, 2))  # left 1, right 2, top 3, bottom 0
    assert (run(lambda t: arrays.constant_pad2d(t, (1, 2, 3, 0), -1), x) == np.pad(x, sides, constant_values=-1)).all()
    assert (run(lambda t: arrays.zero_pad2d(t, 2), x) == np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)))).all()
    assert (run(lambda t: arrays.reflection_pad2d(t, (1, 2, 3, 0)), x) == np.pad(x, sides, mode="reflect")).all()
    assert (run(lambda t: arrays.replication_pad2d(t, (1, 2, 3, 0)), x) == np.pad(x, sides, mode="edge")).all()
    with pytest.raises(ArgumentError, match="one \\(before, after\\) for each of the 4 axes"):
        run(lambda t: arrays.pad(t, [(1, 1)]), x)
    with pytest.raises(ArgumentError, match="smaller than the image"):
        run(lambda t: arrays.reflection_pad2d(t, 4), x)


def test_gather(run: Any, rng: Any) -> None:
    table, ids = rng.standard_normal((4, 3, 2)), np.array([[0, 3], [1, 7]], np.int32)
    chosen = table[np.minimum(ids, 3)] * (ids < 4)[..., None, None]
    np.testing.assert_array_equal(run(arrays.gather, table, ids), chosen)
    np.testing.assert_array_equal(run(lambda t, i: arrays.gather(t, i, axis=-2), table, np.array([2, 0])), table[:, [2, 0]])
    batched = run(lambda t, i: arrays.gather(t, i, batch_dims=1), table, np.array([[0], [2], [1], [1]]))
    np.testing.assert_array_equal(batched[:, 0], table[np.arange(4), [0, 2, 1, 1]])
    with pytest.raises(NotImplementedError, match="batch_dims"):
        run(lambda t, i: arrays.gather(t, i, axis=2, batch_dims=1), table, np.array([[0], [2], [1], [1]]))
    with pytest.raises(DtypeError, match="indices"):
        run(arrays.gather, table, np.array([0.0]))


def test_dim_gather(run: Any, rng: Any) -> None:
    x, ids = rng.standard_normal((3, 4)), rng.integers(0, 4, (3, 2))
    np.testing.assert_array_equal(run(lambda t, i: arrays.dim_gather(t, -1, i), x, ids), np.take_along_axis(x, ids, -1))


def test_one_hot(run: Any) -> None:
    ids = np.array([[0, 2], [1, 9]])
    last = run(lambda i: arrays.one_hot(i, 3, dtype=float32), ids)
    assert last.dtype == np.float32 and (last == np.eye(10, dtype=np.float32)[ids][..., :3]).all()
    first = run(lambda i: arrays.one_hot(i, 3, 5, -1, axis=0, dtype=int32), ids)
    assert first.shape == (3, 2, 2) and (first == np.where(np.moveaxis(last, -1, 0) == 1, 5, -1)).all()
    with pytest.raises(AssertionError, match="dtype must be an element type"):
        run(lambda i: arrays.one_hot(i, 3), ids)


def test_where_and_masked_fill(run: Any) -> None:
    cond, x, y = np.array([[1], [0]], np.int8), np.array([[1.0, 2.0]]), np.array([[-1.0], [-2.0]])
    assert run(arrays.where, cond, x, y).tolist() == [[1, 2], [-2, -2]]
    assert run(lambda c, t: arrays.where(c, t, 0), cond, x).tolist() == [[1, 2], [0, 0]]
    assert run(lambda t, m: arrays.masked_fill(t, m, 9), x, np.array([[0, 1]], np.int32)).tolist() == [[1, 9]]
    with pytest.raises(DtypeError, match="condition float64"):
        run(arrays.where, x, x, x)
    with pytest.raises(NotImplementedError, match="pass both or neither"):
        run(arrays.where, cond)


def test_elem_cnt(run: Any) -> None:
    count = run(arrays.elem_cnt, np.zeros((3, 4)))
    assert count.dtype == np.int32 and count.tolist() == [12]


def test_matmul(run: Any, rng: Any) -> None:
    a, b = rng.standard_normal((3, 4)), rng.standard_normal((4, 5))
    np.testing.assert_allclose(run(arrays.matmul, a, b), a @ b)
    np.testing.assert_allclose(run(lambda x, y: arrays.matmul(x, y, True, True, 0.5, "product"), a.T, b.T), a @ b / 2)
    assert run.job.names == ["product"]
    np.testing.assert_allclose(run(lambda x, y: linalg.matmul(x, y, True, True, 0.5, "product"), a.T, b.T), a @ b / 2)
    batch = rng.standard_normal((2, 6, 3, 4))
    np.testing.assert_allclose(run(arrays.matmul, batch, b), batch @ b)
    np.testing.assert_allclose(run(lambda x, y: arrays.matmul(x, y, transpose_b=True), batch, batch), batch @ batch.swapaxes(-1, -2))


@pytest.mark.parametrize(
    ("a", "b", "options", "message"),
    [
        ((3, 4), (5, 6), {}, "the summed axis has size"),
        ((3, 4), (2, 4, 5), {}, "the same number of axes"),
        ((2, 3, 4), (3, 4, 5), {}, "leading axes"),
        ((2, 4, 3), (4, 5), {"transpose_a": True}, "transpose_a"),
        ((4,), (4, 5), {}, "at least 2"),
    ],
)
def test_matmul_errors_are_value_errors_with_both_operands(a: Any, b: Any, options: Any, message: str, run: Any) -> None:
    with pytest.raises(ValueError, match=message):
        run(lambda x, y: arrays.matmul(x, y, **options), np.zeros(a), np.zeros(b))


def test_assign_takes_variables_only(run: Any) -> None:
    def body(x: Any) -> Any:
        w = variables.get_variable("w", (2,), initializer=constant_initializer(1))
        variables.assign(w, x)
        return w

    assert run(body, np.array([3.0, 4.0], np.float32)).tolist() == [1, 1] and run.job.state["w"].tolist() == [3, 4]
    with pytest.raises(ArgumentError, match="computed"):
        run(lambda x: variables.assign(arrays.identity(x), x), [1.0])
    with pytest.raises(ShapeError, match=r"value float64\[3\] must have the type of variable 'w' float32\[2\]"):
        run(body, np.zeros(3))


def test_outside_a_job() -> None:
    with pytest.raises(JobError, match="outside a job"):
        arrays.constant(1, float32)
