"""Updates that multiply the gradient by a number first, such as the factor of gradient clipping."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jobflow.core.errors import ShapeError
from jobflow.core.types import TensorType
from jobflow.expressions.language import Expression
from jobflow.ops.guarded_update import GuardedUpdate
from jobflow.ops.op import Sample, sample
from jobflow.ops.optimizer_updates import AdamUpdate, LambUpdate, SgdUpdate
from jobflow.ops.wrapped_update import UpdateWithNumber


class ScaledUpdate(UpdateWithNumber):
    """The update `op` with its gradient multiplied by the last input, an array of one element."""

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        if types[-1] != TensorType((1,), types[self.count].dtype):
            raise ShapeError(f"{self.word()}: the factor {types[-1]} must be {types[self.count].dtype}[1]")
        return self.op.infer(*types[:-1])

    def output_expressions(self, *read: Expression) -> tuple[Expression, ...]:
        *own, factor = read
        own[self.count] = own[self.count] * factor
        return self.new_values(*own)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for op in (AdamUpdate(weight_decay=0.1), SgdUpdate(), LambUpdate(weight_decay=0.1)):
            for case in op.samples():
                if case.op == op:
                    yield sample(cls(op), *case.arrays, np.array([0.5]), differentiable=())
                    yield sample(cls(GuardedUpdate(op)), *case.arrays, np.array([3]), np.array([0.5]), differentiable=())
