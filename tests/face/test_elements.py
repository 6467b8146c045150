"""Elements by index and sorted, against NumPy; in jobs on one and two devices where gradients matter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow.legacy import elements as el

X = np.random.default_rng(0).normal(size=(4, 3, 5)).astype(np.float32)
PAIRS = np.array([[[0, 2], [3, 1]], [[0, 2], [1, 0]]], np.int32)
ROWS = np.random.default_rng(1).normal(size=(2, 2, 5)).astype(np.float32)


def added(whole: Any) -> Any:
    result = whole.copy()
    np.add.at(result, (PAIRS[..., 0], PAIRS[..., 1]), ROWS)
    return result


def replaced() -> Any:
    result = X.copy()
    result[PAIRS[1, :, 0], PAIRS[1, :, 1]] = ROWS[1]
    return result


CASES = {
    "gather_nd rows": (lambda x, i: el.gather_nd(x, i), (X, PAIRS), X[PAIRS[..., 0], PAIRS[..., 1]]),
    "gather_nd elements": (lambda x, i: el.gather_nd(x, i), (X, np.array([[3, 2, 4], [0, 0, 1]])), X[[3, 0], [2, 0], [4, 1]]),
    "gather_nd beyond a shorter axis": (lambda x, i: el.gather_nd(x, i), (X, np.array([[2, 2], [3, 0]])), X[[2, 3], [2, 0]]),
    "gather_nd first axis": (lambda x, i: el.gather_nd(x, i), (X, np.array([[2]], np.int8)), X[[2]]),
    "scatter_nd": (lambda i, u: el.scatter_nd(i, u, [4, 3, 5]), (PAIRS, ROWS), added(np.zeros_like(X))),
    "tensor_scatter_nd_add": (lambda x, i, u: el.tensor_scatter_nd_add(x, i, u), (X, PAIRS, ROWS), added(X)),
    "tensor_scatter_nd_update": (lambda x, i, u: el.tensor_scatter_nd_update(x, i, u), (X, PAIRS[1], ROWS[1]), replaced()),
    "sort": (lambda x: el.sort(x, 1), (X,), np.sort(X, 1)),
    "sort as in 0.2": (lambda x: el.sort(x, "DESCENDING"), (X,), -np.sort(-X)),
    "argsort": (lambda x: el.argsort(x, direction="DESCENDING"), (X,), np.argsort(-X, kind="stable").astype(np.int32)),
    "top_k": (lambda x: el.top_k(x, 1, 2), (X,), np.argsort(-X, 1, kind="stable")[:, :2].astype(np.int32)),
    "top_k of more than there are": (lambda x: el.top_k(x, k=9), (X,), np.argsort(-X, kind="stable").astype(np.int32)),
    "diag": (lambda x: el.diag(x, 1), (X[0],), np.diag(X[0], 1)),
    "square_sum": (lambda x: el.square_sum(x), (np.arange(4.0),), np.array([14.0])),
    "logical_slice": (lambda x: el.logical_slice(x, [(1, None, 2)]), (X,), X[1::2]),
    "upsample_2d": (lambda x: el.upsample_2d(x, (2, 3)), (X[None],), X[None].repeat(2, 2).repeat(3, 3)),
    "upsample_2d as in 0.2": (lambda x: el.upsample_2d(x, 2, "NHWC", "nearest"), (X[None],), X[None].repeat(2, 1).repeat(2, 2)),
}


@pytest.mark.parametrize(("body", "arguments", "expected"), CASES.values(), ids=list(CASES))
def test_values(body: Any, arguments: tuple[Any, ...], expected: Any, run: Any) -> None:
    result = run(body, *arguments)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert result.dtype == expected.dtype


def test_slice_update_and_margins(run: Any) -> None:
    expected = X.copy()
    expected[:, 0:3:2, 1] = 7
    seven = np.full((4, 2, 1), 7, np.float32)
    np.testing.assert_array_equal(run(lambda x, v: el.slice_update(x, v, [(None, None, None), (0, 3, 2), (1, 2, 1)]), X, seven), expected)
    cosines, labels = np.array([[0.5, -0.25, 0.75], [0.0, 0.1, -0.9]]), np.array([2, 0])
    margins = cosines.copy()
    margins[[0, 1], labels] = np.cos(0.9 * np.arccos(cosines[[0, 1], labels]) + 0.3) - 0.1
    np.testing.assert_allclose(run(lambda x, y: el.combined_margin_loss(x, y, 0.9, 0.3, 0.1), cosines, labels), margins)


@pytest.mark.parametrize("devices", [1, 2])
def test_gradients_in_a_job(devices: int) -> None:
    """Compare gradients of sum(w gather_nd(x) + scatter_nd(w) x) at the gathered and the scattered elements."""
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)
    gradients: dict[str, Any] = {}

    @flow.global_function(type="train")
    def job(i: tp.Numpy.Placeholder((2, 2, 2), flow.int32)) -> tp.Numpy:  # type: ignore[valid-type]
        x = flow.get_variable("x", (4, 3, 5), initializer=flow.random_normal_initializer(), random_seed=3)
        w = flow.get_variable("w", (2, 2, 5), initializer=flow.random_normal_initializer(), random_seed=4)
        flow.watch_diff(x, lambda dx: gradients.update(dx=dx.numpy()))
        flow.watch_diff(w, lambda dw: gradients.update(dw=dw.numpy()))
        loss = flow.math.reduce_sum(w * flow.gather_nd(x, i)) + flow.math.reduce_sum(flow.scatter_nd(i, w, (4, 3, 5)) * x)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0]), momentum=0).minimize(loss)
        return loss

    job(PAIRS)
    x, w = (flow.get_all_variables()[name].numpy() for name in "xw")
    total = np.zeros_like(x)
    np.add.at(total, (PAIRS[..., 0], PAIRS[..., 1]), w)
    np.testing.assert_allclose(gradients["dx"], 2 * total, rtol=1e-6)
    np.testing.assert_allclose(gradients["dw"], 2 * x[PAIRS[..., 0], PAIRS[..., 1]], rtol=1e-6)
    flow.clear_default_session()


def test_one_name_for_jobs_and_tensors() -> None:
    """`sort` returns values and indices of a tensor, and only values in a job."""
    flow.clear_default_session()
    assert flow.sort(flow.tensor([3.0, 1.0, 2.0]))[1].numpy().tolist() == [1, 2, 0]
    assert flow.argsort(flow.tensor([3.0, 1.0, 2.0]), descending=True).numpy().tolist() == [0, 2, 1]

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy]:  # type: ignore[valid-type]
        marked = flow.profiler.nvtx_start(x, "mark")
        return flow.sort(x), flow.argsort(marked, "DESCENDING"), flow.random.shuffle(x), flow.math.top_k(x, k=2)

    values, order, shuffled, top = job(np.float32([3, 1, 2, 0]))
    assert values.tolist() == [0, 1, 2, 3] and order.tolist() == [0, 2, 1, 3] and sorted(shuffled) == [0, 1, 2, 3] and top.tolist() == [0, 2]
    flow.clear_default_session()


WRONG = {
    "an index beyond": (lambda x, i: el.gather_nd(x, i), (X, PAIRS + 2), "index"),
    "too many coordinates": (lambda x, i: el.gather_nd(x, i), (X, np.zeros((1, 4), np.int32)), "coordinates"),
    "coordinates that are no integers": (lambda x, i: el.gather_nd(x, i), (X, np.zeros((1, 2))), "integers"),
    "updates of another shape": (lambda i, u: el.scatter_nd(i, u, [4, 3, 5]), (PAIRS, ROWS[0]), "updates"),
    "a shape that is a text": (lambda i, u: el.scatter_nd(i, u, "43"), (PAIRS, ROWS), "sequence of whole numbers"),
    "an axis that is a text": (lambda x: flow.math.top_k(x, "2"), (X,), "axis is '2' of type str, not a whole number"),
    "a direction": (lambda x: el.sort(x, "UP"), (X,), "ASCENDING"),
    "a margin's label beyond": (lambda x, y: el.combined_margin_loss(x, y), (X[0], np.array([5, 0, 0])), "label"),
    "corners of nearest": (lambda x: el.upsample_2d(x, 2, True), (X[None],), "align_corners"),
}


@pytest.mark.parametrize(("body", "arguments", "message"), WRONG.values(), ids=list(WRONG))
def test_wrong_arguments_raise(body: Any, arguments: tuple[Any, ...], message: str, run: Any) -> None:
    with pytest.raises((flow.ArgumentError, flow.ShapeError, flow.DtypeError), match=message):
        run(body, *arguments)
