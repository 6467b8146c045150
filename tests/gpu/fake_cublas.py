"""The calls of cuBLAS that products make, over memory of the host: matrices are stored by columns, as there."""

from __future__ import annotations

import ctypes
import types
from typing import Any

import numpy as np

_TYPES = {0: np.float32, 1: np.float64, 2: np.float16}


def _matrices(first: int, rows: int, columns: int, leading: int, dtype: Any, stride: int = 0, count: int = 1) -> Any:
    """[count, rows, columns] of elements that lie column by column, `leading` elements from one to the next."""
    assert leading >= max(rows, 1)
    size = np.dtype(dtype).itemsize
    extent = (count - 1) * stride + (columns - 1) * leading + rows
    memory = (ctypes.c_char * (extent * size)).from_address(first)
    return np.ndarray((count, rows, columns), dtype, memory, 0, (stride * size, size, leading * size))


def _number(address: int, dtype: Any) -> Any:
    return np.ndarray((), dtype, (ctypes.c_char * np.dtype(dtype).itemsize).from_address(address))[()]


def _multiplied(a: Any, b: Any, y: Any, transposed: tuple[int, int], alpha: Any, beta: Any) -> None:
    left, right = (np.swapaxes(x, 1, 2) if t else x for x, t in zip((a, b), transposed, strict=True))
    wide = left.astype(alpha.dtype) @ right.astype(alpha.dtype) * alpha
    y[...] = wide if beta == 0 else wide + beta * y


def gemmStridedBatchedEx(handle, transa, transb, m, n, k, alpha, a, kind, lda, step_a, b, kind_b, ldb, step_b, beta, y, kind_y, ldy, step_y, count, compute, algorithm):  # type: ignore[no-untyped-def] # fmt: skip # noqa: E501
    assert handle and kind == kind_b == kind_y and compute == (70 if kind == 1 else 68) and algorithm == -1
    dtype, wide = _TYPES[kind], np.float64 if kind == 1 else np.float32
    left = _matrices(a, *((k, m) if transa else (m, k)), lda, dtype, step_a, count)
    right = _matrices(b, *((n, k) if transb else (k, n)), ldb, dtype, step_b, count)
    _multiplied(left, right, _matrices(y, m, n, ldy, dtype, step_y, count), (transa, transb), _number(alpha, wide), _number(beta, wide))


def _batched(dtype: Any) -> Any:
    def gemmBatched(handle, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, y, ldy, count):  # type: ignore[no-untyped-def]
        assert handle
        places = [(ctypes.c_uint64 * count).from_address(x) for x in (a, b, y)]
        for first, second, third in zip(*places, strict=True):
            left = _matrices(first, *((k, m) if transa else (m, k)), lda, dtype)
            right = _matrices(second, *((n, k) if transb else (k, n)), ldb, dtype)
            _multiplied(left, right, _matrices(third, m, n, ldy, dtype), (transa, transb), _number(alpha, dtype), _number(beta, dtype))

    return gemmBatched


def modules() -> dict[str, types.ModuleType]:
    cublas, device = types.ModuleType("cupy_backends.cuda.libs.cublas"), types.ModuleType("cupy.cuda.device")
    vars(cublas).update(gemmStridedBatchedEx=gemmStridedBatchedEx, sgemmBatched=_batched(np.float32), dgemmBatched=_batched(np.float64))
    vars(device).update(get_cublas_handle=lambda: 1)
    return {module.__name__: module for module in (cublas, device)}
