"""Base class of updates that change the inputs or the results of another update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jobflow.core.layout import B, Box, Rule, Signature
from jobflow.core.types import TensorType
from jobflow.expressions.language import Expression
from jobflow.ops.indexed import Indexed
from jobflow.ops.op import Op
from jobflow.ops.pointwise import Pointwise
from jobflow.ops.update import Updated


class WrappedUpdate(Updated, Indexed):
    """An update that has the variables of the update `op`, and computes their new values by its formula."""

    abstract = True
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
        return self.count

    @property
    def flat(self) -> bool:  # type: ignore[override]
        return self.op.flat

    @property
    def like(self) -> int:  # type: ignore[override]
        return self.op.like

    def new_values(self, *read: Expression) -> tuple[Expression, ...]:
        """Return the outputs of `op` for its inputs."""
        assert isinstance(self.op, Pointwise), f"{self.op} has no formula"
        return self.op.output_expressions(*read)

    def formula(self, f: Any, *elements: Any) -> Any:
        return self.output_expressions(*elements)


class UpdateWithNumber(WrappedUpdate):
    """A wrapped update whose last input is an array of one element, in addition to the inputs of `op`."""

    abstract = True

    def rule(self, *types: TensorType) -> Rule:
        own = self.op.rule(*types[:-1])
        left, _, right = own.spec.partition("->")
        return replace(own, spec=f"{left},1->{right}", also=tuple(Signature((*s.inputs, B), s.outputs) for s in own.also))

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        op = self.op.localize(inputs[:-1], outputs)
        assert isinstance(op, Updated)
        return self if op is self.op else replace(self, op=op)
