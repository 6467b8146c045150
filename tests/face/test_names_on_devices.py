"""Functions of jobs by name, forward and backward, in both views, on rows that do not divide by the devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp

Array = np.ndarray[Any, Any]
R = np.random.default_rng(0)
ROWS = 5


class Whole(tuple[Any]):
    """An input that every device of the mirrored view receives as a whole."""


def real(*shape: int) -> Array:
    """Return distinct values that are not near 0."""
    return ((R.permutation(int(np.prod(shape))) + 0.5) / np.prod(shape) * 2 + 0.25).reshape(shape).astype(np.float32)


def ints(high: int, *shape: int, dtype: Any = np.int32) -> Array:
    return R.integers(0, high, shape).astype(dtype)


def softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def sums(data: Array, ids: Array, count: int, axis: int = 0) -> Array:
    result = np.zeros((count, *np.moveaxis(data, axis, 0).shape[1:]), data.dtype)
    np.add.at(result, ids, np.moveaxis(data, axis, 0))
    return np.moveaxis(result, 0, axis)


def placed(x: Array, index: Array, updates: Array, add: bool) -> Array:
    result = x.copy()
    (np.add.at if add else np.ndarray.__setitem__)(result, tuple(np.moveaxis(index, -1, 0)), updates)
    return result


def shuffled(x: Array, h: int, w: int) -> Array:
    n, c, height, width = x.shape
    return x.reshape(n, c // (h * w), h, w, height, width).transpose(0, 1, 4, 2, 5, 3).reshape(n, c // (h * w), height * h, width * w)


def picked(x: Array, labels: Array) -> Array:
    return np.take_along_axis(x, labels.reshape(*x.shape[:-1], 1).astype(int), -1)[..., 0]


def triplets(a: Array, p: Array, n: Array) -> Array:
    near, far = (((np.abs(a - other + 1e-3) ** 3).sum(1)) ** (1 / 3) for other in (p, n))
    return np.maximum(near - far + 2, 0)


def padded(x: Array, left: int, right: int, top: int, bottom: int, mode: Any) -> Array:
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), mode)


def with_part(x: Array, update: Array) -> Array:
    result = x.copy()
    result[:, 1:4:2] = update
    return result


math, nn = flow.math, flow.nn
X, Y, CUBE, IMAGE = real(ROWS, 3), real(ROWS, 3), real(ROWS, 4, 3), real(ROWS, 4, 3, 2)
LABELS, PROBABILITIES, TABLE = ints(3, ROWS, 1), softmax(X), Whole((real(8, 3),))
POSITIONS = R.permutation(8)[:ROWS].reshape(ROWS, 1)
#: function, what NumPy says, and inputs
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], Any]] = {
    "xdivy": (lambda x, y: math.xdivy(x, y), np.divide, (X, Y)),
    "xlogy": (lambda x, y: math.xlogy(x, y), lambda x, y: x * np.log(y), (X, Whole((real(3),)))),
    "pow of two": (math.pow, np.power, (X, Y)),
    "pow of a number": (lambda x: math.pow(x, 2.5), lambda x: x**2.5, (X,)),
    "subtract from a number": (lambda x: math.subtract(3, x), lambda x: 3 - x, (X,)),
    "squared_difference, broadcast": (math.squared_difference, lambda x, y: (x - y) ** 2, (CUBE, Whole((real(4, 1),)))),
    "polyval": (lambda x: math.polyval([0.5, -1, 2], x), lambda x: np.polyval([0.5, -1, 2], x), (X,)),
    "reduce_std of later axes": (lambda x: math.reduce_std(x, [-1, 1], True), lambda x: x.std((1, 2), keepdims=True), (CUBE,)),
    "reduce_variance of all": (lambda x: math.reduce_variance(x), lambda x: x.var().reshape(1), (CUBE,)),
    "reduce_euclidean_norm": (lambda x: math.reduce_euclidean_norm(x, 0), lambda x: np.sqrt((x * x).sum(0)), (CUBE,)),
    "reduce_logsumexp": (lambda x: math.reduce_logsumexp(x, [0, 2]), lambda x: np.log(np.exp(x).sum((0, 2))), (CUBE,)),
    "two_stage_reduce_max": (lambda x: math.two_stage_reduce_max(x, 1), lambda x: x.max(1), (CUBE,)),
    "reduce_prod of integers": (lambda x: math.reduce_prod(x, 1), lambda x: x.prod(1), (ints(5, ROWS, 3),)),
    "reduce_any of integers": (lambda x: math.reduce_any(x, [0, 2]), lambda x: x.any((0, 2)), (ints(2, ROWS, 2, 3),)),
    "tril with a fill": (lambda x: nn.tril(x, -1, 2.5), lambda x: np.where(np.tril(np.ones(x.shape), -1), x, 2.5), (CUBE,)),
    "top_k": (lambda x: math.top_k(x, 1, 2), lambda x: np.argsort(-x, 1)[:, :2], (CUBE,)),
    "segments": (lambda x, i: math.unsorted_segment_sum(x, i, 6), lambda x, i: sums(x, i, 6), (CUBE, ints(6, ROWS))),
    "segments of columns": (lambda x, i: flow.unsorted_segment_sum(x, i, 5, 1), lambda x, i: sums(x, i, 5, 1), (CUBE, Whole((ints(5, 4),)))),
    "segments like": (math.unsorted_segment_sum_like, lambda x, i, like: sums(x, i, 8), (X, ints(8, ROWS), Whole((np.zeros((8, 3), np.int32),)))),
    "softmax of an earlier axis": (lambda x: nn.softmax(x, 1), lambda x: softmax(x, 1), (CUBE,)),
    "swish": (lambda x: nn.swish(x, -1.5), lambda x: x / (1 + np.exp(1.5 * x)), (X,)),
    "sparse cross entropy": (nn.sparse_softmax_cross_entropy_with_logits, lambda i, x: -np.log(picked(softmax(x), i)), (LABELS, X)),
    "of probabilities": (nn.sparse_cross_entropy, lambda i, p: -np.log(picked(p, i)), (LABELS[:, 0].astype(np.int8), PROBABILITIES)),
    "dense cross entropy": (
        lambda x: nn.softmax_cross_entropy_with_logits(flow.one_hot(math.argmax(x), 3, 0.9, 0.05, dtype=flow.float), x),
        lambda x: -(np.where(np.arange(3) == x.argmax(1)[:, None], 0.9, 0.05) * np.log(softmax(x))).sum(-1),
        (X,),
    ),
    "sigmoid cross entropy": (nn.sigmoid_cross_entropy_with_logits, lambda z, x: np.log1p(np.exp(x)) - x * z, (ints(2, ROWS, 3), X)),
    "TripletMarginLoss": (lambda a, p, n: nn.TripletMarginLoss(a, p, n, 2.0, 3.0, 1e-3, reduction="none"), triplets, (X, Y, real(ROWS, 3))),
    "smooth_l1_loss": (
        lambda x: flow.smooth_l1_loss(x, flow.ones_like(x), 0.5),
        lambda x: np.where(abs(x - 1) < 0.5, (x - 1) ** 2, abs(x - 1) - 0.25),
        (X,),
    ),
    "PixelShufflev2": (lambda x: nn.PixelShufflev2(x, 2, 1), lambda x: shuffled(x, 2, 1), (IMAGE,)),
    "reflection_pad2d": (lambda x: flow.reflection_pad2d(x, (1, 0, 2, 1)), lambda x: padded(x, 1, 0, 2, 1, "reflect"), (IMAGE,)),
    "replication_pad2d": (lambda x: flow.replication_pad2d(x, [0, 1, 1, 2]), lambda x: padded(x, 0, 1, 1, 2, "edge"), (IMAGE,)),
    "zero_pad2d": (lambda x: flow.zero_pad2d(x, 1), lambda x: padded(x, 1, 1, 1, 1, "constant"), (IMAGE,)),
    "pad": (lambda x: flow.pad(x, [(0, 0), (2, 0), (0, 1)], 1.5), lambda x: np.pad(x, [(0, 0), (2, 0), (0, 1)], constant_values=1.5), (CUBE,)),
    "reverse of rows": (lambda x: flow.reverse(x, [0, -1]), lambda x: x[::-1, :, ::-1], (CUBE,)),
    "slice_v2 backwards": (lambda x: flow.slice_v2(x, [(None, None, -1), (3, None, -2)]), lambda x: x[::-1, 3::-2], (CUBE,)),
    "slice_update": (lambda x, u: flow.slice_update(x, u, [[None, None, None], [1, 4, 2]]), with_part, (CUBE, real(ROWS, 2, 3))),
    "transpose of six axes": (lambda x: flow.transpose(flow.reshape(x, (-1, 2, 1, 2, 3, 1)), [4, 5, 3, 0, 1, 2]),
        lambda x: x.reshape(-1, 2, 1, 2, 3, 1).transpose(4, 5, 3, 0, 1, 2), (CUBE,)),
    "stack behind": (lambda x, y: flow.stack([x, y], -1), lambda x, y: np.stack([x, y], -1), (X, Y)),
    "squeeze": (lambda x: flow.squeeze(x, [-1, 1]), lambda x: x[:, 0, :, 0], (real(ROWS, 1, 3, 1),)),
    "sort, as in 0.2": (lambda x: flow.sort(x, "DESCENDING"), lambda x: -np.sort(-x), (X,)),
    "where": (flow.where, np.where, (ints(2, ROWS, 1, dtype=np.int8), X, Whole((real(1),)))),
    "scatter_nd": (lambda i, u: flow.scatter_nd(i, u, (8, 3)), lambda i, u: placed(np.zeros((8, 3)), i, u, True), (ints(8, ROWS, 1), X)),
    "tensor_scatter_nd_add": (flow.tensor_scatter_nd_add, lambda x, i, u: placed(x, i, u, True), (TABLE, ints(8, ROWS, 1), X)),
    "tensor_scatter_nd_update": (flow.tensor_scatter_nd_update, lambda x, i, u: placed(x, i, u, False), (TABLE, POSITIONS, X)),
    "square_sum": (flow.experimental.square_sum, lambda x: (x * x).sum().reshape(1), (CUBE,)),
    "upsample_2d, as in 0.2": (lambda x: flow.layers.upsample_2d(x, (1, 2), "NHWC", "nearest"), lambda x: x.repeat(2, 2), (IMAGE,)),
}  # fmt: skip


def slopes(reference: Callable[..., Any], inputs: list[Array], at: int) -> Array:
    """Return the gradient of the sum of squares of the NumPy result, by differences."""
    moved = [x.astype(float) if x.dtype.kind == "f" else x for x in inputs]
    result, h = np.zeros(inputs[at].shape), 1e-6
    for index in np.ndindex(*result.shape):
        ends = []
        for step in (h, -2 * h):
            moved[at][index] += step
            ends.append(float(np.square(reference(*moved)).sum()))
        moved[at][index] += h
        result[index] = (ends[0] - ends[1]) / (2 * h)
    return result


@pytest.mark.parametrize("view", ["consistent", "mirrored"])
@pytest.mark.parametrize("name", CASES)
def test_numbers_and_gradients(name: str, view: str, fresh: None) -> None:
    function, reference, operands = CASES[name]
    devices = (4, 2)[list(CASES).index(name) % 2]
    flow.config.cpu_device_num(devices)
    config = flow.function_config()
    config.default_logical_view(getattr(flow.scope, f"{view}_view")())
    wholes = [x[0] if isinstance(x, Whole) else x for x in operands]
    parts = [[x[0]] * devices if isinstance(x, Whole) else np.array_split(x, devices) for x in operands]
    rows = [[x] for x in wholes] if view == "consistent" else parts
    kind = tp.Numpy if view == "consistent" else tp.ListNumpy
    types = {np.dtype(d.numpy): d for d in (flow.float32, flow.int8, flow.int32, flow.int64)}
    declared = tuple(kind.Placeholder(x[0].shape, dtype=types[x[0].dtype]) for x in rows)
    trained = [i for i, x in enumerate(wholes) if x.dtype == np.float32]
    gradients: dict[int, Any] = {}

    @flow.global_function(type="train" if trained else "predict", function_config=config)
    def job(inputs: tuple[declared]):  # type: ignore[no-untyped-def, valid-type]
        tensors = list(inputs)
        for i in trained:
            tensors[i] = tensors[i] + flow.get_variable(f"zero{i}", (1,), initializer=flow.zeros_initializer())
            flow.watch_diff(tensors[i], lambda slope, i=i: gradients.update({i: slope.numpy_list() if view == "mirrored" else [slope.numpy()]}))
        y = function(*tensors)
        if trained and y.dtype is flow.float32:
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(flow.math.reduce_sum(flow.math.square(y)))
        elif trained:
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(flow.math.reduce_sum(tensors[trained[0]]))
        return y

    results = job(tuple(x[0] if view == "consistent" else list(x) for x in rows)).get()
    for device, y in enumerate([results.numpy()] if view == "consistent" else results.numpy_list()):
        inputs = [x[device] for x in rows]
        want = reference(*inputs)
        assert y.shape == want.shape
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)
        for i in trained if y.dtype == np.float32 else ():
            np.testing.assert_allclose(gradients[i][device], slopes(reference, inputs, i), rtol=2e-3, atol=2e-3, err_msg=f"input {i}")
