"""Batches of sequences of different lengths: padded with a value, or packed, with the elements of all sequences for a step together.

    pad_sequence, unpad_sequence                list of sequences <-> padded batch
    pack_padded_sequence, pad_packed_sequence   padded batch <-> PackedSequence
    pack_sequence, unpack_sequence              list of sequences <-> PackedSequence

The indices of the elements are computed on the host from the lengths.  Each function therefore gathers all elements at once.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, JobError, ShapeError, user_line
from jobflow.core.layout import B
from jobflow.core.types import Array, type_of
from jobflow.functional.comparing import where
from jobflow.functional.creation import tensor
from jobflow.functional.devices import device_of
from jobflow.functional.global_tensors import value_of
from jobflow.functional.joining import cat, unbind
from jobflow.functional.nn_base import flag, one_of
from jobflow.functional.shapes import reshape
from jobflow.functional.typed import Tensor
from jobflow.ops.index import Gather
from jobflow.ops.slices import Slice
from jobflow.tensors.run import run
from jobflow.tensors.state import building_now, running

__all__ = [
    "PackedSequence", "invert_permutation", "pack_padded_sequence", "pack_sequence", "pad_packed_sequence", "pad_sequence", "unpack_sequence",
    "unpad_sequence",
]  # fmt: skip


#: maximum number of steps of a batch, and maximum size of a recurrent module
LARGEST = 2**31 - 1


class _Fields(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Fields):
    """Sequences of different lengths in one tensor: first the first elements of all sequences, then the second elements, and so on.

    The sequences are in decreasing order of their lengths; `sorted_indices` are their positions in the original batch, or None for the same
    order.  `batch_sizes` are the numbers of sequences with at least 1, 2, 3 ... elements.
    Raises: ArgumentError unless `batch_sizes` is a local tensor of positive integers in decreasing order, whose sum is the length of `data`.
    """

    def __new__(
        cls, data: Tensor, batch_sizes: Tensor | None = None, sorted_indices: Tensor | None = None, unsorted_indices: Tensor | None = None
    ) -> Self:
        what, first = "PackedSequence", data
        if batch_sizes is None and isinstance(data, list | tuple) and len(data) == 2:
            first, batch_sizes = data
        if not isinstance(first, Tensor) or not isinstance(batch_sizes, Tensor):
            raise ArgumentError(f"{what} at {user_line()}: data and batch_sizes must be tensors; got {first!r} and {batch_sizes!r}")
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        packed = super().__new__(cls, first, batch_sizes, sorted_indices, unsorted_indices)
        _ = packed._values
        return packed

    @cached_property
    def _values(self) -> tuple[Array, Array | None]:
        """The values of `batch_sizes` and `unsorted_indices`."""
        unsorted = None if self.unsorted_indices is None else _permutation_values("PackedSequence", self.unsorted_indices)
        return _checked_sizes(self.data, self.batch_sizes), unsorted

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    def to(self, *arguments: Any, **options: Any) -> PackedSequence:
        """Return the packed sequence with data in another element type or on another device; arguments as in `Tensor.to`.

        The indices move with the data; `batch_sizes` stay on the host.
        """
        return self._with(self.data.to(*arguments, **options))

    def _with(self, data: Tensor) -> PackedSequence:
        return self if data is self.data else holding(self, data)

    def cpu(self) -> PackedSequence:
        return self._with(self.data.cpu())

    def cuda(self, device: Any = None) -> PackedSequence:
        return self._with(self.data.cuda(device))

    def double(self) -> PackedSequence:
        return self._with(self.data.double())

    def float(self) -> PackedSequence:
        return self._with(self.data.float())

    def half(self) -> PackedSequence:
        return self._with(self.data.half())

    def long(self) -> PackedSequence:
        return self._with(self.data.long())

    def int(self) -> PackedSequence:
        return self._with(self.data.int())

    def pin_memory(self) -> PackedSequence:
        return self._with(self.data.pin_memory())

    @property
    def is_cuda(self) -> bool:
        return bool(self.data.is_cuda)


def _checked_sizes(data: Tensor, batch_sizes: Tensor) -> Array:
    """Return the values of `batch_sizes`.

    Raises: ArgumentError unless they are positive integers in decreasing order, whose sum is the length of the data.
    """
    if batch_sizes.tensor_type.ndim != 1 or not batch_sizes.tensor_type.dtype.is_integer or not data.tensor_type.ndim:
        raise ArgumentError(
            f"PackedSequence at {user_line()}: data {data.tensor_type} must have an axis, and batch_sizes {batch_sizes.tensor_type} must be a "
            f"vector of integers"
        )
    sizes = value_of(batch_sizes, "PackedSequence")
    total = data.tensor_type.shape[0]
    if not sizes.size or sizes[-1] < 1 or (np.diff(sizes) > 0).any() or int(sizes.sum()) != total:
        raise ArgumentError(
            f"PackedSequence at {user_line()}: batch_sizes {sizes.tolist()} must be positive, in decreasing order, and add up to {total}, the "
            f"length of data {data.tensor_type}"
        )
    return sizes.astype(np.int64)


def holding(source: PackedSequence, data: Tensor) -> PackedSequence:
    """Return a packed sequence of `data`, with the lengths and the order of `source`."""
    device = device_of(data)
    stays = data.layout is not None or device == device_of(source.data)
    indices = (each if each is None or stays else each.to(device) for each in source[2:])
    packed = _Fields.__new__(PackedSequence, data, source.batch_sizes, *indices)
    packed._values = source._values
    return packed


def padded_indices(sequence: PackedSequence, steps: int | None = None, order: Array | None = None) -> tuple[Array, Array, Array]:
    """Return the lengths of the sequences, and two arrays [steps, n]: the index of each element in the data, and True where an element exists.

    `order` selects and orders the sequences; `steps` defaults to the longest length.
    """
    sizes, _ = sequence._values
    columns = np.arange(sizes[0]) if order is None else order
    lengths: Array = (sizes > columns[:, None]).sum(1)
    indices = np.zeros((len(sizes) if steps is None else steps, len(columns)), np.int64)
    indices[: len(sizes)] = (np.cumsum(sizes) - sizes)[:, None] + columns
    inside = np.arange(len(indices))[:, None] < lengths
    return lengths, np.where(inside, indices, 0), inside


def host_tensor(array: Array) -> Tensor:
    """Return a local tensor that shares the memory of an array, also while a program is traced."""
    return Tensor.new(type_of(array), None, array)


def constant_for(x: Tensor, array: Array) -> Tensor:
    """Return a tensor with the values of an array that operations accept together with x: local, or broadcast on the placement of x."""
    return tensor(array, device=device_of(x)) if x.layout is None else tensor(array, placement=x.placement, sbp=(B,) * len(x.layout.sbp))


def gathered(x: Tensor, indices: Array) -> Tensor:
    """Return x[indices] along the first axis, for indices of any shape that are in range."""
    return run(Gather(0), x, constant_for(x, indices))


def in_order(x: Tensor, axis: int, order: Array) -> Tensor:
    """Return x with the slices along an axis in the order of these indices, which are in range."""
    return run(Gather(axis), x, constant_for(x, order))


def _permutation(x: Tensor, order: Array) -> Tensor:
    """Return the order as a tensor on the device of x, or on the host while a program is traced."""
    return host_tensor(order) if x.layout is None and (building_now() is not None or not x.is_cuda) else constant_for(x, order)


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """Return the inverse of a permutation of 0 to n - 1; None for None.  Raises: ArgumentError for other values."""
    if permutation is None:
        return None
    return _permutation(permutation, np.argsort(_permutation_values("invert_permutation", permutation)))


def _permutation_values(what: str, permutation: Any) -> Array:
    """Return the values of a permutation; raise ArgumentError for other values."""
    if not isinstance(permutation, Tensor):
        raise ArgumentError(f"{what} at {user_line()}: a permutation must be a tensor or None; got {permutation!r}")
    order = value_of(permutation, what)
    if order.ndim != 1 or order.dtype.kind not in "iu" or not np.array_equal(np.sort(order), np.arange(order.size)):
        raise ArgumentError(f"{what} at {user_line()}: the permutation {permutation.tensor_type} must have each of the integers 0 to n - 1 once")
    return order.astype(np.int64)


def _lengths(what: str, lengths: Any, count: int, longest: int) -> Array:
    """Return the lengths of `count` sequences; raise ArgumentError unless they are integers from 1 to `longest`."""
    if isinstance(lengths, Tensor) and building_now() is not None:
        raise JobError(f"{what} at {user_line()}: the values of the tensor lengths are not known while {running()} runs; pass a list of integers")
    if isinstance(lengths, Tensor):
        values = value_of(lengths, what)
    elif isinstance(lengths, list | tuple | np.ndarray) and all(isinstance(n, int | np.integer) for n in lengths):
        values = np.array(lengths, np.int64)
    else:
        raise ArgumentError(f"{what} at {user_line()}: lengths is {lengths!r}; pass a tensor or a list of integers, one for each sequence")
    if values.shape != (count,) or values.dtype.kind not in "iu":
        raise ArgumentError(f"{what} at {user_line()}: lengths {values.tolist()} must be {count} integers, one for each sequence")
    if count and not (values.min() >= 1 and values.max() <= longest):
        raise ArgumentError(f"{what} at {user_line()}: lengths {values.tolist()} must be from 1 to {longest}, the number of steps")
    return values.astype(np.int64)


def _batch_axes(what: str, x: Tensor, batch_first: Any) -> tuple[int, int]:
    """Return the numbers of steps and sequences of a padded batch; raise ShapeError unless it has two axes, or ArgumentError for the flag."""
    flag(what, "batch_first", batch_first)
    if x.tensor_type.ndim < 2 or 0 in x.tensor_type.shape[:2]:
        raise ShapeError(f"{what} at {user_line()}: the batch {x.tensor_type} must be [steps, n, ...], or [n, steps, ...] with batch_first")
    first, second = x.tensor_type.shape[:2]
    return (second, first) if batch_first else (first, second)


def pack_padded_sequence(input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True) -> PackedSequence:
    """Return a padded batch [steps, n, ...], or [n, steps, ...] with `batch_first`, as a packed sequence of the first `lengths[i]` elements.

    With `enforce_sorted`, the lengths must decrease; otherwise the sequences are sorted by their lengths.
    Raises: ArgumentError for lengths out of range or in another order; ShapeError for a batch with fewer than two axes.
    """
    what = "pack_padded_sequence"
    steps, count = _batch_axes(what, input, batch_first)
    values = _lengths(what, lengths, count, steps)
    order = np.arange(count) if flag(what, "enforce_sorted", enforce_sorted) else np.argsort(-values, kind="stable")
    values = values[order]
    if (np.diff(values) > 0).any():
        raise ArgumentError(f"{what} at {user_line()}: lengths {values.tolist()} do not decrease; sort the sequences, or pass enforce_sorted=False")
    step, row = np.nonzero(np.arange(values[0])[:, None] < values)
    rows = order[row]
    flat = reshape(input, (steps * count, *input.tensor_type.shape[2:]))
    data = gathered(flat, rows * steps + step if batch_first else step * count + rows)
    return _packed(data, np.bincount(step), None if enforce_sorted else order)


def _packed(data: Tensor, sizes: Array, order: Array | None) -> PackedSequence:
    """Return a packed sequence with these values of `batch_sizes` and `sorted_indices`."""
    unsorted = None if order is None else np.argsort(order)
    indices = (None if each is None else _permutation(data, each) for each in (order, unsorted))
    packed = _Fields.__new__(PackedSequence, data, host_tensor(sizes), *indices)
    packed._values = sizes, unsorted
    return packed


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the sequences as a padded batch [steps, n, ...], or [n, steps, ...] with `batch_first`, and their lengths, in the original order.

    `total_length` is the number of steps, by default the length of the longest sequence.
    Raises: ArgumentError for a smaller `total_length`.
    """
    what = "pad_packed_sequence"
    _check_packed(what, sequence)
    sizes, unsorted = sequence._values
    steps = len(sizes)
    if total_length is not None and not (isinstance(total_length, int | np.integer) and steps <= total_length <= LARGEST):
        raise ArgumentError(
            f"{what} at {user_line()}: total_length {total_length!r} must be an integer from {steps}, the longest length, to {LARGEST}"
        )
    lengths, indices, inside = padded_indices(sequence, None if total_length is None else int(total_length), unsorted)
    return _padded(sequence.data, indices, inside, batch_first, padding_value), host_tensor(lengths)


def _check_packed(what: str, sequence: Any) -> None:
    if not isinstance(sequence, PackedSequence):
        raise ArgumentError(f"{what} at {user_line()}: the argument must be a PackedSequence; got {type(sequence).__name__}")


def _padded(x: Tensor, at: Array, inside: Array, batch_first: bool, value: float) -> Tensor:
    """Return x at the indices `at` [steps, n], with `value` where `inside` is False; [n, steps] with `batch_first`."""
    if flag("padding", "batch_first", batch_first):
        at, inside = at.T.copy(), inside.T.copy()
    result = gathered(x, at)
    if inside.all():
        return result
    mask = constant_for(x, inside.reshape(*inside.shape, *(1,) * (x.tensor_type.ndim - 1)))
    padded: Tensor = where(mask, result, value)
    if padded.dtype is not x.dtype:
        raise DtypeError(f"padding at {user_line()}: the padding value {value!r} is not a number of the element type {x.dtype.name}; pass an integer")
    return padded


def _listed(what: str, sequences: Any) -> list[Tensor]:
    """Return the sequences as a list; raise ArgumentError or ShapeError unless they differ in their first axis only."""
    listed = list(unbind(sequences, 0)) if isinstance(sequences, Tensor) and sequences.tensor_type.ndim else sequences
    if not isinstance(listed, list | tuple) or not listed or not all(isinstance(x, Tensor) for x in listed):
        raise ArgumentError(f"{what} at {user_line()}: sequences must be a list of at least one tensor; got {type(sequences).__name__} {sequences!r}")
    types = [x.tensor_type for x in listed]
    if any(not type.ndim or type.shape[1:] != types[0].shape[1:] or type.dtype is not types[0].dtype for type in types):
        raise ShapeError(
            f"{what} at {user_line()}: sequences must be [length, ...] of equal types and further axes; got {', '.join(map(str, types))}"
        )
    return list(listed)


def pad_sequence(sequences: Any, batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right") -> Tensor:
    """Return sequences [length, ...] as a padded batch [steps, n, ...], or [n, steps, ...] with `batch_first`.

    Raises: ArgumentError for an empty list; ConfigError for an unknown `padding_side`; ShapeError for sequences whose further axes differ.
    """
    what = "pad_sequence"
    listed = _listed(what, sequences)
    one_of(what, "padding_side", padding_side, ("left", "right"))
    lengths = np.array([x.tensor_type.shape[0] for x in listed], np.int64)
    steps = np.arange(lengths.max())[:, None]
    step = steps - (lengths.max() - lengths) if padding_side == "left" else steps
    inside = (step >= 0) & (step < lengths)
    everything = cat(listed, 0)
    if not everything.tensor_type.shape[0]:
        return reshape(everything, (*((len(listed), 0) if batch_first else (0, len(listed))), *listed[0].tensor_type.shape[1:]))
    return _padded(everything, np.where(inside, np.cumsum(lengths) - lengths + step, 0), inside, batch_first, padding_value)


def unpad_sequence(padded_sequences: Tensor, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """Return the sequences of a padded batch [steps, n, ...], or [n, steps, ...] with `batch_first`, as a list of views [lengths[i], ...]."""
    what = "unpad_sequence"
    steps, count = _batch_axes(what, padded_sequences, batch_first)
    values = _lengths(what, lengths, count, steps)
    rows = unbind(padded_sequences, 0 if batch_first else 1)
    return [_first(x, int(n)) for x, n in zip(rows, values, strict=True)]


def _first(x: Tensor, count: int) -> Tensor:
    return run(Slice((0,) * x.ndim, (count, *x.tensor_type.shape[1:]), (1,) * x.ndim), x)


def pack_sequence(sequences: Any, enforce_sorted: bool = True) -> PackedSequence:
    """Return sequences [length, ...] as a packed sequence; arguments as in `pack_padded_sequence`."""
    listed = _listed("pack_sequence", sequences)
    return pack_padded_sequence(pad_sequence(listed), [x.tensor_type.shape[0] for x in listed], enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """Return the sequences of a packed sequence as a list of tensors, in the original order."""
    _check_packed("unpack_sequence", packed_sequences)
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)
