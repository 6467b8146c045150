"""Ops with a formula that are not elementwise: rows of a tensor, sums of columns, numbers per channel."""

from __future__ import annotations

from collections.abc import Sequence

from jobflow.core.types import Array, TensorType, Xp, type_of
from jobflow.expressions.index_space import IndexSpace, space_of
from jobflow.expressions.on_arrays import evaluate
from jobflow.ops.op import Binder, Call, Op, types_tuple
from jobflow.ops.pointwise import Pointwise


class Indexed(Pointwise):
    """An op whose formula runs over the index space of its rule's letters."""

    abstract = True

    def row(self, letters: str) -> str:
        """Which of the letters of the rule are the row: those of the axes that stay whole."""
        return "".join(dict.fromkeys(letter for letter in letters if letter.isupper())).lower()

    def last(self, letters: str) -> str:
        """Where there is no row of several axes, the letters that come last in the space."""
        return ""

    def index_space(self, *types: TensorType) -> IndexSpace:
        spec = self.rule(*types).spec
        return space_of(spec, (*types, *types_tuple(self.infer(*types))), self.row(spec), self.last(spec))

    def bind(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        return Op.bind(self, device, inputs, outputs)

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        inputs, outputs = arrays[: len(arrays) - self.results], arrays[len(arrays) - self.results :]
        types = [type_of(a) for a in inputs]
        space, made = self.index_space(*types), self.expression(*types)
        assert made is not None, f"{self} has no formula"
        values = evaluate(made, [space.read(k, a) for k, a in enumerate(inputs)], xp, space.shape)
        for k, (value, array) in enumerate(zip(values, outputs, strict=True), len(inputs)):
            space.write(k, value, array, xp)
