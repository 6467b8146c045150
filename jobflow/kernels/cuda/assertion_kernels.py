"""Runtime assertions by printed kernels, which a graph can capture.

Three launches: the position of the first rejected element, the element itself, and the result, in which legal values replace rejected elements.  The
result may be in the memory of the checked array.  An assertion on rows first counts the positive elements of each row, in chunks of the row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jobflow.core.types import Array, DType, contiguous_strides, dtype_of, int32
from jobflow.kernels.cuda.compiled_text import compiler
from jobflow.kernels.cuda.kernel_text import with_functions
from jobflow.kernels.cuda.launches import KernelLaunch
from jobflow.kernels.cuda.primitives import from_memory, function_name, literal, stored_type, to_memory, value_type
from jobflow.ops.op import Call
from jobflow.ops.runtime_assertions import FiniteAssertion, IndexAssertion, RuntimeAssertion, WeightAssertion

THREADS = 256
#: elements of a chunk of a row, and chunks of the longest rows
CHUNK, MOST_CHUNKS = 8192, 32
#: elements of a row that a thread counts, if the row is shorter than a chunk
EACH = 8
#: element types of arrays that are checked and of results
TYPES = {"int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"}
#: `latest` is 0, or the number of elements minus the index of the first rejected one
_TEXT = """extern "C" __global__ void __launch_bounds__({threads}) find_rejected(
    const {stored} *x, long long n, unsigned long long *latest{parameters}) {{
  for (long long i = blockIdx.x * {threads}LL + threadIdx.x; i < n; i += gridDim.x * {threads}LL) {{
    const {value} v = {element};
    if ({rejected}) atomicMax(latest, (unsigned long long)(n - i));
  }}
}}

extern "C" __global__ void __launch_bounds__(32) report_rejected(
    const {stored} *x, long long n, unsigned long long *latest, long long *at, {stored} *value) {{
  if (blockIdx.x || threadIdx.x) return;
  const long long first = n - (long long)*latest;
  *at = *latest ? first + 1 : 0;
  if (*latest) *value = x[first];
  *latest = 0;
}}

extern "C" __global__ void __launch_bounds__({threads}) replace_rejected(
    const {stored} *x, {y} *y, long long n{parameters}) {{
  for (long long i = blockIdx.x * {threads}LL + threadIdx.x; i < n; i += gridDim.x * {threads}LL) {{
    const {value} v = {element};
    const {value} w = {rejected} ? {legal} : v;
    y[i] = {converted};
  }}
}}
"""
#: `lanes` threads share a chunk of at most `each` elements of a row
_COUNTS = """static __device__ bool is_short(const int *counts, long long row, long long chunks, long long least) {{
  long long positive = 0;
  for (long long k = 0; k < chunks && positive < least; ++k) positive += counts[row * chunks + k];
  return positive < least;
}}

extern "C" __global__ void __launch_bounds__({threads}) count_positive(
    const {stored} *x, int *counts, long long rows, long long width, long long chunks, long long each, int lanes) {{
  static __shared__ int positive[{threads}];
  const int t = threadIdx.x, lane = t % lanes, groups = {threads} / lanes;
  for (long long first = (long long)blockIdx.x * groups; first < rows * chunks; first += (long long)gridDim.x * groups) {{
    const long long chunk = first + t / lanes, begin = chunk % chunks * each;
    int count = 0;
    if (chunk < rows * chunks)
      for (long long k = begin + lane; k < min(begin + each, width); k += lanes) {{
        const long long i = chunk / chunks * width + k;
        count += {element} > 0;
      }}
    positive[t] = count;
    for (int far = lanes / 2; far > 0; far /= 2) {{
      __syncthreads();
      if (lane < far) positive[t] += positive[t + far];
    }}
    if (lane == 0 && chunk < rows * chunks) counts[chunk] = positive[t];
    __syncthreads();
  }}
}}

"""
#: a launch: the name of the kernel, the threads that have work, and the arguments
AssertionLaunch = tuple[str, int, tuple[Any, ...]]


def assertion_launches(
    op: RuntimeAssertion, index: int, arrays: Sequence[Array], allocate: Callable[[int], Array], scratch: Callable[[tuple[int, ...], DType], Array]
) -> list[Call] | None:
    """Return the launches on GPU `index` that compute `op.note(xp, *arrays)`; None if the arrays or the operation need array functions.

    `allocate(nbytes)` returns zeroed memory that is used by these launches only, and `scratch(shape, dtype)` memory for their intermediate values.
    """
    x, y = arrays[:2]
    text = assertion_text(op, dtype_of(x.dtype), dtype_of(y.dtype))
    if text is None or not x.size or any(a.strides != contiguous_strides(tuple(a.shape), a.dtype.itemsize) for a in (x, y)):
        return None
    here = compiler(index)
    module, calls = here.module(text), list[Call]()
    for name, threads, arguments in launches_of(op, arrays, allocate(8).view("uint64"), scratch):
        shape = (min(-(-threads // THREADS), here.blocks),), (32 if name == "report_rejected" else THREADS,)
        calls.append((KernelLaunch(module.function(name), arguments), (*shape, arguments)))
    return calls


def launches_of(
    op: RuntimeAssertion, arrays: Sequence[Array], latest: Array, scratch: Callable[[tuple[int, ...], DType], Array]
) -> list[AssertionLaunch]:
    """Return the launches for the dense arrays x, y, at and value; `latest` is 0 before and after them."""
    x, y, at, value = arrays
    size, before, more = int(x.size), list[AssertionLaunch](), tuple[Any, ...]()
    n = np.int64(size)
    if isinstance(op, WeightAssertion):
        width = x.shape[-1]
        rows, chunks = size // width, min(-(-width // CHUNK), MOST_CHUNKS)
        each = -(-width // chunks)
        lanes = min(1 << (-(-each // EACH) - 1).bit_length(), THREADS)
        counts = scratch((rows * chunks,), int32)
        sizes = tuple(map(np.int64, (rows, width, chunks, each)))
        before.append(("count_positive", rows * chunks * lanes, (x, counts, *sizes, np.int32(lanes))))
        more = (counts, *map(np.int64, (width, chunks, op.count)))
    elif isinstance(op, FiniteAssertion) and op.triangle:
        more = tuple(map(np.int64, x.shape[-2:]))
    return [
        *before,
        ("find_rejected", size, (x, n, latest, *more)),
        ("report_rejected", 1, (x, n, latest, at, value)),
        ("replace_rejected", size, (x, y, n, *more)),
    ]


def assertion_text(op: RuntimeAssertion, x: DType, y: DType) -> str | None:
    """Return the text of the kernels of an assertion, for elements of type x and results of type y; None without such kernels."""
    kinds = (RuntimeAssertion, IndexAssertion, WeightAssertion, FiniteAssertion)
    if type(op) not in kinds or not {x.name, y.name} <= TYPES or not _bounds_fit(op, x):
        return None
    wide = f"({value_type(y)})w"
    converted = f"{wide} < 0 ? {wide} + {op.size} : {wide}" if isinstance(op, IndexAssertion) and x.numpy.kind == "i" else wide
    text = (_COUNTS if isinstance(op, WeightAssertion) else "") + _TEXT
    return with_functions(
        text.format(
            threads=THREADS,
            stored=stored_type(x),
            value=value_type(x),
            y=stored_type(y),
            element=from_memory("x[i]", x),
            parameters=_parameters(op),
            rejected=_rejected(op, x),
            legal=literal(op.legal, x),
            converted=to_memory(converted, y),
        )
    )


def _parameters(op: RuntimeAssertion) -> str:
    """Return the parameters that the kernels of an assertion have in addition to the others; see `launches_of`."""
    if isinstance(op, WeightAssertion):
        return ", const int *counts, long long width, long long chunks, long long least"
    return ", long long rows, long long columns" if isinstance(op, FiniteAssertion) and op.triangle else ""


def _bounds_fit(op: RuntimeAssertion, x: DType) -> bool:
    """Return True if the numbers of the assertion are numbers of the type x, or of float32 or float64, to which array functions round them."""
    bounds = [number for number in (*op.bounds(np.empty(0, x.numpy)), op.ignored) if number is not None]
    if x.is_float:
        return not x.is_half or all(float(x.numpy.type(number)) == number for number in bounds)
    can = np.iinfo(x.numpy)
    return all(float(number).is_integer() and can.min <= number <= can.max for number in bounds)


def _rejected(op: RuntimeAssertion, x: DType) -> str:
    """Return the C expression that is true if the assertion rejects the element v; see `RuntimeAssertion.rejected`."""
    if isinstance(op, WeightAssertion):
        return f"(!(v >= 0 && v < {literal(math.inf, x)}) || (v == 0 && is_short(counts, i / width, chunks, least)))"
    if isinstance(op, FiniteAssertion):
        infinite = f"!({function_name('fabs', x)}(v) < {literal(math.inf, x)})" if x.is_float else "false"
        sign = {"": "", "lower": "<=", "upper": ">="}[op.triangle]
        return f"({infinite} && i % columns {sign} i / columns % rows)" if sign else infinite
    low, high = op.bounds(np.empty(0, x.numpy))
    reasons = [f"!(v {sign} {literal(bound, x)})" for sign, bound in ((">=", low), ("<=", high)) if bound is not None]
    if op.nonzero:
        reasons.append("v == 0")
    if op.whole and x.is_float:
        reasons.append("!(trunc(v) == v)")
    exceptions = [] if op.ignored is None else [f"v != {literal(op.ignored, x)}"]
    if op.nan:
        exceptions.append("v == v")
    return " && ".join([f"({' || '.join(reasons) or 'false'})", *exceptions])
