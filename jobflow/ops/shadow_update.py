"""Updates that also write a half-precision copy of a variable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from jobflow.core.errors import ShapeError
from jobflow.core.layout import Rule
from jobflow.core.types import TensorType
from jobflow.expressions.language import Expression
from jobflow.ops.guarded_update import GuardedUpdate
from jobflow.ops.op import Sample, sample
from jobflow.ops.optimizer_updates import AdamUpdate, LambUpdate, SgdUpdate
from jobflow.ops.wrapped_update import WrappedUpdate


class ShadowUpdate(WrappedUpdate):
    """The update `op`, which also writes the new value of variable number `index` to its shadow, a copy in half precision.

    The shadow follows the variables of `op` among the inputs and outputs.  Its old value is not read.
    """

    index: int = 0

    @property
    def alias(self) -> Mapping[int, int]:  # type: ignore[override]
        return {**self.op.alias, self.op.count: self.op.count}

    @property
    def count(self) -> int:
        return self.op.count + 1

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        n = self.op.count
        if types[n].shape != types[self.index].shape or not types[n].dtype.is_float:
            raise ShapeError(f"{self.word()}: the shadow {types[n]} must be a floating-point tensor with the shape of {types[self.index]}")
        return (*self.op.infer(*types[:n], *types[n + 1 :]), types[n])

    def rule(self, *types: TensorType) -> Rule:
        n = self.op.count
        left, _, right = self.op.rule(*types[:n], *types[n + 1 :]).spec.partition("->")
        words = left.split(",")
        return Rule(f"{','.join([*words[:n], words[self.index], *words[n:]])}->{right},{words[self.index]}")

    def output_expressions(self, *read: Expression) -> tuple[Expression, ...]:
        n = self.op.count
        outputs = self.new_values(*read[:n], *read[n + 1 :])
        new = next(i for i, source in self.op.alias.items() if source == self.index)
        return (*outputs, outputs[new])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for op in (AdamUpdate(weight_decay=0.1), SgdUpdate(), LambUpdate(weight_decay=0.1)):
            for case in op.samples():
                if case.op == op:
                    inputs, shadow = list(case.arrays), np.zeros(case.arrays[0].shape, np.float16)
                    yield sample(cls(op), *inputs[: op.count], shadow, *inputs[op.count :], differentiable=())
                    guarded = cls(GuardedUpdate(op))
                    yield sample(guarded, *inputs[: op.count], shadow, *inputs[op.count :], np.array([3]), differentiable=())
