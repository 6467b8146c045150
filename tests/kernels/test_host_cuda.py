"""Tests that the emulation of blocks on the host notices missing and divergent barriers."""

from __future__ import annotations

from pathlib import Path

import host_cuda
import numpy as np
import pytest

_SHIFTED = """extern "C" __global__ void __launch_bounds__(64) {name}(int *y) {{
  static __shared__ int x[64];
  const int t = threadIdx.x;
  x[t] = -1;
  __syncthreads();
  x[t] = t;
  {barrier}
  y[t] = x[(t + {distance}) % 64];
}}
"""


@pytest.mark.skipif(host_cuda.COMPILER is None, reason="there is no C++ compiler (g++)")
def test_missing_and_divergent_barriers_are_noticed(tmp_path: Path) -> None:
    divergent = "if (t < 32) __syncthreads(); else __syncthreads();"
    cases = {"barrier": ("__syncthreads();", 1), "up": ("", 1), "down": ("", 63), "divergent": (divergent, 1)}
    loaded = host_cuda.library([_SHIFTED.format(name=name, barrier=barrier, distance=d) for name, (barrier, d) in cases.items()], tmp_path)
    results = {name: np.zeros(64, np.int32) for name in cases}
    for name in ("barrier", "up", "down"):
        host_cuda.launch(loaded, name, (1,), (64,), (results[name],))
    assert np.array_equal(results["barrier"], (np.arange(64) + 1) % 64) and -1 in results["up"] and -1 in results["down"]
    with pytest.raises(AssertionError, match="divergent: threads of a block wait at different barriers"):
        host_cuda.launch(loaded, "divergent", (1,), (64,), (results["divergent"],))
    host_cuda.launch(loaded, "barrier", (2,), (64,), (results["up"],))
    assert np.array_equal(results["up"], results["barrier"])
