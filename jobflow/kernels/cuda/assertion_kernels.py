"""Runtime assertions by printed kernels, which a graph can capture.

Three launches: the position of the first rejected element, the element itself, and the result, in which legal values replace rejected elements.  The
result may be in the memory of the checked array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jobflow.core.types import Array, DType, contiguous_strides, dtype_of
from jobflow.kernels.cuda.compiled_text import compiler
from jobflow.kernels.cuda.launches import KernelLaunch
from jobflow.kernels.cuda.primitives import literal, value_type
from jobflow.ops.op import Call
from jobflow.ops.runtime_assertions import IndexAssertion, RuntimeAssertion

THREADS = 256
#: element types of arrays that are checked and of results
TYPES = {"int8", "uint8", "int16", "int32", "int64", "float32", "float64"}
#: `latest` is 0, or the number of elements minus the index of the first rejected one
_TEXT = """extern "C" __global__ void __launch_bounds__({threads}) find_rejected(
    const {x} *x, long long n, unsigned long long *latest) {{
  for (long long i = blockIdx.x * {threads}LL + threadIdx.x; i < n; i += gridDim.x * {threads}LL) {{
    const {x} v = x[i];
    if ({rejected}) atomicMax(latest, (unsigned long long)(n - i));
  }}
}}

extern "C" __global__ void __launch_bounds__(32) report_rejected(
    const {x} *x, long long n, unsigned long long *latest, long long *at, {x} *value) {{
  if (blockIdx.x || threadIdx.x) return;
  const long long first = n - (long long)*latest;
  *at = *latest ? first + 1 : 0;
  if (*latest) *value = x[first];
  *latest = 0;
}}

extern "C" __global__ void __launch_bounds__({threads}) replace_rejected(
    const {x} *x, {y} *y, long long n) {{
  for (long long i = blockIdx.x * {threads}LL + threadIdx.x; i < n; i += gridDim.x * {threads}LL) {{
    const {x} v = x[i];
    const {x} w = {rejected} ? {legal} : v;
    y[i] = {converted};
  }}
}}
"""


def assertion_launches(op: RuntimeAssertion, index: int, arrays: Sequence[Array], allocate: Callable[[int], Array]) -> list[Call] | None:
    """Return the launches on GPU `index` that compute `op.note(xp, *arrays)`; None if the arrays or the operation need array functions.

    `allocate(nbytes)` returns zeroed memory that is used by these launches only.
    """
    x, y, at, value = arrays
    text = assertion_text(op, dtype_of(x.dtype), dtype_of(y.dtype))
    if text is None or not x.size or any(a.strides != contiguous_strides(tuple(a.shape), a.dtype.itemsize) for a in (x, y)):
        return None
    here = compiler(index)
    module, n = here.module(text), np.int64(x.size)
    latest = allocate(8).view("uint64")
    grid = (min(-(-int(x.size) // THREADS), here.blocks),)
    calls: list[tuple[str, Any, Any, tuple[Any, ...]]] = [
        ("find_rejected", grid, (THREADS,), (x, n, latest)),
        ("report_rejected", (1,), (32,), (x, n, latest, at, value)),
        ("replace_rejected", grid, (THREADS,), (x, y, n)),
    ]
    return [(KernelLaunch(module.function(name), arguments), (blocks, threads, arguments)) for name, blocks, threads, arguments in calls]


def assertion_text(op: RuntimeAssertion, x: DType, y: DType) -> str | None:
    """Return the text of the kernels of an assertion, for elements of type x and results of type y; None without such kernels."""
    if type(op) not in (RuntimeAssertion, IndexAssertion) or not {x.name, y.name} <= TYPES or not _bounds_fit(op, x):
        return None
    is_signed_index = isinstance(op, IndexAssertion) and x.numpy.kind == "i"
    wide = f"({value_type(y)})w"
    return _TEXT.format(
        threads=THREADS,
        x=value_type(x),
        y=value_type(y),
        rejected=_rejected(op, x),
        legal=literal(op.legal, x),
        converted=f"{wide} < 0 ? {wide} + {op.size} : {wide}" if is_signed_index and isinstance(op, IndexAssertion) else wide,
    )


def _bounds_fit(op: RuntimeAssertion, x: DType) -> bool:
    """Return True if the numbers of the assertion are numbers of the type x."""
    bounds = [number for number in (*op.bounds(np.empty(0, x.numpy)), op.ignored) if number is not None]
    if x.numpy.kind == "f":
        return True
    can = np.iinfo(x.numpy)
    return all(float(number).is_integer() and can.min <= number <= can.max for number in bounds)


def _rejected(op: RuntimeAssertion, x: DType) -> str:
    """Return the C expression that is true if the assertion rejects the element v; see `RuntimeAssertion.rejected`."""
    low, high = op.bounds(np.empty(0, x.numpy))
    reasons = [f"!(v {sign} {literal(bound, x)})" for sign, bound in ((">=", low), ("<=", high)) if bound is not None]
    if op.nonzero:
        reasons.append("v == 0")
    if op.whole and x.numpy.kind == "f":
        reasons.append("!(trunc(v) == v)")
    exceptions = [] if op.ignored is None else [f"v != {literal(op.ignored, x)}"]
    if op.nan:
        exceptions.append("v == v")
    return " && ".join([f"({' || '.join(reasons) or 'false'})", *exceptions])
