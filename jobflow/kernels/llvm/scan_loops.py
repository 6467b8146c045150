"""Running sums and products along rows as compiled loops: the tier "llvm" of CPUs.

Each element depends on the previous element, so a loop processes LINES rows concurrently.  The additions have the order of NumPy's `accumulate`, so
results are bit-equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from jobflow.core.types import Array, DType, dtype_of
from jobflow.kernels.argument_block import address, argument_block
from jobflow.kernels.compiled_loops import FEWEST
from jobflow.kernels.llvm.instructions import Lines, literal, stored
from jobflow.kernels.llvm.machine_code import NAME, Function, compiler
from jobflow.kernels.registry import implements
from jobflow.ops.op import Binder, Call
from jobflow.ops.scan import CumSum, Scan

#: rows processed concurrently
LINES = 8


def _rows(op: Scan, x: Array, y: Array) -> list[Array] | None:
    """View x and y as [rows, elements of a row] in the direction of the scan; return None if the strides do not allow it."""
    swapped = [a.swapaxes(0, a.ndim - 1) for a in op.operands(x, y)]
    try:
        return [a.reshape(-1, a.shape[-1], copy=False) for a in swapped]
    except ValueError:
        return None


def _refused(op: Scan, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    (x,), (y,) = inputs, outputs
    if y.size < FEWEST or y.shape[op.axis] < 2:
        return f"{y.size} elements, {y.shape[op.axis]} along the axis; loops are compiled for at least {FEWEST}"
    if any(abs(a.strides[op.axis]) != a.itemsize or not a.flags.aligned for a in (x, y)):
        return "elements along the axis are not contiguous; NumPy processes many rows at once"
    return None if _rows(op, x, y) is not None else "its rows have no view as a matrix"


@implements(Scan, tier="llvm", rank=10, refuses=_refused)
def running_values(op: Scan, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (x,), (y,) = inputs, outputs
    rows = _rows(op, x, y)
    assert rows is not None
    function = _compiled(type(op) is CumSum, dtype_of(y.dtype), dtype_of(op.running(y)))
    words = [*map(address, rows), *rows[0].shape, *(stride for a in rows for stride in a.strides)]
    first: list[Call] = [(op.turned(y)[:1].fill, (op.of_nothing,))] if op.exclusive else []
    return [*first, (function, (argument_block(words, rows),))]


@lru_cache
def _compiled(sums: bool, dtype: DType, running: DType) -> Function:
    """Compile the function of running sums or products.

    The argument block has the addresses of x and y, the number of rows, the number of elements per row, and the strides in bytes.
    """
    at, kind, wide = Lines(), stored(dtype), stored(running)
    instruction = ("fadd" if sums else "fmul") if dtype.is_float else "add" if sums else "mul"

    def beyond(base: str, count: str, stride: str) -> str:
        offset = at.value(f"mul i64 {count}, {stride}")
        return at.value(f"getelementptr i8, ptr {base}, i64 {offset}")

    at.label("entry")
    x, y, rows, width, x_row, x_step, y_row, y_step = (at.value(f"load i64, ptr {beyond('%args', str(k), '8')}") for k in range(8))
    x, y = (at.value(f"inttoptr i64 {word} to ptr") for word in (x, y))
    last = at.value(f"sub i64 {rows}, 1")
    at.write("br label %rows")
    at.label("rows")
    at.write("%row = phi i64 [0, %entry], [%next.rows, %done]")
    # lines beyond the last row write it again, with the same values
    lines = [at.call("llvm.smin.i64", "i64", f"i64 {at.value(f'add i64 %row, {k}')}", f"i64 {last}") for k in range(LINES)]
    pairs = [(beyond(x, line, x_row), beyond(y, line, y_row)) for line in lines]
    at.write("br label %elements")
    at.label("elements")
    begin = len(at.lines)
    at.lines += [""] * (LINES + 1)
    now = []
    for k, (source, target) in enumerate(pairs):
        element = at.value(f"load {kind}, ptr {beyond(source, '%k', x_step)}")
        element = element if kind == wide else at.value(f"fpext {kind} {element} to {wide}")
        now.append(at.value(f"{instruction} {wide} %so.far{k}, {element}"))
        value = now[-1] if kind == wide else at.value(f"fptrunc {wide} {now[-1]} to {kind}")
        at.write(f"store {kind} {value}, ptr {beyond(target, '%k', y_step)}")
    start = literal(-0.0 if sums else 1.0, running)
    at.lines[begin] = "  %k = phi i64 [0, %rows], [%next.k, %elements]"
    at.lines[begin + 1 : begin + 1 + LINES] = [f"  %so.far{k} = phi {wide} [{start}, %rows], [{now[k]}, %elements]" for k in range(LINES)]
    _again(at, "k", "elements", "done", 1, width)
    at.label("done")
    _again(at, "rows", "rows", "exit", LINES, rows)
    at.label("exit")
    at.write("ret void")
    return compiler().function("\n".join([f"define void @{NAME}(ptr %args) {{", *at.lines, "}", "", *sorted(at.declared), ""]))


def _again(at: Lines, name: str, begin: str, end: str, step: int, size: str) -> None:
    """Print the increment of the loop counter and the branch to the next iteration or out of the loop."""
    at.write(f"%next.{name} = add i64 %{name.removesuffix('s')}, {step}")
    more = at.value(f"icmp slt i64 %next.{name}, {size}")
    at.write(f"br i1 {more}, label %{begin}, label %{end}")
