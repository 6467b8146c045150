"""Printed kernels of runtime assertions, compiled by g++, agree with the array functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import host_cuda
import numpy as np
import nvidia_compiler
import pytest
from on_device import single

from jobflow.core.types import DType, bfloat16, dtype_of, float16, float32, float64, int32, int64, type_of, uint8
from jobflow.kernels.cuda.assertion_kernels import CHUNK, assertion_text, launches_of
from jobflow.ops.op import types_tuple
from jobflow.ops.runtime_assertions import RuntimeAssertion, class_assertion, finite_assertion, index_assertion, weight_assertion

KERNELS = ("count_positive", "find_rejected", "report_rejected", "replace_rejected")
NAN, INFINITE = float("nan"), float("inf")
RANDOM = np.random.default_rng(0)


def wrong(shape: tuple[int, ...], *elements: tuple[int, float], dtype: DType = float32) -> Any:
    """Return positive numbers, except for the elements (flat index, value)."""
    x = RANDOM.uniform(0.25, 4, shape)
    for index, value in elements:
        x.flat[index] = value
    return x.astype(dtype.numpy)


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
    (RuntimeAssertion("f", low=-0.5, high=2.0), wrong((7,), (2, 2.0), (4, 2.25), dtype=bfloat16)),
    (weight_assertion("f", 1), wrong((4,), (0, 0), (2, 0), dtype=float64)),
    (weight_assertion("f", 3), wrong((2, 3, 4), (1, 0), (4, 0), (5, 0), (12, 0), (23, -1))),
    (weight_assertion("f", 2), wrong((300, 3), (1, 0), (500, 0), (502, INFINITE), (701, 0), (700, 0), dtype=float16)),
    (weight_assertion("f", CHUNK), wrong((2, CHUNK + 77), *((k, 0) for k in range(77)), *((CHUNK + 99 + k, 0) for k in range(78)))),
    (weight_assertion("f", 1), wrong((2, 40), (57, NAN), (39, -INFINITE), dtype=bfloat16)),
    (finite_assertion("f"), wrong((2, 4, 3), (5, 0), (20, NAN), (17, -INFINITE), dtype=float64)),
    (finite_assertion("f", "lower"), wrong((2, 4, 5), (1, NAN), (29, NAN), (26, INFINITE))),
    (finite_assertion("f", "upper"), wrong((3, 5, 2), (4, NAN), (9, INFINITE), (23, NAN), dtype=bfloat16)),
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
        with np.errstate(invalid="ignore"):  # NaN in bfloat16
            op.note(np, x, expected, at, value)
        # in place, if the result has the type of the source array
        source = x.copy()
        result = source if source.dtype == y.dtype else y
        latest, position, element = np.zeros(1, np.uint64), np.full(1, 7), np.zeros(1, x.dtype)
        scratch = lambda shape, dtype: np.full(shape, -77, dtype.numpy)  # noqa: E731
        for kernel, _, arguments in launches_of(op, (source, result, position, element), latest, scratch):
            host_cuda.launch(loaded, f"{kernel}{number}", (2,), (256,), arguments)
        np.testing.assert_array_equal(single(result), single(expected), err_msg=str(op))
        assert position[0] == at[0] and latest[0] == 0, op
        if at[0]:
            np.testing.assert_array_equal(single(element), single(value), err_msg=str(op))


@pytest.mark.parametrize(
    ("op", "x", "y"),
    [
        (RuntimeAssertion("f", low=0.5), int32, int32),
        (class_assertion("f", 3, -100), uint8, uint8),
        (RuntimeAssertion("f", low=0.3), bfloat16, bfloat16),
        (RuntimeAssertion("f", low=0.5), float32, int64),
    ],
)
def test_only_representable_bounds_have_kernels(op: RuntimeAssertion, x: Any, y: Any) -> None:
    assert (assertion_text(op, x, y) is None) == (x is not float32)


@pytest.mark.full
@pytest.mark.skipif(bool(nvidia_compiler.missing()), reason=nvidia_compiler.missing() or "nothing is missing")
@pytest.mark.parametrize(("op", "x"), [(weight_assertion("f", 2), bfloat16), (finite_assertion("f", "lower"), float64)])
def test_assertions_on_rows_and_triangles_compile_without_a_gpu(op: RuntimeAssertion, x: DType) -> None:
    text = assertion_text(op, x, x)
    assert text is not None and nvidia_compiler.compiled(text, "sm_90").startswith(b"\x7fELF")
