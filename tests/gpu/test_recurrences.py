"""Recurrences bound for a GPU, on a simulated CuPy whose kernels g++ compiles, equal the kernels of the operations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import fake_nvrtc
import host_cuda
import laws
import numpy as np
import pytest
from on_device import TOLERANCE, Bench, host_results, put, single

from jobflow.core.types import dtype_named, type_of
from jobflow.kernels import registry
from jobflow.kernels.cuda.cublas_products import PreparedProduct
from jobflow.kernels.cuda.kernel_text import NAME
from jobflow.kernels.cuda.launches import KernelLaunch
from jobflow.kernels.cuda.recurrent_kernels import RecurrenceSteps
from jobflow.kernels.target import target_of
from jobflow.ops.op import Call, types_tuple
from jobflow.ops.recurrent import Gru, Lstm, Recurrence, RecurrenceGrad, Rnn

Op = Recurrence | RecurrenceGrad


class Texts:
    """Kernel texts that g++ compiles together before the first launch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._renamed: dict[str, str] = {}

    def add(self, text: str) -> Text:
        name = self._renamed.setdefault(text, f"{NAME}{len(self._renamed)}")
        return Text(self, name)

    @cached_property
    def library(self) -> Any:
        return host_cuda.library([text.replace(f" {NAME}(", f" {name}(") for text, name in self._renamed.items()], self._folder)


class Text:
    """The library of a text, whose kernel has its original name there."""

    def __init__(self, texts: Texts, name: str) -> None:
        self._texts, self._name = texts, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._texts.library, name.replace(f"call_{NAME}", f"call_{self._name}"))


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    if host_cuda.COMPILER is None:
        pytest.skip("there is no C++ compiler (g++)")
    monkeypatch.setenv("JOBFLOW_CACHE", str(tmp_path))
    monkeypatch.setattr(fake_nvrtc, "_library", Texts(tmp_path).add)
    with fake_nvrtc.installed(monkeypatch) as cupy:
        yield cupy


def with_gradients(op: Recurrence, dtype: str, sizes: tuple[int, int, int]) -> Iterator[tuple[Op, list[Any]]]:
    """Yield a recurrence and its gradients of all and of some outputs, with arrays of one type."""
    kind = dtype_named(dtype).numpy
    arrays = [a.astype(kind if a.dtype.kind == "f" else np.int32) for a in op.sample_inputs(*sizes)]
    yield op, arrays
    at = op.named([*arrays, *host_results(op, arrays)])
    for of in (("dy", "dh", "dc")[: 1 + op.states], ("dh",)):
        gradient = op.gradient(of)
        at |= {name: np.random.default_rng(2).standard_normal(at[name[1:]].shape).astype(kind) for name in of}
        yield gradient, [at[name] for name in gradient.inputs()]


def bound(cupy: Any, op: Op, arrays: list[Any], order: Any = laws.plain) -> tuple[list[Call], list[Any]]:
    """Return the calls of an operation on a GPU, and the arrays of its outputs."""
    inputs = [put(cupy, a, order) for a in arrays]
    outputs = [put(cupy, np.zeros(type.shape, type.dtype.numpy), order) for type in types_tuple(op.infer(*map(type_of, arrays)))]
    return registry.bind(op, target_of("gpu"), Bench(cupy), inputs, outputs), outputs


SMALL, VECTORS = (3, 11, 3), (4, 2, 8)
CASES = [
    (Lstm(True, True, True), "float32", VECTORS),
    (Gru(True, True, True, True), "bfloat16", SMALL),
    (Rnn(False, True), "float64", SMALL),
]
MORE = [
    (op, dtype, sizes)
    for op in (Lstm(), Lstm(False, True, True), Gru(), Gru(False, True, True, True), Rnn(True, True, True), Rnn(relu=True))
    for dtype in ("float64", "float32", "float16", "bfloat16")
    for sizes in (VECTORS, (1, 1, 1), (5, 7, 12))
]


@pytest.mark.parametrize("cases", [CASES, pytest.param(MORE, marks=pytest.mark.full)], ids=["three", "all"])
def test_recurrences_equal_their_kernels_and_neither_allocate_nor_wait(cases: Any, cupy: Any) -> None:
    runs = [(op, arrays, *bound(cupy, op, arrays)) for case in cases for op, arrays in with_gradients(*case)]
    stream = cupy.cuda.Stream(non_blocking=True)
    for op, arrays, calls, outputs in runs:
        for function, arguments in calls:
            function(*arguments)
        for name, ours, theirs in zip(op.results(), outputs, host_results(op, arrays), strict=True):
            tolerance = TOLERANCE[theirs.dtype.name] * max(1.0, float(np.abs(single(theirs)).max()))
            np.testing.assert_allclose(single(ours.get()), single(theirs), rtol=0, atol=tolerance, err_msg=f"{op} {arrays[0].dtype} {name}")
        assert {type(function) for function, _ in calls} <= {KernelLaunch, PreparedProduct}
        with stream:
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
            for function, arguments in calls:
                function(*arguments)
            stream.end_capture()


@pytest.mark.parametrize("op", [Lstm(), Gru(masked=True)], ids=str)
def test_each_step_is_two_calls(op: Recurrence, cupy: Any) -> None:
    short, long = ([len(bound(cupy, *case)[0]) for case in with_gradients(op, "float16", (steps, 2, 3))] for steps in (2, 12))
    assert [b - a for a, b in zip(short, long, strict=True)] == [20, 20, 20]


def test_outputs_that_share_memory_with_other_elements_are_refused() -> None:
    memory = np.zeros(1 << 10, np.float32)
    x, w = memory[: 3 * 2 * 16].reshape(3, 2, 16), np.zeros((16, 4), np.float32)
    y, h, c, cells = (np.zeros(shape, np.float32) for shape in ((3, 2, 4), (2, 4), (2, 4), (3, 2, 4)))
    assert RecurrenceSteps().refuses(Lstm(), [x, w], [y, h, c, x, cells]) is None
    shifted = memory[16 : 16 + x.size].reshape(x.shape)
    why = "output 3 shares memory with an input, but not element by element"
    assert RecurrenceSteps().refuses(Lstm(), [x, w], [y, h, c, shifted, cells]) == why
    assert RecurrenceSteps().refuses(Lstm(), [x[:0], w], [y[:0], h, c, x[:0], cells[:0]]) == "an operand has no elements"
