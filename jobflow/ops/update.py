"""Updates, which compute new values of variables in place, and the learning rate.  Optimizers are in `optimizer_updates`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, cast

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import Box, Rule
from jobflow.core.types import Array, DType, Tensor, TensorType, Xp, float32, float64, int64
from jobflow.expressions import language
from jobflow.expressions.index_space import IndexSpace
from jobflow.expressions.language import Expression, element, number
from jobflow.ops.arithmetic import add
from jobflow.ops.op import LETTERS, Grads, Op, Sample, apply, sample, types_tuple
from jobflow.ops.pointwise import Pointwise, sample_data
from jobflow.ops.scalar import scale, shift


class Schedule(Protocol):
    """A learning rate per step; a frozen dataclass, so that ops with a schedule can be compared and pickled."""

    def rate(self, step: int) -> float: ...


@dataclass(frozen=True)
class ConstantRate:
    """A learning rate that is the same at every step."""

    value: float
    by_formula: ClassVar[bool] = True

    def rate(self, step: int) -> float:
        return self.value


class Updated(Op):
    """Base class of updates. The first `count` inputs are variables, and the outputs are their new values in the same order.

    The next `like` inputs are tensors with the shape and type of the first variable. The remaining inputs are arrays of one element.
    """

    pure: ClassVar[bool] = False
    #: one loop replaces several array functions
    faster_compiled = "always"
    #: True if the update is elementwise
    flat: ClassVar[bool] = True
    #: tensors among the inputs besides the variables
    like: ClassVar[int] = 1
    #: indices of variables that are arrays of one element, whatever the shape of the first variable
    single: ClassVar[frozenset[int]] = frozenset()

    @property
    def count(self) -> int:
        return 1

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        one = self._scalars(types)
        first, *others = (type for type, is_scalar in zip(types, one, strict=True) if not is_scalar)
        for other in others:
            if other.shape != first.shape:
                raise ShapeError(f"{self.word()}: variable {first} and {other} differ in shape; pass a tensor with the shape of the variable")
            if other.dtype is not first.dtype:
                raise DtypeError(f"{self.word()}: variable {first} and {other} differ in element type; cast the tensor to the type of the variable")
        for type, is_scalar in zip(types, one, strict=True):
            if is_scalar and type.shape != (1,):
                raise ShapeError(f"{self.word()}: learning rate or step {type} must have shape (1,)")
        return types[: self.count]

    def rule(self, *types: TensorType) -> Rule:
        letters = (LETTERS[: types[0].ndim] if self.flat else LETTERS[: types[0].ndim].upper()) or "1"
        words = ["1" if is_scalar else letters for is_scalar in self._scalars(types)]
        return Rule(f"{','.join(words)}->{','.join(words[: self.count])}")

    def read(self, *types: TensorType) -> Sequence[Expression]:
        return [(number if one else element)(i, t.dtype) for i, (t, one) in enumerate(zip(types, self._scalars(types), strict=True))]

    def _scalars(self, types: Sequence[TensorType]) -> list[bool]:
        """Return one bool per input: True if it is an array of one element, because it is a variable in `single` or follows the tensors."""
        single, tensors = self.single, self.count + self.like
        return [i in single or i >= tensors for i in range(len(types))]


class MovingAverage(Updated, Pointwise):
    """Exponential moving average: a' = momentum a + (1 - momentum) x."""

    momentum: float
    alias: ClassVar[Mapping[int, int]] = MappingProxyType({0: 0})

    def formula(self, f: Any, a: Any, x: Any) -> Any:
        return self.momentum * a + (1 - self.momentum) * x

    def unwritten(self, *inputs: Tensor) -> Tensor:
        a, x = inputs
        return add(scale(a, self.momentum), scale(x, 1 - self.momentum))

    def grad(self, a: Tensor, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        """Return no gradients, because training does not differentiate through the average."""
        return None, None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(0.9), sample_data(0, 5), sample_data(1, 5), differentiable=())


class Assign(Updated, Pointwise):
    """Assignment to a variable: a' = x."""

    alias: ClassVar[Mapping[int, int]] = MappingProxyType({0: 0})

    def formula(self, f: Any, a: Any, x: Any) -> Any:
        return x

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(0, 5, 3), sample_data(1, 5, 3), differentiable=())


class Increment(Updated, Pointwise):
    """Step counter: a' = a + by."""

    by: int = 1
    alias: ClassVar[Mapping[int, int]] = MappingProxyType({0: 0})
    like: ClassVar[int] = 0

    def formula(self, f: Any, a: Any) -> Any:
        return a + f.constant(self.by, a.dtype)

    def unwritten(self, *inputs: Tensor) -> Tensor:
        return shift(inputs[0], self.by)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.array([41]))
        yield sample(cls(), np.array(41))


class NewValues(Op):
    """The new values that the update `op` would write to its variables, as tensors in separate memory; the variables do not change."""

    loops_on = ("cuda",)
    op: Op

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        return types_tuple(self.op.infer(*types))

    def rule(self, *types: TensorType) -> Rule:
        return self.op.rule(*types)

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return replace(self, op=self.op.localize(inputs, outputs))

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        self.op.kernel(xp, *arrays)

    def index_space(self, *types: TensorType) -> IndexSpace | None:
        return self.op.index_space(*types)

    def expression(self, *types: TensorType) -> tuple[Expression, ...] | None:
        return self.op.expression(*types)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(MovingAverage(0.9)), sample_data(0, 5), sample_data(1, 5), differentiable=())


class LearningRate(Op):
    """Learning rate of an int64 step: rate = schedule.rate(step), computed in float64 and converted to `dtype`."""

    schedule: Schedule
    dtype: DType = float32

    def infer(self, step: TensorType) -> TensorType:
        if step != TensorType((1,), int64):
            raise ShapeError(f"learningrate: the step {step} must be int64[1]")
        return TensorType((1,), self.dtype)

    def rule(self, step: TensorType) -> Rule:
        return Rule("1->1")

    def kernel(self, xp: Xp, step: Array, rate: Array) -> None:
        rate[0] = self.schedule.rate(int(step[0]))

    def expression(self, *types: TensorType) -> tuple[Expression, ...] | None:
        """Return the formula of the schedule, or None for schedules of users, which need the step as a Python number."""
        if not getattr(self.schedule, "by_formula", False):
            return None
        rate: Any = self.schedule.rate(cast(Any, language.cast(element(0, int64), float64)))
        return (language.cast(rate if isinstance(rate, Expression) else language.constant(rate, float64), self.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(ConstantRate(0.1)), np.array([3]))
        yield sample(cls(ConstantRate(0.1), float64), np.array([3]))


def learning_rate(schedule: Schedule, step: Tensor, dtype: DType = float32, *, name: str | None = None) -> Tensor:
    """Return the learning rate of `schedule` at `step`, an int64 tensor of one element."""
    result: Tensor = apply(LearningRate(schedule, dtype), step, name=name)
    return result


def rate_dtype(parameter: DType) -> DType:
    """Return the element type of the learning rate for a parameter of type `parameter`: float64 for float64, else float32."""
    return float64 if parameter is float64 else float32
