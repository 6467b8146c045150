"""Runtime assertions on values that an operation relies on: indices, labels, divisors, probabilities.  Each rank checks its own shard.

    y = assert_bounds(x, "multinomial", low=0.0, noun="weight")       y = x

The operation reads y instead of x.

The error contains the rejected element and its index in the logical tensor.  Every rank raises the same error before any update of variables.
Rejected elements are replaced by legal ones, so that the ops before the synchronization of the ranks are safe.
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


class RuntimeAssertion(Op):
    """Identity with a runtime assertion that low <= x <= high or x == ignored; other elements are rejected.

    `nonzero` also rejects 0, `whole` also rejects fractions, and `nan` accepts NaN.
    """

    by_position = True
    precision = "any"
    in_place = OVER_FIRST
    error: ClassVar[type[JobflowError]] = ArgumentError

    #: the called function, for messages
    what: str
    #: a word for an element, for messages
    noun: str = "value"
    low: float | None = None
    high: float | None = None
    ignored: float | None = None
    nonzero: bool = False
    nan: bool = False
    #: the description of the error, in place of "is outside [low, high]"
    problem: str = ""
    box: Box | None = None
    whole: bool = False
    #: advice for rejected arguments of a job, if it is more than to pass other values
    advice: str = ""

    def infer(self, x: TensorType) -> TensorType:
        return x

    def rule(self, x: TensorType) -> Rule:
        return broadcast_rule((x,))

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return replace(self, box=placed(self.box, outputs[0]))

    def rejected(self, xp: Xp, x: Array) -> Array:
        """Return a mask of the rejected elements."""
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
        """Return (`low`, `high`), with None in place of a bound that all numbers of the type of x satisfy."""
        if x.dtype.kind not in "iu":
            return self.low, self.high
        can = _span(x.dtype)
        low = None if self.low is None or self.low <= can.min else self.low
        return low, None if self.high is None or self.high >= can.max else self.high

    def passes(self, x: Array) -> bool:
        """Return True if a fast test accepts all elements, and False if `rejected` must check them."""
        if not x.size:
            return True
        if self.whole and x.dtype.kind not in "iub":
            return False
        low, high = self.bounds(x)
        return bool((low is None or x.min() >= low) and (high is None or x.max() <= high) and (not self.nonzero or x.all()))

    @property
    def legal(self) -> Any:
        """The value that replaces rejected elements."""
        return next((bound for bound in (self.low, self.high) if bound is not None and (bound or not self.nonzero)), 1)

    def converted(self, xp: Xp, x: Array) -> Array:
        """Convert x, in which legal values have replaced the rejected elements, to the result. The base class returns x."""
        return x

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        wrong = None if self.passes(x) else self.rejected(xp, x)
        if wrong is None or not wrong.any():
            y[...] = self.converted(xp, x)
            return
        first = int(wrong.argmax())
        failure = self.failure(x.reshape(-1)[first].item(), first, tuple(x.shape))
        y[...] = self.converted(xp, xp.where(wrong, x.dtype.type(self.legal), x))
        raise failure

    def note(self, xp: Xp, x: Array, y: Array, at: Array, value: Array) -> None:
        """Check x on the device and write the result to y, without synchronizing with the host.

        Set at[0] to 0 if all elements are accepted. Otherwise set at[0] to the flat index of the first rejected element plus 1, and value[0] to this
        element. An empty x leaves `at` and `value` unchanged.
        """
        wrong = self.rejected(xp, x)
        if x.size:
            first = wrong.reshape(-1).argmax()
            at[...] = xp.where(wrong.any(), first + 1, 0)
            value[...] = x.reshape(-1)[first]
        y[...] = self.converted(xp, xp.where(wrong, x.dtype.type(self.legal), x))

    def failure(self, value: Any, flat: int, shape: tuple[int, ...]) -> JobflowError:
        """Return the error for the element `value` that the assertion rejects; `flat` is its flat index in a shard of this `shape`."""
        inside = np.unravel_index(flat, shape) if shape else ()
        start = (0,) * len(shape) if self.box is None else self.box.start
        where = f" at {[int(i) + begin for i, begin in zip(inside, start, strict=True)]}" if shape else ""
        return self.error(f"{self.what}: {self.noun} {value}{where} {self.problem or self.range()}")

    def range(self) -> str:
        """Describe the violated bounds for the end of a message, such as "is outside [0, 1]"."""
        if self.low is None and self.high is None:
            return "must not be 0"
        low = "(-inf" if self.low is None else f"[{self.low}"
        return f"is outside {low}, {'inf)' if self.high is None else f'{self.high}]'}{' without 0' if self.nonzero else ''}"

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (dy,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        if cls is not RuntimeAssertion:
            return
        yield sample(cls("test", low=0, high=4), np.array([0, 4, 2, 3, 3]))
        yield sample(cls("test", low=0.0), np.linspace(0.5, 2.0, 15).reshape(5, 3))
        yield sample(cls("test", nonzero=True), np.array([[3, -1, 2], [1, 1, 7]], np.int8))
        yield sample(cls("test", low=0, high=1, ignored=-100), np.array(-100))
        yield sample(cls("test", low=0, high=4, whole=True), np.array([0.0, 4.0, 3.0], np.float32), differentiable=())


class IndexAssertion(RuntimeAssertion):
    """Conversion of x to non-negative indices of an axis of `size` elements, with an assertion that -size <= x < size."""

    error = AxisError
    in_place: ClassVar[Any] = {}
    size: int = 0

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(x.shape, int64)

    def converted(self, xp: Xp, x: Array) -> Array:
        wide = x.astype(xp.int64)
        return xp.where(wide < 0, wide + self.size, wide) if x.dtype.kind == "i" else wide

    @property
    def legal(self) -> Any:
        return 0

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (None,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(index_assertion("test", 5), np.array([0, -5, 4, -1, 2], np.int8))
        yield sample(index_assertion("test", 300), np.array([[0, 255], [17, 3]], np.uint8))


class WeightAssertion(RuntimeAssertion):
    """Assertion that x is finite and not negative, and that every row (the last axis) has at least `count` positive elements."""

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

    def rejected(self, xp: Xp, x: Array) -> Array:
        """Return a mask of invalid weights, and of the zeros of rows with too few positive elements."""
        short = (x > 0).sum(axis=-1, keepdims=True) < self.count
        return ~((x >= 0) & (x < xp.inf)) | (short & (x == 0))

    @property
    def legal(self) -> Any:
        return 1

    def failure(self, value: Any, flat: int, shape: tuple[int, ...]) -> JobflowError:
        if value != 0:
            return super().failure(value, flat, shape)
        start = (0,) if self.box is None else self.box.start
        row = f" of row [{flat // shape[-1] + start[0]}]" if len(shape) > 1 else ""
        return self.error(f"{self.what}: fewer than {self.count} weights{row} are positive")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(weight_assertion("draw", 3), np.random.default_rng(1).uniform(0.01, 0.99, (5, 3)))
        yield sample(weight_assertion("draw", 1), np.array([0.0, 0.5, 0.0, 2.0]), differentiable=())


class FiniteAssertion(RuntimeAssertion):
    """Assertion that all elements of matrices are finite, or those of one triangle: "lower" or "upper"."""

    triangle: str = ""

    def rule(self, x: TensorType) -> Rule:
        word = LETTERS[: x.ndim - 2] + "YZ"
        return Rule(f"{word}->{word}")

    def passes(self, x: Array) -> bool:
        return False

    def rejected(self, xp: Xp, x: Array) -> Array:
        """Return a mask of the elements that are NaN or infinite."""
        wrong = ~xp.isfinite(x)
        if self.triangle:
            wrong = xp.tril(wrong) if self.triangle == "lower" else xp.triu(wrong)
        return wrong

    @property
    def legal(self) -> Any:
        return 0

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls("test"), np.random.default_rng(2).uniform(0.01, 0.99, (2, 4, 3)))
        yield sample(cls("test", triangle="lower"), np.array([[1.0, np.inf], [2.0, 3.0]]), differentiable=())


def finite_assertion(what: str, triangle: str = "") -> FiniteAssertion:
    """Return the assertion that matrices have no NaN or infinite elements; `what` is the name of the function for messages."""
    return FiniteAssertion(what, "element", problem="of A is NaN or infinite; pass finite matrices", triangle=triangle)


def weight_assertion(what: str, count: int) -> WeightAssertion:
    """Return the assertion that weights are finite and not negative, and that each row has at least `count` positive weights.

    `what` is the name of the function for messages.
    """
    return WeightAssertion(what, "weight", problem="is negative, infinite or NaN", count=count)


def index_assertion(what: str, size: int) -> IndexAssertion:
    """Return the assertion that indices are in range for an axis of `size` elements; negative indices count from the end.

    `what` is the name of the function for messages.
    """
    return IndexAssertion(what, "index", -size, size - 1, problem=f"is out of range for an axis of {size} elements", size=size)


def class_assertion(what: str, count: int, ignored: int | None = None) -> RuntimeAssertion:
    """Return the assertion that integer labels are classes from 0 to count - 1, or equal `ignored` unless it is None.

    `what` is the name of the function for messages.
    """
    other = "" if ignored is None else f", nor is it the ignored {ignored}"
    problem = f"is outside [0, {count}), the range of the {count} classes{other}"
    return RuntimeAssertion(what, "label", 0, count - 1, ignored, problem=problem)


def row_assertion(what: str, count: int) -> RuntimeAssertion:
    """Return the assertion that row indices are from 0 to count - 1; `what` is the name of the function for messages."""
    return RuntimeAssertion(what, "row", 0, count - 1, problem=f"is outside [0, {count}), the rows of the table")


def check(op: RuntimeAssertion, x: Tensor) -> Tensor:
    """Return x with the runtime assertion `op`."""
    y: Tensor = apply(op, x)
    return y


def assert_bounds(
    x: Tensor,
    what: str,
    *,
    low: float | None = None,
    high: float | None = None,
    nonzero: bool = False,
    nan: bool = False,
    noun: str = "value",
) -> Tensor:
    """Return x with the runtime assertion that low <= x <= high for all elements; a bound of None is not checked.

    `nonzero` also rejects 0, and `nan` accepts NaN. In messages, `what` is the name of the function and `noun` the word for an element.
    """
    return check(RuntimeAssertion(what, noun, low, high, nonzero=nonzero, nan=nan), x)


def exponent_assertion(what: str) -> RuntimeAssertion:
    """Return the assertion that integer exponents of integers are not negative; `what` is the name of the function for messages."""
    return RuntimeAssertion(what, "exponent", low=0, problem="is negative: that power of an integer is not an integer; use floats")


def divisor_assertion(what: str) -> RuntimeAssertion:
    """Return the assertion that integer divisors are not 0; `what` is the name of the function for messages."""
    return RuntimeAssertion(what, "divisor", nonzero=True, problem="must not be 0: division of integers by 0")
