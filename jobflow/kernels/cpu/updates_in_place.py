"""Optimizer formulas on CPUs: scalars are computed first, then variables are updated in place, block by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from jobflow.core.types import Array, DType, dtype_of
from jobflow.expressions import language
from jobflow.expressions.on_arrays import functions
from jobflow.kernels.cpu.numpy_calls import CompiledFormula, block_calls, compiled
from jobflow.kernels.registry import implements, kernel_call
from jobflow.ops.op import Binder, Call
from jobflow.ops.optimizer_updates import NormUpdate, OptimizerUpdate


@implements(OptimizerUpdate)
def formula_in_blocks(op: OptimizerUpdate, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    program = update_program(op, dtype_of(inputs[0].dtype)) if op.elementwise else None
    if program is None:
        return kernel_call(op, device, inputs, outputs)
    elements, operands = inputs[: program.elements], [a.reshape(()) for a in inputs[program.elements :]]
    scalars, first = operands[:1], list[Call]()
    if op.derives:
        scalars = [device.scratch((), dtype_of(inputs[0].dtype)) for _ in range(program.scalars)]
        first = [(_fill, (scalars, op.scalars, elements if isinstance(op, NormUpdate) else (), *operands))]
    return [*first, *block_calls(program, device, elements, scalars, outputs, backwards=True)]


@lru_cache(1024)
def update_program(op: OptimizerUpdate, dtype: DType) -> CompiledFormula | None:
    """Return the compiled formula of an update, which reads its scalars as inputs."""
    n = op.count + 1
    scalars = [language.number(n + i, dtype) for i in range(len(op.scalars(functions(np), 0.0, 0, *[np.ones((1, 1))] * n)))]
    outputs = op.formula(language, *(language.element(i, dtype) for i in range(n)), *scalars)
    return compiled(outputs, n, len(scalars), {k: (i,) for k, i in op.alias.items()})


def _fill(
    targets: Sequence[Array], compute: Callable[..., tuple[float, ...]], elements: Sequence[Array], rate: Array, step: Array | None = None
) -> None:
    rows = [a.reshape(1, -1) for a in elements]
    for target, number in zip(targets, compute(functions(np), rate.item(), 0 if step is None else step.item(), *rows), strict=True):
        target[()] = np.asarray(number).item()
