"""The gradient of an op as a small program: what `op.grad` calls, taken down once, without what nobody asks for.

Of x @ w with data x, which requires no gradient, only the product for w is left; and a node of the tape keeps only those tensors
that the program reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jobflow.scope as scope
from jobflow.ops.base import Op, types_tuple
from jobflow.types import TensorType


@dataclass(frozen=True, slots=True)
class Step:
    """An op on numbered values."""

    op: Op
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Derivative:
    """Steps from (*inputs, *outputs, *their gradients), which are values 0, 1, ..., to the gradients of the inputs."""

    steps: tuple[Step, ...]
    results: tuple[int | None, ...]
    #: which of these values it reads
    reads: frozenset[int]
    #: which results are made by steps, and are the result of no other input
    own: tuple[bool, ...]

    def __call__(self, interpreter: scope.Interpreter, values: Sequence[Any]) -> tuple[Any, ...]:
        """The gradients of the inputs; None where there is none."""
        known: dict[int | None, Any] = dict(enumerate(values))
        for step in self.steps:
            made = interpreter.apply(step.op, [known[i] for i in step.inputs], None)
            known.update(zip(step.outputs, made, strict=True))
        known[None] = None
        return tuple(known[i] for i in self.results)


@lru_cache(maxsize=1 << 13)
def derivative(op: Op, types: tuple[TensorType, ...], given: tuple[bool, ...], wanted: tuple[bool, ...]) -> Derivative:
    """The gradients of the inputs that are `wanted`, where those of the outputs are `given`; `types` are those of inputs and outputs."""
    values = [_Value(type, number) for number, type in enumerate(types)]
    outputs = types[len(wanted) :]
    gradients = [_Value(type, len(types) + i) if there else None for i, (type, there) in enumerate(zip(outputs, given, strict=True))]
    taking = _Taking(len(types) + len(outputs))
    with scope.using(interpreter=taking):
        made: Sequence[Any] = op.grad(*values, *gradients)
    results = tuple(value.number if value is not None and asked else None for value, asked in zip(made, wanted, strict=True))
    needed = {number for number in results if number is not None}
    steps: list[Step] = []
    for step in reversed(taking.steps):
        if needed.intersection(step.outputs):
            steps.append(step)
            needed.update(step.inputs)
    first = len(types) + len(outputs)
    own = tuple(number is not None and number >= first and results.count(number) == 1 for number in results)
    return Derivative(tuple(reversed(steps)), results, frozenset(number for number in needed if number < first), own)


@dataclass(frozen=True, slots=True)
class _Value:
    """Stands for a tensor."""

    type: TensorType
    number: int


class _Taking:
    """The interpreter that takes down what is called."""

    def __init__(self, first: int) -> None:
        self.steps: list[Step] = []
        self.next = first

    def apply(self, op: Op, inputs: Sequence[Any], name: str | None) -> tuple[_Value, ...]:
        types = types_tuple(op.infer(*(x.type for x in inputs)))
        made = tuple(_Value(type, self.next + i) for i, type in enumerate(types))
        self.next += len(made)
        self.steps.append(Step(op, tuple(x.number for x in inputs), tuple(value.number for value in made)))
        return made
