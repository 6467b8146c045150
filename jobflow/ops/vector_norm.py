"""Norms of vectors along axes, composed of ops that accept a split of these axes."""

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
    """Return (sum |x|^order)^(1/order) over `axes`, by default over all axes.

    Order inf is the maximum of |x|, -inf the minimum, and 0 the number of nonzero elements.  The gradient of a zero norm is 0.
    """
    if math.isinf(order):
        return (reduce_max if order > 0 else reduce_min)(absolute(x), axes, keepdims, name=name)
    if order == 0:
        zero, one = (fill_like(x, number) for number in (0.0, 1.0))  # depends on x, so that its gradient is 0 instead of None
        return reduce_sum(where(equal(x, zero), zero, one), axes, keepdims, name=name)
    if order == 1:
        return reduce_sum(absolute(x), axes, keepdims, name=name)
    total = reduce_sum(square(x) if order == 2 else _powers(x, order), axes, keepdims)
    return root(total, order, name=name)


def root(x: Tensor, order: float = 2.0, *, name: str | None = None) -> Tensor:
    """Return x^(1/order) for x >= 0, with a gradient of 0 instead of infinity at 0; a distance of equal vectors needs this gradient."""
    zero, one = (constant(number, (), x.tensor_type.dtype) for number in (0.0, 1.0))
    nothing = equal(x, zero)
    safe = where(nothing, one, x)
    return where(nothing, zero, sqrt(safe) if order == 2 else scalar_power(safe, 1 / order), name=name)


def _powers(x: Tensor, order: float) -> Tensor:
    """Return |x|^order with a gradient of 0 where x is 0."""
    if order >= 1:
        return scalar_power(absolute(x), order)
    zero = equal(x, fill_like(x, 0.0))
    return where(zero, fill_like(x, 0.0 if order > 0 else math.inf), scalar_power(absolute(where(zero, fill_like(x, 1.0), x)), order))
