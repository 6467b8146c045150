"""Tensors with time steps: parts of a batch that pass through the body of a job sequentially.

    x = flow.unpack(x, 4)                 # [32, 10] -> 4 steps of [8, 10]
    w = flow.repeat(w, 4)                 # the same tensor at each step; its gradient is the sum over the steps
    y = flow.pack(flow.matmul(x, w), 4)   # [8, 5] at each step -> [32, 5]

An op on a tensor with steps runs at each step; a tensor without steps has the same value at every step. A loss with n steps counts as n losses. A
job must pack a result with steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from jobflow.core.errors import ShapeError, user_line
from jobflow.core.types import Tensor
from jobflow.engine.job_tensor import TimeSteps, every_step
from jobflow.legacy.job_dispatch import all_of, of_jobs
from jobflow.legacy.operands import counts
from jobflow.ops.arithmetic import add
from jobflow.ops.slices import concat, slice_


def _of(steps: Sequence[Any]) -> Tensor:
    return TimeSteps(steps) if len(steps) > 1 else steps[0]


def _groups(what: str, x: Tensor, word: str, count: int) -> list[tuple[Any, ...]]:
    """Return the time steps of x in groups of `count` consecutive steps; raise ShapeError unless `count` divides their number."""
    counts(what, **{word: count})
    steps = every_step(x)
    if len(steps) % count:
        raise ShapeError(f"{what} at {user_line()}: the {len(steps)} time steps of {x.tensor_type} must be divisible by {word} {count}")
    return [steps[i : i + count] for i in range(0, len(steps), count)]


def unpack(input: Tensor, unpack_num: int, name: str | None = None) -> Tensor:
    """Split axis 0 of the input into `unpack_num` equal time steps: [n, ...] -> [n / unpack_num, ...]."""
    counts("unpack", unpack_num=unpack_num)
    t = input.tensor_type
    if not t.ndim or t.shape[0] % unpack_num:
        raise ShapeError(f"unpack at {user_line()}: the size of axis 0 of input {t} must be divisible by unpack_num {unpack_num}")
    rows = t.shape[0] // unpack_num
    spans = [[i * rows, (i + 1) * rows] for i in range(unpack_num)]
    return _of([slice_(each, [start], [stop]) for each in every_step(input) for start, stop in spans])


def pack(input: Tensor, pack_num: int, name: str | None = None) -> Tensor:
    """Concatenate `pack_num` consecutive time steps along axis 0: [n, ...] -> [n pack_num, ...]."""
    return _of([concat(list(group)) if len(group) > 1 else group[0] for group in _groups("pack", input, "pack_num", pack_num)])


def repeat(input: Tensor, repeat_num: int, name: str | None = None) -> Tensor:
    """Return a tensor with `repeat_num` equal time steps for the input, or for each time step of the input."""
    counts("repeat", repeat_num=repeat_num)
    return _of([each for each in every_step(input) for _ in range(repeat_num)])


def acc(one: Tensor, max_acc_num: int, name: str | None = None) -> Tensor:
    """Return the sum over each group of `max_acc_num` consecutive time steps."""
    return _of([reduce(add, group) for group in _groups("acc", one, "max_acc_num", max_acc_num)])


#: equivalents for tensors outside of jobs
_OF_TENSORS = {
    "pack": "flow.cat",
    "unpack": "flow.chunk",
    "repeat": "a loop over the parts of a batch",
    "acc": "gradients accumulated over calls of backward()",
}
globals().update(all_of(__name__, globals(), __name__, of_jobs, _OF_TENSORS))
