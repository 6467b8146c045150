"""Updates that multiply the gradient by a number first, such as the factor of gradient clipping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from jobflow.core.errors import ShapeError
from jobflow.core.layout import B, Box, Rule, Signature
from jobflow.core.types import TensorType
from jobflow.expressions.language import Expression
from jobflow.ops.guarded_update import GuardedUpdate
from jobflow.ops.indexed import Indexed
from jobflow.ops.op import Op, Sample, sample
from jobflow.ops.optimizer_updates import AdamUpdate, LambUpdate, SgdUpdate
from jobflow.ops.pointwise import Pointwise
from jobflow.ops.update import Updated


class ScaledUpdate(Updated, Indexed):
    """The update `op` with its gradient multiplied by the last input, an array of one element."""

    op: Updated

    @property
    def alias(self) -> Mapping[int, int]:  # type: ignore[override]
        return self.op.alias

    @property
    def count(self) -> int:
        return self.op.count

    @property
    def single(self) -> frozenset[int]:  # type: ignore[override]
        return self.op.single

    @property
    def results(self) -> int:  # type: ignore[override]
        return self.op.count

    @property
    def flat(self) -> bool:  # type: ignore[override]
        return self.op.flat

    @property
    def like(self) -> int:  # type: ignore[override]
        return self.op.like

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        if types[-1] != TensorType((1,), types[self.count].dtype):
            raise ShapeError(f"{self.word()}: the factor {types[-1]} must be {types[self.count].dtype}[1]")
        return self.op.infer(*types[:-1])

    def rule(self, *types: TensorType) -> Rule:
        own = self.op.rule(*types[:-1])
        left, _, right = own.spec.partition("->")
        return replace(own, spec=f"{left},1->{right}", also=tuple(Signature((*s.inputs, B), s.outputs) for s in own.also))

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        op = self.op.localize(inputs[:-1], outputs)
        assert isinstance(op, Updated)
        return replace(self, op=op)

    def output_expressions(self, *read: Expression) -> tuple[Expression, ...]:
        assert isinstance(self.op, Pointwise), f"{self.op} has no formula"
        *own, factor = read
        own[self.count] = own[self.count] * factor
        return self.op.output_expressions(*own)

    def formula(self, f: Any, *elements: Any) -> Any:
        return self.output_expressions(*elements)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for op in (AdamUpdate(weight_decay=0.1), SgdUpdate(), LambUpdate(weight_decay=0.1)):
            for case in op.samples():
                if case.op == op:
                    yield sample(cls(op), *case.arrays, np.array([0.5]), differentiable=())
                    yield sample(cls(GuardedUpdate(op)), *case.arrays, np.array([3]), np.array([0.5]), differentiable=())
