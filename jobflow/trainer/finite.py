"""Search for the operation that produced the first infinite or NaN value, by a repetition of the step with every tensor fetched.

The result is the first in program order: a non-finite variable or argument, else an op with finite inputs and a non-finite result. The search
is collective, and all ranks return the same result.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from jobflow.core.layout import cut
from jobflow.core.types import Array
from jobflow.data.batch import Batch
from jobflow.engine.job import Job
from jobflow.engine.session import Session
from jobflow.graph.ir import Node
from jobflow.ops.source import Input, ReadVariable
from jobflow.tools.comparison import Seen
from jobflow.tools.verify import Runner


def first_not_finite(session: Session, job: Job, batch: Batch, run: int) -> str:
    """Describe the first non-finite tensor of run number `run` of a job on this batch, with its source line.

    If all values of the repeated run are finite, the returned sentence says so.
    The variables must still have the values from before that run.
    """
    runner = Runner(session, job)
    values = runner.watched(batch.arguments, run)
    tensor = next((one for one in ordered(values.values()) if not_finite(one)), None)
    if tensor is None:
        return "a repetition of the step has only finite values, so its result does not depend on variables, batch and seed alone"
    node = _node(tensor)
    return _in_batch(tensor, node.op, runner, batch) if isinstance(node.op, Input) else described(tensor)


def _in_batch(one: Seen, op: Input, runner: Runner, batch: Batch) -> str:
    """Describe the argument tensor `one`, its first non-finite element, the sample of the element, and the rank that read the sample."""
    declared = dict(runner.job.signature.placeholders())[op.argument].per_device
    starts = [start for start, _ in cut(batch.size, runner.ranks)] if declared else [0] * runner.ranks
    for rank, parts in enumerate(runner.fetched.parts):
        shard: Array = _floats(one.shards[rank]) if rank in one.shards else None
        if shard is None or np.isfinite(shard).all():
            continue
        index = np.argwhere(~np.isfinite(shard))[0]
        rows = next((part.slices(batch.arguments[op.argument].shape)[0] for part in parts if part.key == op.key), None)
        if rows is not None:
            row = starts[runner.graph.placement.ranks.index(rank)] + (rows.start or 0) + int(index[0])
            return f"{described(one)}: rank {rank} read {shard[tuple(index)]} in {batch.where(row)}"
    raise AssertionError(f"the argument {op.argument} has non-finite elements, but no shard of the batch contains them")


def ordered(values: Iterable[Seen]) -> list[Seen]:
    """Sort tensors in program order: arguments and variables, then the forward pass, then gradients."""
    return sorted((one for one in values if one.value is not None), key=lambda one: 0 if isinstance(_node(one).op, Input | ReadVariable) else 1)


def not_finite(one: Seen) -> int:
    """Count the infinite and NaN elements of a tensor over the shards of all ranks."""
    return sum(int(array.size - np.count_nonzero(np.isfinite(array))) for array in map(_floats, one.shards.values()) if array is not None)


def _floats(array: Array) -> Any:
    """Return a floating-point array in a NumPy type (bfloat16 as float32), or None for other element types."""
    if array.dtype.kind == "f":
        return array
    return array.astype(np.float32) if array.dtype.kind == "V" or array.dtype.name == "bfloat16" else None


def _node(one: Seen) -> Node:
    assert one.value is not None, "the tensor has no value in the graph"
    return one.value.node


def described(one: Seen) -> str:
    """Describe a tensor, its source line, and its non-finite elements."""
    node, bad = _node(one), not_finite(one)
    size = sum(array.size for array in one.shards.values())
    count = f"{bad} of {size} elements"
    if isinstance(node.op, ReadVariable):
        return f'the variable "{node.op.key}" has non-finite values ({count}) before the step'
    if isinstance(node.op, Input):
        return f'the argument "{node.op.argument}" has non-finite values ({count})'
    phase = "" if node.phase == "forward" else f" in the {node.phase} pass"
    return f'the first op with a non-finite result{phase} is {node.op.word()} "{node.name}" at {node.where} ({count}); its inputs are finite'
