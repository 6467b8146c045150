"""Connectionist temporal classification on GPUs: the launches of the kernels that `ctc_text` prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, DType, dtype_of, float64, int64
from jobflow.kernels.cuda.compiled_text import compiler
from jobflow.kernels.cuda.ctc_text import LANES, NAME, WARPS, print_classes, print_decoder, print_recursions
from jobflow.kernels.cuda.kernel_text import THREADS
from jobflow.kernels.cuda.launches import KernelLaunch
from jobflow.kernels.registry import register
from jobflow.ops.ctc import CtcGreedyDecoder, CtcLoss, CtcLossGrad, CtcPaths
from jobflow.ops.op import Binder, Call, Op

Scratch = Callable[[tuple[int, ...], DType], Array]


@dataclass(frozen=True)
class CtcLaunch:
    """A launch of a kernel: its text and name, the number of blocks without loops, the threads of a block, and the arguments."""

    text: str
    name: str
    blocks: int
    block: tuple[int, ...]
    #: arrays and integers
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class CtcKernels:
    """An implementation by one or two kernels with scratch memory."""

    name: str = "ctc"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        if any(stride % a.dtype.itemsize for a in (*inputs, *outputs) for stride in a.strides):
            return "a stride is not a multiple of the element size"
        return None

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        here, calls = compiler(int(outputs[0].device.id)), list[Call]()
        for launch in launches(op, device.scratch, inputs, outputs):
            arrays = [a for a in launch.arguments if not isinstance(a, np.integer)]
            function = here.module(launch.text).function(launch.name)
            calls.append((KernelLaunch(function, arrays), ((min(launch.blocks, here.blocks),), launch.block, launch.arguments)))
        return calls


def launches(op: Op, scratch: Scratch, inputs: Sequence[Array], outputs: Sequence[Array], name: str = NAME) -> list[CtcLaunch]:
    """Return the launches that compute an operation, or none if its outputs are empty; `name` begins the names of the kernels."""
    if not any(y.size for y in outputs):
        return []
    if isinstance(op, CtcGreedyDecoder):
        return _decoder(op, scratch, inputs, outputs, name)
    assert isinstance(op, CtcLoss)
    return _paths(op, scratch, inputs, outputs[0], name)


def _paths(op: CtcLoss, scratch: Scratch, inputs: Sequence[Array], y: Array, name: str) -> list[CtcLaunch]:
    x, targets = inputs[:2]
    steps, count, classes = x.shape
    states, longest = 2 * targets.shape[1] + 1, targets.shape[1]
    dtypes = [dtype_of(a.dtype) for a in inputs[:4]]
    common = (*inputs[:4], *map(np.int64, (steps, count, classes, longest, op.blank)), *_steps(*inputs[:4]))
    threads = min(THREADS, -(-states // LANES) * LANES)

    def recursions(kind: str, parts: int, *arguments: Any) -> CtcLaunch:
        text = print_recursions(dtypes, kind, name)
        return CtcLaunch(text, f"{name}_recursions", parts * count, (threads,), (*common, *arguments, np.int32(threads)))

    if not isinstance(op, CtcLossGrad):
        alpha = scratch((count, 2, states), float64)
        if isinstance(op, CtcPaths):
            return [recursions("paths", 1, alpha, y, *_steps(y))]
        return [recursions("loss", 1, alpha, y, *_steps(y), np.int32(op.zero_infinity))]
    alpha, beta = (scratch((count, steps, states), float64) for _ in range(2))
    after, losses, links = scratch((count, 2, states), float64), scratch((count,), float64), scratch((count, max(longest, 1), 2), int64)
    rows, dloss = -(-steps * count // WARPS), inputs[4]
    arguments = (*common, alpha, beta, losses, links, dloss, y, *_steps(dloss, y), np.int32(op.zero_infinity))
    return [
        recursions("gradient", 3, alpha, beta, after, losses, links),
        CtcLaunch(print_classes(dtypes, name), f"{name}_classes", rows, (LANES, WARPS), arguments),
    ]


def _decoder(op: CtcGreedyDecoder, scratch: Scratch, inputs: Sequence[Array], outputs: Sequence[Array], name: str) -> list[CtcLaunch]:
    (x, lengths), (decoded, total) = inputs, outputs
    steps, count = x.shape[:2]
    text, sizes = print_decoder(dtype_of(x.dtype), dtype_of(lengths.dtype), name), tuple(map(np.int64, x.shape))
    best, largest = (scratch((count, max(steps, 1)), dtype) for dtype in (int64, float64))
    calls = []
    if steps:
        calls.append(CtcLaunch(text, f"{name}_best", -(-steps * count // WARPS), (LANES, WARPS), (x, best, largest, *sizes, *_steps(x))))
    strides = (*_steps(lengths, decoded), *_steps(total)[:1])
    arguments = (best, largest, lengths, decoded, total, *sizes, *strides, np.int32(op.merge_repeated))
    return [*calls, CtcLaunch(text, f"{name}_decoded", count, (THREADS,), arguments)]


def _steps(*arrays: Array) -> tuple[Any, ...]:
    """Return the strides of arrays in elements."""
    return tuple(np.int64(stride // a.itemsize) for a in arrays for stride in a.strides)


for _op in (CtcLoss, CtcPaths, CtcLossGrad, CtcGreedyDecoder):
    register(_op, "cuda", "nvrtc", CtcKernels())
