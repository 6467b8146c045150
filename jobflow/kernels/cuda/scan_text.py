"""Texts of kernels for running results along an axis: sums, products, extremes with their indices, and logarithms of sums of exponentials.

    lines     one thread per line, which adds element by element, as NumPy does
    blocks    256 threads per line: each chunk of 256 elements is scanned in eight steps, and continues from the result of the chunk before

    chunk     1 2 3 4  ->  1 3 5 7  ->  1 3 6 10        in step s, element i adds element i - 2^s

A block needs an associative operation that no intermediate result can spoil.  A product of a segment may overflow although the running product is 0,
so products have one thread per line.  Sizes and strides are constants of the text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, DType, dtype_of, float32, float64
from jobflow.kernels.cuda.kernel_text import THREADS, with_functions
from jobflow.kernels.cuda.primitives import from_memory, stored_type, to_memory, value_type
from jobflow.ops.op import Op
from jobflow.ops.running_extremes import CumExtreme, LogCumSumExp
from jobflow.ops.scan import CumProd, CumProdTail, Scan

NAME = "scanned"
#: fewest elements of a line for a block of threads
LONG = 64
#: lines above which threads of their own fill a GPU, if adjacent threads read adjacent elements
MANY = 1 << 14


@dataclass(frozen=True)
class Running:
    """The parts of a kernel: C text of the state, of its combination, of a state for element k, and of the stored results.

    `start` is the state before the first element.  `results` are expressions of the state `now`, one per output.
    """

    fields: str
    together: str
    start: str
    element: str
    results: tuple[str, ...]
    exclusive: bool = False
    associative: bool = True


def running(op: Op, arrays: Sequence[Array]) -> Running:
    """Return the parts of the kernel of an operation; inputs come before outputs in `arrays`."""
    x = dtype_of(arrays[0].dtype)
    if isinstance(op, CumExtreme):
        return _extreme(op, x)
    if isinstance(op, LogCumSumExp):
        equal, above, below = "a.value + 0.6931471805599453", "a.value + log1p(exp(-gap))", "b.value + log1p(exp(gap))"
        together = f"const double gap = a.value - b.value; return {{a.value == b.value ? {equal} : gap > 0 ? {above} : gap <= 0 ? {below} : gap}};"
        minus = "__longlong_as_double(0xfff0000000000000LL)"
        return Running("double value;", together, f"{{{minus}}}", f"{{(double){_read(x, 'x0', 'k')}}}", (_out("now.value", x),))
    if isinstance(op, CumProdTail):
        return _tail(op, x)
    assert isinstance(op, Scan)
    wide = _wide(x)
    sign, nothing = ("*", 1) if isinstance(op, CumProd) else ("+", 0)
    result = _out("now.value", x)
    element = f"{{({wide}){_read(x, 'x0', 'k')}}}"
    return Running(f"{wide} value;", f"return {{a.value {sign} b.value}};", f"{{{nothing}}}", element, (result,), op.exclusive, sign == "+")


def _wide(dtype: DType) -> str:
    """Return the C type in which elements are added or multiplied."""
    if dtype.is_float:
        return value_type(float64)
    return "unsigned long long"


def _extreme(op: CumExtreme, x: DType) -> Running:
    value = value_type(x)
    better = "b.value >= a.value" if op.largest else "b.value <= a.value"
    together = f"return a.at < 0 || b.value != b.value ? b : a.value != a.value ? a : {better} ? b : a;"
    element = f"{{({value})({_read(x, 'x0', 'k')}), k}}"
    return Running(f"{value} value; long long at;", together, "{0, -1}", element, (_out("now.value", x), "now.at"))


def _tail(op: CumProdTail, x: DType) -> Running:
    """Return the parts of s[i] = dy[i] + x[i+1] s[i+1]; the scan starts at the last element, so element k - 1 of the scan is element i + 1."""
    value = value_type(x)
    added = f"(k ? {_read(x, 'x1', 'k - 1')} : 0)" if op.exclusive else _read(x, "x1", "k")
    element = f"{{k ? {_read(x, 'x0', 'k - 1')} : 0, {added}}}"
    together = "return {b.factor, b.value + b.factor * a.value};"
    return Running(f"{value} factor, value;", together, "{0, 0}", element, (_out("now.value", x),), associative=False)


def _read(dtype: DType, pointer: str, k: str) -> str:
    text = from_memory(f"{pointer}[at_{pointer} + ({k}) * step_{pointer}]", dtype)
    return f"({text})" if " " in text else text


def _out(text: str, dtype: DType) -> str:
    narrow = float32 if dtype.is_half else dtype
    return to_memory(f"({value_type(narrow)}){text}", dtype)


def backwards(op: Op) -> bool:
    """Return True if the scan starts at the last element of the axis."""
    reverse: bool = vars(op).get("reverse", False)
    return not reverse if isinstance(op, CumProdTail) else reverse


def by_blocks(op: Op, arrays: Sequence[Array]) -> bool:
    """Return True if a block of threads scans a line."""
    x = arrays[0]
    axis = int(vars(op)["axis"]) % x.ndim
    n = x.shape[axis]
    adjacent = abs(x.strides[axis]) > x.itemsize and x.size // max(n, 1) >= MANY
    return running(op, arrays).associative and n >= LONG and not adjacent


def print_scan(op: Op, arrays: Sequence[Array], name: str = NAME) -> str:
    """Print the kernel of an operation for arrays with these layouts; inputs come before outputs."""
    return with_functions("\n".join(_lines(op, arrays, name)) + "\n")


def _lines(op: Op, arrays: Sequence[Array], name: str) -> Iterator[str]:
    parts, axis, shape = running(op, arrays), int(vars(op)["axis"]) % arrays[0].ndim, arrays[0].shape
    count = len(arrays) - len(parts.results)
    pointers = [*(f"x{k}" for k in range(count)), *(f"y{k}" for k in range(len(parts.results)))]
    types = [stored_type(dtype_of(a.dtype)) for a in arrays]
    state, size = f"{name}_state", shape[axis]
    yield f"struct {state} {{ {parts.fields} }};"
    yield f"static __device__ {state} {name}_together({state} a, {state} b) {{ {parts.together} }}"
    declared = ", ".join(f"{'const ' if k < count else ''}{t} *{p}" for k, (t, p) in enumerate(zip(types, pointers, strict=True)))
    yield f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}(\n    {declared}) {{'
    blocks = by_blocks(op, arrays)
    if blocks:
        yield f"  static __shared__ {state} parts[{THREADS}];"
    first, step = ("blockIdx.x", "gridDim.x") if blocks else (f"blockIdx.x * {THREADS}LL + threadIdx.x", f"gridDim.x * {THREADS}LL")
    others = [i for i in range(len(shape)) if i != axis]
    yield f"  for (long long line = {first}; line < {math.prod(shape[i] for i in others)}LL; line += {step}) {{"
    yield "    long long rest = line;"
    for i in reversed(others):
        yield f"    const long long i{i} = rest % {shape[i]}LL; rest /= {shape[i]}LL;"
    for pointer, a in zip(pointers, arrays, strict=True):
        steps = [s // a.itemsize for s in a.strides]
        along, start = (-steps[axis], (size - 1) * steps[axis]) if backwards(op) else (steps[axis], 0)
        terms = [f"{start}LL", *(f"i{i} * {steps[i]}LL" for i in others)]
        yield f"    const long long at_{pointer} = {' + '.join(terms)}, step_{pointer} = {along}LL;"
    yield from _by_block(parts, state, name, size) if blocks else _by_thread(parts, state, name, size)
    yield "  }"
    yield "}"


def _stores(parts: Running, indent: str) -> Iterator[str]:
    for k, result in enumerate(parts.results):
        yield f"{indent}y{k}[at_y{k} + k * step_y{k}] = {result};"


def _by_thread(parts: Running, state: str, name: str, size: int) -> Iterator[str]:
    yield f"    {state} all = {parts.start};"
    yield f"    for (long long k = 0; k < {size}LL; ++k) {{"
    yield f"      const {state} mine = {parts.element};"
    yield f"      const {state} next = k ? {name}_together(all, mine) : mine;"
    yield f"      const {state} now = {'all' if parts.exclusive else 'next'};"
    yield from _stores(parts, "      ")
    yield "      all = next;"
    yield "    }"


def _by_block(parts: Running, state: str, name: str, size: int) -> Iterator[str]:
    yield f"    {state} all = {parts.start};"
    yield f"    for (long long first = 0; first < {size}LL; first += {THREADS}) {{"
    yield "      const long long k = first + threadIdx.x;"
    yield "      const int t = threadIdx.x;"
    yield f"      {state} mine = {parts.start};"
    yield f"      if (k < {size}LL) mine = {parts.element};"
    yield "      parts[t] = mine;"
    yield "      __syncthreads();"
    yield f"      for (int far = 1; far < {THREADS}; far *= 2) {{"
    yield f"        const {state} other = parts[t >= far ? t - far : t];"
    yield "        __syncthreads();"
    yield f"        if (t >= far) parts[t] = {name}_together(other, parts[t]);"
    yield "        __syncthreads();"
    yield "      }"
    own = "parts[t - 1]" if parts.exclusive else "parts[t]"
    combined = f"first ? {name}_together(all, {own}) : {own}"
    yield f"      const {state} now = {f't ? ({combined}) : all' if parts.exclusive else combined};"
    yield f"      if (k < {size}LL) {{"
    yield from _stores(parts, "        ")
    yield "      }"
    yield f"      all = first ? {name}_together(all, parts[{THREADS - 1}]) : parts[{THREADS - 1}];"
    yield "      __syncthreads();"
    yield "    }"
