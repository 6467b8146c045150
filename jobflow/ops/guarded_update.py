"""Updates that are skipped if gradients are not finite, the count of non-finite elements, and the dynamic loss scale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from jobflow.core.errors import ShapeError
from jobflow.core.layout import Rule
from jobflow.core.types import Tensor, TensorType, float32, float64, int64
from jobflow.expressions import language
from jobflow.expressions.language import Expression
from jobflow.ops.indexed import AxisReduction
from jobflow.ops.op import LETTERS, Grads, Sample, apply, sample
from jobflow.ops.optimizer_updates import AdamUpdate, LambUpdate, SgdUpdate
from jobflow.ops.pointwise import FLOATS, Pointwise, check_dtypes, sample_data
from jobflow.ops.update import Assign, Updated
from jobflow.ops.wrapped_update import UpdateWithNumber

#: the type of the count that `GuardedUpdate` reads
COUNT = TensorType((1,), int64)


class CountNotFinite(AxisReduction):
    """Number of infinite or NaN elements of x, as int64 of shape (1,)."""

    sums = True

    def infer(self, x: TensorType) -> TensorType:
        check_dtypes("count_not_finite", FLOATS, x)
        return COUNT

    def rule(self, x: TensorType) -> Rule:
        return Rule(f"{LETTERS[: x.ndim] or '1'}->1")

    def formula(self, f: Any, x: Any) -> Any:
        return f.row_sum(f.cast(f.logical_not(f.isfinite(x)), int64))

    def grad(self, *tensors: Any) -> Grads:
        return (None,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = sample_data(1, 5, 3)
        yield sample(cls(), x, differentiable=())
        x[1, 2], x[3, 0], x[4, 1] = np.inf, -np.inf, np.nan
        yield sample(cls(), x, differentiable=())
        yield sample(cls(), np.array(np.nan), differentiable=())


def count_not_finite(x: Tensor, *, name: str | None = None) -> Tensor:
    """Return the number of infinite or NaN elements of x, as int64 of shape (1,)."""
    n: Tensor = apply(CountNotFinite(), x, name=name)
    return n


class GuardedUpdate(UpdateWithNumber):
    """The update `op` with a condition: the variables change only if the last input, a count of non-finite elements, is zero."""

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        if types[-1] != COUNT:
            raise ShapeError(f"guardedupdate: the count of non-finite elements has type {types[-1]} instead of {COUNT}")
        return self.op.infer(*types[:-1])

    def output_expressions(self, *read: Expression) -> tuple[Expression, ...]:
        *own, bad = read
        return tuple(language.where(language.not_equal(bad, 0), own[self.alias[i]], y) for i, y in enumerate(self.new_values(*own)))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for op in (AdamUpdate(weight_decay=0.1), SgdUpdate(), LambUpdate(weight_decay=0.1), Assign()):
            for case in op.samples():
                for bad in (0, 3):
                    if case.op == op:
                        yield sample(cls(op), *case.arrays, np.array([bad]), differentiable=())


class LossScaleUpdate(Updated, Pointwise):
    """Update of the dynamic loss scale and of `good`, the number of finite steps since the scale changed.

    After `period` finite steps the scale is multiplied by `multiplier`, up to the largest float32. After a step with non-finite gradients it is
    divided by `multiplier`, down to 1. Inputs: scale, good, and the number of non-finite gradient elements in this step.
    """

    period: int = 2000
    multiplier: float = 2.0
    alias: ClassVar[Mapping[int, int]] = {0: 0, 1: 1}
    flat: ClassVar[bool] = False
    like: ClassVar[int] = 0
    results = 2

    @property
    def count(self) -> int:
        return 2

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        scale, good, bad = types
        check_dtypes("loss_scale", FLOATS, scale)
        if scale.shape != (1,) or good != COUNT or bad != COUNT:
            raise ShapeError(f"loss_scale: scale {scale} must be of shape (1,), and the counts {good} and {bad} of type {COUNT}")
        return scale, good

    def rule(self, *types: TensorType) -> Rule:
        return Rule("1,1,1->1,1")

    def formula(self, f: Any, scale: Any, good: Any, bad: Any) -> Any:
        skipped, wide = f.not_equal(bad, 0), f.cast(scale, float64)  # the largest float32 times the multiplier overflows float32
        finite = f.where(skipped, f.constant(0, int64), good + f.constant(1, int64))
        grows = f.greater_equal(finite, self.period)
        larger = f.where(grows, f.minimum(wide * self.multiplier, float32.largest), wide)
        now = f.where(skipped, f.maximum(wide / self.multiplier, 1.0), larger)
        return f.cast(now, scale.dtype), f.where(grows, f.constant(0, int64), finite)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for good, bad in ((0, 0), (1, 0), (2, 0), (2, 5)):
            yield sample(cls(period=3), np.array([8.0]), np.array([good]), np.array([bad]), differentiable=())
        yield sample(cls(), np.array([1.5]), np.array([0]), np.array([1]), differentiable=())
        yield sample(cls(period=1), np.array([float32.largest]), np.array([0]), np.array([0]), differentiable=())


class Halt(Assign):
    """Assignment n' = bad to a variable n, which stops training at the first step with non-finite gradients.

    n is the number of non-finite elements in that step, and 0 before it. The input `bad` is n plus the number of non-finite elements in this step.
    Therefore `bad` is not 0 in later steps, and their updates are skipped.
    """

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for bad in (0, 3):
            yield sample(cls(), np.array([0]), np.array([bad]), differentiable=())
