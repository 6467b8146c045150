"""Values of traced tensors that are equal in every run, because they depend on constants of the program alone.

Arguments, variables and random numbers are not constants.  Python numbers may also depend on small tensors from outside of a compiled function,
whose elements its calls compare.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jobflow.core.scope as scope
from jobflow.core.types import Array
from jobflow.graph.ir import Value
from jobflow.graph.rewrite import needed_nodes
from jobflow.ops.layout_ops import ToLayout
from jobflow.ops.source import External
from jobflow.tensors.run import run, source
from jobflow.tensors.state import EagerState, building_now, gradients
from jobflow.tensors.tensor import TensorBase


def constant_value(x: TensorBase, guarded: bool = False) -> Array | None:
    """Return the logical value of x, a tensor of the program being traced, or None if the value depends on the run.

    With `guarded`, the value may depend on tensors from outside of a compiled function, which calls compare from then on.
    """
    recorder = building_now()
    if recorder is None:
        return None
    traced = recorder.known(x).traced if guarded or x.traced is not None else None
    if not isinstance(traced, Value):
        return None
    needed = needed_nodes([traced])
    known: dict[Value, Any] = {}
    for node in [node for node in needed if isinstance(node.op, External)]:
        elements = recorder.guarded_value(node) if guarded else None
        if elements is None:
            return None
        known[node.outputs[0]] = TensorBase.new(node.outputs[0].tensor_type, None, elements)
    with _eagerly(recorder.here):
        for node in [node for node in recorder.tracer.nodes if node in needed and node.outputs[0] not in known]:
            inputs = [known[value] for value in node.inputs]
            if not inputs:
                outputs: Any = source(node.op, None)
            else:
                outputs = inputs[0] if isinstance(node.op, ToLayout) else run(node.op, *inputs)
            known.update(zip(node.outputs, outputs if isinstance(outputs, tuple) else (outputs,), strict=True))
        array: Array = known[traced].array.copy()
    return array


def depends_on_run(x: TensorBase) -> bool:
    """Return True for a tensor of the program being traced whose value is not the same in every run."""
    return x.traced is not None and constant_value(x) is None


@contextmanager
def _eagerly(here: EagerState) -> Iterator[None]:
    """Run operations on local tensors inside the `with` block, while a program is traced."""
    before, here.building = here.building, None
    try:
        with scope.using(interpreter=None, autocast=None), gradients(False):
            yield
    finally:
        here.building = before
