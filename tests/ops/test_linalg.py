"""Errors of matmul and bias_add for mismatched operands, and paths for large or strided operands."""

from __future__ import annotations

import laws
import numpy as np
import pytest

from jobflow import scope
from jobflow.core.errors import DtypeError, ShapeError
from jobflow.kernels import registry
from jobflow.kernels.target import CPU
from jobflow.ops import matmul as linalg


def matmul(a: np.ndarray, b: np.ndarray, **options: bool) -> np.ndarray:
    with scope.using(interpreter=laws.Immediate()):
        return linalg.matmul(laws.Result(a), laws.Result(b), **options).array


def zeros(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("a", "b", "options", "message"),
    [
        (zeros(64, 300), zeros(512, 10), {}, r"matmul: the summed axis has size 300 in a float32\[64,300\], but 512 in b float32\[512,10\]"),
        (zeros(64, 300), zeros(300, 10), {"transpose_b": True}, "summed axis has size 300 .* but 10"),
        (zeros(2, 3, 4), zeros(5, 4, 2), {}, r"differ in their leading axes, \[2\] and \[5\]"),
        (zeros(3, 4), zeros(2, 4, 2), {}, r"a float32\[3,4\] and b float32\[2,4,2\] must have at least two axes"),
        (zeros(4), zeros(4, 2), {}, r"a float32\[4\]"),
        (zeros(2, 4, 3), zeros(4, 2), {"transpose_a": True}, r"transpose_a requires the same number of axes, but a is float32\[2,4,3\]"),
    ],
)
def test_mismatched_operands_raise(a: np.ndarray, b: np.ndarray, options: dict[str, bool], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        matmul(a, b, **options)


def test_different_element_types_raise() -> None:
    with pytest.raises(DtypeError, match=r"a float32\[2,3\] and b float64\[3,2\] differ in element type; cast"):
        matmul(zeros(2, 3), zeros(3, 2, dtype="float64"))


@pytest.mark.parametrize("shapes", [((4, 5), (5, 3)), ((2, 4, 5), (2, 5, 3)), ((2, 6, 4, 5), (5, 3)), ((1, 7, 5), (5, 2))])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_ranks(shapes: tuple[tuple[int, ...], tuple[int, ...]], transpose_b: bool) -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape) for shape in shapes)
    operand = np.ascontiguousarray(b.swapaxes(-1, -2)) if transpose_b else b
    np.testing.assert_allclose(matmul(a, operand, transpose_b=transpose_b), a @ b, rtol=1e-12)


def test_bias_of_the_wrong_size() -> None:
    with scope.using(interpreter=laws.Immediate()), pytest.raises(ShapeError, match=r"bias float32\[3\] must have the size 5"):
        linalg.bias_add(laws.Result(zeros(2, 5)), laws.Result(zeros(3)))


def run_bound(op: object, inputs: list[np.ndarray], output: np.ndarray) -> np.ndarray:
    for function, arguments in registry.bind(op, CPU, laws.Bench(), inputs, [output]):  # type: ignore[attr-defined]
        function(*arguments)
    return output


def test_operands_without_blas() -> None:
    """Every second element of every second row, of operands and result, beyond the size of the short path."""
    random = np.random.default_rng(0)
    a, b = random.standard_normal((2, 120, 140))[:, ::2, ::2]
    output = np.full((120, 120), np.nan)[::2, ::2]
    result = run_bound(linalg.MatMul(False, True), [a, b], output)
    np.testing.assert_allclose(result, a @ b.T, rtol=1e-12)


def test_batches_of_strided_heads() -> None:
    """Attention reads heads as views [batch, head, time, width] of [batch, time, head, width]."""
    random = np.random.default_rng(0)
    q, k = random.standard_normal((2, 3, 40, 2, 16)).transpose(0, 1, 3, 2, 4)
    scores = run_bound(linalg.BatchMatMul(False, True), [q, k], np.empty((3, 2, 40, 40)))
    np.testing.assert_allclose(scores, np.einsum("bhik,bhjk->bhij", q, k), rtol=1e-10, atol=1e-12)
