"""Segment sums of rows or elements as a compiled loop: the tier "llvm" of CPUs.

Rows are added in their order of occurrence, so results are bit-equal to the sums of `kernels/cpu/segments.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from jobflow.core.types import Array, DType, dtype_of
from jobflow.kernels.argument_block import address, argument_block
from jobflow.kernels.compiled_loops import FEWEST
from jobflow.kernels.llvm.instructions import WIDTH, Lines, register, several, stored, suffix
from jobflow.kernels.llvm.machine_code import NAME, Function, compiler
from jobflow.kernels.registry import implements
from jobflow.ops.index import BatchSegmentSum, DimScatterAdd, UnsortedSegmentSum
from jobflow.ops.op import Binder, Call, Op

_TRUTHS = several("i1", WIDTH)
_WIDE = several("i64", WIDTH)
_IOTA = ", ".join(f"i64 {k}" for k in range(WIDTH))


def _geometry(op: Op, data: Array, ids: Array, y: Array) -> tuple[int, ...]:
    """Return five sizes: ids along the axis of the sums, ids along later axes, elements per row, number of sums, id of the first sum."""
    match op:
        case DimScatterAdd():
            return ids.shape[op.axis], math.prod(ids.shape[op.axis + 1 :]), 1, y.shape[op.axis], op.offset
        case BatchSegmentSum():
            return ids.shape[op.batch], 1, math.prod(data.shape[ids.ndim :]), y.shape[op.batch], 0
        case UnsortedSegmentSum():
            return ids.size, 1, math.prod(data.shape[op.axis + ids.ndim :]), y.shape[op.axis], op.offset
    raise AssertionError(f"{op}: segment sums compute only UnsortedSegmentSum, DimScatterAdd and BatchSegmentSum")


def _refused(op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    (data, ids), (y,) = inputs, outputs
    if min(data.size, y.size) < FEWEST:
        return f"{min(data.size, y.size)} elements; loops are compiled for at least {FEWEST}"
    if isinstance(op, UnsortedSegmentSum) and math.prod(data.shape[: op.axis]) != 1:
        return "the axis of the segments is not the first"
    if not all(a.flags.c_contiguous and a.flags.aligned for a in (ids, y)) or not data.flags.aligned or ids.itemsize < 4:
        return "operands are not aligned, or ids and sums are not contiguous"
    return None if _rows(op, data, ids) is not None else "the data has no view as a matrix of contiguous rows"


def _rows(op: Op, data: Array, ids: Array) -> Array | None:
    """View the data as a matrix with a row per id; return None if strides do not allow it or rows are not contiguous."""
    try:
        rows = data.reshape(ids.size, -1, copy=False)
    except ValueError:
        return None
    return rows if rows.strides[1] == rows.itemsize or rows.shape[1] == 1 else None


@implements(UnsortedSegmentSum, DimScatterAdd, BatchSegmentSum, tier="llvm", rank=10, refuses=_refused)
def sequential_row_sums(op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (data, ids), (y,) = inputs, outputs
    count, behind, width, size, first = _geometry(op, data, ids, y)
    function = _compiled(dtype_of(y.dtype), dtype_of(ids.dtype), width == 1)
    rows = _rows(op, data, ids)
    assert rows is not None
    words = [address(data), address(ids), address(y), ids.size, count, behind, width, size, first, rows.strides[0]]
    return [(y.fill, (0,)), (function, (argument_block(words, (data, ids, y)),))]


@lru_cache
def _compiled(dtype: DType, id_type: DType, single: bool) -> Function:
    """Compile the function of segment sums.

    Its argument block has the addresses of rows, ids and sums, the number of rows, `_geometry`, and the bytes between rows.  `single` is True for
    rows of one element.  Row i has id j along the axis of the sums, and index k along the later axes.  `base` counts the sums of earlier axes.
    """
    at, kind = Lines(), stored(dtype)
    at.label("entry")
    words = [at.value(f"load i64, ptr {at.value(f'getelementptr i64, ptr %args, i64 {k}')}") for k in range(10)]
    rows, ids, sums = (at.value(f"inttoptr i64 {word} to ptr") for word in words[:3])
    total, count, behind, width, size, first, step = words[3:]
    at.write("br label %rows")
    at.label("rows")
    for name in ("i", "j", "k", "base"):
        at.write(f"%{name} = phi i64 [0, %entry], [%{name}.next, %done]")
    id_value = at.value(f"load {stored(id_type)}, ptr {at.value(f'getelementptr {stored(id_type)}, ptr {ids}, i64 %i')}")
    id_value = id_value if id_type.itemsize == 8 else at.value(f"sext {stored(id_type)} {id_value} to i64")
    index = at.value(f"sub i64 {id_value}, {first}")
    at.write(f"br i1 {at.value(f'icmp ult i64 {index}, {size}')}, label %inside, label %done")
    at.label("inside")
    before = at.value(f"mul i64 {at.value(f'add i64 %base, {index}')}, {behind}")
    index = at.value(f"add i64 {before}, %k")
    row = at.value(f"getelementptr i8, ptr {rows}, i64 {at.value(f'mul i64 %i, {step}')}")
    target = at.value(f"getelementptr {kind}, ptr {sums}, i64 {at.value(f'mul i64 {index}, {width}')}")
    if single:
        _add_one(at, dtype, row, target)
    else:
        _add_row(at, dtype, row, target, width)
    at.write("br label %done")
    at.label("done")
    at.write("%i.next = add i64 %i, 1")
    after = "true"
    for name, wraps in (("k", behind), ("j", count)):
        more = at.value(f"add i64 %{name}, {at.value(f'zext i1 {after} to i64')}")
        after = at.value(f"icmp eq i64 {more}, {wraps}")
        at.write(f"%{name}.next = select i1 {after}, i64 0, i64 {more}")
    at.write(f"%base.next = add i64 %base, {at.value(f'select i1 {after}, i64 {size}, i64 0')}")
    at.write(f"br i1 {at.value(f'icmp slt i64 %i.next, {total}')}, label %rows, label %exit")
    at.label("exit")
    at.write("ret void")
    return compiler().function("\n".join([f"define void @{NAME}(ptr %args) {{", *at.lines, "}", "", *sorted(at.declared), ""]))


def _add_one(at: Lines, dtype: DType, row: str, total: str) -> None:
    kind, align = stored(dtype), dtype.itemsize
    values = [at.value(f"load {kind}, ptr {address}, align {align}") for address in (row, total)]
    value = at.value(f"{'fadd' if dtype.is_float else 'add'} {kind} {values[1]}, {values[0]}")
    at.write(f"store {kind} {value}, ptr {total}, align {align}")


def _add_row(at: Lines, dtype: DType, row: str, total: str, width: str) -> None:
    """Print the addition of a row to a sum, sixteen elements at a time."""
    full = at.value(f"and i64 {width}, -{WIDTH}")
    rest = at.value(f"sub i64 {width}, {full}")
    lanes = at.value(f"insertelement {_WIDE} poison, i64 {rest}, i64 0")
    mask = at.value(f"shufflevector {_WIDE} {lanes}, {_WIDE} poison, <{WIDTH} x i32> zeroinitializer")
    mask = at.value(f"icmp ult {_WIDE} <{_IOTA}>, {mask}")
    at.write("br label %sixteens")
    at.label("sixteens")
    at.write("%c = phi i64 [0, %inside], [%c.next, %full]")
    at.write(f"br i1 {at.value(f'icmp slt i64 %c, {full}')}, label %full, label %rest")
    at.label("full")
    _add(at, dtype, row, total, "%c", "")
    at.write(f"%c.next = add i64 %c, {WIDTH}")
    at.write("br label %sixteens")
    at.label("rest")
    at.write(f"br i1 {at.value(f'icmp ne i64 {rest}, 0')}, label %some, label %done")
    at.label("some")
    _add(at, dtype, row, total, full, mask)


def _add(at: Lines, dtype: DType, row: str, total: str, index: str, mask: str) -> None:
    """Print the addition of sixteen elements of a row, or of those selected by the mask, to the sum."""
    kind, align, ending = stored(dtype, WIDTH), dtype.itemsize, suffix(stored(dtype), WIDTH)
    addresses = [at.value(f"getelementptr {stored(dtype)}, ptr {base}, i64 {index}") for base in (row, total)]
    if mask:
        name, chosen = f"llvm.masked.load{ending}.p0", f"{_TRUTHS} {mask}"
        values = [at.call(name, kind, f"ptr align {align} {address}", chosen, f"{kind} zeroinitializer") for address in addresses]
    else:
        values = [at.value(f"load {kind}, ptr {address}, align {align}") for address in addresses]
    value = at.value(f"{'fadd' if dtype.is_float else 'add'} {register(dtype, WIDTH)} {values[1]}, {values[0]}")
    if mask:
        at.effect(f"llvm.masked.store{ending}.p0", f"{kind} {value}", f"ptr align {align} {addresses[1]}", chosen)
    else:
        at.write(f"store {kind} {value}, ptr {addresses[1]}, align {align}")
