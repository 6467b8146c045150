"""Covariances, derivatives of samples along axes, and bounds of norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, user_line
from jobflow.core.types import bool_, uint8
from jobflow.functional.argument_checks import checks_arguments
from jobflow.functional.binary_functions import add, div, mm, mul, sub
from jobflow.functional.comparing import gt, where
from jobflow.functional.dispatch import method
from jobflow.functional.in_place import form
from jobflow.functional.joining import cat, narrow
from jobflow.functional.linalg_functions import vector_norm
from jobflow.functional.promotion import as_float, cast, constant, result_type, rounded_once
from jobflow.functional.reductions import sum
from jobflow.functional.selecting import diagonal
from jobflow.functional.shapes import axis_of, reshape, transpose, unsqueeze
from jobflow.functional.typed import Tensor
from jobflow.functional.unary_functions import clamp, sqrt
from jobflow.ops.runtime_assertions import RuntimeAssertion
from jobflow.tensors.run import run

__all__ = ["corrcoef", "cov", "gradient", "renorm"]


def _weights(what: str, x: Tensor, fweights: Tensor | None, aweights: Tensor | None) -> Tensor | None:
    """Return the product of the weights of the observations; raise ShapeError, DtypeError and ArgumentError for invalid weights."""
    result = None
    for name, weights in (("fweights", fweights), ("aweights", aweights)):
        if weights is None:
            continue
        if weights.dtype.is_float != (name == "aweights") or weights.dtype is bool_:
            kind = "a floating point" if name == "aweights" else "an integer"
            raise DtypeError(f"{what} at {user_line()}: {name} must have {kind} type; got {weights.tensor_type}")
        if tuple(weights.shape) != tuple(x.shape[1:]):
            raise ShapeError(f"{what} at {user_line()}: {name} must be a vector with {x.shape[1]} elements; got {weights.tensor_type}")
        weights = run(RuntimeAssertion(what, f"element of {name}", low=0, problem="is negative"), weights)
        result = weights if result is None else mul(result, weights)
    return result


@checks_arguments
def cov(input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None) -> Tensor:
    """Return the covariances of the rows of a matrix, whose columns are observations; a vector is one row.

    `fweights` counts repeated observations, `aweights` weights them, and the divisor is the number of observations minus `correction`.
    Raises: ShapeError for more than two axes, ArgumentError for negative weights.
    """
    if input.ndim > 2 or input.dtype is bool_:
        error = ShapeError if input.ndim > 2 else DtypeError
        raise error(f"cov at {user_line()}: input must be a matrix or a vector of numbers; got {input.tensor_type}")
    x = as_float(input if input.ndim == 2 else reshape(input, (1, -1) if input.tensor_type.size else (1, 0)))
    result = _covariances(x if aweights is None else cast(x, result_type(x, aweights)), correction, fweights, aweights)
    return reshape(result, ()) if x.shape[0] == 1 else result


@rounded_once
def _covariances(x: Tensor, correction: int, fweights: Tensor | None, aweights: Tensor | None) -> Tensor:
    """Return the covariances of the rows of a matrix x; see `cov`."""
    weights = _weights("cov", x, fweights, aweights)
    if weights is None:
        divisor: Any = constant(x, max(x.shape[1] - correction, 0), x.dtype)
        centered = sub(x, div(sum(x, 1, True), constant(x, x.shape[1], x.dtype)))
        return div(mm(centered, transpose(centered, 0, 1)), divisor)
    total = run(RuntimeAssertion("cov", "sum of the weights", nonzero=True, problem="must not be 0"), sum(weights))
    lost = correction if aweights is None else div(mul(sum(mul(weights, aweights)), correction), total)
    centered = sub(x, div(sum(mul(x, weights), 1, True), total))
    return div(mm(mul(centered, weights), transpose(centered, 0, 1)), clamp(sub(total, lost), min=0))


@rounded_once
def corrcoef(input: Tensor) -> Tensor:
    """Return the correlation coefficients of the rows of a matrix, whose columns are observations; a vector is one row."""
    covariance = cov(input)
    if not covariance.ndim:
        return div(covariance, covariance)
    deviation = sqrt(diagonal(covariance))
    return clamp(div(div(covariance, unsqueeze(deviation, 1)), unsqueeze(deviation, 0)), -1, 1)


# -------------------------------------------------------------------- differences


def _coordinates(x: Tensor, spacing: Any, axes: list[int]) -> list[Any]:
    """Return the distance of samples along each axis, or their coordinates."""
    what = f"gradient at {user_line()}"
    scalars = (int, float, np.integer, np.floating)
    if spacing is None or (isinstance(spacing, scalars) and not isinstance(spacing, bool)):
        return [1 if spacing is None else spacing] * len(axes)
    if not isinstance(spacing, list | tuple) or not all(isinstance(each, (Tensor, *scalars)) and not isinstance(each, bool) for each in spacing):
        raise ArgumentError(f"{what}: spacing must be a number, or a list of numbers or tensors, one per axis; got {spacing!r:.80}")
    if len(spacing) != len(axes):
        raise ArgumentError(f"{what}: spacing has {len(spacing)} entries for {len(axes)} axes; pass one entry per axis")
    for each, axis in zip(spacing, axes, strict=True):
        if isinstance(each, Tensor) and tuple(each.shape) != (x.shape[axis],):
            raise ShapeError(f"{what}: the coordinates {each.tensor_type} must be a vector with the {x.shape[axis]} samples of axis {axis}")
    return list(spacing)


@checks_arguments
def gradient(input: Tensor, *, spacing: Any = None, dim: int | Sequence[int] | None = None, edge_order: int = 1) -> tuple[Tensor, ...]:
    """Return the derivatives of a function with samples `input`, along each axis of `dim`, by central differences.

    `spacing` is the distance of the samples, one distance per axis, or one tensor of coordinates per axis.  Derivatives at both ends use
    `edge_order` + 1 samples.  Raises: ArgumentError for an `edge_order` other than 1 and 2; ShapeError for an axis with fewer samples.
    """
    what = f"gradient at {user_line()}"
    axes = list(range(input.ndim)) if dim is None else [axis_of("gradient", d, input.ndim) for d in ([dim] if isinstance(dim, int) else dim)]
    if edge_order not in (1, 2) or len(set(axes)) < len(axes):
        problem = f"edge_order must be 1 or 2; got {edge_order}" if edge_order not in (1, 2) else f"dim {dim} names an axis twice"
        raise ArgumentError(f"{what}: {problem}")
    if input.dtype in (uint8, bool_):
        raise DtypeError(f"{what}: {input.tensor_type} cannot represent negative differences; convert it with .float()")
    steps = _coordinates(input, spacing, axes)
    if any(input.shape[axis] <= edge_order for axis in axes if input.ndim):
        raise ShapeError(f"{what}: each axis of {input.tensor_type} must have at least edge_order + 1 = {edge_order + 1} samples")
    x = as_float(input)
    return tuple(_derivative(x, axis, step, edge_order) for axis, step in zip(axes, steps, strict=True)) if input.ndim else ()


def _derivative(x: Tensor, axis: int, step: Any, edge_order: int) -> Tensor:
    """Return the derivative along one axis; `step` is the distance of the samples, or a vector of coordinates."""
    n, gaps = x.shape[axis], None
    if isinstance(step, Tensor):
        distances = sub(narrow(step, 0, 1, n - 1), narrow(step, 0, 0, n - 1))
        gaps = cast(reshape(distances, tuple(n - 1 if i == axis else 1 for i in range(x.ndim))), x.dtype)

    def at(i: int) -> Tensor:
        return narrow(x, axis, i % n, 1)

    def gap(i: int) -> Any:
        return step if gaps is None else narrow(gaps, axis, i % (n - 1), 1)

    parts = [_edge(at(0), at(1), at(2), gap(0), gap(1)) if edge_order == 2 else div(sub(at(1), at(0)), gap(0))]
    if n > 2:
        before, here, after = (narrow(x, axis, i, n - 2) for i in range(3))
        if gaps is None:
            parts.append(div(div(sub(after, before), step), 2))
        else:
            h0, h1 = narrow(gaps, axis, 0, n - 2), narrow(gaps, axis, 1, n - 2)
            slopes = add(mul(div(sub(here, before), h0), h1), mul(div(sub(after, here), h1), h0))
            parts.append(div(slopes, add(h0, h1)))
    last = div(sub(at(-1), at(-2)), gap(-1))
    parts.append(mul(_edge(at(-1), at(-2), at(-3), gap(-1), gap(-2)), -1) if edge_order == 2 else last)
    return cat(parts, axis)


def _edge(first: Tensor, second: Tensor, third: Tensor, near: Any, far: Any) -> Tensor:
    """Return the derivative, at the first sample, of the parabola through three samples with the distances `near` and `far`."""
    a, b = div(sub(second, first), near), div(sub(third, second), far)
    return sub(a, mul(div(sub(b, a), near + far), near))


# -------------------------------------------------------------------- norms


@checks_arguments
@rounded_once
def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Return the input with each slice of axis `dim` scaled to the norm `maxnorm` if its norm of order p is larger.

    Raises: ArgumentError unless p > 0 and maxnorm >= 0; ShapeError for fewer than two axes.
    """
    what = f"renorm at {user_line()}"
    if not p > 0 or not maxnorm >= 0:
        raise ArgumentError(f"{what}: p {p} must be positive, and maxnorm {maxnorm} not negative")
    if input.ndim < 2 or not input.dtype.is_float:
        error = ShapeError if input.ndim < 2 else DtypeError
        raise error(f"{what}: input must have at least two axes, and a floating point type; got {input.tensor_type}")
    axis = axis_of("renorm", dim, input.ndim)
    norms = vector_norm(input, p, [i for i in range(input.ndim) if i != axis], True)
    large = gt(norms, maxnorm)
    return mul(input, where(large, div(maxnorm, add(where(large, norms, 1.0), 1e-7)), 1.0))


renorm_ = form(renorm)


class StatisticsMethods:
    """Methods of tensors for covariances and norms."""

    __slots__ = ()

    corrcoef = method(corrcoef)
    cov = method(cov)
    renorm = method(renorm)
    renorm_ = method(renorm_)
