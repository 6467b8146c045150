"""Chains of operations that eager mode runs as one operation.

Dispatching an operation on small tensors takes longer than computing it. Eager mode dispatches a chain of local tensors once. The chain then
calls the kernels of its operations, and values that only the chain reads are in scratch memory. In graphs, jobs and for global tensors, the
operations are applied one after another (`apply_chain`). Therefore a chain has no formula, and each of its operations gets a separate layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import jobflow.core.scope as scope
from jobflow.core.dataclass import dataclass
from jobflow.core.types import Tensor, TensorType
from jobflow.ops.derivative import Derivative, DerivativeStep, recorded, through
from jobflow.ops.op import Grads, Op, ViewOp, apply, types_tuple
from jobflow.ops.runtime_assertions import RuntimeAssertion


@dataclass(frozen=True, eq=False)
class Chain(Op):
    """A sequence of operations on numbered values. The first `inputs` values are the inputs, and `results` are the numbers of the outputs."""

    abstract = True

    #: the name in messages and on the autograd tape
    name: str
    steps: tuple[DerivativeStep, ...]
    inputs: int
    results: tuple[int, ...]

    #: chains are compared by identity: the functions that build them are cached
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @cached_property
    def alias(self) -> Mapping[int, int]:  # type: ignore[override]
        over = {step.outputs[j]: step.inputs[i] for step in self.steps for j, i in step.op.alias.items()}
        return {position: over[value] for position, value in enumerate(self.results) if value in over}

    def types(self, *inputs: TensorType) -> dict[int, TensorType]:
        """Return the types of all values of the chain, by value number."""
        types = dict(enumerate(inputs))
        for step in self.steps:
            types.update(zip(step.outputs, types_tuple(step.op.infer(*[types[i] for i in step.inputs])), strict=True))
        return types

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        types = self.types(*inputs)
        return tuple(types[value] for value in self.results)

    def reused(self, types: Mapping[int, TensorType]) -> dict[int, int]:
        """Return {value: result} for intermediate values that can have the memory of a result with the same type.

        The operation that computes the result overwrites this value in place. A chain that updates inputs in place reuses no memory.
        """
        reused: dict[int, int] = {}
        for step in () if self.alias else self.steps:
            for j, sources in step.op.in_place.items():
                result = step.outputs[j]
                source = next((step.inputs[i] for i in sources if self._read_once(step.inputs[i])), None)
                if result in self.results and source is not None and types[source] == types[result]:
                    reused[source] = result
        return reused

    def _read_once(self, value: int) -> bool:
        """Return True if the value with this number is an intermediate value of the chain with exactly one reader."""
        reads = sum(step.inputs.count(value) for step in self.steps)
        return reads == 1 and value >= self.inputs and value not in self.results

    def decompose(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        values: dict[int, Any] = dict(enumerate(inputs))
        for step in self.steps:
            result = apply(step.op, *[values[i] for i in step.inputs])
            values.update(zip(step.outputs, result if isinstance(result, tuple) else (result,), strict=True))
        return tuple(values[i] for i in self.results)

    def grad(self, *tensors: Any) -> Grads:
        count = self.inputs + len(self.results)
        return through(self.decompose, tensors[: self.inputs], tensors[count:])

    def word(self) -> str:  # type: ignore[override]
        return self.name


def chain(name: str, function: Callable[..., Sequence[Tensor]], *types: TensorType) -> Chain:
    """Trace `function` with tensors of these types and return its operations as a chain."""
    steps, results = recorded(function, types)
    return Chain(name, steps, len(types), results)


def apply_chain(chain: Chain, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Apply a chain and return its results. An interpreter with a method `apply_chain` runs the chain as one operation."""
    run = getattr(scope.current().interpreter, "apply_chain", None)
    return tuple(chain.decompose(*inputs) if run is None else run(chain, inputs))


#: total number of elements of a gradient program above which the time of dispatch is negligible
MOST_ELEMENTS = 1 << 18


def chained(program: Derivative, types: Mapping[int, TensorType], name: str) -> Derivative:
    """Return a gradient program whose operations are merged into one chain, except for final views, which no operation reads.

    `types` are the types of the values that the program reads. The program is unchanged if it has fewer than two operations to merge, or
    large tensors. It is also unchanged if it contains an in-place operation, a source, a runtime assertion, or an operation that depends on
    logical indices.
    """
    inside, views = _split(program)
    if len(inside) < 2 or not all(map(_may_be_chained, inside)):
        return program
    produced = {value for step in inside for value in step.outputs}
    sources = sorted({value for step in inside for value in step.inputs} - produced)
    targets = {value for value in program.results if value is not None}.union(*(step.inputs for step in views))
    results = [value for step in inside for value in step.outputs if value in targets]
    number = {value: i for i, value in enumerate([*sources, *[value for step in inside for value in step.outputs]])}
    steps = tuple(replace(step, inputs=tuple(number[i] for i in step.inputs), outputs=tuple(number[i] for i in step.outputs)) for step in inside)
    whole = Chain(name, steps, len(sources), tuple(number[value] for value in results))
    if sum(type.size for type in whole.types(*[types[i] for i in sources]).values()) > MOST_ELEMENTS:
        return program
    return replace(program, steps=(DerivativeStep(whole, tuple(sources), tuple(results)), *views))


def _split(program: Derivative) -> tuple[list[DerivativeStep], list[DerivativeStep]]:
    """Split the steps of a program into operations and final views.

    No operation reads a final view, which shares the memory of a result.
    """
    inside: list[DerivativeStep] = []
    views: list[DerivativeStep] = []
    read: set[int] = set()
    for step in reversed(program.steps):
        if isinstance(step.op, ViewOp) and read.isdisjoint(step.outputs):
            views.append(step)
        else:
            inside.append(step)
            read.update(step.inputs)
    return inside[::-1], views[::-1]


def _may_be_chained(step: DerivativeStep) -> bool:
    return bool(step.inputs) and not (step.op.alias or step.op.by_position or isinstance(step.op, RuntimeAssertion))
