"""Compiled copies between float32 and half precision: the bits equal NumPy's, and unsupported copies are not replaced."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from jobflow.core.types import Array
from jobflow.kernels import half
from jobflow.kernels.llvm.calls_in_loops import in_loops
from jobflow.ops.op import Call

HALVES = [np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)]


def copied(call: Call) -> tuple[Array, bool]:
    """Return the target after the call in compiled loops, and True if the call was replaced by a loop."""
    calls = in_loops([call])
    for function, arguments in calls:
        function(*arguments)
    return call[1][0], calls[0] is not call


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_copies_have_the_bits_of_numpy(dtype: np.dtype) -> None:
    every = np.arange(1 << 16, dtype="uint16").view(dtype)
    wide, in_loop = copied((np.copyto, (np.empty((256, 256), "float32"), every.reshape(256, 256).T)))
    assert in_loop
    np.testing.assert_array_equal(wide, every.astype("float32").reshape(256, 256).T)
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 18, dtype="uint32")
    exact = every.astype("float32")[np.isfinite(every.astype("float32"))]
    middles = exact[:-1] / 2 + exact[1:] / 2
    values = np.concatenate([bits.view("float32"), every.astype("float32"), middles, np.nextafter(middles, np.float32(0))])
    with np.errstate(all="ignore"):
        expected = values.astype(dtype)
    narrow, in_loop = copied((half.rounded, (np.empty(values.shape, dtype), values)))
    assert in_loop
    np.testing.assert_array_equal(narrow.astype("float32"), expected.astype("float32"))


def test_unsupported_copies_are_not_replaced() -> None:
    wide, narrow = np.zeros(4096, "float32"), np.zeros(4096, "float16")
    for call in [
        (np.copyto, (wide, wide.copy())),
        (np.copyto, (narrow, narrow.copy())),
        (np.copyto, (wide[:8], narrow[:8])),
        (np.copyto, (wide, 1.0)),
    ]:
        assert in_loops([call])[0] is call
