"""Arrays of the data that programs pass to `tensor`, `as_tensor` and similar functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from jobflow.core.errors import DtypeError, JobError, JobflowError, ShapeError, user_line
from jobflow.core.types import Array, DType, dtype_of, type_of
from jobflow.functional.promotion import check_numbers
from jobflow.functional.typed import Tensor
from jobflow.tensors.constant_values import depends_on_run

#: classes of data that are not on a GPU
HOST_DATA = frozenset({list, tuple, int, float, bool, np.ndarray})


def array_of(what: str, data: Any) -> Array:
    """Return a copy of the data as an array of a supported element type; Python floats become float64.

    Raises: ShapeError for nested lists of unequal lengths, DtypeError for an unsupported element type.
    """
    check_numbers(what, data)
    try:
        array = np.array(_tensors_as_arrays(what, data))
    except ValueError as error:
        if isinstance(error, JobflowError):
            raise
        raise ShapeError(f"{what} at {user_line()}: nested lists have different lengths ({error}); pass lists of equal length") from None
    try:
        dtype_of(array.dtype)
    except (KeyError, TypeError):
        raise DtypeError(
            f"{what} at {user_line()}: NumPy converts the data to {array.dtype}, which is not an element type of jobflow; cast the data first"
        ) from None
    return array


def _tensors_as_arrays(what: str, data: Any) -> Any:
    """Return `data` with the tensors in its nested lists replaced by arrays; raise JobError for a traced tensor."""
    if isinstance(data, Tensor):
        if depends_on_run(data):
            raise JobError(
                f"{what} at {user_line()}: the data contain a tensor {data.tensor_type}, which has no values during tracing; join tensors "
                f"with flow.stack or flow.cat"
            )
        return data.numpy()
    if isinstance(data, list | tuple) and any(isinstance(each, Tensor | list | tuple) for each in data):
        return [_tensors_as_arrays(what, each) for each in data]
    return data


def of_gpu(what: str, data: Any) -> Any:
    """Return a local tensor in the memory of an array of another library on a GPU; return other data unchanged."""
    if type(data) in HOST_DATA or isinstance(data, Tensor | np.ndarray) or not hasattr(data, "__cuda_array_interface__"):
        return data
    from jobflow.functional.gpu_exchange import array_of as gpu_array_of

    array = gpu_array_of(data, f"{what} at {user_line()}")
    return Tensor.new(type_of(array), None, array)


def check_span(what: str, array: Array, dtype: DType) -> None:
    """Raise DtypeError if `array`, the Python numbers of the user, exceeds the range of the integer type `dtype`.

    An unsigned type accepts negative numbers, which wrap around.
    """
    low, high = dtype.span
    low = low or -high
    outside = array[~((np.trunc(array) >= low) & (array < high + 1))]
    if outside.size:
        raise DtypeError(
            f"{what} at {user_line()}: {outside.item(0)} is out of range for {dtype.name}, {int(dtype.span[0])} to {int(high)}; pass a larger dtype"
        )
