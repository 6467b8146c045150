"""What is checked on a pretended GPU and on a real one alike."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import laws
import numpy as np

from jobflow.errors import DtypeError
from jobflow.ops.base import Op, Sample, types_tuple
from jobflow.ops.index import UnsortedSegmentSum
from jobflow.plan.plan import Slot
from jobflow.runtime.arrays import window
from jobflow.runtime.device.cuda import CudaDevice
from jobflow.types import TensorType, float32, float64, type_of

OPS = {f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}": cls for cls in laws.concrete_ops()}
#: strides of a float32[2,3] in a buffer: in rows, in columns, with gaps, one row twice, backwards
STRIDES = [(12, 4), (4, 8), (24, 8), (0, 4), (-12, 4)]


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
    """The samples of an op, in double and single precision, and with whole numbers and truth values as they are."""
    for sample in cls.samples():
        for dtype in (float64, float32):
            arrays = [a.astype(dtype.numpy) if a.dtype.kind == "f" else a for a in sample.arrays]
            try:
                sample.op.infer(*map(type_of, arrays))
            except DtypeError:
                continue  # an attribute of the op names the type
            yield sample, arrays


def check_op(cupy: Any, cls: type[Op]) -> None:
    """CuPy = NumPy, for arrays that lie in memory in any order."""
    for sample, arrays in cases(cls):
        expected = laws.run(sample.op, arrays)
        for inner, outer in laws.ORDERS[:5]:
            inputs = [put(cupy, a, inner) for a in arrays]
            outputs = [put(cupy, a, outer) for a in laws.empties(types_tuple(sample.op.infer(*map(type_of, arrays))), fill=0)]
            calls = sample.op.bind(SimpleNamespace(tag="gpu", xp=cupy), inputs, outputs)
            for function, arguments in calls:
                function(*arguments)
            for ours, theirs in zip(outputs, expected, strict=True):
                laws.close(ours.get(), theirs, 1e-12 if theirs.dtype.itemsize == 8 else 1e-5, laws.magnitude(theirs), f"{sample} ({inner.__name__})")


def check_whole_numbers(cupy: Any) -> None:
    for dtype in (np.int8, np.int32, np.int64, np.float16):
        data, ids = np.array([[-3, 2], [5, -7], [-100, 1]], dtype), np.array([1, 1, 0], np.int32)
        y = cupy.zeros((2, 2), dtype)
        UnsortedSegmentSum(axis=0, size=2).kernel(cupy, cupy.asarray(data), cupy.asarray(ids), y)
        assert y.get().tolist() == [[-100, 1], [2, -5]]


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
    np.testing.assert_array_equal(device.to_host(buffer.view(np.float32)), host)
    np.testing.assert_array_equal(device.to_host(window(device.xp, buffer, slot)), value)


def check_uploads(device: CudaDevice) -> None:
    """Copies and kernels happen in the order in which they were asked for."""
    array = device.allocate(4_000_000).view(np.float32)
    for step in range(5):
        host = np.full(1_000_000, float(step))
        device.upload(array, host)
        host[:] = 77
        array += 1
    assert (device.to_host(array) == 5).all()


def check_pinned_copies(device: CudaDevice) -> None:
    array, host = device.allocate(1000).view(np.float32), device.host_array(250, "float32")
    host[:] = np.arange(250)
    device.put(array, host)
    host[:] = 0
    array += 1
    device.fetch(array, host)
    np.testing.assert_array_equal(host, np.arange(250) + 1)


def check_empty(device: CudaDevice) -> None:
    empty = window(device.xp, device.allocate(0), Slot("arena", 0, TensorType((0, 3), float32), (12, 4)))
    device.upload(empty, np.empty((0, 3)))
    assert device.to_host(empty).shape == (0, 3)


def check_numbers(device: CudaDevice) -> None:
    """Arrays without axes."""
    number = window(device.xp, device.allocate(64), Slot("arena", 8, TensorType((), float64), ()))
    device.upload(number, np.array(3, np.int8))
    number += 1
    assert device.to_host(number).shape == () and device.to_host(number) == 4
