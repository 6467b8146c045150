"""The matrix products of a benchmark model's training step and nothing else: what no implementation over this BLAS can go below.

python gemm_bound.py MODEL
"""

from __future__ import annotations

import sys
from typing import Any

import models
import numpy as np
import worker


def prepared(gemm: models.Gemm, random: np.random.RandomState) -> list[tuple[Any, ...]]:
    """(a, b, out) for each of the products, with memory of their own as in a real step."""
    lead = (gemm.batch,) if gemm.batch > 1 else ()

    def matrix(rows: int, columns: int) -> models.Array:
        return random.random_sample((*lead, rows, columns)).astype(np.float32)

    return [(matrix(gemm.m, gemm.k), matrix(gemm.k, gemm.n), matrix(gemm.m, gemm.n)) for _ in range(gemm.count)]


def main() -> None:
    random = np.random.RandomState(0)
    calls = [call for gemm in models.gemms(sys.argv[1]) for call in prepared(gemm, random)]

    def step() -> None:
        for a, b, out in calls:
            np.matmul(a, b, out)

    worker.serve(step, lambda _: 0.0, lambda: {"version": np.__version__, "products": len(calls)})


if __name__ == "__main__":
    main()
