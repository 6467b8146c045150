"""Functions that create sparse tensors from indices and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, JobError, ShapeError, counted, user_line
from jobflow.core.types import Array
from jobflow.functional.casting import named
from jobflow.functional.creation import tensor
from jobflow.functional.promotion import cast
from jobflow.functional.sparse_tensors import SparseTensor
from jobflow.functional.typed import Tensor
from jobflow.functional.values import value_of
from jobflow.tensors.constant_values import constant_value
from jobflow.tensors.state import refuse_tracing

__all__ = ["sparse_coo_tensor", "sparse_csr_tensor"]


def _index_array(what: str, name: str, data: Any, ndim: int) -> Array:
    """Return indices as an int64 array with `ndim` axes.  Raises: DtypeError, ShapeError for other data."""
    if isinstance(data, Tensor) and data.traced is not None and constant_value(data, guarded=True) is None:
        refuse_tracing(what, f"the elements of {name} are not known", "create the sparse tensor before")
    array = value_of(data, what) if isinstance(data, Tensor) else np.asarray(data) if np.size(data) else np.asarray(data).astype(np.int64)
    if array.dtype.kind not in "iu":
        raise DtypeError(f"{what} at {user_line()}: {name} must be integers; got {array.dtype}")
    if array.ndim != ndim:
        raise ShapeError(f"{what} at {user_line()}: {name} must have {ndim} {'axis' if ndim == 1 else 'axes'}; got shape {list(array.shape)}")
    return array.astype(np.int64)


def _value_tensor(what: str, values: Any, dtype: Any, device: Any, requires_grad: Any) -> Tensor:
    if requires_grad:
        raise JobError(f"{what} at {user_line()}: requires_grad=True is not supported; pass a tensor of values that requires gradients")
    x = values if isinstance(values, Tensor) else tensor(values, device=device)
    if isinstance(values, Tensor) and device is not None:
        x = x.to(device)
    return x if dtype is None else cast(x, named(what, dtype))


def _shape(what: str, size: Any, sparse: int, least: Sequence[int], dense: tuple[int, ...]) -> tuple[int, ...]:
    """Return `size`, or without it the smallest shape with these indices and values.

    Raises: ShapeError if the size does not match the values, ArgumentError for an index out of range.
    """
    if size is None:
        return (*least, *dense)
    try:
        shape = tuple(int(n) for n in size)
    except (TypeError, ValueError):
        raise ShapeError(f"{what} at {user_line()}: size must be a sequence of integers; got {size!r}") from None
    if len(shape) != sparse + len(dense) or shape[sparse:] != dense or min(shape, default=0) < 0:
        raise ShapeError(
            f"{what} at {user_line()}: size {list(shape)} must have one size for each of {counted(sparse, 'row')} of indices, "
            f"followed by {list(dense)}, the shape of a value"
        )
    for axis, (n, needed) in enumerate(zip(shape, least, strict=False)):
        if needed > n:
            raise ArgumentError(
                f"{what} at {user_line()}: index {needed - 1} is out of range for axis {axis} of size {list(shape)}; pass a larger size"
            )
    return shape


def sparse_coo_tensor(
    indices: Any,
    values: Any,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    is_coalesced: bool | None = None,
) -> SparseTensor:
    """Return a sparse tensor with values[k] at the position indices[:, k], in the shape `size`; repeated indices add up.

    `values` may require gradients.  Further axes of `values` are dense axes of the result.  `pin_memory` and `check_invariants` have no effect:
    indices are always checked.
    Raises: ArgumentError for indices out of range, ShapeError, DtypeError for other data; JobError during tracing.
    """
    what = "sparse_coo_tensor"
    coordinates, elements = _index_array(what, "indices", indices, 2), _value_tensor(what, values, dtype, device, requires_grad)
    if not elements.ndim or elements.shape[0] != coordinates.shape[1]:
        raise ShapeError(f"{what} at {user_line()}: values {elements.tensor_type} must have one entry for each of {coordinates.shape[1]} indices")
    if coordinates.size and coordinates.min() < 0:
        raise ArgumentError(f"{what} at {user_line()}: indices contains {coordinates.min()}; pass indices of at least 0")
    least = [int(row.max()) + 1 if row.size else 0 for row in coordinates]
    shape = _shape(what, size, len(coordinates), least, tuple(elements.shape[1:]))
    return SparseTensor(coordinates, elements, shape, bool(is_coalesced))


def sparse_csr_tensor(
    crow_indices: Any,
    col_indices: Any,
    values: Any,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> SparseTensor:
    """Return a sparse matrix whose row i has the values from crow_indices[i] to crow_indices[i + 1], at the columns `col_indices`.

    `sparse_coo_tensor` describes the other arguments and errors.
    """
    what = "sparse_csr_tensor"
    ends, columns = _index_array(what, "crow_indices", crow_indices, 1), _index_array(what, "col_indices", col_indices, 1)
    elements = _value_tensor(what, values, dtype, device, requires_grad)
    if not ends.size or ends[0] != 0 or ends[-1] != columns.size or (np.diff(ends) < 0).any():
        raise ArgumentError(
            f"{what} at {user_line()}: crow_indices must ascend from 0 to {columns.size}, the length of col_indices; got {ends.tolist()[:8]}"
        )
    if tuple(elements.shape) != columns.shape:
        raise ShapeError(
            f"{what} at {user_line()}: values {elements.tensor_type} must be a vector of {columns.size} values, one per element of col_indices"
        )
    if columns.size and columns.min() < 0:
        raise ArgumentError(f"{what} at {user_line()}: col_indices contains {columns.min()}; pass columns of at least 0")
    shape = _shape(what, size, 2, [ends.size - 1, int(columns.max()) + 1 if columns.size else 0], ())
    if shape[0] != ends.size - 1:
        raise ShapeError(f"{what} at {user_line()}: size {list(shape)} must have {ends.size - 1} rows, one less than crow_indices")
    coordinates = np.stack([np.repeat(np.arange(ends.size - 1), np.diff(ends)), columns])
    ordered = bool((np.diff(np.ravel_multi_index(tuple(coordinates), shape)) > 0).all()) if columns.size else True
    return SparseTensor(coordinates, elements, shape, ordered, csr=True)
