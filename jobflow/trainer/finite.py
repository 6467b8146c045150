"""Search for the operation that produced the first infinite or NaN value, by repeating the step with every tensor fetched.

The result is the first in program order: a non-finite variable or argument, else an op with finite inputs and a non-finite result.  All ranks
take part and compute the same result.
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

    The variables must have their values from before that run.
    """
    runner = Runner(session, job)
    values = runner.watched(batch.arguments, run)
    tensor = next((one for one in ordered(values.values()) if not_finite(one)), None)
    if tensor is None:
        return "run again, the step has finite numbers only, so they depend on something beside variables, batch and seed"
    node = _node(tensor)
    return _in_batch(tensor, node.op, runner, batch) if isinstance(node.op, Input) else described(tensor)


def _in_batch(one: Seen, op: Input, runner: Runner, batch: Batch) -> str:
    """Describe the first non-finite element of an argument, its sample, and the rank that read it."""
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
    raise AssertionError(f"no rank holds a number of {op.argument} that is not finite")


def ordered(values: Iterable[Seen]) -> list[Seen]:
    """Sort tensors in program order: arguments and variables, then the forward pass, then gradients."""
    return sorted((one for one in values if one.value is not None), key=lambda one: 0 if isinstance(_node(one).op, Input | ReadVariable) else 1)


def not_finite(one: Seen) -> int:
    """Count the infinite and NaN elements of a tensor over the shards of all ranks."""
    return sum(int(array.size - np.count_nonzero(np.isfinite(array))) for array in map(_floats, one.shards.values()) if array is not None)


def _floats(array: Array) -> Any:
    """Return an array of floats in a type of NumPy, or None for other elements."""
    if array.dtype.kind == "f":
        return array
    return array.astype(np.float32) if array.dtype.kind == "V" or array.dtype.name == "bfloat16" else None


def _node(one: Seen) -> Node:
    assert one.value is not None, "variables are seen where they are read"
    return one.value.node


def described(one: Seen) -> str:
    """Describe a tensor, its source line, and its non-finite elements."""
    node, bad = _node(one), not_finite(one)
    size = sum(array.size for array in one.shards.values())
    much = f"{bad} of {size} numbers"
    if isinstance(node.op, ReadVariable):
        return f'the variable "{node.op.key}" is not finite ({much}) when the step begins'
    if isinstance(node.op, Input):
        return f'the argument "{node.op.argument}" is not finite ({much})'
    phase = "" if node.phase == "forward" else f" in the {node.phase} pass"
    return f'the first op that is not finite{phase} is {node.op.word()} "{node.name}" at {node.where} ({much}); its inputs are finite'
