"""A benchmark of NumPy's matrix products.

Prints a JSON object.  "version" is NumPy's version, "name" the BLAS library, and "threads" the number of its threads, or null if unknown.
"one" and "all" are the floating point operations per second with one thread and with all threads.
"""

import json
import time

import numpy as np

from jobflow.kernels import blas_threads

SIZE, TIMES = 768, 15


def speed() -> float:
    """Return the floating point operations per second of float32 matrix products."""
    a = np.ones((SIZE, SIZE), np.float32)
    out = np.empty_like(a)
    best = float("inf")
    for _ in range(TIMES):
        begun = time.perf_counter()
        np.matmul(a, a, out=out)
        best = min(best, time.perf_counter() - begun)
    assert np.all(out == SIZE)
    return 2 * SIZE**3 / best


speed()  # starts threads and raises the clock of the cores
everything = speed()
threads = blas_threads.limit(1)
one = everything if threads in (None, 1) else speed()
print(json.dumps({"version": np.__version__, "name": blas_threads.library(), "threads": threads, "one": one, "all": everything}))
