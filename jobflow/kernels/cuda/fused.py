"""Launches of generated kernels for expressions on arrays of a GPU."""

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
from jobflow.kernels.cuda.compiled_text import compiler, integer_argument
from jobflow.kernels.cuda.kernel_text import NAME, THREADS, KernelForm, lanes_of, print_kernel
from jobflow.kernels.cuda.launches import KernelLaunch
from jobflow.kernels.cuda.primitives import NATIVE, refused_primitive
from jobflow.kernels.decompositions import lowered
from jobflow.kernels.index_operands import with_index_operands
from jobflow.kernels.loop_operands import facts, loop_form, loop_shape, loop_space, refused_columns, refused_operands
from jobflow.kernels.loop_space import NON_CONTIGUOUS, OperandAccess, Space, stride_of_table
from jobflow.kernels.registry import at
from jobflow.ops.op import Binder, Call

#: longest row, and fewest rows, of a kernel; few long rows leave most of a GPU idle, and libraries split them
LONGEST, FEW = 1 << 16, 64


@lru_cache(4096)
def _problem(outputs: tuple[Expression, ...]) -> str:
    """Return the reason no kernel can compute these outputs for any arrays, or "" if a kernel can."""
    order = facts(tuple(lowered(outputs, NATIVE)[0])).order
    return next(filter(None, map(refused_primitive, order)), "") or refused_columns(facts(outputs).order)


def refuses(outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array]) -> str | None:
    """Return the reason no kernel computes these outputs for arrays of these layouts, or None if one does."""
    known = facts(tuple(outputs))
    why = _problem(tuple(outputs)) or refused_operands(known, outputs, inputs, targets)
    if why:
        return why
    if any(target.size == 0 for target in targets):
        return None
    shape = loop_shape(known, inputs, targets)
    for k, (y, target) in enumerate(zip(outputs, targets, strict=True)):
        # another thread may read the memory after this one has written it
        if y not in known.per_column and any(inputs[i].shape != shape and np.may_share_memory(inputs[i], target) for i in known.types):
            return f"output {k} shares memory with an input that other threads read"
    width = shape[-1] if shape else 1
    rows = int(np.prod(shape)) // max(width, 1)
    longest = LONGEST if known.rows else THREADS
    if (known.rows or any(target.shape != shape for target in targets)) and width > longest and rows < FEW and not known.per_column:
        return f"{rows} rows of {width} elements would leave most of a GPU idle"
    return None


def bind(
    device: Binder, index: int, outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array], arrays: Sequence[Array]
) -> list[Call]:
    """Return the launches on GPU `index` that compute the outputs; `arrays` own the memory of the operands and stay alive."""
    if any(target.size == 0 for target in targets):
        return []
    ready = prepared(outputs, inputs, targets)
    here = compiler(index)
    module = here.module(print_kernel(lowered(ready.outputs, NATIVE)[0], ready.form))

    def launcher(name: str, threads: int, block: tuple[int, ...], arguments: tuple[Any, ...]) -> Call:
        blocks = min(max(-(-threads // THREADS), 1), here.blocks)
        return KernelLaunch(module.function(name), arrays), ((blocks,), block, arguments)

    return launches(launcher, device.scratch, ready)


@dataclass(frozen=True)
class PreparedKernel:
    """A kernel before it is printed: outputs with index operands in place of indices, and the form, the index space and the operands."""

    outputs: Sequence[Expression]
    form: KernelForm
    space: Space
    operands: Sequence[Array]


def prepared(outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array]) -> PreparedKernel:
    """Return the kernel of these outputs, prepared for these arrays."""
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
    """Return the launch of the kernel and, if columns are summed, of the kernel that adds up the sums of blocks.

    `launcher` builds a call from name, threads, block and arguments.
    """
    outputs, form, space = ready.outputs, ready.form, ready.space
    known = facts(tuple(outputs))
    rows = int(np.prod(space.sizes[:-1]))
    columns = space.sizes[-1]
    sums = [scratch((-(-rows // BLOCK), columns), x.dtype) for x in known.order if x.primitive == "column_sum"]
    accesses = [*form.loop.inputs, *form.loop.outputs]

    def arguments(chosen: Sequence[int]) -> tuple[Any, ...]:
        words = [integer_argument(n, form.wide) for n in (columns, *space.sizes[:-1])]
        for k in chosen:
            words += [integer_argument(n, form.wide or accesses[k].counted) for n in _element_strides(accesses[k], space.strides[k])]
            words += [integer_argument(stride_of_table(ready.operands[k]) // accesses[k].dtype.itemsize, form.wide)] if accesses[k].table else []
        return (*(np.int64(address(ready.operands[k])) for k in chosen), *sums, *words)

    everything = range(len(accesses))
    if not form.lanes:
        return [launcher(NAME, rows * columns, (THREADS,), arguments(everything))]
    block = (form.lanes, THREADS // form.lanes)
    calls = [launcher(NAME, (-(-rows // BLOCK) if sums else rows) * form.lanes, block, arguments(everything))]
    if known.per_column:
        inputs = len(form.loop.inputs)
        scalars = [k for k, a in enumerate(form.loop.inputs) if a.inner == "number"]
        chosen = [*scalars, *(inputs + k for k, x in enumerate(outputs) if x in known.per_column)]
        calls.append(launcher(f"{NAME}_columns", columns, (THREADS,), arguments(chosen)))
    return calls


def _element_strides(access: OperandAccess, strides: Sequence[int]) -> list[int]:
    """Return the strides of an operand in elements, along the axes whose strides are parameters of its kernel.

    The stride along the lookup axis of a table is omitted.
    """
    if access.inner == "number":
        return []
    size = 1 if access.counted else access.dtype.itemsize
    return [s // size for s in strides[:-1]] + ([strides[-1] // size] if access.inner in NON_CONTIGUOUS else [])


def placeholders(arrays: Sequence[Array]) -> list[Array]:
    """Return NumPy placeholders with the types, shapes, strides and addresses of arrays of a GPU; NumPy arrays are returned unchanged."""
    return [a if isinstance(a, np.ndarray) else at(TensorType(tuple(a.shape), dtype_of(a.dtype)), tuple(a.strides), int(a.data.ptr)) for a in arrays]
