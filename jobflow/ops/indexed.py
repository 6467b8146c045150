"""Ops with a formula that are not elementwise: rows of a tensor, sums of columns, numbers per channel."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar

from jobflow.core.types import Array, TensorType, Xp, dtype_of, float32, float64, type_of
from jobflow.expressions import language
from jobflow.expressions.index_space import IndexSpace, space_of
from jobflow.expressions.language import Expression
from jobflow.expressions.on_arrays import ROWS, evaluate
from jobflow.ops.op import types_tuple
from jobflow.ops.pointwise import Pointwise


class Indexed(Pointwise):
    """An op whose formula runs over the index space of its rule's letters."""

    abstract = True
    #: the letter of the rule for the axis along which elements are looked up
    table: ClassVar[str] = ""

    def row(self, letters: str) -> str:
        """Which of the letters of the rule are the row: those of the axes that stay whole."""
        return "".join(dict.fromkeys(letter for letter in letters if letter.isupper())).lower()

    def last(self, letters: str) -> str:
        """Where there is no row of several axes, the letters that come last in the space."""
        return ""

    def index_space(self, *types: TensorType) -> IndexSpace:
        spec = self.rule(*types).spec
        return space_of(spec, (*types, *types_tuple(self.infer(*types))), self.row(spec), self.last(spec), self.table)

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        inputs, outputs = arrays[: len(arrays) - self.results], arrays[len(arrays) - self.results :]
        made, space = facts_of(self, *map(type_of, inputs))
        values = evaluate(made, [space.read(k, a) for k, a in enumerate(inputs)], xp, space.shape)
        for k, (value, array) in enumerate(zip(values, outputs, strict=True), len(inputs)):
            space.write(k, value, array, xp)


class AxisReduction(Indexed):
    """An op of one input that has one value for all elements along the axes that its output has not; the formula says it of a row.

    A row is what these axes hold, where they are the last ones.  Sums over others are of columns: memory is read as it lies.
    """

    abstract = True
    #: True if the formula is made of a sum
    sums: ClassVar[bool] = False

    def _by_columns(self, spec: str) -> bool:
        word, gone, _ = _gone(spec)
        return self.sums and gone != "" and not word.endswith(gone)

    def row(self, letters: str) -> str:
        _, gone, kept = _gone(letters)
        return kept if self._by_columns(letters) else gone

    def expression(self, *types: TensorType) -> tuple[Expression, ...] | None:
        made, spec = super().expression(*types), self.rule(*types).spec
        assert made is not None, f"{self} has no formula"
        if self._by_columns(spec):
            return tuple(_of_others(y, lambda x: language.column_sum(*x.arguments)) for y in made)
        return made if _gone(spec)[1] or not types[0].ndim else tuple(_of_others(y, lambda x: x.arguments[0]) for y in made)


def wide_sum(f: Any, x: Any) -> Any:
    """The sum of a row that may be long: of float32 in float64, for rounding would add up along it."""
    return f.cast(f.row_sum(f.cast(x, float64)), x.dtype) if dtype_of(x.dtype) is float32 else f.row_sum(x)


def _gone(spec: str) -> tuple[str, str, str]:
    """The letters of the input of a rule, those that the output has not, and those that it has."""
    word, _, kept = spec.lower().partition("->")
    word = word.replace("1", "")
    return word, "".join(a for a in word if a not in kept), "".join(a for a in word if a in kept)


def _of_others(y: Expression, other: Callable[[Expression], Expression]) -> Expression:
    """The expression with others in place of its reductions."""
    return language.replaced(y, {x: other(x) for x in language.in_order([y]) if x.primitive in ROWS})


@lru_cache(4096)
def facts_of(op: Indexed, *types: TensorType) -> tuple[tuple[Expression, ...], IndexSpace]:
    """What an op computes, and where."""
    made = op.expression(*types)
    assert made is not None, f"{op} has no formula"
    return made, op.index_space(*types)
