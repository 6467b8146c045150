"""Gradients as small programs: what `op.grad` calls, recorded once, without what nobody asks for.

Of x @ w with data x, which requires no gradient, only the product for w is left; and a node of the tape keeps only those tensors
that the program reads.  What is made of several ops gets its gradient from theirs, last op first (`through`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jobflow.core.scope as scope
from jobflow.core.dataclass import dataclass
from jobflow.core.types import Tensor, TensorType
from jobflow.ops.arithmetic import Add
from jobflow.ops.op import Grads, Op, apply, types_tuple


@dataclass(frozen=True, slots=True)
class DerivativeStep:
    """An op on numbered values."""

    op: Op
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Derivative:
    """Steps from (*inputs, *outputs, *their gradients), which are values 0, 1, ..., to the gradients of the inputs."""

    steps: tuple[DerivativeStep, ...]
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
    first = len(types) + len(outputs)
    recording = _Recording(first)
    with scope.using(interpreter=recording):
        made: Sequence[Any] = op.grad(*values, *gradients)
    return _program(recording, [value if asked else None for value, asked in zip(made, wanted, strict=True)], first)


def through(parts: Callable[..., Sequence[Tensor] | None], inputs: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Grads:
    """The gradients of the inputs of `parts`, which makes its outputs by ordinary ops, from the gradients of these outputs."""
    values = [_Value(x.tensor_type, i) for i, x in enumerate(inputs)]
    seeds = [None if dy is None else _Value(dy.tensor_type, len(values) + i) for i, dy in enumerate(gradients)]
    recording = _Recording(len(values) + len(seeds))
    with scope.using(interpreter=recording):
        outputs: Any = parts(*values)
        found: dict[int, _Value] = {}
        for y, dy in zip(outputs, seeds, strict=True):
            _add(found, y.number, dy)
        for step in reversed(tuple(recording.steps)):
            _step_back(step, recording.values, found)
    program = _program(recording, [found.get(x.number) for x in values], len(values) + len(seeds))
    interpreter = scope.current().interpreter
    assert interpreter is not None, "gradients are taken where ops can be applied"
    return program(interpreter, (*inputs, *gradients))


def _step_back(step: DerivativeStep, values: dict[int, _Value], found: dict[int, _Value]) -> None:
    """From the gradients of a step's outputs, if any are found, to those of its inputs."""
    given = [found.get(i) for i in step.outputs]
    if any(gradient is not None for gradient in given):
        made: Sequence[Any] = step.op.grad(*(values[i] for i in (*step.inputs, *step.outputs)), *given)
        for i, gradient in zip(step.inputs, made, strict=True):
            _add(found, i, gradient)


def _add(found: dict[int, _Value], number: int, gradient: Any) -> None:
    if gradient is not None:
        found[number] = apply(Add(), found[number], gradient) if number in found else gradient


@dataclass(frozen=True, slots=True)
class _Value:
    """Stands for a tensor."""

    tensor_type: TensorType
    number: int


class _Recording:
    """The interpreter that records what is called, on values of which the first `given` come from outside."""

    def __init__(self, given: int) -> None:
        self.steps: list[DerivativeStep] = []
        self.next = given
        self.values: dict[int, _Value] = {}

    def apply(self, op: Op, inputs: Sequence[Any], name: str | None) -> tuple[_Value, ...]:
        types = types_tuple(op.infer(*(x.tensor_type for x in inputs)))
        made = tuple(_Value(type, self.next + i) for i, type in enumerate(types))
        self.next += len(made)
        self.values.update({x.number: x for x in (*inputs, *made)})
        self.steps.append(DerivativeStep(op, tuple(x.number for x in inputs), tuple(value.number for value in made)))
        return made


def _program(recording: _Recording, made: Sequence[_Value | None], first: int) -> Derivative:
    """What was recorded, without the steps that none of the results needs; values below `first` come from outside."""
    results = tuple(None if value is None else value.number for value in made)
    needed = {number for number in results if number is not None}
    steps: list[DerivativeStep] = []
    for step in reversed(recording.steps):
        if needed.intersection(step.outputs):
            steps.append(step)
            needed.update(step.inputs)
    own = tuple(number is not None and number >= first and results.count(number) == 1 for number in results)
    return Derivative(tuple(reversed(steps)), results, frozenset(number for number in needed if number < first), own)
