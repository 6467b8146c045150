"""Recurrences over time and their gradients on GPUs: one product and one printed kernel per step, all bound once.

    start    states = initial states, or zeros
    step     sums = h w^T;  outputs of the step, states = formula(sums, operands of the step)
    end      final states

A gradient walks the steps backwards.  Its states are the gradients of h and c, and a product follows each kernel:

    step     gradients of the step, factors, dc = formula(sums, operands of the step)
    product  sums = factors w, the gradient of the state h before the step

States, sums and factors are in scratch memory, in the type of the arithmetic.  The operands of the product are therefore the same in all steps.
Results in float16 and bfloat16 are rounded once, as by the kernels of the operations.  The kernels of the steps differ only in addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, DType, TensorType, bool_, contiguous_strides, dtype_of, int64
from jobflow.expressions import language as f
from jobflow.expressions.language import Expression
from jobflow.kernels.argument_block import address
from jobflow.kernels.cuda import fused
from jobflow.kernels.cuda.cublas_products import CublasProduct, matrices
from jobflow.kernels.cuda.fused import PreparedKernel, placeholders
from jobflow.kernels.cuda.kernel_form import WIDEST
from jobflow.kernels.cuda.launches import KernelLaunch
from jobflow.kernels.loop_operands import facts
from jobflow.kernels.loop_space import overlaps
from jobflow.kernels.registry import PerTarget, at, bind, register
from jobflow.kernels.target import Target
from jobflow.ops.matmul import MatMul
from jobflow.ops.op import Binder, Call, Op
from jobflow.ops.recurrence_loop import STATES, split_name
from jobflow.ops.recurrent import Recurrence, RecurrenceGrad

#: operands of a step in scratch memory, in the type of the arithmetic
SCRATCH = frozenset({"sums", "carry", "factors", "h", "c", "dc"})
Scratch: TypeAlias = Callable[[tuple[int, ...], DType], Array]


# ----------------------------------------------------------------------------------------------- formulas


@dataclass(frozen=True)
class StepFormula:
    """The names of the operands and of the results of a step, and the expressions of the results."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    outputs: tuple[Expression, ...]


@lru_cache(512)
def formula_of(op: Recurrence | RecurrenceGrad, dtype: DType) -> StepFormula:
    """Return the formula of a step for operands of this type.

    In gradients, "carry" is the part of the gradient of h before the step that is not a product.
    """
    wide, names = dtype.arithmetic, list[str]()

    def element(name: str) -> Expression:
        if name not in names:
            names.append(name)
        k, base = names.index(name), split_name(name)[0]
        if base == "runs":
            return f.element(k, bool_)
        return f.element(k, wide) if base in SCRATCH else f.cast(f.element(k, dtype), wide)

    carries = "rest" in op.formula(f, element)
    names.clear()

    def read(name: str) -> Expression:
        if name != "dh":
            return element(name)
        return element("sums") + element("carry") if carries else element("sums")

    results = op.formula(f, read)
    if carries:
        results["carry"] = results.pop("rest")
    if isinstance(op, RecurrenceGrad):
        factor = "dg" if "dg" in op.results() else "dx"
        results |= {f"factors:{k}": results[f"{factor}:{k}"] for k in range(op.blocks)}
    outputs = tuple(y if split_name(name)[0] in SCRATCH else f.cast(y, dtype) for name, y in results.items())
    return StepFormula(tuple(names), tuple(results), outputs)


# ----------------------------------------------------------------------------------------------- schedule


@dataclass(frozen=True, eq=False)
class Kernel:
    """A printed kernel: expressions, their inputs, and the targets of their values."""

    outputs: tuple[Expression, ...]
    inputs: tuple[Array, ...]
    targets: tuple[Array, ...]


@dataclass(frozen=True, eq=False)
class StepProduct:
    """The product of a step with the recurrent weight."""

    op: MatMul
    a: Array
    b: Array
    y: Array


class RecurrentSchedule:
    """The kernels and products of a recurrence or its gradient, in the order of their execution.

    `scratch` allocates memory.  Kernels have placeholders of arrays, and products the arrays.
    """

    def __init__(self, op: Recurrence | RecurrenceGrad, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Scratch) -> None:
        self.op = op
        #: the operands, and scratch memory
        self.arrays = [*inputs, *outputs]
        #: placeholders by name, of operands and of scratch memory
        self._operands: dict[str, Array] = op.named(placeholders(self.arrays))
        self._memory: dict[str, Array] = {}
        self._allocate = scratch
        arrays: dict[str, Array] = op.named(self.arrays)
        w, sequence = arrays["w"], outputs[0]
        self._dtype = dtype_of(w.dtype)
        (self._width, self._hidden), (self.steps, self._samples) = w.shape, sequence.shape[:2]
        forward = isinstance(op, Recurrence)
        sums = self._scratch("sums", self._width if forward else self._hidden)
        factors = self._scratch("h", self._hidden) if forward else self._scratch("factors", self._width)
        #: scratch memory -> the operand with its values before the first step, or None for zeros
        self._starts: dict[str, str | None] = {"h": "h0"} if forward else {"sums": "dh"}
        if op.states > 1:
            self._starts |= {"c": "c0"} if forward else {"dc": "dc"}
        if "carry" in formula_of(op, self._dtype).writes:
            self._starts["carry"] = None
        if isinstance(op, RecurrenceGrad) and op.past is not None and not op.starts:
            self._starts["past"] = None
        for name in self._starts:
            if name not in self._memory:
                self._scratch(name, self._hidden, self._dtype if name == "past" else None)
        if op.masked:
            self._memory["runs"] = self._added((self.steps + 1, self._samples, 1), bool_)[1]
        self._copies_weight = self._dtype.is_half or _is_strided(self._operands["w"])
        if self._copies_weight:
            w, self._memory["w"] = self._added((self._width, self._hidden), self._dtype.arithmetic)
        self.product = StepProduct(MatMul(transpose_b=forward), factors, w, sums)

    def _scratch(self, name: str, width: int, dtype: DType | None = None) -> Array:
        array, self._memory[name] = self._added((self._samples, width), self._dtype.arithmetic if dtype is None else dtype)
        return array

    def _added(self, shape: tuple[int, ...], dtype: DType) -> tuple[Array, Array]:
        """Return an array in scratch memory, and its placeholder."""
        self.arrays.append(self._allocate(shape, dtype))
        return self.arrays[-1], placeholders(self.arrays[-1:])[0]

    def parts(self, ends: int | None = None) -> Iterator[Kernel | StepProduct]:
        """Yield the kernels and products of all steps, or of the first and the last `ends` steps."""
        op, wide = self.op, self._dtype.arithmetic
        order = list(op.times(self.steps))
        if isinstance(op, RecurrenceGrad):
            order.reverse()
        if ends is not None:
            order = [t for k, t in enumerate(order) if k < ends or k >= self.steps - ends]
        yield from self._begin(wide)
        for t in order:
            if isinstance(op, Recurrence):
                yield self.product
            yield self._step(t)
            if isinstance(op, RecurrenceGrad) and (t != order[-1] or op.starts):
                yield self.product
        yield from self._end(wide)

    def _begin(self, wide: DType) -> Iterator[Kernel]:
        """Yield the kernels before the first step."""
        at, memory = self._operands, self._memory
        if self._copies_weight:
            yield Kernel((f.cast(f.element(0, self._dtype), wide),), (at["w"],), (memory["w"],))
        if self.op.masked:
            lengths = at["lengths"]
            runs = f.index(-2) < f.cast(f.element(0, dtype_of(lengths.dtype)), int64)
            yield Kernel((runs,), (lengths,), (memory["runs"][:, :, 0],))
        inputs: list[Array] = []
        outputs: list[Expression] = []
        for name, source in self._starts.items():
            if source in at:
                outputs.append(f.cast(f.element(len(inputs), self._dtype), wide))
                inputs.append(at[source])
            else:
                outputs.append(f.constant(0, dtype_of(memory[name].dtype)))
        yield Kernel(tuple(outputs), tuple(inputs), tuple(memory[name] for name in self._starts))

    def _step(self, t: int) -> Kernel:
        formula = formula_of(self.op, self._dtype)
        return Kernel(
            formula.outputs, tuple(self._operand(name, t) for name in formula.reads), tuple(self._operand(name, t) for name in formula.writes)
        )

    def _operand(self, name: str, t: int) -> Array:
        """Return an operand or a result of step t."""
        base, block = split_name(name)
        if base == "runs":  # block 1 is the previous step
            return self._memory["runs"][t if block is None else self.op.previous(t)]
        if base == "past":
            return self._past(self.op.previous(t))
        view = self._memory[base] if base in SCRATCH else self._operands[base]
        view = view[t] if view.ndim == 3 else view
        return view if block is None else view[..., block * self._hidden : (block + 1) * self._hidden]

    def _past(self, t: int) -> Array:
        """Return the values after step t that the gradient of the next step reads."""
        assert isinstance(self.op, RecurrenceGrad) and self.op.past is not None
        values, start = self.op.past
        if 0 <= t < self.steps:
            return self._operands[values][t]
        return self._operands[start] if self.op.starts else self._memory["past"]

    def _end(self, wide: DType) -> Iterator[Kernel]:
        """Yield the kernel that writes the final states, or the gradients of the initial states."""
        names = {state: state for state in STATES[: self.op.states]}
        if isinstance(self.op, RecurrenceGrad):
            names = {f"d{state}0": "sums" if state == "h" else f"d{state}" for state in names} if self.op.starts else {}
        if not names:
            return
        outputs, inputs = list[Expression](), list[Array]()
        for source in names.values():
            value = f.element(len(inputs), wide)
            inputs.append(self._memory[source])
            if source == "sums" and "carry" in self._memory:
                value = value + f.element(len(inputs), wide)
                inputs.append(self._memory["carry"])
            outputs.append(f.cast(value, self._dtype))
        yield Kernel(tuple(outputs), tuple(inputs), tuple(self._operands[name] for name in names))


def _is_strided(w: Array) -> bool:
    """Return True if neither the rows nor the columns of the weight are contiguous."""
    layout = matrices(w)
    return layout is None or (layout.leading is None and layout.transposed.leading is None)


# ----------------------------------------------------------------------------------------------- implementation


@dataclass(frozen=True)
class RecurrenceSteps(PerTarget):
    """An implementation by two launches per step."""

    target: Target = Target("cuda", "nvrtc")
    name: str = "recurrence"

    def on(self, target: Target) -> RecurrenceSteps:
        return RecurrenceSteps(target)

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        assert isinstance(op, Recurrence | RecurrenceGrad)
        if any(0 in a.shape for a in (*inputs, *outputs)):
            return "an operand has no elements"
        read, written = placeholders(inputs), placeholders(outputs)
        for k, target in enumerate(written):
            if any(overlaps(target, a) for a in read):
                return f"output {k} shares memory with an input, but not element by element"
        schedule, reasons = RecurrentSchedule(op, read, written, _Unallocated()), list[str | None]()
        for part in schedule.parts(ends=2):
            if isinstance(part, StepProduct):
                reasons.append(CublasProduct().refuses(part.op, [part.a, part.b], [part.y]))
            else:
                reasons.append(fused.refuses(part.outputs, part.inputs, part.targets))
        return next(filter(None, reasons), None)

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        assert isinstance(op, Recurrence | RecurrenceGrad)
        schedule = RecurrentSchedule(op, inputs, outputs, device.scratch)
        product = schedule.product
        product_calls = bind(product.op, self.target, device, [product.a, product.b], [product.y])
        launches = StepLaunches(device, int(outputs[0].device.id), schedule.arrays, self.target.tier == "exact")
        calls: list[Call] = []
        for part in schedule.parts():
            calls += product_calls if isinstance(part, StepProduct) else [launches.launch(part)]
        return calls


class _Unallocated:
    """Placeholders of scratch memory at unused addresses."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, shape: tuple[int, ...], dtype: DType) -> Array:
        self._count += 1
        return at(TensorType(shape, dtype), contiguous_strides(shape, dtype.itemsize), (self._count << 50) + (1 << 49))


class StepLaunches:
    """Launches of kernels that are prepared once for all operands with the same shapes, strides and alignment."""

    def __init__(self, device: Binder, index: int, arrays: Sequence[Array], exact: bool) -> None:
        self._device, self._index, self._arrays, self._exact = device, index, arrays, exact
        self._known: dict[object, fused.CompiledKernel] = {}

    def launch(self, kernel: Kernel) -> Call:
        read = [kernel.inputs[k] for k in sorted(facts(kernel.outputs).types)]
        operands = [*read, *kernel.targets]
        addresses = [address(a) for a in operands]
        key = kernel.outputs, tuple([(a.shape, a.strides, pointer % WIDEST) for a, pointer in zip(operands, addresses, strict=True)])
        compiled = self._known.get(key)
        if compiled is None:
            compiled = self._known[key] = fused.compiled(self._device, self._index, only_kernel(kernel), self._exact)
        pointers = [np.int64(pointer) for pointer in addresses]
        # index operands are between inputs and outputs, and do not depend on memory
        last = compiled.pointers - len(kernel.targets)
        arguments = (*pointers[: len(read)], *compiled.arguments[len(read) : last], *pointers[len(read) :], *compiled.arguments[compiled.pointers :])
        return KernelLaunch(compiled.function, self._arrays), (compiled.grid, compiled.block, arguments)


def only_kernel(kernel: Kernel) -> PreparedKernel:
    """Return the prepared kernel; expressions without reductions are one kernel and need no scratch memory."""

    def allocate(shape: tuple[int, ...], dtype: DType) -> Array:
        raise AssertionError(f"scratch memory {list(shape)} for expressions without reductions")

    (ready,) = fused.prepared(kernel.outputs, kernel.inputs, kernel.targets, allocate)
    return ready


for _op in (Recurrence, RecurrenceGrad):
    register(_op, "cuda", "nvrtc", RecurrenceSteps())
