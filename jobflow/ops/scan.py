"""Cumulative sums and products along an axis, and their gradients.

`reverse` scans from the end.  With `exclusive`, result i excludes element i, so the first result is the empty sum or product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from jobflow.core.layout import Rule
from jobflow.core.types import Array, Tensor, TensorType, Xp
from jobflow.ops.arithmetic import multiply
from jobflow.ops.op import LETTERS, Grads, Op, Sample, normal_axis, sample
from jobflow.ops.pointwise import FLOATS, NUMBERS, call, check_dtypes, sample_data
from jobflow.ops.slices import pad, slice_


class Scan(Op):
    """Base class of cumulative sums and products along `axis`."""

    abstract = True
    axis: int
    reverse: bool = False
    exclusive: bool = False

    ufunc: ClassVar[np.ufunc]
    of_nothing: ClassVar[int]
    linear: ClassVar[tuple[tuple[int, ...], ...]] = ()

    def infer(self, x: TensorType) -> TensorType:
        check_dtypes(self.word(), NUMBERS, x)
        normal_axis(self.word(), self.axis, x.ndim)
        return x

    def rule(self, x: TensorType) -> Rule:
        word = _along(self.axis, x.ndim)
        return Rule(f"{word}->{word}", linear=self.linear)

    def turned(self, x: Array) -> Array:
        """Return a view of x with the scanned axis and axis 0 exchanged, and reversed along axis 0 if the scan starts at the end."""
        front = x.swapaxes(0, self.axis)
        return front[::-1] if self.reverse else front

    def operands(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Return a view of x, whose cumulative sums or products are the result, and the view of y that receives them.

        Both have the same shape, and the scanned axis is axis 0.
        """
        x, y = self.turned(x), self.turned(y)
        return (x[:-1], y[1:]) if self.exclusive else (x, y)

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        running = xp.cumsum if self.ufunc is np.add else xp.cumprod
        source, target = self.operands(x, y)
        self.turned(y)[:1] = self.of_nothing
        if source.size:
            target[...] = running(source, axis=0, dtype=self.running(y))

    def running(self, y: Array) -> np.dtype[Any]:
        """Return the type of the accumulator: float64 for float32, because rounding errors accumulate along the axis."""
        wide: np.dtype[Any] = np.dtype(np.float64) if y.dtype == np.float32 else y.dtype
        return wide

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 5, 4))
        yield sample(cls(0, True), sample_data(2, 3, 4, 2))
        yield sample(cls(1, False, True), sample_data(3, 5, 4, 3))
        yield sample(cls(0, True, True), sample_data(4, 6))
        yield sample(cls(1), np.arange(12, dtype=np.int32).reshape(3, 4) - 4)
        yield sample(cls(1, False, True), sample_data(5, 5, 0))


class CumSum(Scan):
    """Cumulative sum along `axis`: y[..., i, ...] = sum of x[..., k, ...] over k <= i."""

    ufunc = np.add
    of_nothing = 0
    linear = ((0,),)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (call(replace(self, reverse=not self.reverse), dy),)


class CumProd(Scan):
    """Cumulative product along `axis`: y[..., i, ...] = product of x[..., k, ...] over k <= i. The gradient is exact for zeros too."""

    ufunc = np.multiply
    of_nothing = 1

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        before = call(CumProd(self.axis, self.reverse, exclusive=True), x)
        return (multiply(before, call(CumProdTail(self.axis, self.reverse, self.exclusive), x, dy)),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample(cls(1), np.array([[2.0, 0.0, 3.0, 0.0, -1.0], [0.5, 2.0, -1.0, 0.0, 4.0]]), note=" zeros")


class CumProdTail(Op):
    """Second factor of the gradient of CumProd: s[i] = sum of dy[j] x[i+1] ... x[j] over j >= i along `axis`.

    With `exclusive`, s[i] is the sum of dy[j] x[i+1] ... x[j-1] over j > i.  The first factor is the product of the elements before i.
    """

    axis: int
    reverse: bool = False
    exclusive: bool = False

    def infer(self, x: TensorType, dy: TensorType) -> TensorType:
        check_dtypes(self.word(), FLOATS, x, dy)
        return dy

    def rule(self, x: TensorType, dy: TensorType) -> Rule:
        word = _along(self.axis, x.ndim)
        return Rule(f"{word},{word}->{word}", linear=((1,),))

    def kernel(self, xp: Xp, x: Array, dy: Array, s: Array) -> None:
        x, dy, s = (a.swapaxes(0, self.axis)[:: -1 if self.reverse else 1] for a in (x, dy, s))
        for i in range(len(s) - 1, -1, -1):
            s[i] = (0 if i + 1 == len(s) else dy[i + 1]) if self.exclusive else dy[i]
            if i + 1 < len(s):
                s[i] += x[i + 1] * s[i + 1]

    def grad(self, x: Tensor, dy: Tensor, s: Tensor, ds: Tensor) -> Grads:
        """Differentiate s[i] = dy[i] + x[i+1] s[i+1] by the reverse recurrence r[i] = ds[i] + x[i] r[i-1].

        With `exclusive`, dy[i+1] replaces dy[i].
        """
        r = call(CumProdTail(self.axis, not self.reverse), self._moved(x, -1), ds)
        before = self._moved(r, 1)
        return multiply(before, s), before if self.exclusive else r

    def _moved(self, x: Tensor, by: int) -> Tensor:
        """Shift x by one element along the axis and fill with 0: in the direction of the scan if `by` is 1, against it if -1."""
        n, ahead = x.tensor_type.shape[self.axis], (by > 0) != self.reverse
        if not n:
            return x
        lead, rest = (None,) * self.axis, [(0, 0)] * x.tensor_type.ndim
        rest[self.axis] = (1, 0) if ahead else (0, 1)
        return pad(slice_(x, (*lead, 0 if ahead else 1), (*lead, n - 1 if ahead else n)), rest)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for reverse, exclusive in ((False, False), (True, True), (False, True), (True, False)):
            yield sample(cls(int(not reverse), reverse, exclusive), sample_data(1, 5, 4), sample_data(2, 5, 4))
        yield sample(cls(0), sample_data(3, 1), sample_data(4, 1))


def _along(axis: int, ndim: int) -> str:
    """Return the rule letters of `ndim` axes, where `axis` is not split."""
    return "".join(LETTERS[i].upper() if i == axis else LETTERS[i] for i in range(ndim))


def cumsum(x: Tensor, axis: int, reverse: bool = False, exclusive: bool = False, *, name: str | None = None) -> Tensor:
    """Return the cumulative sums y[..., i, ...] = sum of x[..., k, ...] over k <= i along `axis`.

    The sums are over k >= i with `reverse`, and exclude k = i with `exclusive`.
    """
    return call(CumSum(normal_axis("cumsum", axis, x.tensor_type.ndim), reverse, exclusive), x, name=name)


def cumprod(x: Tensor, axis: int, reverse: bool = False, exclusive: bool = False, *, name: str | None = None) -> Tensor:
    """Return the cumulative products y[..., i, ...] = product of x[..., k, ...] over k <= i along `axis`.

    The products are over k >= i with `reverse`, and exclude k = i with `exclusive`.
    """
    return call(CumProd(normal_axis("cumprod", axis, x.tensor_type.ndim), reverse, exclusive), x, name=name)
