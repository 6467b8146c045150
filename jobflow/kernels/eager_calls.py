"""Calls of operations that run eagerly: bound to array functions first, and to compiled loops once compilation saves time.

The first run of an operation on some types binds it, because it may never run again.  The second run of a small operation prepares its calls
(`prepared_calls`).  A later run prepares the calls of a large operation, or compiles it if its operands are large enough for a compiled loop to be
faster.  Only the number of runs decides, so ranks that run the same program compile at the same run.  A recurrence is compiled at its first run,
because one compiled loop serves all numbers of steps and samples.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from jobflow.core.types import Array, TensorType, dtype_of
from jobflow.kernels import registry
from jobflow.kernels.registry import Implementation
from jobflow.kernels.target import CPU, Target
from jobflow.ops.chain import Chain
from jobflow.ops.op import Binder, Binding, Call, Op, ViewOp

if TYPE_CHECKING:
    from jobflow.kernels.prepared_calls import OneOperationDevice, PreparedCalls

#: the run that prepares the calls of a small operation, and the run that prepares those of a large one or compiles the operation
PREPARED, COMPILED = 2, 32
#: most elements of all operands of a small operation, for which binding takes longer than computing
SMALL = 64 * 1024
#: fewest elements of the largest operand for a compiled loop; below, array functions are as fast
FEWEST = 2048
#: layouts of operands for which an operation caches calls; for further layouts it is bound at each run
MOST_LAYOUTS = 8


def eager_calls(op: Op, target: Target, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> EagerCalls:
    """Return an object that runs an operation on arrays of these types, and may prepare or compile the calls after several runs.

    `target` must be a CPU.
    """
    if isinstance(op, Chain):
        return _chain_calls(op, target, inputs)
    direct = registry.direct_binding(op, [type.dtype for type in inputs], [type.dtype for type in outputs])
    sizes = [type.size for type in (*inputs, *outputs)]
    compiles = target.tier == "llvm" and _is_faster_compiled(op, max(sizes, default=0))
    if direct is not None and not compiles:
        return EagerCalls(op, direct)
    if compiles and op.compiles_at_once:
        return PreparedLater(op, partial(registry.bind, op, target), target, sum(sizes) <= SMALL, compiled=True)
    return PreparedLater(op, direct or partial(registry.bind, op, CPU), target if compiles else CPU, sum(sizes) <= SMALL)


def _chain_calls(chain: Chain, target: Target, inputs: Sequence[TensorType]) -> EagerCalls:
    types = chain.types(*inputs)
    compiles = any(_compiles(step.op, target, [types[i] for i in (*step.inputs, *step.outputs)]) for step in chain.steps)
    first = target if compiles and any(step.op.compiles_at_once for step in chain.steps) else CPU
    small = sum(type.size for type in types.values()) <= SMALL
    return PreparedLater(chain, partial(bind, chain, first), target if compiles else CPU, small, compiled=first is not CPU)


def _compiles(op: Op, target: Target, types: Sequence[TensorType]) -> bool:
    return target.tier == "llvm" and _is_faster_compiled(op, max(type.size for type in types))


def _is_faster_compiled(op: Op, largest: int) -> bool:
    """Return True if a compiled loop is faster than array functions for operands of at most `largest` elements."""
    return op.faster_compiled == "always" or (op.faster_compiled == "if large" and largest >= FEWEST)


def bind(op: Op, target: Target, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    """Prepare the calls of the best implementation; in contrast to plans, small updates run as compiled loops."""
    if isinstance(op, Chain):
        return _bind_chain(op, target, device, inputs, outputs)
    if target is not CPU and op.faster_compiled == "always":
        loop: Implementation = import_module("jobflow.kernels.compiled_loops").CompiledLoop(fewest=1)
        if loop.refuses(op, inputs, outputs) is None:
            return loop.bind(op, device, inputs, outputs)
    return registry.bind(op, target, device, inputs, outputs)


def _bind_chain(chain: Chain, target: Target, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    """Return the calls of all operations of a chain on a CPU."""

    def bind_step(op: Op, types: Sequence[TensorType], read: Sequence[Array], results: Sequence[Array]) -> list[Call]:
        return bind(op, target if _compiles(op, target, types) else CPU, device, read, results)

    return bind_chain(chain, bind_step, device, inputs, outputs)


def bind_chain(
    chain: Chain,
    bind_step: Callable[[Op, Sequence[TensorType], Sequence[Array], Sequence[Array]], list[Call]],
    device: Binder,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
) -> list[Call]:
    """Return the calls of all operations of a chain; `bind_step` binds one of them, from its types, its inputs and its outputs."""
    types = chain.types(*[TensorType(a.shape, dtype_of(a.dtype)) for a in inputs])
    arrays = dict(enumerate(inputs)) | dict(zip(chain.results, outputs, strict=True))
    for source, value in chain.reused(types).items():
        arrays[source] = arrays[value]
    calls: list[Call] = []
    for step in chain.steps:
        read = [arrays[i] for i in step.inputs]
        view = _view(step.op, read) if step.outputs[0] not in arrays else None
        if view is not None:
            arrays[step.outputs[0]] = view
            continue
        for j, value in enumerate(step.outputs):
            if value not in arrays:
                over = step.op.alias.get(j)
                arrays[value] = device.scratch(types[value].shape, types[value].dtype) if over is None else read[over]
        calls += bind_step(step.op, [types[i] for i in (*step.inputs, *step.outputs)], read, [arrays[value] for value in step.outputs])
    return calls


def _view(op: Op, inputs: Sequence[Array]) -> Array | None:
    """Return the output of a view operation; None for other operations, or if the strides do not allow a view."""
    if not isinstance(op, ViewOp):
        return None
    try:
        return op.view(*inputs)
    except ValueError:
        return None


@np.errstate(all="ignore")
def _bind_and_run(bind: Binding, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    for function, arguments in bind(device, inputs, outputs):
        function(*arguments)


class EagerCalls:
    """The calls of an operation, bound each time it runs."""

    def __init__(self, op: Op, bind: Binding) -> None:
        self._op, self._bind = op, bind

    def run(self, device: OneOperationDevice, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Bind the operation to these arrays and compute the outputs."""
        device.begin_instruction()
        _bind_and_run(self._bind, device, inputs, outputs)


class _Layouts(threading.local):
    """The prepared calls of an operation in one Python thread.

    Threads do not share calls, because calls may write into arrays allocated for them.
    """

    def __init__(self) -> None:
        self.runs = 0
        #: calls by the strides of the operands; None if they cannot be prepared
        self.calls: dict[tuple[tuple[int, ...], ...], PreparedCalls | None] = {}
        #: the calls for operands that are aligned, writeable and contiguous
        self.dense: PreparedCalls | None = None


class PreparedLater(EagerCalls):
    """The calls of an operation: bound anew in the first runs, and later prepared once per memory layout of the operands."""

    def __init__(self, op: Op, bind: Binding, target: Target, small: bool, compiled: bool = False) -> None:
        """`small` is True if binding takes longer than computing, and `compiled` if `bind` returns compiled loops."""
        super().__init__(op, bind)
        self.target = target
        #: the first run with prepared calls, and the run after which calls do not change
        self._first = PREPARED if small or compiled else COMPILED
        self._last = PREPARED if compiled or (small and target is CPU) else COMPILED
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
        """Return prepared calls for operands of these layouts; None in the first runs, for unaligned inputs, or if the calls cannot be prepared."""
        known = self._layouts
        known.runs += 1
        if known.runs == self._last:
            known.calls.clear()
        if known.runs < self._first or not all(a.flags.aligned for a in inputs):
            return None
        key = tuple([a.strides for a in inputs])
        if key not in known.calls and len(known.calls) < MOST_LAYOUTS:
            from jobflow.kernels.prepared_calls import prepare  # an operation that runs once needs none

            target = self.target if known.runs >= self._last else CPU
            known.calls[key] = prepare(partial(bind, self._op, target), inputs, outputs)
        calls = known.calls.get(key)
        if known.runs >= self._last and all(a.flags.carray for a in inputs):
            known.dense = calls
        return calls

    def _shares_memory(self, inputs: Sequence[Array]) -> bool:
        """Return True if an input that is updated in place may share memory with another input."""
        if all(a.base is None for a in inputs):  # every array owns its memory
            return len(set(map(id, inputs))) < len(inputs)
        from jobflow.kernels.prepared_calls import byte_range

        ranges = [byte_range(a) for a in inputs]
        for i in self._written:
            low, high = ranges[i]
            for k, (start, end) in enumerate(ranges):
                if k != i and start < high and low < end:
                    return True
        return False
