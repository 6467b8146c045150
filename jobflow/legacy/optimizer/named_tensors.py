"""Tensors of a job that its optimizer reads by name, for `CustomScheduler` and `train_step_lbn`.

rate = flow.math.multiply(scale, 0.1, name="rate")
flow.optimizer.SGD(flow.optimizer.CustomScheduler(rate.logical_blob_name)).minimize(loss)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import jobflow.core.scope as scope
from jobflow.core.errors import JobError, did_you_mean_or
from jobflow.core.layout import B
from jobflow.core.types import DType, Tensor
from jobflow.ops.axes import reshape
from jobflow.ops.layout_ops import ToGlobal
from jobflow.ops.op import apply
from jobflow.ops.scalar import cast

if TYPE_CHECKING:
    from jobflow.graph.ir import Value


def name_of(value: Any) -> str:
    """Return the `logical_blob_name` of a tensor: "<op>/out", or "<op>/out_<i>" if the op has several outputs."""
    return f"{value.node.name}/{'out' if len(value.node.outputs) == 1 else f'out_{value.index}'}"


def check(what: str, name: str, dtypes: Iterable[DType], nodes: Iterable[Any]) -> Value:
    """Return the output of `nodes` with the logical_blob_name `name`; raise JobError unless it exists, with one element of a type in `dtypes`."""
    names = {name_of(value): value for node in nodes for value in node.outputs}
    if not isinstance(name, str) or name not in names:
        near = did_you_mean_or(str(name), names, "pass the logical_blob_name of a tensor")
        raise JobError(f'{what}: no op of the job so far computes a tensor "{name}"{near}')
    result: Value = names[name]
    if result.tensor_type.size != 1 or result.tensor_type.dtype not in dtypes:
        listed = " or ".join(dtype.name for dtype in dtypes)
        raise JobError(f'{what}: the tensor "{name}" is {result.tensor_type}; it must be one number of type {listed}')
    return result


def read(what: str, name: str, dtype: DType) -> Tensor:
    """Return the tensor `name` of the job being traced, with shape (1,) and type `dtype`; raise JobError if the tensor differs per micro-batch."""
    tracer: Any = scope.current().interpreter
    result: Any = next((value for node in tracer.nodes for value in node.outputs if name_of(value) == name), None)
    if result is None:
        raise JobError(f'{what}: the tensor "{name}" of job {tracer.name} differs per micro-batch; disable gradient accumulation')
    result = apply(ToGlobal((B,)), result) if result.local else result
    return cast(reshape(result, (1,)), dtype)
