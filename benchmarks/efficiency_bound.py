"""The bound of the efficiency of data parallelism of the small MLP on this machine: a hand-written step of two processes.

    python benchmarks/efficiency_bound.py [--rounds 9] [--steps 250]

Two processes on two cores train 784-512-10 on 100 samples by plain gradient descent with NumPy in shared memory.  Variables are stored
once, and each process updates its half of the large weight.  Polled flags do all synchronization, and nothing is dispatched, checked
or copied without need.  Variants to bring the gradient of the large weight together, and to read it:

scatter   each sums its half of both processes' gradients (1.6 MB each), and updates with that
factors   each sees all samples and all output gradients (0.5 MB), and subtracts its half of their product as it forms it
rows      the same, and each multiplies all samples with its half of the weight, and half of the product (0.1 MB) is the other's

Half the batch on one process, which subtracts the product too, is timed in between, in the same process.  Its time over the
time of two is the efficiency that no more general program will exceed by much.  Prints a line per way, and asserts nothing.
"""

from __future__ import annotations

import argparse
import math
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from side import own_cores

sys.path[:0] = [str(Path(__file__).parents[1])]

from models import BATCH, CLASSES, HIDDEN, SGD_RATE, batch, weights  # noqa: E402

from jobflow.kernels.blas import subtracting_product  # noqa: E402

Array = np.ndarray[Any, Any]
Calls = list[tuple[Callable[..., Any], tuple[Any, ...]]]
HALF, INPUTS = BATCH // 2, 784
RATE = np.float32(SGD_RATE)
#: elements per block of an elementwise pass
BLOCK = 64 * 1024


def common(shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    """An array that both processes see."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return np.frombuffer(mmap.mmap(-1, size), np.uint8).view(dtype).reshape(shape)


def private(shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    return np.zeros(shape, dtype)


class Flag:
    """A count in a cache line of its own."""

    def __init__(self) -> None:
        self.count = memoryview(common((8,), np.int64))

    def await_(self, count: int) -> None:
        while self.count[0] < count:
            pass


class HandStep:
    """The calls of one process in a step; `parts` processes, of which this is number `me`."""

    def __init__(self, me: int, parts: int, way: str, make: Callable[..., Array], shared: dict[str, Array], flags: list[Flag]) -> None:
        self.x, self.y = shared["x"], shared["y"]
        rows = slice(me * HALF, me * HALF + HALF) if parts > 1 else slice(HALF)
        x, y = self.x[rows], self.y[rows]
        w, b, v, c = (shared[name] for name in ("w", "b", "v", "c"))
        dh = shared["dh"][rows]
        grads = [[shared[f"d{name}{i}"] for name in "wbvc"] for i in range(parts)]
        dw, db, dv, dc = grads[me]
        h, r, z, p = (make((HALF, n)) for n in (HIDDEN, HIDDEN, CLASSES, CLASSES))
        mask, ones, index = np.zeros((HALF, HIDDEN), bool), np.ones(HALF, np.float32), np.arange(HALF)
        self.loss = shared["loss"][rows]
        self.flags, self.me, self.count = flags, me, 0

        def entropy() -> None:
            np.exp(z - z.max(axis=1, keepdims=True), p)
            np.divide(p, p.sum(axis=1, keepdims=True), p)
            self.loss[...] = -np.log(p[index, y])
            p[index, y] -= 1
            np.multiply(p, np.float32(1 / (HALF * parts)), p)

        self.calls: Calls = [
            *[(np.matmul, (x, w.T, h)), (np.add, (h, b, h)), (lambda: np.maximum(h, 0, out=r), ()), (np.matmul, (r, v.T, z)), (np.add, (z, c, z))],
            *[(entropy, ()), (np.matmul, (p.T, r, dv)), (np.dot, (ones, p, dc)), (np.matmul, (p, v, dh))],
            *[(np.greater, (r, 0, mask)), (np.multiply, (dh, mask, dh)), (np.dot, (ones, dh, db))],
        ]
        rate = np.array([SGD_RATE], np.float32)
        if parts == 1:
            self.calls += [_product(dh.T, x, w, rate), *(call for g, u in ((db, b), (dv, v), (dc, c)) for call in _descend(u, g))]
            return
        mine = slice(me * HIDDEN // 2, (me + 1) * HIDDEN // 2)
        if way == "scatter":
            self.calls += [(np.matmul, (dh.T, x, dw)), (self.meet, ())]
            flat = [a[mine].reshape(-1) for a in (w, *(g[0] for g in grads))]
            for start in range(0, flat[0].size, BLOCK):
                self.calls += _combined(*(a[start : start + BLOCK] for a in flat), scratch=flat[1 + me][start : start + BLOCK])
        else:
            if way == "rows":  # instead of reading the half of w that the other has just written
                hidden = shared["h"]
                self.calls[:2] = [(np.matmul, (self.x, w[mine].T, hidden[:, mine])), (self.meet, ()), (np.add, (hidden[rows], b, h))]
            self.calls += [(self.meet, ()), _product(shared["dh"][:, mine].T, self.x, w[mine], rate)]
        for number, u in ((1, b), (2, v), (3, c)):
            if number % 2 == me:
                self.calls += _combined(u, grads[0][number], grads[1][number], scratch=grads[me][number])
        self.calls += [(self.meet, ())]

    def meet(self) -> None:
        self.count += 1
        self.flags[self.me].count[0] = self.count
        self.flags[1 - self.me].await_(self.count)

    def run(self) -> None:
        for f, a in self.calls:
            f(*a)


def _product(a: Array, b: Array, w: Array, rate: Array) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    call = subtracting_product(a, b, w, rate)
    if call is None:
        raise SystemExit("this needs the OpenBLAS of NumPy's wheels")
    return call


def _descend(u: Array, g: Array) -> Calls:
    return [(np.multiply, (g, RATE, g)), (np.subtract, (u, g, u))]


def _combined(u: Array, a: Array, b: Array, scratch: Array) -> Calls:
    return [(np.add, (a, b, scratch)), *_descend(u, scratch)]


def arrays(make: Callable[..., Array]) -> dict[str, Array]:
    names = {"w": "hidden-weight", "b": "hidden-bias", "v": "output-weight", "c": "output-bias"}
    by_short_name = {short: make(weights("mlp")[name].shape) for short, name in names.items()}
    for short, name in names.items():
        by_short_name[short][...] = weights("mlp")[name]
        by_short_name |= {f"d{short}{i}": make(by_short_name[short].shape) for i in range(2)}
    return by_short_name | {
        "x": make((BATCH, INPUTS)),
        "y": make((BATCH,), np.int32),
        "h": make((BATCH, HIDDEN)),
        "dh": make((BATCH, HIDDEN)),
        "loss": make((BATCH,)),
    }


def measure(way: str, rounds: int, steps: int, cores: list[int]) -> tuple[float, float, float]:
    """Median seconds of half the batch alone and of the whole on two, and of the efficiencies of the rounds."""
    images, labels = batch("mlp")
    images = images.reshape(BATCH, INPUTS)
    shared, flags, (go, done) = arrays(common), [Flag(), Flag()], (Flag(), Flag())
    ready, start = os.pipe()
    child = os.fork()
    step = HandStep(int(child == 0), 2, way, private, shared, flags)
    os.sched_setaffinity(0, {cores[int(child == 0)]})
    if child == 0:
        for number in range(rounds * steps):
            if number % steps == 0:
                os.read(ready, 1)
            go.await_(number + 1)
            step.run()
            done.count[0] = number + 1
        os._exit(0)
    own = arrays(private)
    alone = HandStep(0, 1, way, private, own, flags)
    halves, wholes, number = [], [], 0
    for _ in range(rounds):
        durations = []
        for _ in range(steps):
            begin = time.perf_counter()
            own["x"][:HALF], own["y"][:HALF] = images[:HALF], labels[:HALF]
            alone.run()
            alone.loss.copy()
            durations.append(time.perf_counter() - begin)
        halves.append(median(durations))
        os.write(start, b"!")
        durations = []
        for _ in range(steps):
            begin = time.perf_counter()
            shared["x"][...], shared["y"][...] = images, labels
            number += 1
            go.count[0] = number
            step.run()
            done.await_(number)
            shared["loss"].copy()
            durations.append(time.perf_counter() - begin)
        wholes.append(median(durations))
    os.waitpid(child, 0)
    return median(halves), median(wholes), median(h / w for h, w in zip(halves, wholes, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=250)
    options = parser.parse_args()
    cores = own_cores(None, 2)
    for way in ("scatter", "factors", "rows"):
        half, whole, efficiency = measure(way, options.rounds, options.steps, cores)
        print(f"{way:8} half alone {1e3 * half:.3f} ms, whole on two {1e3 * whole:.3f} ms, efficiency {efficiency:.3f}")


if __name__ == "__main__":
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        if os.environ.get(name) != "1":
            os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
    main()
