"""Groups of values that share a memory order."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jobflow.compiler.front.recompute import AGAIN
from jobflow.compiler.rank.local import LocalInstruction, LocalValue, RankProgram
from jobflow.ops.op import Op


class ValueGroups:
    """Sets of values that share a memory order (union-find)."""

    def __init__(self, joined: Iterable[list[LocalValue]] = ()) -> None:
        self.parent: dict[LocalValue, LocalValue] = {}
        for values in joined:
            self.join_equal_shapes(values)

    def find(self, value: LocalValue) -> LocalValue:
        while value in self.parent:
            value = self.parent[value]
        return value

    def join_equal_shapes(self, values: Iterable[LocalValue]) -> None:
        self._join_alike(values, lambda value: value.type.shape)

    def join_equal_axes(self, values: Iterable[LocalValue]) -> None:
        """Join values with the same number of axes."""
        self._join_alike(values, lambda value: value.type.ndim)

    def _join_alike(self, values: Iterable[LocalValue], property_of: Callable[[LocalValue], object]) -> None:
        first: dict[object, LocalValue] = {}
        for value in values:
            a, b = self.find(value), self.find(first.setdefault(property_of(value), value))
            if a is not b:
                self.parent[a] = b


def rematerialized_pairs(program: RankProgram) -> Iterable[list[LocalValue]]:
    """Yield pairs of rematerialized values and their originals."""
    by_name = {value.name: value for step in program.steps for value in step.outputs}
    for name, value in by_name.items():
        if name.startswith(AGAIN) and name.removeprefix(AGAIN) in by_name:
            yield [value, by_name[name.removeprefix(AGAIN)]]


def batches(op: Op, step: LocalInstruction) -> list[LocalValue]:
    """Return the operands with a batch axis, letter n of the rule; all other operands are weights."""
    words = op.rule(*(value.type for value in step.inputs)).spec.replace("->", ",").split(",")
    return [value for value, word in zip((*step.inputs, *step.outputs), words, strict=True) if word.startswith("n")]
