"""Gradients as small programs: the ops that `op.grad` applies, recorded once and reduced to the requested gradients.

If x of x @ w requires no gradient, only the product for w remains. A node of the autograd tape saves only the tensors that its program reads.
`through` differentiates a composition of ops in reverse order.
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
    """An op and the numbers of its input and output values."""

    op: Op
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Derivative:
    """A gradient program: steps that compute the gradients of an op's inputs.

    The values 0, 1, ... of the program are the inputs, the outputs and the output gradients; the values of the steps follow.
    """

    steps: tuple[DerivativeStep, ...]
    results: tuple[int | None, ...]
    #: numbers of the values that the program reads
    reads: frozenset[int]
    #: True for results that a step computes for exactly one input
    own: tuple[bool, ...]

    def __call__(self, interpreter: scope.Interpreter, values: Sequence[Any]) -> tuple[Any, ...]:
        """Run the program on `values`; return the gradients of the inputs, or None for inputs without a gradient."""
        known: dict[int | None, Any] = dict(enumerate(values))
        for step in self.steps:
            outputs = interpreter.apply(step.op, [known[i] for i in step.inputs], None)
            known.update(zip(step.outputs, outputs, strict=True))
        known[None] = None
        return tuple(known[i] for i in self.results)


@lru_cache(maxsize=1 << 13)
def derivative(op: Op, types: tuple[TensorType, ...], existing: tuple[bool, ...], targets: tuple[bool, ...]) -> Derivative:
    """Return the gradient program of `op` for the inputs that `targets` selects.

    `types` are the types of inputs and outputs. `existing` has one bool per output: True if the output has a gradient.
    """
    values = [_Value(type, number) for number, type in enumerate(types)]
    outputs = types[len(targets) :]
    gradients = [_Value(type, len(types) + i) if there else None for i, (type, there) in enumerate(zip(outputs, existing, strict=True))]
    first = len(types) + len(outputs)
    recorder = _OpRecorder(first)
    with scope.using(interpreter=recorder):
        results: Sequence[Any] = op.grad(*values, *gradients)
    return _program(recorder, [value if target else None for value, target in zip(results, targets, strict=True)], first)


def through(parts: Callable[..., Sequence[Tensor] | None], inputs: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Grads:
    """Differentiate `parts`, a function of ordinary ops, and return the gradients of `inputs`.

    `gradients` are the gradients of the outputs of `parts`.
    """
    values = [_Value(x.tensor_type, i) for i, x in enumerate(inputs)]
    seeds = [None if dy is None else _Value(dy.tensor_type, len(values) + i) for i, dy in enumerate(gradients)]
    recorder = _OpRecorder(len(values) + len(seeds))
    with scope.using(interpreter=recorder):
        outputs: Any = parts(*values)
        accumulated: dict[int, _Value] = {}
        for y, dy in zip(outputs, seeds, strict=True):
            _add(accumulated, y.number, dy)
        for step in reversed(tuple(recorder.steps)):
            _step_back(step, recorder.values, accumulated)
    program = _program(recorder, [accumulated.get(x.number) for x in values], len(values) + len(seeds))
    interpreter = scope.current().interpreter
    assert interpreter is not None, "gradients need an interpreter that applies ops"
    return program(interpreter, (*inputs, *gradients))


def _step_back(step: DerivativeStep, values: dict[int, _Value], accumulated: dict[int, _Value]) -> None:
    """Add the contributions of one step to `accumulated`, the gradients by value number, if an output of the step has a gradient."""
    output_gradients = [accumulated.get(i) for i in step.outputs]
    if any(gradient is not None for gradient in output_gradients):
        input_gradients: Sequence[Any] = step.op.grad(*(values[i] for i in (*step.inputs, *step.outputs)), *output_gradients)
        for i, gradient in zip(step.inputs, input_gradients, strict=True):
            _add(accumulated, i, gradient)


def _add(accumulated: dict[int, _Value], number: int, gradient: Any) -> None:
    if gradient is not None:
        accumulated[number] = apply(Add(), accumulated[number], gradient) if number in accumulated else gradient


@dataclass(frozen=True, slots=True)
class _Value:
    """A placeholder for a tensor while ops are traced: its type and the number of the value."""

    tensor_type: TensorType
    number: int


def recorded(function: Callable[..., Sequence[Any]], types: Sequence[TensorType]) -> tuple[tuple[DerivativeStep, ...], tuple[int, ...]]:
    """Trace `function` with inputs of these types; return its ops as steps, and the numbers of its results.

    The inputs are values 0, 1, ..., and the outputs of the steps are the next values.
    """
    tracer = _OpRecorder(len(types))
    with scope.using(interpreter=tracer):
        results = function(*[_Value(type, number) for number, type in enumerate(types)])
    return tuple(tracer.steps), tuple(value.number for value in results)


class _OpRecorder:
    """An interpreter that records op calls as steps; values below `first` are inputs."""

    def __init__(self, first: int) -> None:
        self.steps: list[DerivativeStep] = []
        self.next = first
        self.values: dict[int, _Value] = {}

    def apply(self, op: Op, inputs: Sequence[Any], name: str | None) -> tuple[_Value, ...]:
        types = types_tuple(op.infer(*(x.tensor_type for x in inputs)))
        outputs = tuple(_Value(type, self.next + i) for i, type in enumerate(types))
        self.next += len(outputs)
        self.values.update({x.number: x for x in (*inputs, *outputs)})
        self.steps.append(DerivativeStep(op, tuple(x.number for x in inputs), tuple(value.number for value in outputs)))
        return outputs


def _program(recorder: _OpRecorder, gradients: Sequence[_Value | None], first: int) -> Derivative:
    """Return the gradient program of the recorded steps that contribute to `gradients`; values with numbers below `first` are inputs."""
    results = tuple(None if value is None else value.number for value in gradients)
    needed = {number for number in results if number is not None}
    steps: list[DerivativeStep] = []
    for step in reversed(recorder.steps):
        if needed.intersection(step.outputs):
            steps.append(step)
            needed.update(step.inputs)
    own = tuple(number is not None and number >= first and results.count(number) == 1 for number in results)
    return Derivative(tuple(reversed(steps)), results, frozenset(number for number in needed if number < first), own)
