"""The sums of a convolution, plainly, for NumPy and CuPy alike; `conv_cpu` has the ones that are prepared for speed."""

from __future__ import annotations

from jobflow.core.types import Array, Xp
from jobflow.ops.windows import Window


def _summing_dtype(xp: Xp, *arrays: Array) -> object:
    """Half precision is summed in float32 and rounded once."""
    dtype = xp.result_type(*arrays)
    return xp.promote_types(dtype, xp.float32) if dtype.itemsize < 4 else dtype


def _flat(array: Array, groups: int, dtype: object) -> Array:
    """[n, g*c, *spatial] as [n, g, c, positions], contiguous."""
    n, channels = array.shape[:2]
    size = 1
    for length in array.shape[2:]:
        size *= length
    return array.astype(dtype).reshape(n, groups, channels // groups, size)


def _by_group(w: Array, groups: int, dtype: object) -> Array:
    """[g*o, c, *kernel] as [*kernel, g, o, c]."""
    o, c, *kernel = w.shape
    split = w.astype(dtype).reshape(groups, o // groups, c, *kernel)
    return split.transpose(*range(3, split.ndim), 0, 1, 2)


def forward(xp: Xp, window: Window, groups: int, x: Array, w: Array, y: Array) -> None:
    """y = sum over taps of w[tap] x[positions that the tap meets]."""
    dtype = _summing_dtype(xp, x, w)
    weights = _by_group(w, groups, dtype)
    total = xp.zeros(y.shape, dtype)
    for tap in window.taps(x.shape[2:], y.shape[2:]):
        part = total[:, :, *tap.target]
        product = xp.matmul(weights[tap.at], _flat(x[:, :, *tap.source], groups, dtype))
        part += product.reshape(part.shape)
    y[...] = total


def grad_input(xp: Xp, window: Window, groups: int, dy: Array, w: Array, dx: Array) -> None:
    """dx = sum over taps, at the positions that the tap meets, of w[tap]' dy."""
    dtype = _summing_dtype(xp, dy, w)
    weights = _by_group(w, groups, dtype)
    total = xp.zeros(dx.shape, dtype)
    for tap in window.taps(dx.shape[2:], dy.shape[2:]):
        part = total[:, :, *tap.source]
        product = xp.matmul(weights[tap.at].swapaxes(-1, -2), _flat(dy[:, :, *tap.target], groups, dtype))
        part += product.reshape(part.shape)
    dx[...] = total


def grad_weight(xp: Xp, window: Window, groups: int, x: Array, dy: Array, dw: Array) -> None:
    """dw[tap] = sum over images of dy x[positions that the tap meets]'."""
    dtype = _summing_dtype(xp, x, dy)
    total = xp.zeros(dw.shape, dtype)
    for tap in window.taps(x.shape[2:], dy.shape[2:]):
        right = _flat(x[:, :, *tap.source], groups, dtype).swapaxes(-1, -2)
        product = xp.matmul(_flat(dy[:, :, *tap.target], groups, dtype), right).sum(axis=0)
        total[:, :, *tap.at] = product.reshape(dw.shape[:2])
    dw[...] = total
