"""Finding the operation that produced the first infinite or NaN value, by repeating the step with every tensor fetched.

The first in the order of the program is named: a variable or an argument that is not finite itself, else the op whose result is while its inputs
are finite.  All ranks take part and find the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jobflow.core.types import Array
from jobflow.engine.job import Job
from jobflow.engine.session import Session
from jobflow.graph.ir import Node
from jobflow.ops.source import Input, ReadVariable
from jobflow.tools.comparison import Seen
from jobflow.tools.verify import Runner
from jobflow.typing.lazy import whole


def first_not_finite(session: Session, job: Job, batch: Mapping[str, Any], run: int) -> str:
    """For people: which tensor of run number `run` of a job, on this batch, and the line that made it.  Variables must be as they were then."""
    runner = Runner(session, job)
    arrays = {name: np.asarray(whole(batch[name])) for name, _ in job.signature.placeholders()}
    seen = runner.watched(arrays, run)
    found = next((one for one in ordered(seen.values()) if not_finite(one)), None)
    if found is None:
        return "run again, the step has finite numbers only, so they depend on something beside variables, batch and seed"
    return described(found)


def ordered(seen: Iterable[Seen]) -> list[Seen]:
    """Tensors as the program makes them: what comes from outside first, then the forward pass, then gradients."""
    return sorted((one for one in seen if one.value is not None), key=lambda one: 0 if isinstance(_node(one).op, Input | ReadVariable) else 1)


def not_finite(one: Seen) -> int:
    """How many numbers of a tensor are infinite or none, over what each rank has of it."""
    return sum(int(array.size - np.count_nonzero(np.isfinite(array))) for array in map(_floats, one.shards.values()) if array is not None)


def _floats(array: Array) -> Array | None:
    if array.dtype.kind == "f":
        return array
    return array.astype(np.float32) if array.dtype.kind == "V" or array.dtype.name == "bfloat16" else None


def _node(one: Seen) -> Node:
    assert one.value is not None, "variables are seen where they are read"
    return one.value.node


def described(one: Seen) -> str:
    """What a tensor is, where it is made, and what is wrong with it."""
    node, bad = _node(one), not_finite(one)
    size = sum(array.size for array in one.shards.values())
    much = f"{bad} of {size} numbers"
    if isinstance(node.op, ReadVariable):
        return f'the variable "{node.op.key}" is not finite ({much}) when the step begins'
    if isinstance(node.op, Input):
        return f'the argument "{node.op.key}" is not finite ({much}): look at the data'
    phase = "" if node.phase == "forward" else f" in the {node.phase} pass"
    return f'the first op that is not finite{phase} is {node.op.word()} "{node.name}" at {node.where} ({much}); its inputs are finite'
