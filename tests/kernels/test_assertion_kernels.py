"""Printed kernels of runtime assertions, compiled by g++, agree with the array functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import host_cuda
import numpy as np
import pytest

from jobflow.core.types import bfloat16, dtype_of, float32, int32, int64, type_of, uint8
from jobflow.kernels.cuda.assertion_kernels import assertion_text
from jobflow.ops.op import types_tuple
from jobflow.ops.runtime_assertions import RuntimeAssertion, class_assertion, index_assertion

KERNELS = ("find_rejected", "report_rejected", "replace_rejected")
NAN, INFINITE = float("nan"), float("inf")
CASES: list[tuple[RuntimeAssertion, Any]] = [
    (index_assertion("gather", 5), np.array([[0, -5, 4], [-1, 2, 3]], np.int32)),
    (index_assertion("gather", 5), np.array([[0, -6, 4], [-1, 5, 3]], np.int64)),
    (index_assertion("gather", 300), np.array([7, 255], np.uint8)),
    (class_assertion("loss", 3), np.array([0, 2, 3, -1], np.int32)),
    (class_assertion("loss", 3, -100), np.array([0, -100, 1, 2, 5], np.int64)),
    (RuntimeAssertion("f", low=0.0, high=1.0), np.array([0.5, 1.0, 0.0, NAN], np.float32)),
    (RuntimeAssertion("f", low=0.0, nan=True), np.array([0.5, INFINITE, NAN, -0.5, -1], np.float64)),
    (RuntimeAssertion("f", low=0, high=9, whole=True), np.array([3.0, 2.5, 11], np.float32)),
    (RuntimeAssertion("f", nonzero=True), np.array([[3, 0, 2], [1, 0, 7]], np.int8)),
    (RuntimeAssertion("f", nonzero=True), np.arange(1, 1000, dtype=np.float32)),
]


@pytest.mark.skipif(host_cuda.COMPILER is None, reason="there is no g++")
def test_kernels_agree_with_array_functions(tmp_path: Path) -> None:
    texts, arrays = [], []
    for number, (op, x) in enumerate(CASES):
        (y,) = types_tuple(op.infer(type_of(x)))
        text = assertion_text(op, dtype_of(x.dtype), y.dtype)
        assert text is not None
        for kernel in KERNELS:
            text = text.replace(f"{kernel}(", f"{kernel}{number}(")
        texts.append(text)
        arrays.append((x, np.zeros(y.shape, y.dtype.numpy)))
    loaded = host_cuda.library(texts, tmp_path)
    for number, ((op, _), (x, y)) in enumerate(zip(CASES, arrays, strict=True)):
        expected, at, value = np.empty_like(y), np.full(1, 7), np.zeros(1, x.dtype)
        op.note(np, x, expected, at, value)
        # in place, if the result has the type of the source array
        source = x.copy()
        result = source if source.dtype == y.dtype else y
        latest, position, element, n = np.zeros(1, np.uint64), np.full(1, 7), np.zeros(1, x.dtype), np.int64(x.size)
        for kernel, arguments in zip(KERNELS, ((source, n, latest), (source, n, latest, position, element), (source, result, n)), strict=True):
            host_cuda.launch(loaded, f"{kernel}{number}", (2,), (256,), arguments)
        np.testing.assert_array_equal(result, expected, err_msg=str(op))
        assert position[0] == at[0] and latest[0] == 0, op
        if at[0]:
            np.testing.assert_array_equal(element, value, err_msg=str(op))


@pytest.mark.parametrize(
    ("op", "x", "y"),
    [
        (RuntimeAssertion("f", low=0.5), int32, int32),
        (class_assertion("f", 3, -100), uint8, uint8),
        (RuntimeAssertion("f", low=0.5), bfloat16, bfloat16),
        (RuntimeAssertion("f", low=0.5), float32, int64),
    ],
)
def test_only_representable_bounds_have_kernels(op: RuntimeAssertion, x: Any, y: Any) -> None:
    assert (assertion_text(op, x, y) is None) == (x is not float32)
