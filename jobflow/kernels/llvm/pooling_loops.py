"""The gradient of max pooling as one compiled loop over disjoint windows: the tier "llvm" of CPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jobflow.core.types import Array, DType, dtype_of
from jobflow.expressions.language import Expression, constant, element, equal, logical_and, logical_not, logical_or, where
from jobflow.kernels.cpu.images import is_innermost, refused
from jobflow.kernels.cpu.pooling import planes
from jobflow.kernels.llvm.loops import bind
from jobflow.kernels.registry import implements
from jobflow.ops.op import Binder, Call
from jobflow.ops.pool import MaxPoolGrad

#: most taps of a window; each is an input and an output of the loop
_MOST = 9


def _refused(op: MaxPoolGrad, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    x, y, _ = inputs
    if math.prod(op.ksize) > _MOST:
        return f"windows have {math.prod(op.ksize)} positions, more than {_MOST}"
    if any(s < k for s, k in zip(op.strides, op.ksize, strict=True)):
        return f"windows of {op.ksize} with strides {op.strides} overlap"
    if not is_innermost(x):
        return "images are not stored with the batch innermost"
    clipped = refused((*inputs, *outputs))
    if clipped is None and any(tap.target != tuple(slice(0, n) for n in y.shape[2:]) for tap in op.window.taps(x.shape[2:], y.shape[2:])):
        clipped = f"windows with padding {op.padding} end outside the image"
    return clipped


@implements(MaxPoolGrad, tier="llvm", rank=10, refuses=_refused)
def first_maxima_by_loop(op: MaxPoolGrad, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    """Prepare the loop for dx: a tap's gradient is dy if x equals y there and at no earlier tap, else 0."""
    (x, y, dy, dx), before, after = planes(device, inputs, outputs[0])
    taps = [(slice(None), *tap.source) for tap in op.window.taps(x.shape[1:-1], y.shape[1:-1])]
    parts = [dx[tap] for tap in taps]
    fill: list[Call] = [(dx.fill, (0,))] if sum(part.size for part in parts) < dx.size else []
    loop = bind(_first_maxima(len(taps), dtype_of(x.dtype)), [*(x[tap] for tap in taps), y, dy], parts)
    return [*before, *fill, *loop, *after]


def _first_maxima(taps: int, dtype: DType) -> list[Expression]:
    """Return the gradient of each tap's element: dy for the first element that equals the maximum, else 0."""
    y, dy = element(taps, dtype), element(taps + 1, dtype)
    gradients, matched = list[Expression](), None
    for tap in range(taps):
        hit = equal(element(tap, dtype), y)
        first = hit if matched is None else logical_and(hit, logical_not(matched))
        gradients.append(where(first, dy, constant(0.0, dtype)))
        matched = hit if matched is None else logical_or(matched, hit)
    return gradients
