"""Launches that were prepared for the memory of some arrays run on the memory of others: on a pretended GPU whose kernels g++ compiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import fake_nvrtc
import host_cuda
import numpy as np
import pytest
from on_device import Bench, host_results, put

from jobflow.core.types import float32, int64, type_of
from jobflow.expressions.language import element, quotient
from jobflow.kernels import registry
from jobflow.kernels.cuda import compiled_text
from jobflow.kernels.cuda.eager_launches import prepare
from jobflow.kernels.cuda.fused import constants
from jobflow.kernels.target import target_of
from jobflow.ops.arithmetic import Add
from jobflow.ops.masked import MaskedFill
from jobflow.ops.op import Op, types_tuple
from jobflow.ops.reduce import ReduceSum
from jobflow.ops.scalar import FillLike, Scale, Shift
from jobflow.ops.slices import Concat
from jobflow.ops.softmax import Softmax
from jobflow.ops.update import Assign
from jobflow.runtime.device.cuda_device import CudaDevice
from jobflow.tensors.eager_gpu import EagerGpu

pytestmark = pytest.mark.skipif(host_cuda.COMPILER is None, reason="there is no C++ compiler (g++)")


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.setenv("JOBFLOW_CACHE", str(tmp_path))
    with fake_nvrtc.installed(monkeypatch) as cupy:
        yield cupy


def rows(array: Any) -> Any:
    return np.ascontiguousarray(array)


def columns(array: Any) -> Any:
    return np.asfortranarray(array)


def random_values(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).uniform(0.5, 2.0, shape).astype(np.float32)


@pytest.mark.parametrize(
    ("op", "shapes", "order"),
    [
        (Add(), [(5, 7), (5, 7)], rows),
        (Add(), [(5, 7), (5, 7)], columns),
        (ReduceSum((0,)), [(200, 9)], rows),
        (Softmax(1), [(6, 40)], rows),
        (Concat(1), [(5, 7), (5, 3)], rows),
    ],
    ids=["elements", "elements in columns", "sums of columns, with scratch memory", "rows", "parts at an offset"],
)
def test_launches_run_on_other_memory(cupy: Any, op: Op, shapes: list[tuple[int, ...]], order: Any) -> None:
    def arguments(seed: int) -> tuple[list[Any], list[Any], list[Any]]:
        arrays = [random_values(seed + k, *shape) for k, shape in enumerate(shapes)]
        types = types_tuple(op.infer(*map(type_of, arrays)))
        return arrays, [put(cupy, a, order) for a in arrays], [cupy.empty(type.shape, type.dtype.numpy) for type in types]

    _, first, outputs = arguments(0)
    launches = prepare(partial(registry.bind, op, target_of("gpu")), cupy, 0, first, outputs)
    assert launches is not None
    for seed in (10, 20):
        arrays, inputs, outputs = arguments(seed)
        launches.run([*inputs, *outputs], Bench(cupy).scratch, nullcontext())
        for ours, theirs in zip(outputs, host_results(op, arrays), strict=True):
            np.testing.assert_allclose(ours.get(), theirs, rtol=1e-5)


def test_an_output_can_be_an_input(cupy: Any) -> None:
    x, y = (put(cupy, random_values(k, 4, 4), rows) for k in range(2))
    launches = prepare(partial(registry.bind, Add(), target_of("gpu")), cupy, 0, [x, y], [x])
    assert launches is not None
    a, b = random_values(7, 4, 4), random_values(8, 4, 4)
    x, y = put(cupy, a, rows), put(cupy, b, rows)
    launches.run([x, y, x], Bench(cupy).scratch, nullcontext())
    np.testing.assert_array_equal(x.get(), a + b)
    np.testing.assert_array_equal(y.get(), b)


def test_calls_of_libraries_and_empty_arrays_are_bound_at_each_run(cupy: Any) -> None:
    x, empty = put(cupy, random_values(0, 4, 4), rows), cupy.empty((0, 4), np.float32)

    def library(device: Any, inputs: Any, outputs: Any) -> Any:
        return [(print, (inputs[0],))]

    assert prepare(library, cupy, 0, [x], [x]) is None
    assert prepare(partial(registry.bind, Add(), target_of("gpu")), cupy, 0, [empty, empty], [empty]) is None


def test_updates_copy_operands_that_overlap_their_target(cupy: Any) -> None:
    device = CudaDevice(0)
    device.activate()
    x, other = put(cupy, random_values(0, 300), rows), put(cupy, random_values(1, 299), rows)
    expected = x.get()
    calls = EagerGpu(device).calls(Assign())
    calls.run(None, [x[1:], other], [x[1:]])
    np.testing.assert_array_equal(x.get()[1:], other.get())
    expected[1:] = x.get()[:-1]
    calls.run(None, [x[1:], x[:-1]], [x[1:]])
    np.testing.assert_array_equal(x.get(), expected)


@pytest.mark.parametrize(
    ("cls", "dtype"),
    [
        *((cls, "float32") for cls in (Scale, Shift, FillLike, MaskedFill)),
        *((Scale, dtype) for dtype in ("float64", "float16", "int64")),
        *(pytest.param(cls, dtype, marks=pytest.mark.full) for cls in (Shift, FillLike, MaskedFill) for dtype in ("float64", "float16", "int64")),
    ],
)
def test_operations_that_differ_in_numbers_share_a_kernel(cupy: Any, cls: type[Op], dtype: str) -> None:
    """The numbers are arguments of launches; also negative ones, and those whose bits would be an address of a stand-in."""
    x = np.arange(1, 6).astype(dtype)
    device = CudaDevice(0)
    device.activate()
    gpu, texts = EagerGpu(device), set[str]()
    scalars = (3, -7, 1 << 58) if dtype == "int64" else (0.1, -2.5, 65504.0) if dtype == "float16" else (0.1, -2.5, float("inf"))
    for number in scalars:
        op, arrays = cls(number), [x, x > 2] if cls is MaskedFill else [x]
        inputs, outputs = [put(cupy, a, rows) for a in arrays], [cupy.empty(x.shape, x.dtype)]
        for _ in range(2):  # binds, then runs prepared launches
            gpu.calls_like(op, inputs[0]).run(None, inputs, outputs)
        np.testing.assert_array_equal(outputs[0].get(), host_results(op, arrays)[0], err_msg=str(number))
        texts |= {text for text, _ in compiled_text.compiler(0)._modules}
    assert len(texts) == 1


def test_powers_and_quotients_keep_their_constants() -> None:
    x, n = element(0, float32), element(1, int64)
    assert constants((x**2.0,)) == constants((quotient(n, 3),)) == () and len(constants((2.0 * x + 3.0,))) == 2
