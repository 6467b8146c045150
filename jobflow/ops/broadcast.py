"""Broadcasting, and its gradient, a sum over the broadcast axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import B, Box, Rule, S, Signature
from jobflow.core.types import Array, Tensor, TensorType, Xp
from jobflow.expressions.language import Expression, element
from jobflow.ops.indexed import AxisReduction, wide_sum
from jobflow.ops.op import LETTERS, Grads, Op, Sample, apply, sample


def stretched(small: Sequence[int], large: Sequence[int]) -> tuple[int, ...]:
    """Return the axes of the shape `large` along which `small`, aligned at the last axis, is broadcast."""
    lead = len(large) - len(small)
    return tuple(i for i in range(len(large)) if i < lead or small[i - lead] != large[i])


def _words(small: Sequence[int], large: Sequence[int]) -> tuple[str, str]:
    """Return the rule letters of `small` and of `large`, one per axis; "1" marks a broadcast axis of `small`."""
    lead = len(large) - len(small)
    repeated = stretched(small, large)
    return "".join("1" if i in repeated else LETTERS[i] for i in range(lead, len(large))), LETTERS[: len(large)]


def _check(what: str, small: TensorType, large: TensorType) -> None:
    lead = large.ndim - small.ndim
    if lead < 0 or any(n not in (1, m) for n, m in zip(small.shape, large.shape[lead:], strict=True)):
        raise ShapeError(f"{what}: {small} does not broadcast to {large}")


class BroadcastTo(Op):
    """Broadcast of x to `shape`, as in NumPy."""

    precision = "any"
    shape: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        y = x.with_shape(self.shape)
        _check("broadcast_to", x, y)
        return y

    def rule(self, x: TensorType) -> Rule:
        small, large = _words(x.shape, self.shape)
        splits_of_repeated = tuple(Signature((B,), (S(i),)) for i in stretched(x.shape, self.shape))
        return Rule(f"{small or '1'}->{large}", linear=((0,),), also=splits_of_repeated)

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        y[...] = x

    def expression(self, x: TensorType) -> tuple[Expression, ...]:  # type: ignore[override]
        return (element(0, x.dtype),)

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return BroadcastTo(outputs[0].shape)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (sum_to(dy, x.tensor_type.shape),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        random = np.random.default_rng(1)
        yield sample(cls((5, 3)), random.normal(size=(3,)))
        yield sample(cls((2, 3, 5)), random.normal(size=(3, 1)))
        yield sample(cls((4,)), random.normal(size=()))
        yield sample(cls((4, 3)), random.normal(size=(4, 3)))


class SumTo(AxisReduction):
    """Sum over the axes along which `shape` broadcasts to the shape of x: the adjoint of BroadcastTo."""

    shape: tuple[int, ...]
    sums = True

    def infer(self, x: TensorType) -> TensorType:
        y = x.with_shape(self.shape)
        _check("sum_to", y, x)
        return y

    def rule(self, x: TensorType) -> Rule:
        small, large = _words(self.shape, x.shape)
        return Rule(f"{large or '1'}->{small}", linear=((0,),))

    def formula(self, f: Any, x: Any) -> Any:
        return wide_sum(f, x)

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return SumTo(outputs[0].shape)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (broadcast_to(dy, x.tensor_type.shape),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        random = np.random.default_rng(2)
        yield sample(cls((3,)), random.normal(size=(5, 3)))
        yield sample(cls((3, 1)), random.normal(size=(2, 3, 5)))
        yield sample(cls((1, 3, 1)), random.normal(size=(4, 3, 5)))
        yield sample(cls(()), random.normal(size=(4, 2)))
        yield sample(cls((4, 3)), random.normal(size=(4, 3)))


def broadcast_to(x: Tensor, shape: Sequence[int], *, name: str | None = None) -> Tensor:
    """Broadcast x to `shape` as in NumPy; return x itself if it has this shape. Raises ShapeError if x does not broadcast to `shape`."""
    return x if x.tensor_type.shape == tuple(shape) else _one(BroadcastTo(tuple(shape)), x, name)


def sum_to(x: Tensor, shape: Sequence[int], *, name: str | None = None) -> Tensor:
    """Sum x over the axes along which `shape` broadcasts to the shape of x; return x itself if the shapes are equal.

    Raises ShapeError if `shape` does not broadcast to the shape of x, and DtypeError for bools.
    """
    if x.tensor_type.shape == tuple(shape):
        return x
    if x.tensor_type.dtype.numpy.kind == "b":
        raise DtypeError(f"sum_to: {x.tensor_type} contains bools, which cannot be summed; cast it to a number type first")
    return _one(SumTo(tuple(shape)), x, name)


def _one(op: Op, x: Tensor, name: str | None) -> Tensor:
    y: Tensor = apply(op, x, name=name)
    return y
