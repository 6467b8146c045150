"""Sums of rows, or of elements, that have a number in common as a compiled loop: the tier "llvm" of CPUs.

Rows are added in the order in which they come, so sums are those of `kernels/cpu/segments.py` to the last bit.
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
    """How many numbers lie along the axis of the sums, and in those behind it; elements of a row, sums, the number of the first sum."""
    match op:
        case DimScatterAdd():
            return ids.shape[op.axis], math.prod(ids.shape[op.axis + 1 :]), 1, y.shape[op.axis], op.offset
        case BatchSegmentSum():
            return ids.shape[op.batch], 1, math.prod(data.shape[ids.ndim :]), y.shape[op.batch], 0
        case UnsortedSegmentSum():
            return ids.size, 1, math.prod(data.shape[op.axis + ids.ndim :]), y.shape[op.axis], op.offset
    raise AssertionError(f"{op} sums no rows")


def _refused(op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    (data, ids), (y,) = inputs, outputs
    if min(data.size, y.size) < FEWEST:
        return f"{min(data.size, y.size)} elements; a loop is compiled for {FEWEST} and more"
    if isinstance(op, UnsortedSegmentSum) and math.prod(data.shape[: op.axis]) != 1:
        return "there are axes before that of the segments"
    if not all(a.flags.c_contiguous and a.flags.aligned for a in (ids, y)) or not data.flags.aligned or ids.itemsize < 4:
        return "operands that are not aligned, or indices and sums with gaps in memory"
    return None if _rows(op, data, ids) is not None else "rows whose elements or distances vary in memory"


def _rows(op: Op, data: Array, ids: Array) -> Array | None:
    """The data as a matrix with a row for each index; None if no strides give that, or the elements of a row are apart."""
    try:
        rows = data.reshape(ids.size, -1, copy=False)
    except ValueError:
        return None
    return rows if rows.strides[1] == rows.itemsize or rows.shape[1] == 1 else None


@implements(UnsortedSegmentSum, DimScatterAdd, BatchSegmentSum, tier="llvm", rank=10, refuses=_refused)
def sums_of_rows_in_turn(op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (data, ids), (y,) = inputs, outputs
    count, behind, width, size, first = _geometry(op, data, ids, y)
    function = _compiled(dtype_of(y.dtype), dtype_of(ids.dtype), width == 1)
    rows = _rows(op, data, ids)
    assert rows is not None
    words = [address(data), address(ids), address(y), ids.size, count, behind, width, size, first, rows.strides[0]]
    return [(y.fill, (0,)), (function, (argument_block(words, (data, ids, y)),))]


@lru_cache
def _compiled(dtype: DType, numbers: DType, single: bool) -> Function:
    """void loop(addresses of rows, numbers and sums; how many rows; `_geometry`; bytes between rows); `single`: a row has one element

    Row i has number j along the axis of the sums, and lies at k behind it; before it, `base` sums are passed.
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
    number = at.value(f"load {stored(numbers)}, ptr {at.value(f'getelementptr {stored(numbers)}, ptr {ids}, i64 %i')}")
    number = number if numbers.itemsize == 8 else at.value(f"sext {stored(numbers)} {number} to i64")
    place = at.value(f"sub i64 {number}, {first}")
    at.write(f"br i1 {at.value(f'icmp ult i64 {place}, {size}')}, label %inside, label %done")
    at.label("inside")
    before = at.value(f"mul i64 {at.value(f'add i64 %base, {place}')}, {behind}")
    place = at.value(f"add i64 {before}, %k")
    row = at.value(f"getelementptr i8, ptr {rows}, i64 {at.value(f'mul i64 %i, {step}')}")
    target = at.value(f"getelementptr {kind}, ptr {sums}, i64 {at.value(f'mul i64 {place}, {width}')}")
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
    values = [at.value(f"load {kind}, ptr {place}, align {align}") for place in (row, total)]
    made = at.value(f"{'fadd' if dtype.is_float else 'add'} {kind} {values[1]}, {values[0]}")
    at.write(f"store {kind} {made}, ptr {total}, align {align}")


def _add_row(at: Lines, dtype: DType, row: str, total: str, width: str) -> None:
    """The elements of a row to those of a sum, sixteen at a time."""
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
    """Sixteen elements of a row, or those where the mask is set, to the sum."""
    kind, align, ending = stored(dtype, WIDTH), dtype.itemsize, suffix(stored(dtype), WIDTH)
    places = [at.value(f"getelementptr {stored(dtype)}, ptr {base}, i64 {index}") for base in (row, total)]
    if mask:
        name, chosen = f"llvm.masked.load{ending}.p0", f"{_TRUTHS} {mask}"
        values = [at.call(name, kind, f"ptr align {align} {place}", chosen, f"{kind} zeroinitializer") for place in places]
    else:
        values = [at.value(f"load {kind}, ptr {place}, align {align}") for place in places]
    made = at.value(f"{'fadd' if dtype.is_float else 'add'} {register(dtype, WIDTH)} {values[1]}, {values[0]}")
    if mask:
        at.effect(f"llvm.masked.store{ending}.p0", f"{kind} {made}", f"ptr align {align} {places[1]}", chosen)
    else:
        at.write(f"store {kind} {made}, ptr {places[1]}, align {align}")
