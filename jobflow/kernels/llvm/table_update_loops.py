"""Updates of the table rows that a step has read, with a compiled loop over all rows if the formula changes rows without a gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jobflow.core.types import Array, dtype_of
from jobflow.expressions.language import Expression
from jobflow.expressions.on_arrays import functions
from jobflow.kernels import llvm
from jobflow.kernels.cpu.updates import row_calls, unsupported_reason, without_gradient
from jobflow.kernels.registry import implements
from jobflow.ops.op import Binder, Call
from jobflow.ops.row_update import RowUpdate


def _pass_over_all(op: RowUpdate, inputs: Sequence[Array]) -> tuple[Expression, ...] | None:
    return None if op.lazy else without_gradient(op.op, dtype_of(inputs[0].dtype))


def _refuses(op: RowUpdate, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    expressions, why = _pass_over_all(op, inputs), unsupported_reason(op, inputs, outputs)
    if why is not None or expressions is None:
        return why or "rows without a gradient do not change"
    scalars = [np.empty((), inputs[0].dtype) for _ in op.op.scalars(functions(np), 0.0, 0)]
    return llvm.refuses(expressions, [*outputs, *scalars], outputs)


@implements(RowUpdate, tier="llvm", refuses=_refuses)
def updates_of_read_rows_with_a_loop(op: RowUpdate, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    expressions = _pass_over_all(op, inputs)
    assert expressions is not None
    return row_calls(op, device, inputs, outputs, lambda scalars: llvm.bind(expressions, [*outputs, *scalars], outputs, device.scratch))
