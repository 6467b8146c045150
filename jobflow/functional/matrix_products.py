"""Products of vectors and matrices, distances between them, and integrals by the trapezoidal rule."""

from __future__ import annotations

import math
from typing import Any

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.functional.argument_checks import checks_arguments
from jobflow.functional.binary_functions import add, bmm, dot, matmul, mul, mv, outer, plus, sub
from jobflow.functional.dispatch import method
from jobflow.functional.in_place import in_place
from jobflow.functional.joining import narrow
from jobflow.functional.promotion import Number, as_float, pair, rounded_once, together
from jobflow.functional.reductions import cumsum, norm
from jobflow.functional.reductions import sum as total
from jobflow.functional.selecting import diagonal, roll
from jobflow.functional.shapes import axis_of, common_shape, expand, expanded_together, permute, reshape, unsqueeze
from jobflow.functional.typed import Tensor

__all__ = [
    "addbmm", "addmv", "addr", "cdist", "chain_matmul", "cross", "cumulative_trapezoid", "dist", "inner", "kron", "tensordot", "trace", "trapezoid",
    "trapz", "vdot",
]  # fmt: skip

# -------------------------------------------------------------------- products


@rounded_once
def addbmm(x: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """Return beta * x + alpha * (the sum of the products of two batches of matrices); with beta = 0 the values of x are ignored."""
    return plus(x, beta, total(bmm(batch1, batch2), 0, dtype=batch1.dtype), alpha)


@rounded_once
def addmv(x: Tensor, mat: Tensor, vec: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """Return beta * x + alpha * (mat @ vec); with beta = 0 the values of x are ignored."""
    return plus(x, beta, mv(mat, vec), alpha)


@rounded_once
def addr(x: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """Return beta * x + alpha * (the outer product of two vectors); with beta = 0 the values of x are ignored."""
    return plus(x, beta, outer(vec1, vec2), alpha)


def inner(x: Tensor, other: Tensor) -> Tensor:
    """Return the sums of products over the last axes of x and `other`, for all pairs of the other axes.

    Raises: ShapeError if the last axes differ.
    """
    a, b = pair("inner", x, other)
    if not a.ndim or not b.ndim:
        return mul(a, b)
    if a.shape[-1] != b.shape[-1]:
        raise ShapeError(f"inner at {user_line()}: the last axes of x {a.tensor_type} and other {b.tensor_type} must have the same size")
    return tensordot(a, b, ([-1], [-1]))


def vdot(x: Tensor, other: Tensor) -> Tensor:
    """Return the inner product of two vectors; see `dot`."""
    return dot(x, other)


def kron(x: Tensor, other: Tensor) -> Tensor:
    """Return the Kronecker product: `other` times each element of x, as blocks."""
    ndim = max(x.ndim, other.ndim)
    left, right = ((1,) * (ndim - each.ndim) + tuple(each.shape) for each in (x, other))
    a, b = together("kron", reshape(x, left), reshape(other, right))  # with equal numbers of axes, both types count
    blocks = mul(reshape(a, tuple(n for size in left for n in (size, 1))), reshape(b, tuple(n for size in right for n in (1, size))))
    return reshape(blocks, tuple(n * m for n, m in zip(left, right, strict=True)))


def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """Return the sums of products over axes of a and b.

    `dims` is the number of last axes of a and first axes of b, or two lists of axes.
    Raises: ShapeError if the summed axes differ in size, ArgumentError for other `dims`.
    """
    first, second = _contracted(a, b, dims)
    x, y = pair("tensordot", a, b)
    for i, j in zip(first, second, strict=True):  # an axis of size 1 is repeated
        x = total(x, i, True, dtype=x.dtype) if y.shape[j] == 1 != x.shape[i] else x
        y = total(y, j, True, dtype=y.dtype) if x.shape[i] == 1 != y.shape[j] else y
    rest = [[i for i in range(each.ndim) if i not in axes] for each, axes in ((x, first), (y, second))]
    lengths = [[each.shape[i] for i in axes] for each, axes in zip((x, y), rest, strict=True)]
    count = math.prod(x.shape[i] for i in first)
    left = reshape(permute(x, [*rest[0], *first]), (math.prod(lengths[0]), count))
    right = reshape(permute(y, [*second, *rest[1]]), (count, math.prod(lengths[1])))
    return reshape(matmul(left, right), (*lengths[0], *lengths[1]))


def _contracted(a: Tensor, b: Tensor, dims: Any) -> tuple[list[int], list[int]]:
    """Return the axes of a and of b that `tensordot` sums over."""
    what = "tensordot"
    dims = dims.tolist() if isinstance(dims, Tensor) else dims
    if isinstance(dims, int):
        if not 0 <= dims <= min(a.ndim, b.ndim):
            raise ArgumentError(
                f"{what} at {user_line()}: dims={dims} must be from 0 to {min(a.ndim, b.ndim)} for {a.tensor_type} and {b.tensor_type}"
            )
        return list(range(a.ndim - dims, a.ndim)), list(range(dims))
    if not isinstance(dims, list | tuple) or len(dims) != 2:
        raise ArgumentError(f"{what} at {user_line()}: dims must be an int or two lists of axes; got {dims!r}")
    lists = [list(each) if isinstance(each, list | tuple) else [each] for each in dims]
    first, second = ([axis_of(what, d, x.ndim) for d in axes] for x, axes in zip((a, b), lists, strict=True))
    if len(first) != len(second) or len({*first}) != len(first) or len({*second}) != len(second):
        raise ArgumentError(f"{what} at {user_line()}: dims={dims} must name the same number of different axes of both tensors")
    if any(a.shape[i] != b.shape[j] and 1 not in (a.shape[i], b.shape[j]) for i, j in zip(first, second, strict=True)):
        raise ShapeError(f"{what} at {user_line()}: the axes {first} of a {a.tensor_type} and {second} of b {b.tensor_type} must have equal sizes")
    return first, second


def chain_matmul(*matrices: Tensor) -> Tensor:
    """Return the product of matrices, in the order with the fewest multiplications."""
    from jobflow.functional.linalg_functions import multi_dot

    return multi_dot(matrices)


def trace(x: Tensor) -> Tensor:
    """Return the sum of the diagonal of a matrix.  Raises: ShapeError unless x has two axes."""
    if x.ndim != 2:
        raise ShapeError(f"trace at {user_line()}: x must be a matrix; got {x.tensor_type}")
    return total(diagonal(x))


@checks_arguments
def cross(x: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """Return the cross products of vectors of three elements along axis `dim`, by default the first axis of size 3.

    Raises: ShapeError if there is no axis of size 3.
    """
    if dim is None:
        dim = next((i for i, n in enumerate(x.shape) if n == 3), -1)
    return cross_along("cross", x, other, dim)


def cross_along(what: str, x: Tensor, other: Tensor, dim: int) -> Tensor:
    """Return the cross products of vectors along axis `dim`, after broadcasting the other axes."""
    a, b = pair(what, x, other)
    if a.ndim != b.ndim or not a.ndim:
        raise ShapeError(f"{what} at {user_line()}: x {a.tensor_type} and other {b.tensor_type} must have the same number of axes")
    axis = axis_of(what, dim, a.ndim)
    if a.shape[axis] != 3 or b.shape[axis] != 3:
        raise ShapeError(f"{what} at {user_line()}: axis {axis} of x {a.tensor_type} and other {b.tensor_type} must have 3 elements")
    a, b = expanded_together(what, a, b)
    return sub(mul(roll(a, -1, axis), roll(b, 1, axis)), mul(roll(a, 1, axis), roll(b, -1, axis)))


# -------------------------------------------------------------------- distances


@checks_arguments
def dist(x: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """Return the norm of order p of the difference of x and `other`, with broadcasting."""
    return norm(as_float(sub(x, other)), p)


@checks_arguments
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = "use_mm_for_euclid_dist_if_necessary") -> Tensor:
    """Return the distances of order p between all rows of x1 [..., n, k] and all rows of x2 [..., m, k], as [..., n, m].

    Leading axes broadcast.  `compute_mode` has no effect.  Raises: ShapeError for other shapes, ArgumentError for a negative p.
    """
    a, b = pair("cdist", x1, x2)
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-1]:
        raise ShapeError(f"cdist at {user_line()}: x1 {a.tensor_type} and x2 {b.tensor_type} must have at least two axes and equal last axes")
    if p < 0:
        raise ArgumentError(f"cdist at {user_line()}: p={p} must not be negative")
    if compute_mode not in (None, *(f"{word}_euclid_dist{rest}" for word, rest in _MODES)):
        raise ArgumentError(f"cdist at {user_line()}: compute_mode={compute_mode!r} is not a mode; omit it")
    lead = common_shape("cdist", a.shape[:-2], b.shape[:-2])
    if not a.shape[-1]:
        return total(expand(sub(unsqueeze(a, -2), unsqueeze(b, -3)), (*lead, a.shape[-2], b.shape[-2], 0)), -1)
    return norm(as_float(sub(unsqueeze(a, -2), unsqueeze(b, -3))), float(p), -1)


_MODES = (("use_mm_for", "_if_necessary"), ("use_mm_for", ""), ("donot_use_mm_for", ""))


# -------------------------------------------------------------------- integrals


def _areas(what: str, y: Tensor, x: Tensor | None, dx: float | None, dim: int) -> tuple[Tensor, int]:
    """Return the area between each pair of neighbours along an axis, and the axis."""
    if x is not None and dx is not None:
        raise ArgumentError(f"{what} at {user_line()}: x and dx are both passed; pass one of them")
    if not y.ndim:
        raise ShapeError(f"{what} at {user_line()}: y {y.tensor_type} must have at least one axis")
    axis = axis_of(what, dim, y.ndim)
    n = y.shape[axis]
    count = max(n - 1, 0)
    mean = mul(add(narrow(y, axis, min(1, n), count), narrow(y, axis, 0, count)), 0.5)
    if x is None:
        return mul(mean, 1 if dx is None else dx), axis
    if x.ndim == 1 and y.ndim > 1:
        x = reshape(x, tuple(-1 if i == axis else 1 for i in range(y.ndim)))
    if x.ndim < y.ndim:
        x = reshape(x, (1,) * (y.ndim - x.ndim) + tuple(x.shape))
    along = axis - y.ndim
    if x.shape[along] != n:
        raise ShapeError(f"{what} at {user_line()}: x {x.tensor_type} must have one element per element of axis {axis} of y {y.tensor_type}")
    steps = sub(narrow(x, along, min(1, n), count), narrow(x, along, 0, count))
    return mul(mean, steps), axis


@checks_arguments
def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float | None = None, dim: int = -1) -> Tensor:
    """Return the integral of y along axis `dim` by the trapezoidal rule, at the points x or at distances `dx`, by default 1."""
    areas, axis = _areas("trapezoid", y, x, dx, dim)
    return total(areas, axis - y.ndim)


@checks_arguments
def trapz(y: Tensor, x: Tensor | None = None, *, dx: float | None = None, dim: int = -1) -> Tensor:
    """Return the integral of y along axis `dim`, an older name of `trapezoid`."""
    areas, axis = _areas("trapz", y, x, dx, dim)
    return total(areas, axis - y.ndim)


@checks_arguments
def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float | None = None, dim: int = -1) -> Tensor:
    """Return the integrals of y up to each point but the first along axis `dim`; see `trapezoid`."""
    areas, axis = _areas("cumulative_trapezoid", y, x, dx, dim)
    return cumsum(areas, axis - y.ndim)


class ProductMethods:
    """Products of vectors and matrices as methods of tensors."""

    __slots__ = ()

    addbmm = method(addbmm)
    addbmm_ = in_place(addbmm)
    addmv = method(addmv)
    addmv_ = in_place(addmv)
    addr = method(addr)
    addr_ = in_place(addr)
    cross = method(cross)
    dist = method(dist)
    inner = method(inner)
    kron = method(kron)
    trace = method(trace)
    vdot = method(vdot)
