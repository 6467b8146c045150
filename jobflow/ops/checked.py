"""Checks of numbers that an operation relies on - indices, labels, divisors, probabilities - on the rank that stores them.

    y = checked(x, "multinomial", low=0.0, noun="weight")       y = x; in place of x the op that needs it so reads y

An element that is refused is an error which names it: its value, and where it stands in the logical tensor.  Every rank raises the
same, and before anything is written: in jobs and graphs nobody begins to write variables while a check of any rank has failed.
After a refusal the elements refused are replaced by legal ones, so that what runs before the ranks meet can do no harm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from jobflow.core.errors import ArgumentError, AxisError, DtypeError, JobflowError
from jobflow.core.layout import Box, Rule
from jobflow.core.types import Array, Tensor, TensorType, Xp, int64
from jobflow.ops.op import LETTERS, OVER_FIRST, Grads, Op, Sample, apply, broadcast_rule, placed, sample

_span = lru_cache(np.iinfo)


class Checked(Op):
    """y = x where low <= x <= high, or x is `ignored`; `nonzero`: and is not 0; `nan`: or is not a number; `whole`: and has no fraction.

    Other elements are refused.
    """

    by_position = True
    precision = "any"
    in_place = OVER_FIRST
    error: ClassVar[type[JobflowError]] = ArgumentError

    #: whom messages name: the function that was called
    what: str
    #: what the elements are to it
    noun: str = "value"
    low: float | None = None
    high: float | None = None
    ignored: float | None = None
    nonzero: bool = False
    nan: bool = False
    #: what is wrong with one that is refused, where "is outside [low, high]" would not say it
    problem: str = ""
    box: Box | None = None
    whole: bool = False
    #: what to do about an argument of a job that is refused, if passing other numbers is not all
    advice: str = ""

    def infer(self, x: TensorType) -> TensorType:
        return x

    def rule(self, x: TensorType) -> Rule:
        return broadcast_rule((x,))

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return replace(self, box=placed(self.box, outputs[0]))

    def refuses(self, xp: Xp, x: Array) -> Array:
        """Which elements."""
        low, high = self.bounds(x)
        wrong = xp.zeros(x.shape, bool)
        if low is not None:
            wrong |= ~(x >= low)
        if high is not None:
            wrong |= ~(x <= high)
        if self.nonzero:
            wrong |= x == 0
        if self.whole and x.dtype.kind not in "iub":
            wrong |= ~(xp.trunc(x) == x)
        if self.ignored is not None:
            wrong &= x != self.ignored
        if self.nan:
            wrong &= x == x
        return wrong

    def bounds(self, x: Array) -> tuple[float | None, float | None]:
        """Those that elements of this type can break."""
        if x.dtype.kind not in "iu":
            return self.low, self.high
        can = _span(x.dtype)
        low = None if self.low is None or self.low <= can.min else self.low
        return low, None if self.high is None or self.high >= can.max else self.high

    def passes(self, x: Array) -> bool:
        """Whether no element is refused, as nearly always; False where that takes a closer look."""
        if not x.size:
            return True
        if self.whole and x.dtype.kind not in "iub":
            return False
        low, high = self.bounds(x)
        return bool((low is None or x.min() >= low) and (high is None or x.max() <= high) and (not self.nonzero or x.all()))

    @property
    def legal(self) -> Any:
        """An element that would pass."""
        return next((bound for bound in (self.low, self.high) if bound is not None and (bound or not self.nonzero)), 1)

    def passed(self, xp: Xp, x: Array) -> Array:
        """What becomes of elements that pass."""
        return x

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        wrong = None if self.passes(x) else self.refuses(xp, x)
        if wrong is None or not wrong.any():
            y[...] = self.passed(xp, x)
            return
        first = int(wrong.argmax())
        refusal = self.refusal(x.reshape(-1)[first].item(), first, tuple(x.shape))
        y[...] = self.passed(xp, xp.where(wrong, x.dtype.type(self.legal), x))
        raise refusal

    def note(self, xp: Xp, x: Array, y: Array, at: Array, value: Array) -> None:
        """The same without a look by the host: at[0] is the flat position of the first element refused, plus 1, or 0; value[0] is that element."""
        wrong = self.refuses(xp, x)
        if x.size:
            first = wrong.reshape(-1).argmax()
            at[...] = xp.where(wrong.any(), first + 1, 0)
            value[...] = x.reshape(-1)[first]
        y[...] = self.passed(xp, xp.where(wrong, x.dtype.type(self.legal), x))

    def refusal(self, value: Any, flat: int, shape: tuple[int, ...]) -> JobflowError:
        """The error for the element at a flat position of what a rank holds."""
        inside = np.unravel_index(flat, shape) if shape else ()
        start = (0,) * len(shape) if self.box is None else self.box.start
        where = f" at {[int(i) + begin for i, begin in zip(inside, start, strict=True)]}" if shape else ""
        return self.error(f"{self.what}: {self.noun} {value}{where} {self.problem or self.range()}")

    def range(self) -> str:
        """What is wrong with an element, by the bounds."""
        if self.low is None and self.high is None:
            return "must not be 0"
        low = "(-inf" if self.low is None else f"[{self.low}"
        return f"is outside {low}, {'inf)' if self.high is None else f'{self.high}]'}{' without 0' if self.nonzero else ''}"

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (dy,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        if cls is not Checked:
            return
        yield sample(cls("test", low=0, high=4), np.array([0, 4, 2, 3, 3]))
        yield sample(cls("test", low=0.0), np.linspace(0.5, 2.0, 15).reshape(5, 3))
        yield sample(cls("test", nonzero=True), np.array([[3, -1, 2], [1, 1, 7]], np.int8))
        yield sample(cls("test", low=0, high=1, ignored=-100), np.array(-100))
        yield sample(cls("test", low=0, high=4, whole=True), np.array([0.0, 4.0, 3.0], np.float32), differentiable=())


class Positions(Checked):
    """y = x counted from the front of an axis of `size` elements, where -size <= x < size; negative ones count from its end."""

    error = AxisError
    in_place: ClassVar[Any] = {}
    size: int = 0

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(x.shape, int64)

    def passed(self, xp: Xp, x: Array) -> Array:
        wide = x.astype(xp.int64)
        return xp.where(wide < 0, wide + self.size, wide) if x.dtype.kind == "i" else wide

    @property
    def legal(self) -> Any:
        return 0

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (None,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(positions("test", 5), np.array([0, -5, 4, -1, 2], np.int8))
        yield sample(positions("test", 300), np.array([[0, 255], [17, 3]], np.uint8))


class Weights(Checked):
    """y = x, each row of which, along the last axis, has `count` positive numbers or more, none negative and all finite"""

    count: int = 1

    def infer(self, x: TensorType) -> TensorType:
        if not x.dtype.is_float:
            raise DtypeError(f"{self.what}: weights {x} are not floating point numbers; cast them with cast(x, dtype)")
        return x

    def rule(self, x: TensorType) -> Rule:
        word = LETTERS[: x.ndim - 1] + "Z"
        return Rule(f"{word}->{word}")

    def passes(self, x: Array) -> bool:
        return False

    def refuses(self, xp: Xp, x: Array) -> Array:
        """Elements that are no weights; where a row has too few that are positive, its zeros."""
        short = (x > 0).sum(axis=-1, keepdims=True) < self.count
        return ~((x >= 0) & (x < xp.inf)) | (short & (x == 0))

    @property
    def legal(self) -> Any:
        return 1

    def refusal(self, value: Any, flat: int, shape: tuple[int, ...]) -> JobflowError:
        if value != 0:
            return super().refusal(value, flat, shape)
        start = (0,) if self.box is None else self.box.start
        row = f" of row [{flat // shape[-1] + start[0]}]" if len(shape) > 1 else ""
        return self.error(f"{self.what}: too few of the weights{row} are positive; {self.count} are needed")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(weights("draw", 3), np.random.default_rng(1).uniform(0.01, 0.99, (5, 3)))
        yield sample(weights("draw", 1), np.array([0.0, 0.5, 0.0, 2.0]), differentiable=())


def weights(what: str, count: int) -> Weights:
    """The op that takes weights of which `count` are to be drawn from each row."""
    return Weights(what, "weight", problem="is negative, infinite or no number", count=count)


def positions(what: str, size: int) -> Positions:
    """The op that takes positions on an axis of `size` elements, counted from either end."""
    return Positions(what, "position", -size, size - 1, problem=f"is not on an axis of {size} elements", size=size)


def classes(what: str, count: int, ignored: int | None = None) -> Checked:
    """The op that takes labels: numbers of classes, or the one that is ignored."""
    other = "" if ignored is None else f", nor is it the ignored {ignored}"
    problem = f"is outside [0, {count}), the range of the {count} classes{other}"
    return Checked(what, "label", 0, count - 1, ignored, problem=problem)


def rows(what: str, count: int) -> Checked:
    """The op that takes numbers of the rows of a table."""
    return Checked(what, "row", 0, count - 1, problem=f"is outside [0, {count}), the rows there are")


def check(op: Checked, x: Tensor) -> Tensor:
    """x, once its elements have passed."""
    y: Tensor = apply(op, x)
    return y


def checked(
    x: Tensor,
    what: str,
    *,
    low: float | None = None,
    high: float | None = None,
    nonzero: bool = False,
    nan: bool = False,
    noun: str = "value",
) -> Tensor:
    """x, once its elements have passed: low <= x <= high, and x != 0 if `nonzero`, or no number if `nan`; a bound that is None is none."""
    return check(Checked(what, noun, low, high, nonzero=nonzero, nan=nan), x)


def whole_exponent(what: str) -> Checked:
    """The op that takes integers as powers of integers."""
    return Checked(what, "exponent", low=0, problem="is negative: that power of an integer is not an integer; use floats")


def whole_divisor(what: str) -> Checked:
    """The op that takes integers to divide integers by."""
    return Checked(what, "divisor", nonzero=True, problem="must not be 0: division of integers by 0")
