"""Matrix products and biases."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import B, Box, Rule, S, Signature
from jobflow.core.types import Array, Tensor, TensorType, Xp
from jobflow.expressions.index_space import IndexSpace
from jobflow.expressions.language import Expression, element
from jobflow.ops.indexed import Indexed
from jobflow.ops.op import LETTERS, OVER_FIRST, Grads, Op, Sample, apply, normal_axis, sample


def same_dtype(what: str, **operands: TensorType) -> None:
    a, b = operands.values()
    if a.dtype is not b.dtype:
        first, second = operands
        raise DtypeError(f"{what}: {first} {a} and {second} {b} differ in element type; cast one of them")


def product_shape(a: TensorType, b: TensorType, transpose_a: bool, transpose_b: bool) -> tuple[int, int]:
    """Return (m, n), the sizes of the last two axes of the product; raise DtypeError or ShapeError if the operands do not match."""
    same_dtype("matmul", a=a, b=b)
    m, k = a.shape[-2:][::-1] if transpose_a else a.shape[-2:]
    k2, n = b.shape[-2:][::-1] if transpose_b else b.shape[-2:]
    if k != k2:
        raise ShapeError(f"matmul: the summed axis has size {k} in a {a}, but {k2} in b {b}")
    return m, n


def turned(x: Array, transpose: bool) -> Array:
    """Return a view of x with its last two axes exchanged if `transpose` is True, else x."""
    return x.swapaxes(-1, -2) if transpose else x


def _flip(pair: str, transpose: bool) -> str:
    return pair[::-1] if transpose else pair


def _random(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


class Product(Op):
    """Base class of matrix products: y = a b on the last two axes, each operand optionally transposed."""

    precision = "half"
    transpose_a: bool = False
    transpose_b: bool = False

    def kernel(self, xp: Xp, a: Array, b: Array, y: Array) -> None:
        y[...] = turned(a, self.transpose_a) @ turned(b, self.transpose_b)

    def grad(self, a: Tensor, b: Tensor, y: Tensor, dy: Tensor) -> Grads:
        ta, tb = self.transpose_a, self.transpose_b
        product = type(self)
        da = apply(product(tb, True), b, dy) if ta else apply(product(False, not tb), dy, b)
        db = apply(product(True, ta), dy, a) if tb else apply(product(not ta, False), a, dy)
        return da, db


class MatMul(Product):
    """Matrix product: y[m,n] = sum_k a[m,k] b[k,n]; a is [k,m] with transpose_a, and b is [n,k] with transpose_b."""

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        return a.with_shape(product_shape(a, b, self.transpose_a, self.transpose_b))

    def rule(self, a: TensorType, b: TensorType) -> Rule:
        return Rule(f"{_flip('mk', self.transpose_a)},{_flip('kn', self.transpose_b)}->mn", linear=((0,), (1,)))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), _random(4, 6), _random(6, 5))
        yield sample(cls(True, False), _random(6, 4), _random(6, 5))
        yield sample(cls(False, True), _random(4, 6), _random(5, 6))
        yield sample(cls(True, True), _random(6, 4), _random(5, 6))
        yield sample(cls(), _random(0, 6), _random(6, 5), note=" no rows")
        yield sample(cls(False, True), _random(40, 33), _random(37, 33), differentiable=(), note=" beyond the small product")
        yield sample(cls(True), _random(1, 200), _random(1, 170), differentiable=(), note=" of one term")


class BatchMatMul(Product):
    """Matrix products with equal leading axes: y[...,m,n] = sum_k a[...,m,k] b[...,k,n]; transposed as in MatMul."""

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        if a.shape[:-2] != b.shape[:-2]:
            raise ShapeError(
                f"matmul: a {a} and b {b} differ in their leading axes, {list(a.shape[:-2])} and {list(b.shape[:-2])}; broadcast one of them"
            )
        return a.with_shape((*a.shape[:-2], *product_shape(a, b, self.transpose_a, self.transpose_b)))

    def rule(self, a: TensorType, b: TensorType) -> Rule:
        lead = LETTERS[: a.ndim - 2]
        return Rule(f"{lead}{_flip('yx', self.transpose_a)},{lead}{_flip('xz', self.transpose_b)}->{lead}yz", linear=((0,), (1,)))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), _random(3, 4, 5), _random(3, 5, 2))
        yield sample(cls(True, False), _random(2, 2, 5, 3), _random(2, 2, 5, 4))
        yield sample(cls(False, True), _random(3, 4, 5), _random(3, 2, 5))
        yield sample(cls(True, True), _random(3, 5, 4), _random(3, 2, 5))


class BroadcastMatMul(Op):
    """Matrix product with one matrix b for all leading axes: y[...,n] = sum_k a[...,k] b[k,n]; b is [n,k] with transpose_b."""

    precision = "half"
    transpose_b: bool = False

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        _, n = product_shape(a, b, False, self.transpose_b)
        return a.with_shape((*a.shape[:-1], n))

    def rule(self, a: TensorType, b: TensorType) -> Rule:
        lead = LETTERS[: a.ndim - 1]
        return Rule(f"{lead}y,{_flip('yz', self.transpose_b)}->{lead}z", linear=((0,), (1,)))

    def kernel(self, xp: Xp, a: Array, b: Array, y: Array) -> None:
        y[...] = a @ turned(b, self.transpose_b)

    def grad(self, a: Tensor, b: Tensor, y: Tensor, dy: Tensor) -> Grads:
        first, second = (dy, a) if self.transpose_b else (a, dy)
        return apply(BroadcastMatMul(not self.transpose_b), dy, b), apply(RowsMatMul(), first, second)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), _random(3, 4, 5), _random(5, 2))
        yield sample(cls(True), _random(2, 3, 2, 5), _random(4, 5))


class RowsMatMul(Op):
    """Gradient of b of BroadcastMatMul: y[m,n] = sum over the leading axes of a[...,m] b[...,n]."""

    precision = "half"

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        same_dtype("matmul", a=a, b=b)
        if a.shape[:-1] != b.shape[:-1]:
            raise ShapeError(f"matmul: a {a} and b {b} differ in the summed axes, {list(a.shape[:-1])} and {list(b.shape[:-1])}")
        return a.with_shape((a.shape[-1], b.shape[-1]))

    def rule(self, a: TensorType, b: TensorType) -> Rule:
        lead = LETTERS[: a.ndim - 1]
        return Rule(f"{lead}y,{lead}z->yz", linear=((0,), (1,)))

    def kernel(self, xp: Xp, a: Array, b: Array, y: Array) -> None:
        rows = math.prod(a.shape[:-1])
        y[...] = a.reshape(rows, a.shape[-1]).T @ b.reshape(rows, b.shape[-1])

    def grad(self, a: Tensor, b: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return apply(BroadcastMatMul(True), b, dy), apply(BroadcastMatMul(), a, dy)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), _random(3, 4, 5), _random(3, 4, 2))


def matmul(a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False, name: str | None = None) -> Tensor:
    """Return the matrix product of the last two axes of a and b.

    a is [..., m, k] and b is [..., k, n] with equal leading axes, or one matrix [k, n].  `transpose_a` and `transpose_b` exchange the last two axes
    of an operand.  Raises ShapeError for other numbers of axes, or if the sizes of the operands do not match.
    """
    x, y = a.tensor_type, b.tensor_type
    if x.ndim < 2 or y.ndim < 2 or (x.ndim != y.ndim and y.ndim != 2):
        raise ShapeError(f"matmul: a {x} and b {y} must have at least two axes, and the same number of axes unless b has two")
    if x.ndim != y.ndim and transpose_a:
        raise ShapeError(f"matmul: transpose_a requires the same number of axes, but a is {x} and b is {y}; transpose a first")
    if x.ndim != y.ndim:
        product: Op = BroadcastMatMul(transpose_b)
    else:
        product = (MatMul if x.ndim == 2 else BatchMatMul)(transpose_a, transpose_b)
    result: Tensor = apply(product, a, b, name=name)
    return result


class BiasAdd(Indexed):
    """Sum of a tensor and a vector along `axis`: y = value + bias."""

    precision = "follows"
    axis: int

    in_place = OVER_FIRST
    #: the bias, because the sum completes a product
    adapting = frozenset({1})

    def infer(self, value: TensorType, bias: TensorType) -> TensorType:
        same_dtype("bias_add", value=value, bias=bias)
        if bias.shape != (value.shape[self.axis],):
            raise ShapeError(f"bias_add: bias {bias} must have the size {value.shape[self.axis]} of value {value} along axis {self.axis}")
        return value

    def rule(self, value: TensorType, bias: TensorType) -> Rule:
        letters = LETTERS[: value.ndim]
        return Rule(f"{letters},{letters[self.axis]}->{letters}", linear=((0, 1),))

    def formula(self, f: Any, value: Any, bias: Any) -> Any:
        return value + bias

    def grad(self, value: Tensor, bias: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return dy, axis_sum(dy, self.axis)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), _random(4, 3), _random(3))
        yield sample(cls(1), _random(2, 5, 2, 3), _random(5))
        yield sample(cls(0), _random(3, 2), _random(3))


def along(x: Array, axis: int, ndim: int) -> Array:
    """Return a view of the vector x that broadcasts over all axes but `axis` of an array with `ndim` axes."""
    return x[(slice(None), *[None] * (ndim - 1 - axis))]


def bias_add(value: Tensor, bias: Tensor, axis: int = 1, *, name: str | None = None) -> Tensor:
    """Return value + bias, where the vector `bias` has the size of axis `axis` and broadcasts along all other axes of `value`.

    Raises ShapeError for another size of `bias`, and DtypeError if the element types differ.
    """
    result: Tensor = apply(BiasAdd(normal_axis("bias_add", axis, value.tensor_type.ndim)), value, bias, name=name)
    return result


class AxisSum(Indexed):
    """Sum over all axes but `axis`: the adjoint of Spread."""

    #: on AVX-512, array functions are 1.2 to 3 times as fast as a compiled loop
    faster_compiled = "never"

    axis: int

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape((x.shape[self.axis],))

    def rule(self, x: TensorType) -> Rule:
        return Rule(f"{LETTERS[: x.ndim]}->{LETTERS[self.axis]}", linear=((0,),))

    def last(self, letters: str) -> str:
        return letters[self.axis]

    def formula(self, f: Any, x: Any) -> Any:
        return f.column_sum(x)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (spread(dy, x.tensor_type.shape, self.axis),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), _random(5, 3))
        yield sample(cls(1), _random(3, 4, 2, 2))
        yield sample(cls(0), _random(4, 3))


def axis_sum(x: Tensor, axis: int, *, name: str | None = None) -> Tensor:
    """Return the vector of sums of x over all axes but `axis`."""
    result: Tensor = apply(AxisSum(normal_axis("axis_sum", axis, x.tensor_type.ndim)), x, name=name)
    return result


class Spread(Op):
    """Broadcast of the vector x, whose elements belong to axis `axis`, to `shape`; the adjoint of AxisSum."""

    shape: tuple[int, ...]
    axis: int

    def infer(self, x: TensorType) -> TensorType:
        if x.shape != (self.shape[self.axis],):
            raise ShapeError(f"spread: {x} must be a vector with the size of axis {self.axis} of {list(self.shape)}")
        return x.with_shape(self.shape)

    def rule(self, x: TensorType) -> Rule:
        letters = LETTERS[: len(self.shape)]
        signatures = tuple(Signature((B,), (S(i),)) for i in range(len(self.shape)) if i != self.axis)
        return Rule(f"{letters[self.axis]}->{letters}", linear=((0,),), also=signatures)

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        y[...] = along(x, self.axis, y.ndim)

    def index_space(self, *types: TensorType) -> IndexSpace:
        return IndexSpace(self.shape, ((self.axis,), tuple(range(len(self.shape)))))

    def expression(self, x: TensorType) -> tuple[Expression, ...]:  # type: ignore[override]
        return (element(0, x.dtype),)

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return Spread(outputs[0].shape, self.axis)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (axis_sum(dy, self.axis),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((4, 3, 2), 1), _random(3))


def spread(x: Tensor, shape: tuple[int, ...], axis: int, *, name: str | None = None) -> Tensor:
    """Broadcast the vector x to `shape`: y[..., i, ...] = x[i] along `axis`."""
    result: Tensor = apply(Spread(shape, axis), x, name=name)
    return result
