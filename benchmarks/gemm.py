"""Who computes matrix products fastest on this machine, and with which bits: NumPy, and its OpenBLAS through ctypes.

    python benchmarks/gemm.py [--rounds 15]
    python benchmarks/gemm.py --ways            of NumPy: into a result by columns, and with a factor copied into the other order, as GFLOP/s
    python benchmarks/gemm.py --loops           compiled loops: GFLOP/s, and OpenBLAS's time as a multiple of theirs, as factors lie

The figures are the reason for `RANKS` in jobflow/kernels/cpu/gemm.py.  "sum" is y = a b + y.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np

from jobflow.core.tables import TextTable
from jobflow.kernels import blas
from jobflow.kernels.llvm.calls_in_loops import in_loops

#: rows, columns and summed elements
SHAPES: tuple[tuple[int, int, int], ...] = (
    (1, 64, 64),
    (8, 64, 64),
    (32, 32, 32),
    (128, 128, 128),
    (100, 500, 784),
    (1000, 10, 500),
    (512, 512, 512),
    (256, 2048, 512),
)
#: those of small models, and whether the first and the second factor are transposed
WAYS = [
    (61, 49, 1552, True, False),
    (203, 97, 784, True, False),
    (784, 203, 97, False, True),
    (784, 97, 203, False, False),
    (1552, 61, 49, False, True),
]
WAYS += [(384, 96, 1024, True, False), (1024, 384, 96, False, True), (1000, 128, 512, True, False), (512, 1000, 128, False, True)]
WAYS += [
    (256, 64, 13, False, True),
    (64, 13, 256, True, False),
    (100, 512, 784, False, True),
    (512, 784, 100, True, False),
    (64, 32, 1568, False, True),
]


def fastest(variants: dict[str, Callable[[], object]], rounds: int, times: int) -> dict[str, float]:
    """Microseconds of each, measured in turn."""
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(rounds):
        for name, way in variants.items():
            begin = time.thread_time()
            for _ in range(times):
                way()
            best[name] = min(best[name], (time.thread_time() - begin) / times * 1e6)
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

    variants = {"numpy": lambda: np.matmul(a, b, y), "openblas": lambda: write(1.0), "numpy sum": in_steps, "openblas sum": lambda: add(1.0)}
    best = fastest(variants, rounds, max(1, 20_000_000 // (m * n * k + 20_000)))
    return [dtype.__name__, "x".join(map(str, shape)), *(f"{time:.1f}" for time in best.values()), "same" if np.array_equal(y, z) else "other"]


def ways_row(m: int, n: int, k: int, transpose_a: bool, transpose_b: bool, rounds: int) -> list[str]:
    """GFLOP/s of each."""
    random = np.random.default_rng(m)
    a = random.standard_normal((k, m) if transpose_a else (m, k)).astype(np.float32)
    b = random.standard_normal((n, k) if transpose_b else (k, n)).astype(np.float32)
    a, b = a.T if transpose_a else a, b.T if transpose_b else b
    y, by_columns = np.empty((m, n), np.float32), np.empty((n, m), np.float32).T
    other_a, other_b = (np.empty_like(x, order="F" if x.flags.c_contiguous else "C") for x in (a, b))

    def turned() -> None:
        np.matmul(a, b, by_columns)
        np.copyto(y, by_columns)

    def first_copied() -> None:
        np.copyto(other_a, a)
        np.matmul(other_a, b, y)

    def second_copied() -> None:
        np.copyto(other_b, b)
        np.matmul(a, other_b, y)

    variants = {
        "": lambda: np.matmul(a, b, y),
        "columns": lambda: np.matmul(a, b, by_columns),
        "turned": turned,
        "a": first_copied,
        "b": second_copied,
    }
    best = fastest(variants, rounds, max(1, 20_000_000 // (m * n * k + 20_000)))
    name = f"{m}x{n}x{k}{', a transposed' * transpose_a}{', b transposed' * transpose_b}"
    return [name, *(f"{2e-3 * m * n * k / time:.0f}" for time in best.values())]


#: rows, columns and summed elements of small and large products
SIZES = [(128, 512, 784), (256, 256, 256), (512, 256, 1024), (64, 512, 512), (1024, 1024, 1024), (32, 1024, 1024), (100, 70, 33), (36, 2000, 36)]
SIZES += [(10, 128, 64), (128, 10, 64), (16, 16, 16)]


def loops_row(m: int, n: int, k: int, rounds: int) -> list[str]:
    """GFLOP/s and ratio for the four ways in which two factors lie."""
    random, texts = np.random.default_rng(m), []
    for turned in range(4):
        a = random.standard_normal((k, m) if turned & 2 else (m, k)).astype(np.float32)
        b = random.standard_normal((n, k) if turned & 1 else (k, n)).astype(np.float32)
        a, b, y = a.T if turned & 2 else a, b.T if turned & 1 else b, np.empty((m, n), np.float32)
        ((loop, (block,)),) = in_loops([(np.matmul, (a, b, y))])
        variants = {"loop": partial(loop, block), "numpy": partial(np.matmul, a, b, y)}
        best = fastest(variants, rounds, max(1, 5_000_000 // (m * n * k + 20_000)))
        texts.append(f"{2e-3 * m * n * k / best['loop']:.0f} {best['numpy'] / best['loop']:.2f}")
    return [f"{m}x{n}x{k}", *texts]


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--ways", action="store_true")
    arguments.add_argument("--loops", action="store_true")
    options = arguments.parse_args()
    if options.loops:
        print(TextTable(["rows x columns x summed", "a b", "a b'", "a' b", "a' b'"], [loops_row(*size, options.rounds) for size in SIZES]))
        raise SystemExit
    if options.ways:
        headings = ["rows x columns x summed", "as it is", "by columns", "and copied", "a copied before", "b copied before"]
        print(TextTable(headings, [ways_row(*way, options.rounds) for way in WAYS]))
        raise SystemExit
    rows = [row(dtype, shape, options.rounds) for dtype in (np.float32, np.float64) for shape in SHAPES]
    print(TextTable(["type", "rows x columns x summed", "numpy us", "openblas us", "numpy sum us", "openblas sum us", "bits"], rows))
