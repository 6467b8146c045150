"""Sums of rows that have a number in common as a compiled loop: the tier "llvm" of CPUs.

Rows are added in the order in which they come, so sums are those of `kernels/cpu/segments.py` to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from jobflow.core.types import Array, DType, dtype_of
from jobflow.kernels.llvm.instructions import WIDTH, Lines, register, several, stored, suffix
from jobflow.kernels.llvm.loops import argument_block
from jobflow.kernels.llvm.machine_code import NAME, Function, compiler
from jobflow.kernels.loop_space import address
from jobflow.kernels.registry import implements
from jobflow.ops.index import UnsortedSegmentSum
from jobflow.ops.op import Binder, Call

#: elements; for fewer, compiling costs more than many runs save
FEWEST = 64
_TRUTHS = several("i1", WIDTH)
_WIDE = several("i64", WIDTH)
_IOTA = ", ".join(f"i64 {k}" for k in range(WIDTH))


def _refused(op: UnsortedSegmentSum, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    (data, ids), (y,) = inputs, outputs
    if min(data.size, y.size) < FEWEST:
        return f"{min(data.size, y.size)} elements; a loop is compiled for {FEWEST} and more"
    if math.prod(data.shape[: op.axis]) != 1:
        return "there are axes before that of the segments"
    if not all(a.flags.c_contiguous and a.flags.aligned for a in (data, ids, y)) or ids.itemsize < 4:
        return "operands do not lie in memory without gaps"
    return None


@implements(UnsortedSegmentSum, tier="llvm", rank=10, refuses=_refused)
def sums_of_rows_in_turn(op: UnsortedSegmentSum, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (data, ids), (y,) = inputs, outputs
    function = _compiled(dtype_of(y.dtype), dtype_of(ids.dtype))
    words = [address(data), address(ids), address(y), ids.size, math.prod(data.shape[op.axis + ids.ndim :]), y.shape[op.axis], op.offset]
    return [(y.fill, (0,)), (function, (argument_block(words, (data, ids, y)),))]


@lru_cache
def _compiled(dtype: DType, numbers: DType) -> Function:
    """void loop(addresses of rows, numbers and sums; how many rows, elements of a row, sums there are; the number of the first sum)"""
    at, kind = Lines(), stored(dtype)
    at.label("entry")
    words = [at.value(f"load i64, ptr {at.value(f'getelementptr i64, ptr %args, i64 {k}')}") for k in range(7)]
    rows, ids, sums = (at.value(f"inttoptr i64 {word} to ptr") for word in words[:3])
    count, width, size, first = words[3:]
    full = at.value(f"and i64 {width}, -{WIDTH}")
    rest = at.value(f"sub i64 {width}, {full}")
    lanes = at.value(f"insertelement {_WIDE} poison, i64 {rest}, i64 0")
    mask = at.value(f"shufflevector {_WIDE} {lanes}, {_WIDE} poison, <{WIDTH} x i32> zeroinitializer")
    mask = at.value(f"icmp ult {_WIDE} <{_IOTA}>, {mask}")
    at.write("br label %rows")
    at.label("rows")
    at.write("%i = phi i64 [0, %entry], [%next, %done]")
    number = at.value(f"load {stored(numbers)}, ptr {at.value(f'getelementptr {stored(numbers)}, ptr {ids}, i64 %i')}")
    number = number if numbers.itemsize == 8 else at.value(f"sext {stored(numbers)} {number} to i64")
    place = at.value(f"sub i64 {number}, {first}")
    at.write(f"br i1 {at.value(f'icmp ult i64 {place}, {size}')}, label %inside, label %done")
    at.label("inside")
    row = at.value(f"getelementptr {kind}, ptr {rows}, i64 {at.value(f'mul i64 %i, {width}')}")
    total = at.value(f"getelementptr {kind}, ptr {sums}, i64 {at.value(f'mul i64 {place}, {width}')}")
    at.write("br label %sixteens")
    at.label("sixteens")
    at.write("%k = phi i64 [0, %inside], [%next.k, %full]")
    at.write(f"br i1 {at.value(f'icmp slt i64 %k, {full}')}, label %full, label %rest")
    at.label("full")
    _add(at, dtype, row, total, "%k", "")
    at.write(f"%next.k = add i64 %k, {WIDTH}")
    at.write("br label %sixteens")
    at.label("rest")
    at.write(f"br i1 {at.value(f'icmp ne i64 {rest}, 0')}, label %some, label %done")
    at.label("some")
    _add(at, dtype, row, total, full, mask)
    at.write("br label %done")
    at.label("done")
    at.write("%next = add i64 %i, 1")
    at.write(f"br i1 {at.value(f'icmp slt i64 %next, {count}')}, label %rows, label %exit")
    at.label("exit")
    at.write("ret void")
    return compiler().function("\n".join([f"define void @{NAME}(ptr %args) {{", *at.lines, "}", "", *sorted(at.declared), ""]))


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
