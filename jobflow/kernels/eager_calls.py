"""Calls of operations that run eagerly: bound to array functions first, and to compiled loops once that pays.

The first run of an operation on some types binds it, because it may never run again.  The second run of a small operation prepares its calls
(`prepared_calls`).  A later run prepares those of a large one, or compiles it if its operands are large enough for a compiled loop to be faster.
The number of runs alone decides, so ranks that run the same program compile at the same run.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from importlib import import_module

import numpy as np

from jobflow.core.types import Array, TensorType
from jobflow.kernels import registry
from jobflow.kernels.prepared_calls import OneOperationDevice, PreparedCalls, byte_range, prepare
from jobflow.kernels.registry import Implementation
from jobflow.kernels.target import CPU, Target
from jobflow.ops.batch_norm import BatchNormalizeSums
from jobflow.ops.matmul import AxisSum
from jobflow.ops.op import Binder, Binding, Call, Op
from jobflow.ops.update import Updated

#: the run for which the calls of a small operation are prepared, and the run for which those of a large one are, or an operation is compiled
PREPARED, COMPILED = 2, 32
#: elements of all operands of a small operation, which takes less time to compute than to bind
SMALL = 64 * 1024
#: elements of the largest operand; for fewer, calls of array functions are as fast as a compiled loop
FEWEST = 2048
#: operations that array functions compute as fast as a compiled loop, or faster, at every size: 1.2 to 3 times on AVX-512
ARRAY_FUNCTIONS = (AxisSum, BatchNormalizeSums)
#: layouts of operands in memory for which an operation keeps calls; for others it is bound anew
MOST_LAYOUTS = 8


def eager_calls(op: Op, target: Target, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> EagerCalls:
    """The calls of an operation on arrays of these types, faster after some runs; `target` is a CPU."""
    direct = registry.direct_binding(op, [type.dtype for type in inputs], [type.dtype for type in outputs])
    sizes = [type.size for type in (*inputs, *outputs)]
    compiles = target.tier == "llvm" and _is_faster_compiled(op, max(sizes, default=0))
    if direct is not None and not compiles:
        return EagerCalls(op, direct)
    return PreparedLater(op, direct or partial(registry.bind, op, CPU), target if compiles else CPU, sum(sizes) <= SMALL)


def _is_faster_compiled(op: Op, largest: int) -> bool:
    """True if a compiled loop is faster than array functions for operands of which the largest has so many elements."""
    if isinstance(op, Updated):  # several array functions, and one loop for all sizes
        return True
    return largest >= FEWEST and not isinstance(op, ARRAY_FUNCTIONS)


def bind(op: Op, target: Target, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    """The calls of the best implementation; a plan leaves small updates to array functions."""
    if target is not CPU and isinstance(op, Updated):
        loop: Implementation = import_module("jobflow.kernels.compiled_loops").CompiledLoop(fewest=1)
        if loop.refuses(op, inputs, outputs) is None:
            return loop.bind(op, device, inputs, outputs)
    return registry.bind(op, target, device, inputs, outputs)


@np.errstate(all="ignore")
def _bind_and_run(bind: Binding, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    for function, arguments in bind(device, inputs, outputs):
        function(*arguments)


class EagerCalls:
    """The calls of an operation, bound each time it runs."""

    def __init__(self, op: Op, bind: Binding) -> None:
        self._op, self._bind = op, bind

    def run(self, device: OneOperationDevice, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute the outputs."""
        device.begin_instruction()
        _bind_and_run(self._bind, device, inputs, outputs)


class _Layouts(threading.local):
    """What one Python thread knows of an operation: prepared calls may write into arrays that were made for them."""

    def __init__(self) -> None:
        self.runs = 0
        #: by the strides of the operands; None for calls that cannot be prepared
        self.calls: dict[tuple[tuple[int, ...], ...], PreparedCalls | None] = {}
        #: the calls for operands that are aligned, writeable and without gaps
        self.dense: PreparedCalls | None = None


class PreparedLater(EagerCalls):
    """The calls of an operation, prepared for the layouts in which its operands come again."""

    def __init__(self, op: Op, bind: Binding, target: Target, small: bool) -> None:
        super().__init__(op, bind)
        self.target = target
        #: the first run of prepared calls, and the run from which on calls stay as they are
        self._first = PREPARED if small else COMPILED
        self._last = PREPARED if small and target is CPU else COMPILED
        self._written = sorted(set(op.alias.values()))
        self._layouts = _Layouts()

    def run(self, device: OneOperationDevice, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        calls = self._layouts.dense
        for a in inputs:
            if not a.flags.carray:
                calls = None
        if calls is None:
            calls = self._calls(inputs, outputs)
        if calls is None or (self._written and self._shares_memory(inputs)):
            super().run(device, inputs, outputs)
        else:
            calls.run(device, inputs, outputs)

    def _calls(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> PreparedCalls | None:
        """The prepared calls for operands that lie in memory as these do; None if they are bound anew."""
        known = self._layouts
        known.runs += 1
        if known.runs == self._last:
            known.calls.clear()
        if known.runs < self._first or not all(a.flags.aligned for a in inputs):
            return None
        key = tuple([a.strides for a in inputs])
        if key not in known.calls and len(known.calls) < MOST_LAYOUTS:
            target = self.target if known.runs >= self._last else CPU
            known.calls[key] = prepare(partial(bind, self._op, target), inputs, outputs)
        calls = known.calls.get(key)
        if known.runs >= self._last and all(a.flags.carray for a in inputs):
            known.dense = calls
        return calls

    def _shares_memory(self, inputs: Sequence[Array]) -> bool:
        """True if an input that is written over may share memory with another one."""
        ranges = [byte_range(a) for a in inputs]
        for i in self._written:
            low, high = ranges[i]
            for k, (start, end) in enumerate(ranges):
                if k != i and start < high and low < end:
                    return True
        return False
