"""Skipping a step: counting numbers that are not finite, conditional updates, and the dynamic loss scale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from jobflow.core.errors import ShapeError
from jobflow.core.layout import B, Box, Rule, Signature
from jobflow.core.types import Array, Tensor, TensorType, Xp, float32, int64
from jobflow.ops.op import LETTERS, Op, Sample, apply, sample
from jobflow.ops.optimizer_updates import AdamUpdate, LambUpdate, SgdUpdate
from jobflow.ops.pointwise import FLOATS, check_dtypes, numbers
from jobflow.ops.update import Assign, Updated

#: The type of a count: what `Unless` asks.
COUNT = TensorType((1,), int64)


@dataclass(frozen=True)
class CountNotFinite(Op):
    """n = how many elements of x are infinite or not a number; int64 of shape (1,)."""

    def infer(self, x: TensorType) -> TensorType:
        check_dtypes("count_not_finite", FLOATS, x)
        return COUNT

    def rule(self, x: TensorType) -> Rule:
        return Rule(f"{LETTERS[: x.ndim] or '1'}->1")

    def kernel(self, xp: Xp, x: Array, n: Array) -> None:
        n[...] = x.size - xp.count_nonzero(xp.isfinite(x))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = numbers(1, 5, 3)
        yield sample(cls(), x, differentiable=())
        x[1, 2], x[3, 0], x[4, 1] = np.inf, -np.inf, np.nan
        yield sample(cls(), x, differentiable=())
        yield sample(cls(), np.array(np.nan), differentiable=())


def count_not_finite(x: Tensor, *, name: str | None = None) -> Tensor:
    """How many elements of x are infinite or not a number, as int64 of shape (1,)."""
    n: Tensor = apply(CountNotFinite(), x, name=name)
    return n


@dataclass(frozen=True)
class Unless(Updated):
    """What the update `op` gives, unless the last input, a count, is not zero: then the variables stay as they are."""

    op: Updated

    @property
    def alias(self) -> Mapping[int, int]:  # type: ignore[override]
        return self.op.alias

    @property
    def count(self) -> int:
        return self.op.count

    @property
    def flat(self) -> bool:  # type: ignore[override]
        return self.op.flat

    @property
    def like(self) -> int:  # type: ignore[override]
        return self.op.like

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        if types[-1] != COUNT:
            raise ShapeError(f"unless: the count {types[-1]} is not {COUNT}")
        return self.op.infer(*types[:-1])

    def rule(self, *types: TensorType) -> Rule:
        own = self.op.rule(*types[:-1])
        left, _, right = own.spec.partition("->")
        return replace(own, spec=f"{left},1->{right}", also=tuple(Signature((*s.inputs, B), s.outputs) for s in own.also))

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        op = self.op.localize(inputs[:-1], outputs)
        assert isinstance(op, Updated)
        return self if op is self.op else replace(self, op=op)

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        inputs, outputs = arrays[: -len(self.alias)], arrays[-len(self.alias) :]
        *own, bad = inputs
        if bad[0]:
            for i, source in self.alias.items():
                outputs[i][...] = own[source]
        else:
            self.op.kernel(xp, *own, *outputs)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for op in (AdamUpdate(weight_decay=0.1), SgdUpdate(), LambUpdate(weight_decay=0.1), Assign()):
            for given in op.samples():
                for bad in (0, 3):
                    if given.op == op:
                        yield sample(cls(op), *given.arrays, np.array([bad]), differentiable=())


@dataclass(frozen=True)
class LossScaleUpdate(Updated):
    """scale', good' after a step: larger by `multiplier` (at most the largest float32) once `period` steps in a row were finite, smaller
    (at least 1) after one that was not.

    Inputs: scale; good, the number of finite steps since the scale last changed; and how many numbers of this step's gradients are
    not finite.
    """

    period: int = 2000
    multiplier: float = 2.0
    alias: ClassVar[Mapping[int, int]] = {0: 0, 1: 1}
    flat: ClassVar[bool] = False
    like: ClassVar[int] = 0

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

    def kernel(self, xp: Xp, scale: Array, good: Array, bad: Array, new_scale: Array, new_good: Array) -> None:
        now, finite = float(scale[0]), 0 if bad[0] else int(good[0]) + 1
        if bad[0]:
            now = max(now / self.multiplier, 1.0)
        elif finite >= self.period:
            now, finite = min(now * self.multiplier, float32.largest), 0
        new_scale[...] = now
        new_good[...] = finite

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for good, bad in ((0, 0), (1, 0), (2, 0), (2, 5)):
            yield sample(cls(period=3), np.array([8.0]), np.array([good]), np.array([bad]), differentiable=())
        yield sample(cls(), np.array([1.5]), np.array([0]), np.array([1]), differentiable=())
        yield sample(cls(period=1), np.array([float32.largest]), np.array([0]), np.array([0]), differentiable=())


@dataclass(frozen=True)
class Halt(Assign):
    """n' = bad: how many numbers were not finite, in the first step in which any was not.

    Inputs: n; and bad, the count of this step's gradients plus n, so that all later steps are skipped as well.
    """

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for bad in (0, 3):
            yield sample(cls(), np.array([0]), np.array([bad]), differentiable=())
