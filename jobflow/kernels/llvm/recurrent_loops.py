"""Recurrences over time and their gradients as compiled loops: the tier "llvm" of CPUs.

`recurrent_text` prints the loops from the formula of one step.  A formula names its operands: "x:2" is block 2 of x, and "sums:2" the sum for this
block.  "runs" is the condition that a sample has the step.  The states `h` and `c` and their gradients are updated in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, DType, bool_, dtype_of, int64
from jobflow.expressions import language as f
from jobflow.expressions.language import Expression
from jobflow.kernels.argument_block import address, argument_block
from jobflow.kernels.decompositions import lowered
from jobflow.kernels.llvm.machine_code import Function, Printed, compiler
from jobflow.kernels.llvm.recurrent_text import StepForm, print_recurrence
from jobflow.kernels.registry import implements
from jobflow.ops.op import Binder, Call
from jobflow.ops.recurrent import Gru, GruGrad, Recurrence, RecurrenceGrad

#: minimum number of elements of the hidden states of all steps; below it, compiling takes longer than the compiled runs save
FEWEST = 1 << 10


class _Elements:
    """The operands that a formula reads, as expressions."""

    def __init__(self, dtype: DType, carries: bool) -> None:
        self.dtype = dtype
        #: True if a part of the gradient of h' is not a product
        self.carries = carries
        self.names: list[str] = []

    def __call__(self, name: str) -> Expression:
        if name == "dh":
            return self("sums") + self("carry") if self.carries else self("sums")
        if name not in self.names:
            self.names.append(name)
        return f.element(self.names.index(name), bool_ if name.startswith("runs") else self.dtype)


# ----------------------------------------------------------------------------------------------- functions


@dataclass(frozen=True)
class CompiledRecurrence:
    """A compiled recurrence: its form, and the names of its operands."""

    form: StepForm
    operands: tuple[str, ...]
    function: Function


@cache
def _compiled(op: Recurrence | RecurrenceGrad, dtype: DType) -> CompiledRecurrence:
    e = _Elements(dtype, _carries(op))
    results = op.formula(f, e)
    if "rest" in results:
        results["carry"] = results.pop("rest")
    if "h" in results and op.masked:
        results["states"] = results["h"]
    operands: list[str] = []

    def located(name: str) -> tuple[int, int]:
        base, _, block = name.partition(":")
        if base == "runs":  # block 1 is the previous step
            return -2, int(block or 0) * (1 if op.reverse else -1)
        if base == "sums":
            return -1, int(block or 0)
        if base not in operands:
            operands.append(base)
        return operands.index(base), int(block or 0)

    reads, writes = [located(name) for name in e.names], [located(name) for name in results]
    width = compiler().vector_bytes
    many = width in (16, 64)  # AArch64 and AVX-512 have 32 registers
    forward = isinstance(op, Recurrence)
    vectors = op.blocks if forward and op.blocks > 1 else 4 if many else 3
    rows = (6, 4, 2, 1) if many else (4, 2, 1) if vectors < 4 else (2, 1)
    outputs, _ = lowered(list(results.values()), compiler().primitives)
    units = 1 if forward and op.blocks > 1 else vectors
    form = StepForm(dtype, width // dtype.itemsize, rows, vectors, units, forward, len(operands), tuple(reads), tuple(writes), tuple(outputs))
    function, _ = compiler().printed(f"recurrence {op!r} {dtype.name} {form.lanes} {rows}", lambda: Printed(print_recurrence(form)))
    return CompiledRecurrence(form, tuple(operands), function)


# ----------------------------------------------------------------------------------------------- arguments


def _refused(op: Recurrence | RecurrenceGrad, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    at = op.named([*inputs, *outputs])
    floats = [a for name, a in at.items() if name != "lengths"]
    if {a.dtype for a in floats} != {at["w"].dtype} or at["w"].dtype.name not in ("float32", "float64"):
        return "the element types are not all float32 or all float64"
    if any(not a.size for a in at.values()) or outputs[0].size < FEWEST:
        return f"{outputs[0].size} elements; loops are compiled for at least {FEWEST}"
    if any(a.strides[-1] != a.itemsize or not a.flags.aligned for a in floats) or any(a.strides[-2] != a.shape[-1] * a.itemsize for a in _rows(at)):
        return "the hidden units of all samples are not contiguous"
    return None if compiler().has_fma else "this machine has no fused multiply-adds"


def _rows(at: dict[str, Array]) -> list[Array]:
    return [a for name, a in at.items() if a.ndim > 1 and name != "w"]


@implements(Recurrence, tier="llvm", rank=10, refuses=_refused)
def recurrence(op: Recurrence, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    at: dict[str, Array] = op.named([*inputs, *outputs])
    y = at["y"]
    if op.masked:
        at["states"] = device.scratch(y.shape, dtype_of(y.dtype))
    if isinstance(op, Gru) and op.biased:
        at["bias"] = np.broadcast_to(at["bias"], (y.shape[1], at["w"].shape[0]))
    calls = [_set(at[name], at.get(f"{name}0")) for name in ("h", "c") if name in at]
    return [*calls, *_run(op, op.times(len(y)), at, device, at.get("h0"), at["states" if op.masked else "y"], not op.starts)]


def _carries(op: Recurrence | RecurrenceGrad) -> bool:
    return op.masked or isinstance(op, GruGrad)


@implements(RecurrenceGrad, tier="llvm", rank=10, refuses=_refused)
def recurrence_gradient(op: RecurrenceGrad, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    at: dict[str, Array] = op.named([*inputs, *outputs])
    w, dx, calls = at["w"], at["dx"], []
    shape, dtype = (dx.shape[1], w.shape[1]), dtype_of(w.dtype)
    if op.states == 2:
        cells = at["dc0"] if "dc0" in at else device.scratch(shape, dtype)
        calls.append(_set(cells, at.get("dc")))
        at["dc"] = cells
    if _carries(op):
        at["carry"] = device.scratch(shape, dtype)
        calls.append(_set(at["carry"], None))
    times, recurrent = op.times(len(dx))[::-1], at["dg" if "dg" in at else "dx"]
    calls += _run(op, times, at, device, at.get("dh"), recurrent, True)
    if op.starts:
        calls.append((np.matmul, (recurrent[times[-1]], w, at["dh0"])))
        calls += [(np.add, (at["dh0"], at["carry"], at["dh0"]))] if _carries(op) else []
    return calls


def _set(array: Array, value: Array | None) -> Call:
    return (array.fill, (0,)) if value is None else (np.copyto, (array, value))


def _run(
    op: Recurrence | RecurrenceGrad, times: range, at: dict[str, Array], device: Binder, start: Array | None, factors: Array, of_sums: bool
) -> list[Call]:
    """Return the calls of the compiled loop over `times`.

    `factors` are the results of the steps that the product of the next step reads.  `start` is the factor of the first step, or, if `of_sums`, its
    sums; None stands for zeros.
    """
    w, dtype = at["w"], dtype_of(at["w"].dtype)
    step, n, hidden, depth = _compiled(op, dtype), factors.shape[1], w.shape[1], factors.shape[2]
    form, order = step.form, slice(None, None, times.step)
    width = form.vectors * form.lanes
    unit = form.units * form.lanes
    packed = device.scratch((-(-hidden // unit) * depth + form.lanes, width), dtype)
    sums = device.scratch((n, width), dtype)
    unit_step = 0 if start is None else unit * w.itemsize
    if start is None:
        start = np.broadcast_to(np.zeros(width, w.dtype), (n, width))
    lengths, calls = at.get("lengths", np.zeros(1, np.int64)), []
    if lengths.dtype != np.int64 or not lengths.flags.c_contiguous:
        copy = device.scratch(lengths.shape, int64)
        calls, lengths = [(np.copyto, (copy, lengths))], copy
    factors = factors[order]
    arrays: list[Array] = [w, packed, sums, start, factors, lengths]
    words = [*map(address, arrays), len(times), n, hidden, depth, w.strides[0], start.strides[0], factors.strides[1], factors.strides[0]]
    words += [int(of_sums), unit_step, times[0], times.step]
    indices = [*range(len(arrays))]
    for name in step.operands:
        view, last = _walk(op, name, at, order)
        indices += [len(words), len(words) + 1]
        arrays += [view, last]
        words += [address(view), address(last), view.strides[0] if view.ndim == 3 else 0, view.strides[-2], hidden * w.itemsize]
    return [*calls, (step.function, (argument_block(words, arrays, indices),))]


def _walk(op: Recurrence | RecurrenceGrad, name: str, at: dict[str, Array], order: slice) -> tuple[Array, Array]:
    """Return an operand in the order of the steps, and its rows at the last step."""
    if name == "past":  # the states before each step, of which the last is the initial state
        assert isinstance(op, RecurrenceGrad) and op.past is not None
        values, start = op.past
        states = at[values]
        first = at.get(start, np.zeros(states.shape[1:], states.dtype))
        return (states[order][1:], first) if len(states) > 1 else (first, first)
    view = at[name]
    return (view[order], view[order][-1]) if view.ndim == 3 else (view, view)
