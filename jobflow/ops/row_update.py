"""Updates of a table from gradients of rows, without a gradient of the whole table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, TypeVar

import numpy as np

from jobflow.core.errors import ShapeError
from jobflow.core.layout import B, Box, Rule, S, Signature
from jobflow.core.types import Array, TensorType, Xp
from jobflow.ops.index import UnsortedSegmentSum
from jobflow.ops.op import LETTERS, Op, Sample, sample
from jobflow.ops.optimizer_updates import AdagradUpdate, AdamUpdate, MomentumUpdate, OptimizerUpdate, SgdUpdate
from jobflow.ops.pointwise import sample_data
from jobflow.ops.update import Updated

T = TypeVar("T")


class RowUpdate(Updated):
    """Optimizer update `op` of a table and its slots, with the gradient g[k, b...] = sum of rows[i..., b...] over all i with ids[i...] == k.

    Inputs: the table and its slots, rows, ids, and the scalars of `op`.  Rows without a gradient are updated with gradient 0, so decay and moving
    averages change them; with `lazy` they do not change.  `offset` is the first row of a rank's shard of the table.
    """

    op: OptimizerUpdate
    offset: int = 0
    lazy: bool = False
    flat: ClassVar[bool] = False

    @property
    def alias(self) -> Mapping[int, int]:  # type: ignore[override]
        return self.op.alias

    @property
    def count(self) -> int:
        return self.op.count

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        (table, *_), rows, ids, scalars = self.split(types)
        if ids.shape != rows.shape[: ids.ndim] or not ids.dtype.is_integer:
            raise ShapeError(f"rowupdate: rows {rows} must have one row per index in ids {ids}, which must be integers")
        gradient = rows.with_shape((table.shape[0], *rows.shape[ids.ndim :]))
        updated: tuple[TensorType, ...] = self.op.infer(*types[: self.count], gradient, *scalars)
        return updated

    def split(self, inputs: tuple[T, ...]) -> tuple[tuple[T, ...], T, T, tuple[T, ...]]:
        """Return four parts of the inputs: the table with its slots, the rows, the ids, and the scalars."""
        n = self.count
        return inputs[:n], inputs[n], inputs[n + 1], inputs[n + 2 :]

    def rule(self, *types: TensorType) -> Rule:
        """Return a rule that splits the columns of the tables and of `rows`, or axis 0 of the tables with replicated `rows` and `ids`."""
        (table, *_), _, ids, scalars = self.split(types)
        columns, entries = LETTERS[: table.ndim - 1], LETTERS[-ids.ndim :].upper() if ids.ndim else ""
        tables = [f"N{columns}"] * self.count
        words = [*tables, f"{entries}{columns}" or "1", entries or "1", *("1" for _ in scalars)]
        split = tuple([S(0)] * self.count)
        return Rule(f"{','.join(words)}->{','.join(tables)}", also=(Signature((*split, B, B, *(B for _ in scalars)), split),))

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return replace(self, offset=self.offset + outputs[0].start[0])

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        variables, rows, ids, others = self.split(arrays)
        gradient = xp.empty_like(variables[0])
        UnsortedSegmentSum(0, len(gradient), self.offset).kernel(xp, rows, ids, gradient)
        before = [xp.array(variable) for variable in variables] if self.lazy else []
        self.op.kernel(xp, *variables, gradient, *others)
        if self.lazy:
            at = ids.reshape(-1) - self.offset
            read = xp.zeros((len(gradient), *(1,) * (gradient.ndim - 1)), bool)
            read[at[(at >= 0) & (at < len(gradient))]] = True
            for old, new in zip(before, others[-self.count :], strict=True):
                new[...] = xp.where(read, new, old)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        ops = (SgdUpdate(), SgdUpdate(0.1), MomentumUpdate(0.9), AdagradUpdate(), AdamUpdate(weight_decay=0.1, bias_correction=True))
        for op in ops:
            variables = [abs(sample_data(i, 7, 3)) for i in range(op.count)]
            scalars = [[0.1], *([np.array([2])] if op.reads_step else [])]
            for ids in (np.array([0, 6, 3, 3, 5]), np.array([[1, 9], [-1, 1]])):
                for lazy in (False, True):
                    yield sample(cls(op, lazy=lazy), *variables, sample_data(9, *ids.shape, 3), ids, *scalars, differentiable=())
