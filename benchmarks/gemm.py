"""Who computes matrix products fastest on this machine, and with which bits: NumPy, and its OpenBLAS through ctypes.

    python benchmarks/gemm.py [--rounds 15]

The figures are the reason for `RANKS` in jobflow/kernels/cpu/gemm.py.  "sum" is y = a b + y.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np

from jobflow.core.tables import TextTable
from jobflow.ops import blas

#: rows, columns and summed elements
SHAPES = ((1, 64, 64), (8, 64, 64), (32, 32, 32), (128, 128, 128), (100, 500, 784), (1000, 10, 500), (512, 512, 512), (256, 2048, 512))


def fastest(ways: dict[str, Callable[[], object]], rounds: int, times: int) -> dict[str, float]:
    """Microseconds of each, measured in turn."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            begin = time.perf_counter()
            for _ in range(times):
                way()
            best[name] = min(best[name], (time.perf_counter() - begin) / times * 1e6)
    return best


def row(dtype: type, shape: tuple[int, int, int], rounds: int) -> list[str]:
    m, n, k = shape
    random = np.random.default_rng(m)
    a, b = random.standard_normal((m, k)).astype(dtype), random.standard_normal((k, n)).astype(dtype)
    y, z, total, scratch = (np.zeros((m, n), dtype) for _ in range(4))
    write, add = blas.adding_product(a, b, z, 0.0), blas.adding_product(a, b, total)
    assert write is not None and add is not None, "NumPy brings no OpenBLAS"

    def in_steps() -> None:
        np.matmul(a, b, scratch)
        np.add(total, scratch, total)

    ways = {"numpy": lambda: np.matmul(a, b, y), "openblas": lambda: write(1.0), "numpy sum": in_steps, "openblas sum": lambda: add(1.0)}
    best = fastest(ways, rounds, max(1, 20_000_000 // (m * n * k + 20_000)))
    return [dtype.__name__, "x".join(map(str, shape)), *(f"{time:.1f}" for time in best.values()), "same" if np.array_equal(y, z) else "other"]


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=15)
    given = arguments.parse_args()
    rows = [row(dtype, shape, given.rounds) for dtype in (np.float32, np.float64) for shape in SHAPES]
    print(TextTable(["type", "rows x columns x summed", "numpy us", "openblas us", "numpy sum us", "openblas sum us", "bits"], rows))
