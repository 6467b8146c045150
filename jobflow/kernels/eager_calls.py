"""Calls of operations that run eagerly: bound to array functions first, and to compiled loops once that pays.

The first run of an operation on some types binds it, because it may never run again.  The second run prepares its calls (`prepared_calls`).  A
later run compiles it, if its operands are large enough for a compiled loop to be faster.  The number of runs alone decides, so ranks that run the
same program compile at the same run.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

import numpy as np

from jobflow.core.types import Array, TensorType
from jobflow.kernels import registry
from jobflow.kernels.prepared_calls import OneOperationDevice, PreparedCalls, byte_range, prepare
from jobflow.kernels.target import CPU, Target
from jobflow.ops.op import Binding, Op
from jobflow.ops.optimizer_updates import OptimizerUpdate

#: the run for which calls of array functions are prepared, and the run for which an operation is compiled
PREPARED, COMPILED = 2, 32
#: elements of the largest operand; for fewer, calls of array functions are as fast as a compiled loop
FEWEST = 2048
#: the same for updates, which are many array functions and one loop for all sizes
FEWEST_UPDATED = 64
#: layouts of operands in memory for which an operation keeps calls; for others it is bound anew
MOST_LAYOUTS = 8


def eager_calls(op: Op, target: Target, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> EagerCalls:
    """The calls of an operation on arrays of these types, faster after some runs; `target` is a CPU."""
    largest = max((type.size for type in (*inputs, *outputs)), default=0)
    compiles = target.tier == "llvm" and largest >= (FEWEST_UPDATED if isinstance(op, OptimizerUpdate) else FEWEST)
    direct = registry.direct_binding(op, [type.dtype for type in inputs], [type.dtype for type in outputs])
    if direct is not None and not compiles:
        return EagerCalls(op, direct)
    return PreparedLater(op, direct or partial(registry.bind, op, CPU), target if compiles else CPU)


class EagerCalls:
    """The calls of an operation, bound each time it runs."""

    def __init__(self, op: Op, bind: Binding) -> None:
        self._op, self._bind = op, bind

    def run(self, device: OneOperationDevice, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute the outputs."""
        device.begin_instruction()
        with np.errstate(all="ignore"):
            for function, arguments in self._bind(device, inputs, outputs):
                function(*arguments)


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

    def __init__(self, op: Op, bind: Binding, target: Target) -> None:
        super().__init__(op, bind)
        self._target = target
        #: the run from which on calls stay as they are
        self._last = PREPARED if target is CPU else COMPILED
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
        if known.runs < PREPARED or not all(a.flags.aligned for a in inputs):
            return None
        key = tuple([a.strides for a in inputs])
        if key not in known.calls and len(known.calls) < MOST_LAYOUTS:
            target = self._target if known.runs >= self._last else CPU
            known.calls[key] = prepare(partial(registry.bind, self._op, target), inputs, outputs)
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
