"""Base classes of ops with a formula over rows of a tensor, column sums, or values per channel."""

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
    """An op with a formula over an index space. The letters of the op's rule are the axes of the space."""

    abstract = True
    #: the letter of the rule for the axis of a lookup
    table: ClassVar[str] = ""

    def row(self, letters: str) -> str:
        """Return the letters of the axes that form a row: the upper-case letters of the rule `letters`, which are axes that are not split."""
        return "".join(dict.fromkeys(axis for axis in letters if axis.isupper())).lower()

    def last(self, letters: str) -> str:
        """Return the letters of the last axes of the index space, for ops without a row.

        "" stands for the order of the axes in the rule `letters`.
        """
        return ""

    def index_space(self, *types: TensorType) -> IndexSpace:
        spec = self.rule(*types).spec
        return space_of(spec, (*types, *types_tuple(self.infer(*types))), self.row(spec), self.last(spec), self.table)

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        inputs, outputs = arrays[: len(arrays) - self.results], arrays[len(arrays) - self.results :]
        formulas, space = facts_of(self, *map(type_of, inputs))
        values = evaluate(formulas, [space.read(k, a) for k, a in enumerate(inputs)], xp, space.shape)
        for k, (value, array) in enumerate(zip(values, outputs, strict=True), len(inputs)):
            space.write(k, value, array, xp)


class AxisReduction(Indexed):
    """A reduction of one input along the axes that its output lacks; the formula applies to one row.

    If the reduced axes are the last ones, they form a row.  Sums along other axes are computed as column sums, which read memory in order.
    """

    abstract = True
    #: True if the formula contains a sum
    sums: ClassVar[bool] = False

    def _by_columns(self, spec: str) -> bool:
        word, reduced, _ = _split_letters(spec)
        return self.sums and reduced != "" and not word.endswith(reduced)

    def row(self, letters: str) -> str:
        _, reduced, remaining = _split_letters(letters)
        return remaining if self._by_columns(letters) else reduced

    def expression(self, *types: TensorType) -> tuple[Expression, ...] | None:
        formulas, spec = super().expression(*types), self.rule(*types).spec
        assert formulas is not None, f"{self} has no formula"
        if self._by_columns(spec):
            return tuple(replace_reductions(y, lambda x: language.column_sum(*x.arguments)) for y in formulas)
        return formulas if _split_letters(spec)[1] or not types[0].ndim else tuple(replace_reductions(y, lambda x: x.arguments[0]) for y in formulas)


def wide_sum(f: Any, x: Any) -> Any:
    """Return the sum of a row; float32 is summed in float64, because rounding errors accumulate in long rows."""
    return f.cast(f.row_sum(f.cast(x, float64)), x.dtype) if dtype_of(x.dtype) is float32 else f.row_sum(x)


def _split_letters(spec: str) -> tuple[str, str, str]:
    """Return three strings: the letters of the input in the rule `spec`, the letters of the reduced axes, and the remaining letters.

    The output lacks the reduced axes.
    """
    word, _, output = spec.lower().partition("->")
    word = word.replace("1", "")
    return word, "".join(a for a in word if a not in output), "".join(a for a in word if a in output)


def replace_reductions(y: Expression, other: Callable[[Expression], Expression]) -> Expression:
    """Return the expression y with each reduction x over a row or column replaced by other(x)."""
    return language.replaced(y, {x: other(x) for x in language.in_order([y]) if x.primitive in ROWS})


@lru_cache(4096)
def facts_of(op: Indexed, *types: TensorType) -> tuple[tuple[Expression, ...], IndexSpace]:
    """Return the formulas of the outputs of `op` for inputs of these types, and their index space; results are cached."""
    formulas = op.expression(*types)
    assert formulas is not None, f"{op} has no formula"
    return formulas, op.index_space(*types)
