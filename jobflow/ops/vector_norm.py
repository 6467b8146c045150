"""Norms of vectors along axes, in ops that may be split along them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jobflow.core.types import Tensor
from jobflow.ops.arithmetic import where
from jobflow.ops.compare import equal
from jobflow.ops.reduce import reduce_max, reduce_min, reduce_sum
from jobflow.ops.rounding import rounded_once
from jobflow.ops.scalar import fill_like
from jobflow.ops.source import constant
from jobflow.ops.transcendental import absolute, scalar_power, sqrt, square


@rounded_once
def vector_norm(x: Tensor, order: float = 2.0, axes: Sequence[int] | int | None = None, keepdims: bool = False, *, name: str | None = None) -> Tensor:
    """(sum |x|^order)^(1/order); the largest or smallest |x| for order inf or -inf, the number of elements that are not 0 for 0.

    The gradient where the norm is 0 is 0.
    """
    if math.isinf(order):
        return (reduce_max if order > 0 else reduce_min)(absolute(x), axes, keepdims, name=name)
    if order == 0:
        zero, one = (fill_like(x, number) for number in (0.0, 1.0))  # made of x, so that its gradient is 0 and not missing
        return reduce_sum(where(equal(x, zero), zero, one), axes, keepdims, name=name)
    if order == 1:
        return reduce_sum(absolute(x), axes, keepdims, name=name)
    total = reduce_sum(square(x) if order == 2 else _powers(x, order), axes, keepdims)
    return root(total, order, name=name)


def root(x: Tensor, order: float = 2.0, *, name: str | None = None) -> Tensor:
    """x^(1/order), whose gradient at 0 is 0 instead of infinite: that of a distance from itself."""
    zero, one = (constant(number, (), x.tensor_type.dtype) for number in (0.0, 1.0))
    nothing = equal(x, zero)
    safe = where(nothing, one, x)
    return where(nothing, zero, sqrt(safe) if order == 2 else scalar_power(safe, 1 / order), name=name)


def _powers(x: Tensor, order: float) -> Tensor:
    """|x|^order, whose gradient at 0 is 0 also where that of the power is infinite."""
    if order >= 1:
        return scalar_power(absolute(x), order)
    zero = equal(x, fill_like(x, 0.0))
    return where(zero, fill_like(x, 0.0 if order > 0 else math.inf), scalar_power(absolute(where(zero, fill_like(x, 1.0), x)), order))
