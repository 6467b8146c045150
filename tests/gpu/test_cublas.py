"""Products ask cuBLAS for what they are: its calls, imitated on the host, give what NumPy gives, wherever operands lie."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import fake_cublas
import fake_cupy
import numpy as np
import pytest

from jobflow.kernels.cuda.cublas_products import CublasProduct
from jobflow.ops.matmul import BatchMatMul, BroadcastMatMul, MatMul, RowsMatMul
from jobflow.ops.op import Op

CASES: list[tuple[Op, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
    *((MatMul(ta, tb), (6, 4) if ta else (4, 6), (5, 6) if tb else (6, 5), (4, 5)) for ta in (False, True) for tb in (False, True)),
    (MatMul(), (1, 6), (6, 1), (1, 1)),
    (MatMul(), (4, 1), (1, 5), (4, 5)),
    *(
        (BatchMatMul(ta, tb), (2, 3, 6, 4) if ta else (2, 3, 4, 6), (2, 3, 5, 6) if tb else (2, 3, 6, 5), (2, 3, 4, 5))
        for ta, tb in ((0, 0), (1, 0), (0, 1))
    ),
    (BroadcastMatMul(), (2, 3, 6), (6, 5), (2, 3, 5)),
    (BroadcastMatMul(True), (2, 3, 6), (5, 6), (2, 3, 5)),
    (RowsMatMul(), (2, 3, 4), (2, 3, 5), (4, 5)),
]
#: how an array lies: (order of its axes in memory, room at the end of rows)
ORDERS: list[tuple[Any, int]] = [
    (lambda n: [*range(n)], 0),
    (lambda n: [*range(n)], 3),
    (lambda n: [*range(n - 2), n - 1, n - 2], 1),
    (lambda n: [1, 0, *range(2, n)], 0),
]


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, module in (fake_cupy.modules(1) | fake_cublas.modules()).items():
        monkeypatch.setitem(sys.modules, name, module)
    return sys.modules["cupy"]


def array_in(cupy: Any, shape: Sequence[int], dtype: Any, order: Any, room: int) -> Any:
    """An array of random numbers whose axes lie in memory in this order."""
    axes = order(len(shape))
    inside = [shape[axis] for axis in axes]
    whole = cupy.asarray(np.random.default_rng(sum(shape)).standard_normal((*inside[:-1], inside[-1] + room)).astype(dtype))
    return whole[..., : inside[-1]].transpose([axes.index(axis) for axis in range(len(shape))])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16], ids=lambda t: t.__name__)
def test_products_equal_numpy(cupy: Any, dtype: Any) -> None:
    count = 0
    for op, *shapes in CASES:
        for k, how in enumerate(ORDERS):
            for written in ORDERS[:3]:
                a, b = (array_in(cupy, shape, dtype, *ORDERS[(k + n) % len(ORDERS)]) for n, shape in enumerate(shapes[:2]))
                y = array_in(cupy, shapes[2], dtype, *written)
                way = CublasProduct()
                if way.refuses(op, [a, b], [y]) is not None:
                    assert how[1] or k or written[1] or dtype is np.float16, op
                    continue
                count += 1
                expected = np.empty(y.shape, np.float64)
                op.kernel(np, a.get().astype(np.float64), b.get().astype(np.float64), expected)
                for function, arguments in way.bind(op, None, [a, b], [y]):  # type: ignore[arg-type]
                    function(*arguments)
                np.testing.assert_allclose(
                    y.get(), expected, rtol=2e-3 if dtype is np.float16 else 1e-4, atol=1e-2 if dtype is np.float16 else 1e-5, err_msg=str(op)
                )
    assert count > (60 if dtype is np.float16 else 90)


def test_what_cublas_does_not_take(cupy: Any) -> None:
    x = cupy.zeros((4, 4), np.float32)
    way = CublasProduct()
    assert way.refuses(MatMul(), [x[::2, ::2], x[:2, :2]], [x[:2, 2:]]) == "neither the rows nor the columns of an operand are contiguous"
    assert way.refuses(MatMul(), [x[:0], x], [x[:0]]) == "an operand has no elements"
    whole = cupy.zeros((4, 4), np.int32)
    assert way.refuses(MatMul(), [whole, whole], [whole]) == "cuBLAS has no products of int32"
