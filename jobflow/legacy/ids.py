"""Functions on integer ids: flow.experimental.unique_with_counts, flow.categorical_ordinal_encode, flow.distributed_partial_fc_sample ..."""

from __future__ import annotations

from typing import Any

import jobflow.core.scope as scope
import jobflow.legacy.arrays as arrays
import jobflow.legacy.math as math
from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, user_line
from jobflow.core.types import DType, Tensor, int32, int64
from jobflow.engine.distribute import current_placement
from jobflow.expressions.philox import random_stream
from jobflow.legacy.job_dispatch import all_of, of_jobs, traced
from jobflow.legacy.operands import Operand, counts
from jobflow.legacy.variables import assign, current_job
from jobflow.ops import elementwise as ew
from jobflow.ops import index as ix
from jobflow.ops import sampled_classes as sampling
from jobflow.ops import shape as sh
from jobflow.ops import source
from jobflow.ops import unique as un
from jobflow.ops.pointwise import call
from jobflow.ops.runtime_assertions import RuntimeAssertion, assert_bounds


def unique_with_counts(x: Tensor, out_idx: DType = int32, name: str | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (distinct elements, indices, counts, number) for the vector x; the number of distinct elements has shape (1,).

    `indices` contains the position of each element of x among the distinct elements, which are in the order of first occurrence.
    The distinct elements and the counts have the length of x, padded with zeros. The type of the last three results is `out_idx`.
    """
    if not isinstance(out_idx, DType) or not out_idx.is_integer:
        raise DtypeError(f"unique_with_counts at {user_line()}: out_idx must be an integer type such as jobflow.int32, not {out_idx!r}")
    return un.unique_with_counts(x, out_idx)


def indexed_slices_reduce_sum(indices: Tensor, values: Tensor, name: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Sum the slices of `values` that have equal indices; the first axes of `values` are the axes of `indices`.

    Return the distinct indices, the sum for each, and the number of distinct indices, shape (1,). Indices and sums have the shapes of the
    arguments, padded with zeros.
    """
    t, rest = indices.tensor_type, values.tensor_type.shape[indices.tensor_type.ndim :]
    if not t.dtype.is_integer or values.tensor_type.shape[: t.ndim] != t.shape:
        raise ShapeError(
            f"indexed_slices_reduce_sum at {user_line()}: indices {t} must be integers, and the first axes of values {values.tensor_type} must be "
            "the axes of indices"
        )
    unique, place, _, count = un.unique_with_counts(sh.reshape(indices, (t.size,)), int64)
    rows = ix.unsorted_segment_sum(sh.reshape(values, (t.size, *rest)), place, t.size, 0)
    return sh.reshape(unique, t.shape), sh.reshape(rows, values.tensor_type.shape), count


globals().update(all_of(__name__, globals(), __name__, traced))


def argwhere(condition: Tensor, dtype: DType | None = None, name: str | None = None) -> Tensor:
    """Return the coordinates of the nonzero elements of `condition` in order, as a tensor [n, axes] with a dynamic n.

    The default dtype is int32.
    """
    return _dynamic_rows("argwhere", condition, dtype, name, 0)


def nonzero(a: Tensor, name: str | None = None) -> Tensor:
    """Return the coordinates of the nonzero elements of `a` as int32 [axes, n], the transposed result of argwhere, with a dynamic n."""
    return _dynamic_rows("nonzero", a, None, name, 1)


def where(condition: Tensor, x: Operand | None = None, y: Operand | None = None, name: str | None = None) -> Tensor:
    """Select x where `condition`, an integer tensor, is not zero and y elsewhere, with broadcasting.

    Without x and y, return argwhere(condition). Raises JobError if only one of x and y is passed.
    """
    return argwhere(condition, None, name) if x is None and y is None else arrays.where(condition, x, y, name)


def places_and_count(x: Tensor, dtype: DType) -> tuple[Tensor, Tensor]:
    """Return the result of argwhere(x, dtype), padded with -1 to [elements of x, axes], and the number of nonzero elements, shape (1,)."""
    return _places("argwhere", x, dtype, None), math.reduce_sum(ew.cast(math.not_equal(x, 0), dtype))


def _dynamic_rows(what: str, x: Tensor, dtype: DType | None, name: str | None, axis: int) -> Tensor:
    places = _places(what, x, dtype, None if axis else name)
    result: Any = sh.transpose(places, (1, 0), name=name) if axis else places
    job = current_job(what)
    return job.dynamic_rows(job.unique_name(f"{what}_rows"), result, axis)


def _places(what: str, x: Tensor, dtype: DType | None, name: str | None) -> Tensor:
    kind = int32 if dtype is None else dtype
    if not isinstance(kind, DType) or not kind.is_integer or not x.tensor_type.ndim:
        raise DtypeError(
            f"{what} at {user_line()}: {x.tensor_type} must have at least one axis, and dtype must be an integer type such as jobflow.int32, "
            f"not {kind!r}"
        )
    return call(un.Argwhere(kind), x, name=name)


def sync_dynamic_resize(inputs: Tensor, size: Tensor, name: str | None = None) -> Tensor:
    """Return the first `size` rows of `inputs`; `size` is a tensor of one integer.

    A size that is negative or larger than the number of rows raises an error in the run.
    """
    what = "sync_dynamic_resize"
    if size.tensor_type.size != 1 or not size.tensor_type.dtype.is_integer or not inputs.tensor_type.ndim:
        raise ArgumentError(
            f"{what} at {user_line()}: size {size.tensor_type} must be one integer, and inputs {inputs.tensor_type} must have at least one axis"
        )
    job, rows = current_job(what), inputs.tensor_type.shape[0]
    last = ew.cast(sh.reshape(assert_bounds(size, what, low=0, high=rows, noun="size"), (1,)), int64)
    numbers = source.arange(0, rows, dtype=int64)
    early: Any = sh.reshape(ew.where(ew.less(numbers, last), numbers, ew.fill_like(numbers, -1)), (rows, 1))
    result = job.dynamic_rows(job.unique_name(f"{what}_rows"), early, 0)
    return ix.gather(inputs, sh.reshape(result, (result.tensor_type.shape[0],)), 0, name=name)


def distributed_partial_fc_sample(weight: Tensor, label: Tensor, num_sample: int, name: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Sample `num_sample` classes of `weight` [classes, ...], split over the devices: all labels, and other classes at random in every run.

    Return the labels as indices into the sampled classes, the sampled classes, and their weights. The random numbers depend on the job's seed and
    the name. Raises: ArgumentError in a run with more distinct labels on a device than the device samples, num_sample / devices.
    """
    return sampled_classes(weight, label, num_sample, None, name)


def sampled_classes(weight: Tensor, label: Tensor, num_sample: int, seed: int | None, name: str | None) -> tuple[Tensor, Tensor, Tensor]:
    """Sample classes whose weights [classes, ...] are split over the devices: all labels, and other classes at random in every run.

    Every device samples the same number of classes: first the labels on the device, then random classes. Return the labels as indices into the
    `num_sample` sampled classes, the sampled classes, and their weights.

    Raises: ArgumentError in a run with more distinct labels on a device than the device samples.
    """
    job, where = current_job("distributed_partial_fc_sample"), current_placement("distributed_partial_fc_sample")
    counts("distributed_partial_fc_sample", num_sample=num_sample)
    classes, flat = weight.tensor_type.shape[0], sh.reshape(label, (label.tensor_type.size,))
    if label.tensor_type.dtype.is_integer:
        flat = assert_bounds(flat, "distributed_partial_fc_sample", low=0, high=classes - 1, noun="label")
    stream = random_stream(job.seed, seed, job.unique_name("partial_fc") if name is None else scope.current().full_name(name))
    mapped, sampled = sampling.sample_classes(flat, job.run_counter(), classes, int(num_sample), where.size, *stream)
    crowded = f"is missing: a device has more distinct labels than the {num_sample // where.size} classes sampled there; increase num_sample"
    mapped = call(RuntimeAssertion("distributed_partial_fc_sample", "the place of a label", low=0, problem=crowded), mapped)
    aligned = len(where.mesh) == 1 or classes % where.size == 0
    accepted = call(sampling.GatherLocalRows(), weight, sampled) if aligned else ix.gather(weight, sampled, 0)
    return sh.reshape(mapped, label.tensor_type.shape), sampled, accepted


def categorical_ordinal_encode(table: Tensor, size: Tensor, input_tensor: Tensor, hash_precomputed: bool = True, name: str | None = None) -> Tensor:
    """Return a number 1, 2, 3 ... for each id in `input_tensor`, in the order of first occurrence in this run and earlier runs.

    The variables `table` [2 capacity] and `size` [1], initially zeros, store the ids. The ids are hashes: `hash_precomputed` must be True.

    Raises: ArgumentError for another `hash_precomputed`, and in a run in which the number of distinct ids exceeds the capacity.
    """
    if hash_precomputed is not True:
        raise ArgumentError(
            f"categorical_ordinal_encode at {user_line()}: hash_precomputed is {hash_precomputed!r}; pass hashes of the ids and hash_precomputed=True"
        )
    codes, later, known = un.ordinal_codes(table, size, input_tensor)
    assign(table, later)
    assign(size, assert_bounds(known, "categorical_ordinal_encode", low=0, high=table.tensor_type.size // 2, noun="number of distinct ids"))
    return ew.identity(codes, name=name)


#: equivalents for tensors outside of jobs
_OF_TENSORS = {
    "argwhere": "flow.argwhere",
    "nonzero": "flow.nonzero",
    "sync_dynamic_resize": "x[:size]",
    "where": "flow.where",
    "categorical_ordinal_encode": "a dictionary",
    "distributed_partial_fc_sample": "flow.randperm and indices",
}
_SAMPLED = {word: function for word, function in globals().items() if word in _OF_TENSORS}
globals().update(all_of(__name__, _SAMPLED, __name__, of_jobs, _OF_TENSORS))
