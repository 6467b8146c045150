"""Launches of generated kernels for expressions on arrays of a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, DType, TensorType, bool_, dtype_of
from jobflow.expressions.language import Expression, in_order
from jobflow.expressions.on_arrays import BLOCK
from jobflow.kernels.argument_block import address
from jobflow.kernels.cuda.compiled_text import NumberArgument, compiler, integer_argument
from jobflow.kernels.cuda.kernel_form import CHUNK, THREADS, TILE, WIDEST_RESIDENT, KernelForm, form_of, multiplier, tile_width
from jobflow.kernels.cuda.kernel_stages import FEW, Stage, is_long, stages
from jobflow.kernels.cuda.kernel_text import NAME, print_kernel
from jobflow.kernels.cuda.launches import KernelLaunch
from jobflow.kernels.cuda.primitives import NATIVE, bits, refused_primitive
from jobflow.kernels.decompositions import lowered
from jobflow.kernels.index_operands import with_index_operands
from jobflow.kernels.loop_operands import MOST_AXES, facts, loop_form, loop_shape, refused_columns, refused_operands, strides_along
from jobflow.kernels.loop_space import NON_CONTIGUOUS, OperandAccess, Space, space_of, stride_of_table
from jobflow.kernels.registry import at
from jobflow.ops.op import Binder, Call

#: most constants that are arguments of a kernel
MOST_NUMBERS = 16
#: primitives for which the compiler has faster code if an operand is a constant
FASTER_WITH_CONSTANTS = frozenset({"power", "quotient", "remainder"})


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
    rows = math.prod(shape[:-1])
    if is_long(known.rows, shape) and (known.tables or len(shape) > MOST_AXES - 1):
        return f"{rows} rows of {shape[-1]} elements would leave most of a GPU idle"
    per_row = not known.rows and any(target.shape != shape for target in targets)
    if per_row and shape[-1] > THREADS and rows < FEW:
        return f"{rows} rows of {shape[-1]} elements would leave most of a GPU idle"
    return None


def bind(
    device: Binder,
    index: int,
    outputs: Sequence[Expression],
    inputs: Sequence[Array],
    targets: Sequence[Array],
    arrays: Sequence[Array],
    exact: bool = False,
) -> list[Call]:
    """Return the launches on GPU `index` that compute the outputs; `arrays` own the memory of the operands and stay alive.

    `exact` rounds products before they are added.  A device that `passes_numbers` passes constants as arguments, so that operations that differ
    in numbers have one text.
    """
    if any(target.size == 0 for target in targets):
        return []
    scratch = list[Array]()

    def allocate(shape: tuple[int, ...], dtype: DType) -> Array:
        scratch.append(device.scratch(shape, dtype))
        return placeholders(scratch[-1:])[0]

    calls: list[Call] = []
    for ready in prepared(outputs, inputs, targets, allocate):
        kernel = compiled(device, index, ready, exact)
        calls.append((KernelLaunch(kernel.function, (*arrays, *scratch)), (kernel.grid, kernel.block, kernel.arguments)))
    return calls


@dataclass(frozen=True)
class PreparedKernel:
    """A kernel before it is printed: outputs with index operands in place of indices, and the form, the index space and the operands."""

    outputs: Sequence[Expression]
    form: KernelForm
    space: Space
    operands: Sequence[Array]
    #: results of sums of columns
    sums: Sequence[Array] = ()
    #: constants that are arguments of the launch
    passed: tuple[Expression, ...] = ()

    def text(self, name: str = NAME) -> str:
        return print_kernel(lowered(self.outputs, NATIVE)[0], self.form, name, self.passed)


@dataclass(frozen=True)
class CompiledKernel:
    """A compiled kernel, and the arguments of its launch; the first `pointers` arguments are addresses of operands."""

    function: Any
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[Any, ...]
    pointers: int


def compiled(device: Binder, index: int, ready: PreparedKernel, exact: bool) -> CompiledKernel:
    """Compile a prepared kernel for GPU `index`; see `bind`."""
    here = compiler(index)
    if getattr(device, "passes_numbers", False):
        ready = replace(ready, passed=constants(tuple(ready.outputs)))
    blocks, block, arguments = launched(ready)
    return CompiledKernel(here.module(ready.text(), exact).function(NAME), (min(blocks, here.blocks),), block, arguments, len(ready.operands))


@lru_cache(4096)
def constants(outputs: tuple[Expression, ...]) -> tuple[Expression, ...]:
    """Return the constants that may be arguments of a kernel for these outputs; none if there are too many."""
    order = in_order(outputs)
    fixed = {y for x in order if x.primitive in FASTER_WITH_CONSTANTS for y in x.arguments}
    result = [x for x in order if x.primitive == "constant" and x.dtype is not bool_ and x not in fixed]
    return tuple(result) if len(result) <= MOST_NUMBERS else ()


def prepared(
    outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array], allocate: Callable[[tuple[int, ...], DType], Array]
) -> list[PreparedKernel]:
    """Return the kernels that compute these outputs for these arrays, in the order of their launches; `allocate` returns scratch memory."""
    return [_prepared(stage) for stage in stages(outputs, inputs, targets, allocate, _walked)]


def _walked(stage: Stage) -> int:
    """Return the rows with a common sum if one kernel reduces the rows and adds the columns of a stage, else 0."""
    form = _of_kind(stage).form
    return form.group if form.lanes else 0


def _prepared(stage: Stage) -> PreparedKernel:
    """Return the kernel of a stage.  A block computes each long row of elements if only a kernel of rows can read it by vectors."""
    ready = _of_kind(stage)
    width = stage.shape[-1] if stage.shape else 1
    if stage.kind != "elements" or width <= WIDEST_RESIDENT or ready.form.vector >= CHUNK or not ready.form.loop.outer:
        return ready
    rows = _of_kind(replace(stage, kind="rows"))
    return rows if rows.form.vector > ready.form.vector else ready


def _of_kind(stage: Stage) -> PreparedKernel:
    outputs, index_operands = with_index_operands(stage.outputs, len(stage.inputs), stage.shape)
    known, read = facts(tuple(outputs)), [*stage.inputs, *index_operands]
    strides = strides_along(known, read, stage.targets, stage.shape)
    ordered = stage.kind in ("tiles", "totals")
    space = Space(stage.shape, tuple(strides)) if stage.kind == "totals" else space_of(stage.shape, strides, stage.kind != "elements", ordered)
    arrays = [*read, *stage.targets]
    furthest = max((sum(abs(s) * (n - 1) for s, n in zip(a.strides, a.shape, strict=True)) for a in (*stage.inputs, *stage.targets)), default=0)
    wide = max(math.prod(space.sizes), furthest) >= 1 << 30
    stored = outputs[: len(stage.targets)]
    loop = loop_form(known, space, read, stored, len(index_operands))
    form = form_of(stage.kind, outputs, loop, space, arrays, _aliased(stage, len(read)), wide, stage.group)
    return PreparedKernel(outputs, form, space, arrays, stage.sums)


def _aliased(stage: Stage, inputs: int) -> list[int]:
    """Return the operands that share memory with another operand, if an instruction writes one of them; outputs follow `inputs` inputs."""
    pairs = [(i, k) for k, target in enumerate(stage.targets) for i, a in enumerate(stage.inputs) if np.may_share_memory(a, target)]
    return sorted({k for i, j in pairs for k in (i, inputs + j)})


def launched(ready: PreparedKernel) -> tuple[int, tuple[int, ...], tuple[Any, ...]]:
    """Return the number of blocks of a launch, the threads of a block, and the arguments."""
    form, space = ready.form, ready.space
    *outer, columns = space.sizes
    rows = math.prod(outer)
    accesses = [*form.loop.inputs, *form.loop.outputs]
    tiles = -(-columns // tile_width(form))
    words = [integer_argument(n, form.wide) for n in (columns, *outer)]
    sizes = {"columns": columns // form.vector, "tiles": tiles, **{f"n{axis}": n for axis, n in enumerate(outer)}}
    words += [integer_argument(n, False) for name in form.divisors for n in multiplier(sizes[name])]
    for k, access in enumerate(accesses):
        words += [integer_argument(n, form.wide or access.counted) for n in _element_strides(access, space.strides[k])]
        words += [integer_argument(stride_of_table(ready.operands[k]) // access.dtype.itemsize, form.wide)] if access.table else []
    words += [NumberArgument(bits(x.attribute, x.dtype)) for x in ready.passed]  # type: ignore[arg-type]
    pointers = tuple(np.int64(address(a)) for a in (*ready.operands, *ready.sums))
    block: tuple[int, ...]
    match form.kind:
        case "elements":
            blocks, block = -(-(columns // form.vector * rows) // THREADS), (THREADS,)
        case "rows":
            blocks, block = -(-rows * form.lanes // THREADS), (form.lanes, THREADS // form.lanes)
        case "tiles":
            span = form.group if form.down else max(form.walkers, form.group)
            blocks, block = -(-rows // (BLOCK * span)) * tiles, (THREADS,) if form.down else (form.lanes, form.walkers)
        case "walks":
            blocks, block = -(-rows // form.group), (form.lanes, form.walkers)
        case "totals":
            width = min(THREADS // form.lanes, TILE)
            blocks, block = -(-columns // width), (width, form.lanes)
    return max(blocks, 1), block, (*pointers, *words)


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
