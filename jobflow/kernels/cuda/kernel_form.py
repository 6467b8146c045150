"""Forms of kernels: the properties of operands on which the text of a kernel depends.

A kernel has one of five kinds:

    elements    each thread computes elements, a vector of 16 bytes of the narrowest operand at a time
    rows        LANES threads share a row, for reductions of rows
    tiles       each thread walks along blocks of 64 rows of some columns: outputs per element, and the sums of the columns of groups of blocks
    walks       LANES threads walk along rows: reductions of rows, and the sums of the columns of groups of rows
    totals      threads add the sums of the groups of a column

A thread reads several adjacent elements of dense operands at once, if all addresses are multiples of 16 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array
from jobflow.expressions.language import Expression
from jobflow.expressions.on_arrays import BLOCK, LANES
from jobflow.kernels.argument_block import address
from jobflow.kernels.loop_operands import facts
from jobflow.kernels.loop_space import LoopForm, OperandAccess, Space
from jobflow.kernels.row_phases import COLUMNS, REDUCTIONS, phases, position

Kind: TypeAlias = Literal["elements", "rows", "tiles", "walks", "totals"]
#: threads of a block
THREADS = 256
#: bytes of the widest load or store of a thread
WIDEST = 16
#: adjacent elements of a row or a tile that a thread reads at once
CHUNK = 8
#: columns of a block of threads of `totals`, and of `tiles` if the elements of a column are adjacent
TILE = 32
#: threads of a block of `tiles`, and the number below which a thread has fewer columns
WALKERS, FEW_THREADS = 128, 1 << 15
#: blocks of threads below which direct sums of columns use smaller blocks of threads
FEW_GROUPS = 264
#: bytes in registers of a thread of `tiles`, and the most rows and elements that it reads at once, and values per column
WALKER_BYTES, MOST_ROWS, MOST_ELEMENTS, MOST_VALUES = 352, 16, 64, 48
#: bytes that a thread may hold in registers: the vectors of the inputs, or of the outputs; and a row between passes
HELD, RESIDENT = 160, 160
#: most expressions that are printed for a vector, because its elements are computed by unrolled code
UNROLLED = 1600
#: expressions that a random number counts for
RANDOM = 150
#: bytes of a row and of the sums of its columns in registers of a thread of `walks`, and the most sums of a column
WALK_BYTES, MOST_WALKS = 512, 384
#: bytes of shared memory for sums of columns: of 48 KiB, 1 KiB is left for the reductions of rows
SHARED_SUMS = 47 << 10
#: widest row that is read once and resident in registers, and widest row that a warp shares
WIDEST_RESIDENT, WARP_ROW = 4096, 1024
#: sums of a column from which on several threads add them
FEW_SUMS = 64


@dataclass(frozen=True)
class KernelForm:
    """The properties of operands on which the text of a kernel depends."""

    loop: LoopForm
    kind: Kind = "elements"
    #: threads that share a row, or a column of `totals`; threads of `tiles` with adjacent columns; 0 for elements
    lanes: int = 0
    #: True if sizes and strides need 64 bits
    wide: bool = False
    #: adjacent elements per thread; 1 if operands are not dense or not aligned
    vector: int = 1
    #: operands that are read or written by vectors, inputs first
    vectors: tuple[int, ...] = ()
    #: inputs that stay in registers between passes over a row, and the number of their vectors per thread
    resident: tuple[int, ...] = ()
    chunks: int = 0
    #: operands that share memory with another one
    aliased: tuple[int, ...] = ()
    #: True if the elements of a column are adjacent in memory
    down: bool = False
    #: True if single elements follow the last whole vector of a row
    rest: bool = False
    #: of `tiles`: rows that a thread reads at once, threads of a block along the rows, and blocks of rows with a common sum;
    #: of `walks`: rows that a block of threads computes at once, and rows with a common sum
    ahead: int = 1
    walkers: int = 1
    group: int = 1
    #: inputs with one value per column
    fixed: tuple[int, ...] = ()

    @property
    def index(self) -> str:
        return "long long" if self.wide else "int"

    @property
    def divisors(self) -> tuple[str, ...]:
        """The sizes by which 32-bit indices are divided: a multiplier and a shift of each are parameters."""
        if self.wide or self.kind == "totals":
            return ()
        outer = self.loop.outer
        first = {"elements": ("columns",) if outer else (), "rows": (), "walks": (), "tiles": ("tiles",)}[self.kind]
        return (*first, *(f"n{axis}" for axis in range(1, outer)))


def multiplier(divisor: int) -> tuple[int, int]:
    """Return the multiplier m, as a signed number of 32 bits, and the shift s of a divisor.

    For 0 <= i < 2^31, i / divisor = (high word of i m + i) >> s.
    """
    shift = (divisor - 1).bit_length()
    factor = ((1 << 32) * ((1 << shift) - divisor)) // divisor + 1
    return (factor - (1 << 32) if factor >= 1 << 31 else factor), shift


def lanes_of(width: int, vector: int, resident: int) -> int:
    """Return the number of threads that share a row; `resident` is the number of bytes per element that stay in registers between passes.

    Short rows use the sixteen partial sums of the reference, longer rows a warp, and the longest rows a block.  The number of threads does not
    depend on the number of rows, so that the sum of a row does not depend on it.
    """
    if width <= 32 * LANES:
        return LANES
    if vector == 1:
        return 32 if width <= 2048 else THREADS
    if width > WARP_ROW:
        return THREADS
    return 32 if -(-width // (32 * CHUNK)) * CHUNK * resident <= RESIDENT else 128


def column_lanes(sums: int) -> int:
    """Return the number of threads that add this many sums of a column."""
    return 1 if sums <= FEW_SUMS else 8 if sums <= 4 * FEW_SUMS else 32


def form_of(
    kind: Kind,
    outputs: Sequence[Expression],
    loop: LoopForm,
    space: Space,
    operands: Sequence[Array],
    aliased: Sequence[int],
    wide: bool,
    group: int = 1,
) -> KernelForm:
    """Return the form of a kernel for these operands, inputs first."""
    accesses = [*loop.inputs, *loop.outputs]
    width = space.sizes[-1]
    if kind == "totals":
        shared = THREADS * sum(a.dtype.itemsize for a in loop.inputs)
        return KernelForm(loop, kind, column_lanes(space.sizes[0]) if shared <= SHARED_SUMS else 1, wide, aliased=tuple(aliased))
    along = [k for k, a in enumerate(accesses) if a.inner not in ("number", "splat") and not a.counted and not a.table]
    if kind == "tiles":
        return _tiles(KernelForm(loop, kind, wide=wide, aliased=tuple(aliased), group=group), outputs, space, operands, along)
    inputs = [accesses[k].dtype.itemsize for k in along if k < len(loop.inputs)]
    vector = _vector(kind, outputs, inputs, [accesses[k].dtype.itemsize for k in along if k >= len(loop.inputs)], width)
    if kind == "walks":
        return _walks(KernelForm(loop, kind, wide=wide, aliased=tuple(aliased)), outputs, space, operands, along)
    # other rows are whole numbers of vectors
    tail = not loop.outer if kind == "elements" else kind == "rows" and width > WIDEST_RESIDENT
    while vector > 1 and not (
        (tail or width % vector == 0) and all(_aligned(accesses[k], space.strides[k], space, operands[k], vector) for k in along)
    ):
        vector = vector // 2 if kind == "elements" else 1
    vectors = tuple(along) if vector > 1 else ()
    if kind != "rows":
        return KernelForm(loop, kind, 0, wide, vector, vectors, aliased=tuple(aliased))
    resident = _resident(outputs, loop, space, vectors) if vector > 1 and width <= WIDEST_RESIDENT else ()
    lanes = lanes_of(width, vector, sum(accesses[k].dtype.itemsize for k in resident))
    chunks = -(-width // (lanes * CHUNK)) if resident else 0
    return KernelForm(loop, kind, lanes, wide, vector, vectors, resident, chunks, tuple(aliased), rest=width % vector != 0)


def _vector(kind: Kind, outputs: Sequence[Expression], read: Sequence[int], written: Sequence[int], width: int) -> int:
    """Return the number of adjacent elements per thread, if all operands are aligned; `read` and `written` are the sizes of elements."""
    if not read and not written:
        return 1
    if kind == "rows":
        return CHUNK if width > 32 * LANES else 1
    sizes, expressions = [*read, *written], sum(RANDOM if x.primitive == "philox" else 1 for x in facts(tuple(outputs)).order)
    least, vector = WIDEST // max(sizes), WIDEST // min(sizes)
    while vector > max(least, 2) and (vector * max(sum(read), sum(written)) > HELD or vector * expressions > UNROLLED):
        vector //= 2
    return vector if vector <= width else 1


def _tiles(form: KernelForm, outputs: Sequence[Expression], space: Space, operands: Sequence[Array], along: Sequence[int]) -> KernelForm:
    """Return the form of sums of columns: enough threads occupy a GPU, and each has enough bytes in flight."""
    accesses = [*form.loop.inputs, *form.loop.outputs]
    *outer, columns = space.sizes
    blocks = -(-math.prod(outer) // BLOCK)
    fixed = tuple(k for k in along if k < len(form.loop.inputs) and not any(space.strides[k][:-1]))
    read = [accesses[k].dtype.itemsize for k in along if k < len(form.loop.inputs) and k not in fixed]
    order = facts(tuple(outputs)).order
    values = len(values_per_column(order, outputs, fixed)[1]) + sum(x.primitive == COLUMNS for x in order)
    vector = WIDEST // max(read, default=WIDEST)
    while vector > 1 and not (columns % vector == 0 and all(_aligned(accesses[k], space.strides[k], space, operands[k], vector) for k in along)):
        vector //= 2
    if vector == 1 and _down(space, along):
        return replace(form, down=True)
    while (vector > 1 and values * vector > MOST_VALUES) or (vector > 2 and columns // vector * blocks < FEW_THREADS):
        vector //= 2
    chunks = columns // vector
    lanes = 32
    while lanes > 1 and (lanes >= 2 * chunks or (lanes > 8 and lanes * vector >= 2 * TILE and 9 * chunks < 8 * lanes * -(-chunks // lanes))):
        lanes //= 2
    walkers = WALKERS // lanes
    while form.group == 1 and lanes * walkers > TILE and walkers > 1 and -(-chunks // lanes) * -(-blocks // walkers) < FEW_GROUPS:
        walkers //= 2
    per_row = sum(a.dtype.itemsize for a in form.loop.inputs if a.inner == "splat" and not a.counted and not a.table)
    each, most = vector * sum(read) + per_row, WALKER_BYTES - 4 * values * vector
    ahead = MOST_ROWS
    while ahead > 1 and (ahead * each > most or ahead * vector > MOST_ELEMENTS or ahead * vector * len(order) > 2 * UNROLLED):
        ahead //= 2
    return replace(form, lanes=lanes, vector=vector, vectors=tuple(along) if vector > 1 else (), ahead=ahead, walkers=walkers, fixed=fixed)


def _walks(form: KernelForm, outputs: Sequence[Expression], space: Space, operands: Sequence[Array], along: Sequence[int]) -> KernelForm:
    """Return the form of rows with sums of columns; its lanes are 0 if threads cannot hold the row and the sums in registers."""
    accesses = [*form.loop.inputs, *form.loop.outputs]
    *outer, width = space.sizes
    held = tuple(k for k in along if k < len(form.loop.inputs) and any(space.strides[k][:-1]))
    sums = sum(x.dtype.itemsize for x in facts(tuple(outputs)).order if x.primitive == COLUMNS)
    each = sum(accesses[k].dtype.itemsize for k in held) + sums
    aligned = width % CHUNK == 0 and all(_aligned(accesses[k], space.strides[k], space, operands[k], CHUNK) for k in along)
    for lanes in (32, 64, 128, 256) if aligned and held and 32 * LANES < width <= WIDEST_RESIDENT else ():
        chunks, walkers = -(-width // (lanes * CHUNK)), max(WALKERS // lanes, 1)
        if chunks * CHUNK * each <= WALK_BYTES and (walkers == 1 or walkers * lanes * chunks * CHUNK * sums <= SHARED_SUMS):
            group = -(-math.prod(outer) // (MOST_WALKS * walkers)) * walkers
            return replace(form, lanes=lanes, vector=CHUNK, vectors=tuple(along), resident=held, chunks=chunks, walkers=walkers, group=group)
    return form


def tile_width(form: KernelForm) -> int:
    """Return the columns of a block of threads of `tiles`."""
    return TILE if form.down else max(form.lanes * form.vector, 1)


def values_per_column(order: Sequence[Expression], outputs: Sequence[Expression], fixed: Collection[int]) -> tuple[set[Expression], list[Expression]]:
    """Return the expressions with one value per column, computed from the inputs `fixed`, and the ones that other expressions read."""
    once: set[Expression] = set()
    same: set[Expression] = set()
    for x in order:
        if x.primitive in ("constant", "number", "columns"):
            once.add(x)
        elif x.primitive == "element":
            same.update([x] if position(x) in fixed else [])
        elif x.primitive not in (COLUMNS, "looked_up", *REDUCTIONS) and all(y in once or y in same for y in x.arguments):
            (same if any(y in same for y in x.arguments) else once).add(x)
    read = {y for x in order if x not in same for y in x.arguments} | set(outputs)
    return same, [x for x in order if x in same and x in read]


def _aligned(access: OperandAccess, strides: Sequence[int], space: Space, array: Array, vector: int) -> bool:
    """Return True if each vector of the operand begins at a multiple of its size."""
    size = min(vector * access.dtype.itemsize, WIDEST)
    steps = [stride for stride, n in zip(strides[:-1], space.sizes[:-1], strict=True) if n > 1]
    return access.inner == "dense" and address(array) % size == 0 and all(step % size == 0 for step in steps)


def _resident(outputs: Sequence[Expression], loop: LoopForm, space: Space, vectors: Sequence[int]) -> tuple[int, ...]:
    """Return the inputs with an element per index that several passes over a row read."""
    stored = [y for y, a in zip(outputs, loop.outputs, strict=True) if a.inner != "splat"]
    passes = phases(outputs, stored, lambda x: loop.inputs[position(x)].inner == "splat", ()).passes
    readers = [{position(x) for x in phase.elements if x.primitive == "element"} for phase in passes]
    inputs = (k for k in vectors if k < len(loop.inputs) and any(space.strides[k][:-1]))
    return tuple(k for k in inputs if sum(k in read for read in readers) > 1)


def _down(space: Space, along: Sequence[int]) -> bool:
    """Return True if adjacent rows are nearer in memory than adjacent columns, in the operand that is read last."""
    strides = [space.strides[k] for k in along if len(space.sizes) > 1 and space.strides[k][-2]]
    return bool(strides) and all(abs(s[-2]) < abs(s[-1]) for s in strides)
