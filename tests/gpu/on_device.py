"""Checks that run on a pretended GPU, on a real one, and on the stub of `without_gpu`, which computes nothing."""

from __future__ import annotations

import importlib
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import laws
import numpy as np

from jobflow.core.errors import DtypeError
from jobflow.core.types import DType, TensorType, bfloat16, float16, float32, float64, type_of
from jobflow.kernels import half, registry
from jobflow.kernels.target import target_of
from jobflow.ops.index import UnsortedSegmentSum
from jobflow.ops.op import Op, Sample, types_tuple
from jobflow.plan.plan import Slot
from jobflow.runtime.device.cuda_device import CudaDevice
from jobflow.runtime.variable_buffers import window

#: False on the stub: kernels do not write, so only shapes and types are compared
COMPUTES = "JOBFLOW_GPU_STUB" not in os.environ
OPS = {f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}": cls for cls in laws.concrete_ops()}
FLOATS = (float64, float32, float16, bfloat16)
#: by the name of an element type, relative to the largest number; whole numbers and truth values are equal
TOLERANCE = defaultdict(float, float64=1e-12, float32=1e-5, float16=4e-3, bfloat16=3e-2)
#: strides of a float32[2,3] in a buffer: in rows, in columns, with gaps, one row twice, backwards
STRIDES = [(12, 4), (4, 8), (24, 8), (0, 4), (-12, 4)]


def has_solver() -> bool:
    """Return True if CuPy can load cuSOLVER."""
    try:
        importlib.import_module("cupy_backends.cuda.libs.cusolver")
    except ImportError:
        return False
    return True


def same(ours: Any, theirs: Any, what: str = "") -> None:
    """Raise AssertionError unless both arrays have the same shape, type and, where kernels compute, elements."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), what
    if COMPUTES:
        np.testing.assert_array_equal(ours, theirs, err_msg=what)


def put(cupy: Any, array: Any, order: Any) -> Any:
    """The array on the device, with the strides that `order` gives it."""
    host = order(array)
    first = host if host.base is None else host.base
    whole = cupy.asarray(np.frombuffer(first.tobytes(order="A"), np.uint8))
    if not array.size:
        return cupy.asarray(array)
    offset = host.ctypes.data - first.ctypes.data
    return cupy.ndarray(host.shape, host.dtype, memptr=whole.data + offset, strides=host.strides)


def cases(cls: type[Op]) -> Iterator[tuple[Sample, list[Any]]]:
    """The samples of an op in every type of floats, and with whole numbers and truth values as they are."""
    for sample in cls.samples():
        for dtype in FLOATS:
            arrays = [a.astype(dtype.numpy) if a.dtype.kind == "f" else a for a in sample.arrays if fits(a, dtype)]
            if len(arrays) < len(sample.arrays):
                continue
            try:
                sample.op.infer(*map(type_of, arrays))
            except DtypeError:
                continue  # an attribute of the op names the type
            yield sample, arrays


def chosen_cases(cls: type[Op]) -> Iterator[tuple[Sample, list[Any]]]:
    """Yield all cases; on the stub, the first of each combination of types."""
    combinations: set[tuple[Any, ...]] = set()
    for sample, arrays in cases(cls):
        types = tuple(array.dtype for array in arrays)
        if COMPUTES or types not in combinations:
            combinations.add(types)
            yield sample, arrays


def fits(array: Any, dtype: DType) -> bool:
    """False for numbers that would be infinite in this type."""
    return array.dtype.kind != "f" or not np.any(np.isfinite(array) & (abs(array.astype(np.float64)) > dtype.largest))


class Bench:
    """A device that `bind` may ask."""

    tag = "gpu"

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def scratch(self, shape: tuple[int, ...], dtype: DType) -> Any:
        return self.xp.empty(shape, dtype.numpy)

    def constant(self, value: Any) -> Any:
        return self.xp.asarray(value)


def bound(op: Op, device: Any, inputs: Sequence[Any], outputs: Sequence[Any], setting: str = "numpy") -> None:
    """One run of the calls of the op, with two-byte floats as the executor binds them, by the kernels of a setting."""
    for function, arguments in registry.bind(op, target_of(device.tag, setting), device, inputs, outputs):
        function(*arguments)


def host_results(op: Op, arrays: Sequence[Any]) -> list[Any]:
    inputs = [a.copy() for a in arrays]
    results = laws.empties(types_tuple(op.infer(*map(type_of, arrays))), fill=0)
    outputs = [inputs[op.alias[i]] if i in op.alias else y for i, y in enumerate(results)]
    with np.errstate(all="ignore"):
        bound(op, laws.Bench(), inputs, outputs)
    return outputs


def check_op(cupy: Any, cls: type[Op], setting: str = "numpy", every: bool = True) -> None:
    """Compare the device with NumPy, for arrays in the plain order of memory, and by turns in one of the other orders.

    Without `every`, each case runs in one order, by turns.
    """
    if not COMPUTES:
        cupy.cuda.set_allocator(None)  # fresh stub memory is zero; reused pool memory holds stale values
    for k, (sample, arrays) in enumerate(chosen_cases(cls)):
        expected = host_results(sample.op, arrays)
        turn = k + k // 4
        for inner, outer in (laws.ORDERS[0], laws.ORDERS[1 + turn % 4]) if every else (laws.ORDERS[turn % 5],):
            inputs = [put(cupy, a, inner) for a in arrays]
            outputs = [put(cupy, a, outer) for a in laws.empties(types_tuple(sample.op.infer(*map(type_of, arrays))), fill=0)]
            bound(sample.op, Bench(cupy), inputs, outputs, setting)
            for ours, theirs in zip(outputs, expected, strict=True):
                assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            if not COMPUTES:
                continue
            what = f"{sample} of {[str(a.dtype) for a in arrays]} ({inner.__name__})"
            operands = [single(a) for a in arrays] if cls.__module__.endswith(".determinants") else ()  # sums of products that cancel
            for ours, theirs in zip(with_signs(sample.op, [y.get() for y in outputs], expected), expected, strict=True):
                laws.close(single(ours), single(theirs), TOLERANCE[theirs.dtype.name], laws.magnitude(single(theirs), *operands), what)


def with_signs(op: Op, ours: Sequence[Any], theirs: Sequence[Any]) -> list[Any]:
    """Return our results with the signs of their eigenvectors or singular vectors, which are not unique; other results as they are."""
    #: vectors by their number among the results, and the axis of their elements
    vectors = {"Eigh": {1: -2}, "SVD": {0: -2, 2: -1}}.get(type(op).__name__, {})
    results, signs = list(ours), None
    for number, axis in vectors.items():
        count = min(theirs[0].shape[-1], theirs[number].shape[-1 if axis == -2 else -2])
        signs = np.sign((ours[number] * theirs[number]).sum(axis))[..., :count] if signs is None else signs
        results[number] = ours[number] * np.expand_dims(signs, axis)
    return results


def single(array: Any) -> Any:
    return array.astype(np.float32) if half.is_half(array) else array


def check_whole_numbers(cupy: Any) -> None:
    for dtype in (np.int8, np.int32, np.int64, np.float16):
        data, ids = np.array([[-3, 2], [5, -7], [-100, 1]], dtype), np.array([1, 1, 0], np.int32)
        y = cupy.zeros((2, 2), dtype)
        UnsortedSegmentSum(axis=0, size=2).kernel(cupy, cupy.asarray(data), cupy.asarray(ids), y)
        same(y.get(), np.array([[-100, 1], [2, -5]], dtype))


def check_memory(device: CudaDevice) -> None:
    for nbytes in (0, 1, 1000):
        array = device.allocate(nbytes)
        assert array.shape == (nbytes,) and array.device.id == device.index
        assert array.data.ptr % 256 == 0 and not device.to_host(array).any()
    for dtype in (float32, float64):
        assert device.scratch((3, 4), dtype).data.ptr % 256 == 0


def check_windows(device: CudaDevice, strides: tuple[int, int]) -> None:
    """A window on device memory holds what one on host memory does."""
    buffer, host = device.allocate(256), np.zeros(64, np.float32)
    slot = Slot("arena", 64, TensorType((2, 3), float32), strides)
    value = np.array([[1, 2, 3], [1, 2, 3]], np.float64)
    device.upload(window(device.xp, buffer, slot), value)
    device.upload(buffer.view(np.float32)[40:42], np.array([8, 9]))
    window(np, host.view(np.uint8), slot)[...] = value
    host[40:42] = 8, 9
    same(device.to_host(buffer.view(np.float32)), host)
    same(device.to_host(window(device.xp, buffer, slot)), value.astype(np.float32))


def check_uploads(device: CudaDevice) -> None:
    """Copies and kernels happen in the order in which they were asked for."""
    array = device.allocate(4_000_000).view(np.float32)
    for step in range(5):
        host = np.full(1_000_000, float(step))
        device.upload(array, host)
        host[:] = 77
        array += 1
    same(device.to_host(array), np.full(1_000_000, 5, np.float32))


def check_pinned_copies(device: CudaDevice) -> None:
    array, host = device.allocate(1000).view(np.float32), device.host_array(250, "float32")
    host[:] = np.arange(250)
    device.put(array, host)
    host[:] = 0
    array += 1
    device.fetch(array, host)
    same(host, np.arange(1, 251, dtype=np.float32))


def check_empty(device: CudaDevice) -> None:
    empty = window(device.xp, device.allocate(0), Slot("arena", 0, TensorType((0, 3), float32), (12, 4)))
    device.upload(empty, np.empty((0, 3)))
    assert device.to_host(empty).shape == (0, 3)


def check_numbers(device: CudaDevice) -> None:
    """Arrays without axes."""
    number = window(device.xp, device.allocate(64), Slot("arena", 8, TensorType((), float64), ()))
    device.upload(number, np.array(3, np.int8))
    number += 1
    same(device.to_host(number), np.array(4.0))
