"""Broadcasting, and its gradient, a sum over the broadcast axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import B, Box, Rule, S, Signature
from jobflow.core.types import Array, Tensor, TensorType, Xp, dtype_of
from jobflow.ops.blocks import memory_order
from jobflow.ops.op import LETTERS, Binder, Call, Grads, Op, Sample, apply, sample


def stretched(small: Sequence[int], large: Sequence[int]) -> tuple[int, ...]:
    """Axes of `large` over which `small` is repeated, right aligned."""
    lead = len(large) - len(small)
    return tuple(i for i in range(len(large)) if i < lead or small[i - lead] != large[i])


def _words(small: Sequence[int], large: Sequence[int]) -> tuple[str, str]:
    """The letters of both shapes; an axis that is repeated carries no letter in the small one."""
    lead = len(large) - len(small)
    made = stretched(small, large)
    return "".join("1" if i in made else LETTERS[i] for i in range(lead, len(large))), LETTERS[: len(large)]


def _check(what: str, small: TensorType, large: TensorType) -> None:
    lead = large.ndim - small.ndim
    if lead < 0 or any(n not in (1, m) for n, m in zip(small.shape, large.shape[lead:], strict=True)):
        raise ShapeError(f"{what}: {small} does not broadcast to {large}")


@dataclass(frozen=True)
class BroadcastTo(Op):
    """y[...] = x with axes of size 1, and missing leading axes, repeated to `shape`."""

    precision = "any"
    shape: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        y = x.with_shape(self.shape)
        _check("broadcast_to", x, y)
        return y

    def rule(self, x: TensorType) -> Rule:
        small, large = _words(x.shape, self.shape)
        made = tuple(Signature((B,), (S(i),)) for i in stretched(x.shape, self.shape))
        return Rule(f"{small or '1'}->{large}", linear=((0,),), also=made)

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        y[...] = x

    def bind(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        if device.xp is not np:
            return super().bind(device, inputs, outputs)
        return [(np.copyto, (outputs[0], inputs[0]))]

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return BroadcastTo(outputs[0].shape)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (sum_to(dy, x.type.shape),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        random = np.random.default_rng(1)
        yield sample(cls((5, 3)), random.normal(size=(3,)))
        yield sample(cls((2, 3, 5)), random.normal(size=(3, 1)))
        yield sample(cls((4,)), random.normal(size=()))
        yield sample(cls((4, 3)), random.normal(size=(4, 3)))


@dataclass(frozen=True)
class SumTo(Op):
    """y = x summed over the axes along which `shape` broadcasts to x's shape; the adjoint of BroadcastTo."""

    shape: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        y = x.with_shape(self.shape)
        _check("sum_to", y, x)
        return y

    def rule(self, x: TensorType) -> Rule:
        small, large = _words(self.shape, x.shape)
        return Rule(f"{large or '1'}->{small}", linear=((0,),))

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        lead = x.ndim - y.ndim
        axes = stretched(y.shape, x.shape)
        kept = x.sum(axis=axes, keepdims=True, dtype=y.dtype) if axes else x
        y[...] = kept.reshape(kept.shape[lead:])

    def bind(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        (x,), (y,) = inputs, outputs
        axes = stretched(y.shape, x.shape)
        if device.xp is not np or not axes:
            return super().bind(device, inputs, outputs)
        lead = x.ndim - y.ndim
        kept = y[(*(0 if lead + i in axes else slice(None) for i in range(y.ndim)), ...)]
        return sum_calls(device, x, axes, kept)

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return SumTo(outputs[0].shape)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (broadcast_to(dy, x.type.shape),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        random = np.random.default_rng(2)
        yield sample(cls((3,)), random.normal(size=(5, 3)))
        yield sample(cls((3, 1)), random.normal(size=(2, 3, 5)))
        yield sample(cls((1, 3, 1)), random.normal(size=(4, 3, 5)))
        yield sample(cls(()), random.normal(size=(4, 2)))
        yield sample(cls((4, 3)), random.normal(size=(4, 3)))


def broadcast_to(x: Tensor, shape: Sequence[int], *, name: str | None = None) -> Tensor:
    """x repeated to `shape`; x itself if it has it."""
    return x if x.type.shape == tuple(shape) else _one(BroadcastTo(tuple(shape)), x, name)


def sum_to(x: Tensor, shape: Sequence[int], *, name: str | None = None) -> Tensor:
    """x summed over the axes along which `shape` broadcasts to it; x itself if there are none."""
    if x.type.shape == tuple(shape):
        return x
    if x.type.dtype.numpy.kind == "b":
        raise DtypeError(f"sum_to: {x.type} cannot be summed; cast it to a number type first")
    return _one(SumTo(tuple(shape)), x, name)


def _one(op: Op, x: Tensor, name: str | None) -> Tensor:
    y: Tensor = apply(op, x, name=name)
    return y


# Sums as matrix-vector products ------------------------------------------------------------------------------------


def sum_calls(device: Binder, x: Array, axes: Sequence[int], y: Array) -> list[Call]:
    """Calls for y = x summed over `axes` (y without them).

    Where x is dense in some order of its axes, and that order has the summed axes first, last, or both, the sum is a
    product with a vector of ones: BLAS reads memory once, in order, where a strided ufunc reduction does not.
    """
    long = x.dtype == np.float32 and math.prod(x.shape[i] for i in axes) > SHORT and y.ndim > 0  # which NumPy adds one after another
    plain: list[Call] = [(np.add.reduce, (x, tuple(axes), np.float64 if long else None, y))]
    if x.dtype.kind != "f" or x.dtype.itemsize < 4 or not x.size:
        return plain
    wide = [i for i in range(x.ndim) if x.shape[i] != 1]
    summed = [wide.index(i) for i in axes if i in wide]
    x, y = x.squeeze(), y.squeeze()
    order = memory_order(x)
    lead = list(takewhile(lambda i: i in summed, order))
    kept = list(takewhile(lambda i: i not in summed, order[len(lead) :]))
    trail = order[len(lead) + len(kept) :]
    if not kept or not summed or any(i not in summed for i in trail):
        return plain
    try:
        sizes = [math.prod(x.shape[i] for i in group) for group in (lead, kept, trail)]
        flat = x.transpose(order).reshape(sizes, copy=False)
        column = y.transpose([sorted(kept).index(i) for i in kept]).reshape(-1, copy=False)
    except ValueError:
        return plain
    dense = flat.flags.c_contiguous and column.flags.c_contiguous
    return _gemv(device, flat, column) if dense else plain


#: so many numbers are added one after another where there are more than SHORT; else 30,000 times 0.1 would be 3000.1 in float32
RUN = 128
SHORT = 2048
#: the same along a row, where BLAS adds in several lanes
ROW = 1024


def _gemv(device: Binder, x: Array, y: Array) -> list[Call]:
    """y[k] = sum_ij x[i,k,j] for dense x and y."""
    n, m, k = x.shape
    if k == 1:
        return lead_sum_calls(device, x.reshape(n, m), y)
    part = y if n == 1 else device.scratch((n * m,), dtype_of(x.dtype))
    calls = _row_sums(device, x.reshape(n * m, k), part)
    return calls if n == 1 else calls + lead_sum_calls(device, part.reshape(n, m), y)


def lead_sum_calls(device: Binder, x: Array, y: Array) -> list[Call]:
    """y[k] = sum_i x[i,k] for a dense matrix x."""
    n, m = x.shape
    if n <= SHORT:
        return [(np.dot if y.flags.c_contiguous else np.matmul, (np.ones(n, x.dtype), x, y))]
    whole, rest = divmod(n, RUN)
    ones, part = np.ones(RUN, x.dtype), device.scratch((whole + bool(rest), m), dtype_of(x.dtype))
    calls: list[Call] = [(np.matmul, (ones, x[: whole * RUN].reshape(whole, RUN, m), part[:whole]))]
    if rest:
        calls.append((np.dot, (ones[:rest], x[whole * RUN :], part[whole])))
    return [*calls, (np.add.reduce, (part, 0, np.float64, y))]


def _row_sums(device: Binder, x: Array, y: Array) -> list[Call]:
    """y[k] = sum_j x[k,j] likewise."""
    m, k = x.shape
    whole, rest = divmod(k, ROW)
    ones = np.ones(min(k, ROW), x.dtype)
    if not whole or (whole == 1 and not rest):
        return [(np.dot, (x, ones, y))]
    part = device.scratch((m, whole + bool(rest)), dtype_of(x.dtype))
    calls: list[Call] = [(np.matmul, (x[:, : whole * ROW].reshape(m, whole, ROW), ones, part[:, :whole]))]
    if rest:
        calls.append((np.matmul, (x[:, whole * ROW :], ones[:rest], part[:, whole])))
    return [*calls, (np.add.reduce, (part, 1, np.float64, y))]
