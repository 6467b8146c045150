"""Expressions and arrays of a GPU to launches of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, TensorType, dtype_of
from jobflow.expressions.language import Expression
from jobflow.expressions.on_arrays import BLOCK
from jobflow.kernels.argument_block import address
from jobflow.kernels.cuda.compiled_text import Launcher, compiler, whole_number
from jobflow.kernels.cuda.kernel_text import NAME, THREADS, KernelForm, lanes_of, print_kernel
from jobflow.kernels.cuda.primitives import NATIVE, refused_primitive
from jobflow.kernels.decompositions import lowered
from jobflow.kernels.index_operands import with_index_operands
from jobflow.kernels.loop_operands import facts, loop_form, loop_shape, loop_space, refused_columns, refused_operands
from jobflow.kernels.loop_space import NON_CONTIGUOUS, OperandAccess, Space, stride_of_table
from jobflow.kernels.registry import at
from jobflow.ops.op import Binder, Call

#: a row that is longer, with few others beside it, leaves most of a GPU idle: libraries cut it in pieces
LONGEST, FEW = 1 << 16, 64


@lru_cache(4096)
def _problem(outputs: tuple[Expression, ...]) -> str:
    """Why there is no kernel of these outputs, whatever the arrays; "" if there is."""
    order = facts(tuple(lowered(outputs, NATIVE)[0])).order
    return next(filter(None, map(refused_primitive, order)), "") or refused_columns(facts(outputs).order)


def refuses(outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array]) -> str | None:
    """Why there is no kernel of these outputs for arrays that lie so; None if there is one."""
    known = facts(tuple(outputs))
    why = _problem(tuple(outputs)) or refused_operands(known, outputs, inputs, targets)
    if why:
        return why
    if any(target.size == 0 for target in targets):
        return None
    shape = loop_shape(known, inputs, targets)
    for k, (y, target) in enumerate(zip(outputs, targets, strict=True)):
        # another thread may read there after this one has written
        if y not in known.per_column and any(inputs[i].shape != shape and np.may_share_memory(inputs[i], target) for i in known.types):
            return f"output {k} is written where other threads read"
    width = shape[-1] if shape else 1
    rows = int(np.prod(shape)) // max(width, 1)
    longest = LONGEST if known.rows else THREADS
    if (known.rows or any(target.shape != shape for target in targets)) and width > longest and rows < FEW and not known.per_column:
        return f"{rows} rows of {width} elements would leave most of a GPU idle"
    return None


def bind(
    device: Binder, index: int, outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array], kept: Sequence[Array]
) -> list[Call]:
    """The launches on GPU `index` that compute the outputs from arrays that lie so; `kept` are those whose memory it is."""
    if any(target.size == 0 for target in targets):
        return []
    ready = prepared(outputs, inputs, targets)
    here = compiler(index)
    module = here.module(print_kernel(lowered(ready.outputs, NATIVE)[0], ready.form))

    def launcher(name: str, threads: int, block: tuple[int, ...], arguments: tuple[Any, ...]) -> Call:
        blocks = min(max(-(-threads // THREADS), 1), here.blocks)
        return KernelLaunch(module.function(name), kept), ((blocks,), block, arguments)

    return launches(launcher, device.scratch, ready)


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel, and the arrays whose addresses it is given."""

    function: Launcher
    kept: Sequence[Array]

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        self.function(grid, block, arguments)


@dataclass(frozen=True)
class PreparedKernel:
    """Outputs, with index_operands in place of indices, and how a kernel goes over the operands."""

    outputs: Sequence[Expression]
    form: KernelForm
    space: Space
    operands: Sequence[Array]


def prepared(outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array]) -> PreparedKernel:
    """The kernel's form for these arrays."""
    shape = loop_shape(facts(tuple(outputs)), inputs, targets)
    outputs, index_operands = with_index_operands(outputs, len(inputs), shape)
    known, read = facts(tuple(outputs)), [*inputs, *index_operands]
    space = loop_space(known, read, targets, shape)
    rows = known.rows or any(target.shape != shape for target in targets)
    lanes = lanes_of(space.sizes[-1], bool(known.per_column)) if rows else 0
    furthest = max((sum(abs(s) * (n - 1) for s, n in zip(a.strides, a.shape, strict=True)) for a in (*inputs, *targets)), default=0)
    wide = max(int(np.prod(space.sizes)), furthest) >= 1 << 30
    form = KernelForm(loop_form(known, space, read, outputs, len(index_operands)), lanes, wide)
    return PreparedKernel(outputs, form, space, [*read, *targets])


def launches(
    launcher: Callable[[str, int, tuple[int, ...], tuple[Any, ...]], Call], scratch: Callable[..., Array], ready: PreparedKernel
) -> list[Call]:
    """The kernel, and the one that adds up columns; `launcher` makes calls: name, threads, block, arguments."""
    outputs, form, space = ready.outputs, ready.form, ready.space
    known = facts(tuple(outputs))
    rows = int(np.prod(space.sizes[:-1]))
    columns = space.sizes[-1]
    sums = [scratch((-(-rows // BLOCK), columns), x.dtype) for x in known.order if x.primitive == "column_sum"]
    accesses = [*form.loop.inputs, *form.loop.outputs]

    def arguments(chosen: Sequence[int]) -> tuple[Any, ...]:
        words = [whole_number(n, form.wide) for n in (columns, *space.sizes[:-1])]
        for k in chosen:
            words += [whole_number(n, form.wide or accesses[k].counted) for n in _apart(accesses[k], space.strides[k])]
            words += [whole_number(stride_of_table(ready.operands[k]) // accesses[k].dtype.itemsize, form.wide)] if accesses[k].table else []
        return (*(np.int64(address(ready.operands[k])) for k in chosen), *sums, *words)

    everything = range(len(accesses))
    if not form.lanes:
        return [launcher(NAME, rows * columns, (THREADS,), arguments(everything))]
    block = (form.lanes, THREADS // form.lanes)
    calls = [launcher(NAME, (-(-rows // BLOCK) if sums else rows) * form.lanes, block, arguments(everything))]
    if known.per_column:
        inputs = len(form.loop.inputs)
        numbers = [k for k, a in enumerate(form.loop.inputs) if a.inner == "number"]
        chosen = [*numbers, *(inputs + k for k, x in enumerate(outputs) if x in known.per_column)]
        calls.append(launcher(f"{NAME}_columns", columns, (THREADS,), arguments(chosen)))
    return calls


def _apart(access: OperandAccess, strides: Sequence[int]) -> list[int]:
    """How many elements the elements of an operand are apart, along the axes that its kernel asks for."""
    if access.inner == "number":
        return []
    size = 1 if access.counted else access.dtype.itemsize
    return [s // size for s in strides[:-1]] + ([strides[-1] // size] if access.inner in NON_CONTIGUOUS else [])


def lying(arrays: Sequence[Array]) -> list[Array]:
    """What NumPy can be asked about how arrays of a GPU lie in memory."""
    return [a if isinstance(a, np.ndarray) else at(TensorType(tuple(a.shape), dtype_of(a.dtype)), tuple(a.strides), int(a.data.ptr)) for a in arrays]
