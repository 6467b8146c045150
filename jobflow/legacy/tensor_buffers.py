"""Tensor buffers, with an array of any shape per row, and tensor lists, one per device.

    def job(x: tp.Numpy.Placeholder((4, 20, 30, 3))) -> list[tp.ListNumpy]:
        images = flow.tensor_to_tensor_buffer(x, instance_dims=3)                               4 images
        images, size, scale = flow.image.target_resize(images, target_size=10)
        return flow.tensor_buffer_to_list_of_tensors(images, (15, 15, 3), flow.float, True)     4 results, (10, 15, 3) each

The host computes buffers and lists before the job runs, or after the phase of the job that computes the inputs; see `OnHost`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, user_line
from jobflow.core.types import Array, DType, Tensor, TensorType, float32
from jobflow.host_pipeline import stages as st
from jobflow.host_pipeline.job_batches import Constants, OfList
from jobflow.host_pipeline.outputs import OnHost, as_dynamic, as_result, as_tensor, body_of, devices_of_view, on_host
from jobflow.legacy import arrays
from jobflow.legacy.job_dispatch import all_of, of_kinds
from jobflow.legacy.operands import counts, fitting, positive_shape
from jobflow.typing.results import HostArgument, HostResult

#: kinds of `OnHost` whose rows are arrays
ARRAYS = "arrays", "images", "bytes"


def tensor_to_tensor_buffer(x: Tensor, instance_dims: int, name: str | None = None) -> OnHost:
    """Return a tensor buffer with arrays of the last `instance_dims` axes of x, one per index of the preceding axes."""
    what = "tensor_to_tensor_buffer"
    if not isinstance(x, Tensor):
        raise ArgumentError(f"{what} at {user_line()}: x must be a tensor of the job, not {type(x).__name__}")
    counts(what, instance_dims=instance_dims)
    ahead = x.tensor_type.shape[: x.tensor_type.ndim - instance_dims]
    if instance_dims >= x.tensor_type.ndim:
        raise ShapeError(f"{what} at {user_line()}: instance_dims {instance_dims} must be below the number of axes of x {x.tensor_type}")
    rows = math.prod(ahead) * devices_of_view()
    return OnHost(x, rows, "arrays", element=x.tensor_type.dtype, arranged=ahead)


def gen_tensor_buffer(
    shape: Sequence[int],
    shape_list: Sequence[Sequence[int]],
    value_list: Sequence[float],
    data_type: DType = float32,
    dynamic_out: bool = False,
    name: str | None = None,
) -> OnHost:
    """Return a tensor buffer of `shape` with arrays of the shapes in `shape_list`, filled with the numbers in `value_list`."""
    what = "gen_tensor_buffer"
    own, shapes = positive_shape(what, "shape", shape), [positive_shape(what, "a shape of shape_list", each) for each in shape_list]
    body_of(what)
    if not math.prod(own) == len(shapes) == len(value_list):
        raise ArgumentError(
            f"{what} at {user_line()}: shape {list(own)} has {math.prod(own)} arrays, but shape_list has length {len(shapes)} "
            f"and value_list length {len(value_list)}"
        )
    filled = tuple(np.full(s, fitting(what, v, data_type), data_type.numpy) for s, v in zip(shapes, value_list, strict=True))
    devices = devices_of_view()
    return OnHost(Constants(filled * devices), len(filled) * devices, "arrays", element=data_type, arranged=own)


def _fits(what: str, x: OnHost, dtype: DType) -> None:
    """Raise DtypeError unless the arrays can be converted to `dtype` without loss."""
    if not np.can_cast(x.element.numpy, dtype.numpy) and not (x.kind == "bytes" and dtype.numpy.itemsize == 1):
        raise DtypeError(f"{what} at {user_line()}: arrays of {x.element.name} cannot be converted to {dtype.name} without loss")


def tensor_buffer_to_tensor(x: OnHost, dtype: DType, instance_shape: Sequence[int], name: str | None = None) -> Any:
    """Return the arrays of the tensor buffer x, which have shape `instance_shape`, as a tensor [*shape of x, *instance_shape]."""
    what = "tensor_buffer_to_tensor"
    shape, arguments = positive_shape(what, "instance_shape", instance_shape), on_host(what, x, *ARRAYS)
    _fits(what, arguments, dtype)
    if isinstance(arguments.source, Tensor):
        if arguments.source.tensor_type.shape != (*arguments.shape, *shape):
            raise ShapeError(f"{what} at {user_line()}: instance_shape {list(shape)} must be the last axes of {arguments.source.tensor_type}")
        return arrays.cast(arguments.source, dtype)
    result = as_tensor(what, st.Exactly(arguments.pixels(), shape), arguments.rows, shape, dtype, name)
    return arrays.reshape(result, (*arguments.shape, *shape)) if len(arguments.shape) > 1 else result


def tensor_buffer_to_list_of_tensors(
    x: OnHost, out_shape: Sequence[int], out_dtype: DType, dynamic_out: bool = False, name: str | None = None
) -> list[Any]:
    """Return each array of the tensor buffer x as a tensor of `out_shape`.

    With `dynamic_out` each tensor has the shape of its array, which is at most `out_shape`.
    """
    what = "tensor_buffer_to_list_of_tensors"
    shape, arguments = positive_shape(what, "out_shape", out_shape), on_host(what, x, *ARRAYS)
    _fits(what, arguments, out_dtype)
    if dynamic_out:
        return _each(what, arguments, shape, out_dtype, (), name)
    count = math.prod(arguments.shape)
    whole = arrays.reshape(tensor_buffer_to_tensor(arguments, out_dtype, shape, name), (count, *shape))
    return [arrays.reshape(arrays.slice(whole, [i] + [0] * len(shape), [1, *shape]), shape) for i in range(count)]


# Tensor lists -------------------------------------------------------------------------------------------------------


def tensor_list_to_tensor_buffer(input: HostArgument, name: str | None = None) -> OnHost:
    """Return a tensor buffer with the arrays [1, ...] of the tensor list `input`, without their first axis."""
    what = "tensor_list_to_tensor_buffer"
    if not isinstance(input, HostArgument):
        raise ArgumentError(f"{what} at {user_line()}: input must be an argument declared as tp.ListListNumpy.Placeholder, not {input!r:.60}")
    if devices_of_view() != input.devices:
        raise ArgumentError(f"{what} at {user_line()}: input has a list for each of {input.devices} devices; call the function in the mirrored view")
    return OnHost(OfList(input.name), input.declared.shape[0] * input.devices, "arrays", element=input.declared.dtype)


def tensor_buffer_to_tensor_list(input: OnHost, shape: Sequence[int], dtype: DType, name: str | None = None) -> HostResult:
    """Return the arrays of a tensor buffer as a result of the job: one list of arrays [1, ...] per device.

    `shape` is the maximum shape of an array of the buffer.
    """
    what = "tensor_buffer_to_tensor_list"
    most, arguments = positive_shape(what, "shape", shape), on_host(what, input, *ARRAYS)
    _fits(what, arguments, dtype)
    return as_result(what, arguments.pixels(), arguments.rows, most, dtype, name)(lambda rows: [row[np.newaxis] for row in rows], True)


def _each(what: str, x: OnHost, shape: Sequence[int], dtype: DType, ahead: tuple[int, ...], name: str | None) -> list[Any]:
    """Return one tensor per array of a device, with the axes `ahead` before the shape of the array, which is at most `shape`."""
    stage, label = st.Within(x.pixels(), tuple(shape), dtype), name or body_of(what).unique_name(what)
    type, count = TensorType((*ahead, *shape), dtype), x.rows // devices_of_view()
    return [as_dynamic(what, stage, x.rows, partial(_row, i, ahead), type, f"{label}_{i}") for i in range(count)]


def _row(index: int, ahead: tuple[int, ...], rows: Sequence[Array]) -> Array:
    return rows[index].reshape(*ahead, *rows[index].shape)


def tensor_list_split(input_tensor_list: HostArgument | HostResult, name: str | None = None) -> list[Any]:
    """Return the arrays [1, ...] of a tensor list as separate tensors of different shapes."""
    if isinstance(input_tensor_list, HostArgument):
        arguments, whole = tensor_list_to_tensor_buffer(input_tensor_list), input_tensor_list.declared
        return _each("tensor_list_split", arguments, whole.shape[1:], whole.dtype, (1,), name)
    raise ArgumentError(
        f"tensor_list_split at {user_line()}: input_tensor_list must be an argument declared as tp.ListListNumpy.Placeholder, not a result"
    )


globals().update(all_of(__name__, globals(), __name__, of_kinds))
