"""Functions that fill a tensor, new or in place: with a value, the elements of another tensor, or random values."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from jobflow.core.errors import PlacementError, ShapeError, user_line
from jobflow.core.types import type_of
from jobflow.functional import creation, sampling
from jobflow.functional.array_data import array_of
from jobflow.functional.dispatch import method
from jobflow.functional.in_place import written
from jobflow.functional.promotion import cast, convert_fill
from jobflow.functional.typed import Tensor
from jobflow.ops.broadcast import BroadcastTo
from jobflow.ops.layout_ops import Copy
from jobflow.ops.scalar import FillLike
from jobflow.tensors import redistribution
from jobflow.tensors.device_copies import on_device_of
from jobflow.tensors.in_place_writes import passed_on
from jobflow.tensors.run import run
from jobflow.tensors.state import state
from jobflow.tensors.tape import record
from jobflow.tensors.tensor import Size


def new(x: Tensor, *arguments: Any, device: Any = None) -> Tensor:
    """Return a tensor of the sizes `arguments`, of zeros that are meant to be overwritten, or with the data of one list, array or tensor.

    x provides the element type and layout.
    """
    options = {} if device is None else {"device": device}
    if len(arguments) == 1 and not isinstance(arguments[0], int | np.integer | Size):
        return creation.new_tensor(x, arguments[0], dtype=x.dtype, **options)
    return creation.new_empty(x, *(arguments or (0,)), **options)


def fill_(x: Tensor, value: Any) -> Tensor:
    """Set every element of x to `value`, and return x."""
    number = creation.number(value, "fill_")
    return written(x, "fill_", run(FillLike(convert_fill(number, x.tensor_type.dtype)), x.detach()))


def zero_(x: Tensor) -> Tensor:
    """Set every element of x to 0, and return x."""
    return fill_(x, 0)


def copy_(x: Tensor, other: Any) -> Tensor:
    """Copy the elements of another tensor, array or number into x, and return x.

    The value is broadcast to the shape of x, and converted to the element type and layout of x.
    Raises: ShapeError if the value does not broadcast; PlacementError for a local value and a global x, or vice versa.
    """
    if isinstance(other, np.ndarray):
        array = array_of("copy_", other)
        value = Tensor.new(type_of(array), None, array) if x.layout is None else creation.cut("copy_", array, creation.whole(x.layout))
    else:
        value = other if isinstance(other, Tensor) else creation.full_like(x, other)
    if (value.layout is None) != (x.layout is None):
        raise PlacementError(
            f"copy_ at {user_line()}: cannot copy {_described(value)} into {_described(x)}; create the value with device=x.device, or use to_global "
            "or to_local"
        )
    value = cast(value, x.tensor_type.dtype)
    if value.tensor_type.shape != x.tensor_type.shape:
        try:
            value = run(BroadcastTo(x.tensor_type.shape), value)
        except ShapeError:
            raise ShapeError(f"copy_ at {user_line()}: {value.tensor_type} does not broadcast to {x.tensor_type}") from None
    if x.layout is not None and value.layout != x.layout:
        value = redistribution.redistribute(state(), value, x.layout)
    here = state()
    if value is other and value.node is not None and here.grad_enabled:  # x and the value must not share hooks
        if here.building is not None:
            return written(x, "copy_", run(Copy(), value))
        value = Tensor.new(value.tensor_type, value.layout, value.array)
        record("copy", (other,), (value,), passed_on)
    if here.gpus and here.building is None and x.layout is None:
        value = on_device_of(x, value)
    return written(x, "copy_", value)


def _described(x: Tensor) -> str:
    return f"a {'local' if x.layout is None else 'global'} tensor {x.tensor_type}"


def normal_(x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    """Fill x with samples of the normal distribution of mean `mean` and standard deviation `std`, and return x."""
    return written(x, "normal_", sampling.normal_like(x, mean, std, generator))


def uniform_(x: Tensor, a: float = 0.0, b: float = 1.0, *, generator: Any = None) -> Tensor:
    """Fill x with samples of the uniform distribution on [a, b), and return x."""
    return written(x, "uniform_", sampling.uniform_like(x, a, b, generator))


def random_(x: Tensor, low: int = 0, high: int | None = None, *, generator: Any = None) -> Tensor:
    """Fill x with uniform random integers in [low, high), and return x; random_(high) starts at 0.

    By default, `high` is 2**24 for floats, and the largest integer of the type, at most 2**31, for integers.
    """
    if high is None:
        low, high = 0, low or (1 << 24 if x.dtype.is_float else min(1 << 31, int(np.iinfo(x.dtype.numpy).max)))
    return written(x, "random_", cast(sampling.randint_like(x.detach(), low, high, generator=generator), x.tensor_type.dtype))


def bernoulli_(x: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
    """Set each element of x to 1 with probability p, else to 0, and return x."""
    return written(x, "bernoulli_", cast(sampling.bernoulli(x.detach().float(), p, generator=generator), x.tensor_type.dtype))


class FillingMethods:
    """Methods of tensors for filling in place."""

    __slots__ = ()

    bernoulli_ = method(bernoulli_)
    copy_ = method(copy_)
    fill_ = method(fill_)
    new: ClassVar[Any] = method(new)  # `Tensor.new` of the base class creates tensors
    normal_ = method(normal_)
    random_ = method(random_)
    uniform_ = method(uniform_)
    zero_ = method(zero_)
