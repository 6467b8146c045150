"""Methods that overwrite the elements of a tensor: Python functions, random samples, diagonals, and in-place variants of other functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, JobError, PlacementError, ShapeError, user_line
from jobflow.core.layout import B, Partial
from jobflow.functional import binary_functions as arithmetic
from jobflow.functional import comparing, reductions, sampling, sorting, unary_functions
from jobflow.functional.argument_checks import checks_arguments
from jobflow.functional.binary_functions import add, div, mul
from jobflow.functional.creation import number
from jobflow.functional.dispatch import method
from jobflow.functional.in_place import in_place, written
from jobflow.functional.promotion import cast, convert_fill
from jobflow.functional.shapes import flatten, reshape
from jobflow.functional.typed import Tensor
from jobflow.functional.unary_functions import exp, floor, log1p, tan
from jobflow.ops.scalar import FillLike
from jobflow.ops.slice_update import SliceUpdate
from jobflow.ops.slices import Slice
from jobflow.tensors.gpus import as_numpy, gpu_of, on_device
from jobflow.tensors.run import run
from jobflow.tensors.state import refuse_tracing


@checks_arguments
def fill_diagonal_(x: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """Set the main diagonal of x to a number, and return x; with `wrap`, the diagonal of a tall matrix continues below an empty row.

    Raises: ShapeError for fewer than two axes, or for several axes of different sizes.
    """
    what, shape = "fill_diagonal_", tuple(x.shape)
    if len(shape) < 2 or (len(shape) > 2 and len(set(shape)) > 1):
        raise ShapeError(f"{what} at {user_line()}: {x.tensor_type} must be a matrix, or have axes of one size")
    value = convert_fill(number(fill_value, what), x.tensor_type.dtype)
    step = shape[1] + 1 if len(shape) == 2 else sum(shape[0] ** i for i in range(len(shape)))
    size = math.prod(shape)
    stop = size if len(shape) == 2 and wrap else min(size, min(shape) * step)
    if not size:
        return x
    old, window = flatten(x.detach()), Slice((0,), (stop,), (step,))
    part = run(FillLike(value), run(window, old))
    return written(x, what, reshape(run(SliceUpdate(window), flatten(x), part), shape))


# -------------------------------------------------------------------- Python functions of elements


def _unreduced(x: Tensor) -> Tensor:
    """Return x, whose local elements are elements of the tensor; a partial tensor, of which they are addends, becomes a broadcast one."""
    if x.layout is None or not any(isinstance(each, Partial) for each in x.layout.sbp):
        return x
    return x.to_global(sbp=[B if isinstance(each, Partial) else each for each in x.layout.sbp])


def _in_layout_of(x: Tensor, other: Tensor) -> Tensor:
    return other if other.layout == x.layout or x.layout is None else other.to_global(sbp=list(x.layout.sbp))


def _mapped(what: str, x: Tensor, function: Any, *others: Tensor) -> Tensor:
    if not callable(function):
        raise ArgumentError(f"{what} at {user_line()}: callable={function!r} must be a function of numbers")
    refuse_tracing(what, "a Python function of single elements cannot run", "write the function with operations of tensors")
    if x._needs_gradient:
        raise JobError(f"{what} at {user_line()}: {x.tensor_type} requires gradients, which a Python function of numbers does not have; use detach()")
    first = _unreduced(x)
    columns = [as_numpy(each.array).reshape(-1).tolist() for each in (first, *(_in_layout_of(first, other) for other in others))]
    values = [function(*elements) for elements in zip(*columns, strict=True)]
    try:
        array = np.asarray(values, x.array.dtype).reshape(first.array.shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(f"{what} at {user_line()}: the function must return numbers of type {x.dtype.name}; {error}") from None
    return written(x, what, Tensor.new(x.tensor_type, first.layout, on_device(gpu_of(x.array), array)))


def apply_(x: Tensor, callable: Callable[[Any], Any]) -> Tensor:
    """Replace each element by the result of a Python function of one number, and return x; this is slow.

    Raises: JobError in a trace and for a tensor that requires gradients.
    """
    return _mapped("apply_", x, callable)


def map_(x: Tensor, tensor: Tensor, callable: Callable[[Any, Any], Any]) -> Tensor:
    """Replace each element of x by callable(element, element of `tensor`), with a Python function of two numbers, and return x; this is slow.

    Raises: ShapeError for another shape, PlacementError for another placement; JobError as in `apply_`.
    """
    if tensor.shape != x.shape:
        raise ShapeError(f"map_ at {user_line()}: tensor {tensor.tensor_type} must have the shape of x {x.tensor_type}; pass a tensor of this shape")
    if (None if x.layout is None else x.layout.placement) != (None if tensor.layout is None else tensor.layout.placement):
        raise PlacementError(f"map_ at {user_line()}: tensor and x must be on the same placement, or both local; convert one of them with to_global")
    return _mapped("map_", x, callable, tensor)


# -------------------------------------------------------------------- random samples


def _uniform(x: Tensor, generator: Any) -> Tensor:
    """Return samples of the uniform distribution on [0, 1) in the shape of x."""
    return sampling.uniform_like(x.detach(), 0.0, 1.0, generator)


def _positive(what: str, name: str, value: float) -> None:
    if not value > 0:
        raise ArgumentError(f"{what} at {user_line()}: {name}={value} must be greater than 0")


@checks_arguments
def exponential_(x: Tensor, lambd: float = 1, *, generator: Any = None) -> Tensor:
    """Fill x with samples of the exponential distribution of rate `lambd`, and return x."""
    _positive("exponential_", "lambd", lambd)
    return written(x, "exponential_", mul(log1p(-_uniform(x, generator)), -1.0 / lambd))


@checks_arguments
def geometric_(x: Tensor, p: float, *, generator: Any = None) -> Tensor:
    """Fill x with numbers of trials until the first success, each with probability p, and return x."""
    if not 0 < p < 1:
        raise ArgumentError(f"geometric_ at {user_line()}: p={p} must be greater than 0 and less than 1")
    u = sampling.uniform_like(x.detach() if x.dtype.is_float else x.detach().float(), 0.0, 1.0, generator)
    return written(x, "geometric_", cast(add(floor(div(log1p(-u), math.log1p(-p))), 1.0), x.dtype))


@checks_arguments
def cauchy_(x: Tensor, median: float = 0, sigma: float = 1, *, generator: Any = None) -> Tensor:
    """Fill x with samples of the Cauchy distribution with the median `median` and the scale `sigma`, and return x."""
    _positive("cauchy_", "sigma", sigma)
    return written(x, "cauchy_", add(mul(tan(mul(add(_uniform(x, generator), -0.5), math.pi)), sigma), median))


@checks_arguments
def log_normal_(x: Tensor, mean: float = 1, std: float = 2, *, generator: Any = None) -> Tensor:
    """Fill x with exponentials of samples of the normal distribution with mean `mean` and standard deviation `std`, and return x."""
    _positive("log_normal_", "std", std)
    return written(x, "log_normal_", exp(sampling.normal_like(x.detach(), mean, std, generator)))


# -------------------------------------------------------------------- in-place variants


def _einsum(x: Tensor, equation: str, *operands: Any) -> Tensor:
    """Return sums of products of x and further operands over named axes; see `flow.einsum`."""
    return sorting.einsum(equation, x, *operands)


class WritingMethods:
    """Methods that overwrite the elements of a tensor."""

    __slots__ = ()

    apply_ = method(apply_)
    cauchy_ = method(cauchy_)
    einsum = method(_einsum, "einsum")
    exponential_ = method(exponential_)
    fill_diagonal_ = method(fill_diagonal_)
    geometric_ = method(geometric_)
    log_normal_ = method(log_normal_)
    map_ = method(map_)
    atan2_ = in_place(unary_functions.atan2)
    bitwise_not_ = in_place(arithmetic.bitwise_not)
    cumprod_ = in_place(reductions.cumprod)
    cumsum_ = in_place(reductions.cumsum)
    eq_ = in_place(comparing.eq)
    exp2_ = in_place(unary_functions.exp2)
    float_power_ = in_place(arithmetic.float_power)
    frac_ = in_place(unary_functions.frac)
    ge_ = in_place(comparing.ge)
    gt_ = in_place(comparing.gt)
    le_ = in_place(comparing.le)
    log10_ = in_place(unary_functions.log10)
    log2_ = in_place(unary_functions.log2)
    logical_and_ = in_place(comparing.logical_and)
    logical_not_ = in_place(comparing.logical_not)
    logical_or_ = in_place(comparing.logical_or)
    logical_xor_ = in_place(comparing.logical_xor)
    lt_ = in_place(comparing.lt)
    nan_to_num_ = in_place(unary_functions.nan_to_num)
    ne_ = in_place(comparing.ne)
    arctan2_ = atan2_
    greater_ = gt_
    greater_equal_ = ge_
    less_ = lt_
    less_equal_ = le_
    not_equal_ = ne_
