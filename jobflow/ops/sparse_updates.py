"""The update operation of SparseAdam, which changes only table rows with a nonzero gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from jobflow.core.layout import Rule
from jobflow.core.types import TensorType, float64
from jobflow.expressions.language import Expression
from jobflow.ops.indexed import replace_reductions
from jobflow.ops.op import LETTERS, Sample, sample
from jobflow.ops.optimizer_updates import Element, Elements, NormUpdate, corrections
from jobflow.ops.pointwise import sample_data


class SparseAdamUpdate(NormUpdate):
    """Adam on the rows of a table whose gradient is not zero; the other rows of the table and of its slots do not change.

    m' = m + (1 - beta1) (d - m), v' = v + (1 - beta2) (d^2 - v), w' = w - lr sqrt(1 - beta2^t) / (1 - beta1^t) m' / (sqrt(v') + epsilon), d = g.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    maximize: bool = False
    elementwise = False
    reads_step = True
    slot_names = ("m", "v")
    cases = ({}, {"maximize": True})

    def rule(self, *types: TensorType) -> Rule:
        """Return a rule that splits the table and its gradient along axis 0; a row is never split."""
        letters = LETTERS[: min(types[0].ndim, 1)] + LETTERS[1 : types[0].ndim].upper() or "1"
        words = ["1" if is_scalar else letters for is_scalar in self._scalars(types)]
        return Rule(f"{','.join(words)}->{','.join(words[: self.count])}")

    def expression(self, *types: TensorType) -> tuple[Expression, ...] | None:
        formulas = super().expression(*types)
        assert formulas is not None, "the update has a formula"
        return formulas if types[0].ndim > 1 else tuple(replace_reductions(y, lambda x: x.arguments[0]) for y in formulas)

    def scalars(self, f: Any, rate: Any, step: Any, *rows: Element) -> tuple[Any, ...]:
        first, second = corrections(self.beta1, self.beta2, step)
        return (rate * f.sqrt(second) / first,)

    def formula(self, f: Any, w: Element, m: Element, v: Element, g: Element, rate: Element) -> Elements:
        read = f.row_sum(f.where(f.not_equal(g, 0.0), f.constant(1.0, float64), 0.0)) > 0
        d = -g if self.maximize else g
        new_m, new_v = m + (1 - self.beta1) * (d - m), v + (1 - self.beta2) * (d * d - v)
        moved = w - rate * (new_m / (f.sqrt(new_v) + self.epsilon))
        return f.where(read, moved, w), f.where(read, new_m, m), f.where(read, new_v, v)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for options, shape in [*((each, (5, 3)) for each in cls.cases), ({}, (6,)), ({}, (4, 2, 3))]:
            gradient = sample_data(9, *shape)
            gradient[[0, 3]] = 0
            gradient[(2, *[0] * (len(shape) - 1))] = 0
            slots = [abs(sample_data(i, *shape)) for i in (1, 2)]
            yield sample(cls(**options), sample_data(0, *shape), *slots, gradient, [0.1], np.array([2]), differentiable=())
