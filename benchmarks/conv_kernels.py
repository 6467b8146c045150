"""Times of convolution and pooling kernels on one thread, beside PyTorch's where it is installed.

    python benchmarks/conv_kernels.py [--rounds 15] [--order batch_innermost|plain] [--batch N]

Every round runs each variant once, one after the other, so that a busy machine slows all of them alike; the medians are printed, and the
ratio to PyTorch (below 1: faster than it), whose tensors are in its default order.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jobflow.core.types import DType
from jobflow.ops.conv import Conv
from jobflow.ops.pool import AvgPool, MaxPool, MaxPoolGrad

Run = Callable[[], Any]
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Cpu:
    """What `bind` asks of a device."""

    xp = np

    def scratch(self, shape: tuple[int, ...], dtype: DType) -> Any:
        return np.zeros(shape, dtype.numpy)


def prepared(op: Any, inputs: Sequence[Any], output: Any) -> Run:
    calls = op.bind(Cpu(), inputs, (output,))

    def run() -> None:
        for function, arguments in calls:
            function(*arguments)

    return run


def ordered(shape: tuple[int, ...], order: str) -> Any:
    """Random float32 of logical `shape`, stored plainly or batch innermost."""
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    if order == "plain":
        return values
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(values, 0, -1)), -1, 0)


def medians(variants: dict[str, Run], rounds: int) -> dict[str, float]:
    """Median milliseconds of each, from interleaved rounds."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for i in range(rounds + 2):
        for name, run in variants.items():
            start = time.perf_counter()
            run()
            if i >= 2:
                times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def conv_runs(shape: tuple[int, ...], filters: int, kernel: int, stride: int, algorithm: Any, order: str) -> dict[str, Run]:
    """The convolution and both gradients."""
    pad, channels = kernel // 2, shape[1]
    op = Conv((stride,) * 2, ((pad, pad),) * 2, (1, 1), 1, algorithm)
    x, w = ordered(shape, order), ordered((filters, channels, kernel, kernel), "plain")
    out = op.window((kernel, kernel)).out_sizes("conv", shape[2:])
    y = ordered((shape[0], filters, *out), order)
    return {
        "y": prepared(op, (x, w), y.copy("K")),
        "dx": prepared(op._input_gradient(shape[2:]), (y, w), x.copy("K")),
        "dw": prepared(op._weight_gradient((kernel, kernel)), (x, y), w.copy()),
    }


def torch_conv_runs(shape: tuple[int, ...], filters: int, kernel: int, stride: int) -> dict[str, Run]:
    import torch

    torch.set_num_threads(1)
    pad = [kernel // 2] * 2
    x, w = torch.randn(shape), torch.randn(filters, shape[1], kernel, kernel)
    y = torch.nn.functional.conv2d(x, w, stride=stride, padding=pad)

    def backward(mask: list[bool]) -> Run:
        return lambda: torch.ops.aten.convolution_backward(y, x, w, [0], [stride] * 2, pad, [1, 1], False, [0, 0], 1, mask)

    return {
        "y": lambda: torch.nn.functional.conv2d(x, w, stride=stride, padding=pad),
        "dx": backward([True, False, False]),
        "dw": backward([False, True, False]),
    }


def pool_runs(shape: tuple[int, ...], order: str) -> dict[str, Run]:
    attributes: Any = ((2, 2), (2, 2), ((0, 0), (0, 0)))
    x = ordered(shape, order)
    y = ordered((*shape[:2], shape[2] // 2, shape[3] // 2), order)
    first = prepared(MaxPool(*attributes), (x,), y)
    first()
    return {
        "max": first,
        "max grad": prepared(MaxPoolGrad(*attributes), (x, y, y.copy("K")), x.copy("K")),
        "avg": prepared(AvgPool(*attributes), (x,), y.copy("K")),
    }


def torch_pool_runs(shape: tuple[int, ...]) -> dict[str, Run]:
    import torch

    torch.set_num_threads(1)
    pool = torch.nn.functional
    x = torch.randn(shape)
    y, at = pool.max_pool2d(x, 2, return_indices=True)
    return {
        "max": lambda: pool.max_pool2d(x, 2),
        "max grad": lambda: torch.ops.aten.max_pool2d_with_indices_backward(y, x, [2, 2], [2, 2], [0, 0], [1, 1], False, at),
        "avg": lambda: pool.avg_pool2d(x, 2),
    }


def table(title: str, rows: dict[str, dict[str, float]]) -> None:
    columns = list(next(iter(rows.values())))
    print(f"\n{title}\n{'':12}" + "".join(f"{c:>10}" for c in [*columns, "sum", "ratio"]))
    peer = sum(rows.get("torch", {}).values())
    for name, row in rows.items():
        total = sum(row.values())
        ratio = f"{total / peer:10.2f}" if peer else f"{'-':>10}"
        print(f"{name:12}" + "".join(f"{row[c]:10.3f}" for c in columns) + f"{total:10.3f}{ratio}")


def measure(variants: dict[str, dict[str, Run]], rounds: int) -> dict[str, dict[str, float]]:
    flat = medians({f"{name}/{part}": run for name, runs in variants.items() for part, run in runs.items()}, rounds)
    return {name: {part: flat[f"{name}/{part}"] for part in runs} for name, runs in variants.items()}


CONVOLUTIONS = [
    # name, shape, filters, kernel, stride
    ("lenet conv1", (100, 1, 28, 28), 32, 5, 1),
    ("lenet conv2", (100, 32, 14, 14), 64, 5, 1),
    ("3x3 64@56", (8, 64, 56, 56), 64, 3, 1),
    ("3x3 128@28", (8, 128, 28, 28), 128, 3, 1),
    ("3x3 256@14", (8, 256, 14, 14), 256, 3, 1),
    ("3x3 512@7", (8, 512, 7, 7), 512, 3, 1),
    ("3x3 16@32", (64, 16, 32, 32), 16, 3, 1),
    ("3x3/2 128@56", (8, 128, 56, 56), 128, 3, 2),
    ("1x1 64@56", (8, 64, 56, 56), 256, 1, 1),
    ("7x7/2 3@112", (8, 3, 112, 112), 64, 7, 2),
]
POOLS = [("pool 2x2 lenet 1", (100, 32, 28, 28)), ("pool 2x2 lenet 2", (100, 64, 14, 14)), ("pool 2x2 64@56", (8, 64, 56, 56))]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--order", choices=["batch_innermost", "plain"], default="batch_innermost")
    arguments.add_argument("--batch", type=int, help="use this batch size in every case")
    arguments.add_argument("--only", default="", help="cases whose name contains this")
    options = arguments.parse_args()
    if any(os.environ.get(name) != "1" for name in _THREADS):  # libraries read these when they are loaded: begin again with them set
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | dict.fromkeys(_THREADS, "1"))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with_torch = importlib.util.find_spec("torch") is not None
    results: dict[str, Any] = {}
    for title, shape, filters, kernel, stride in CONVOLUTIONS:
        if options.only not in title:
            continue
        shape = (options.batch or shape[0], *shape[1:])
        tiles = {3: (2, 4), 5: (2, 3, 4)}.get(kernel, ()) if stride == 1 else ()
        algorithms = ["direct", *(f"winograd{m}" for m in tiles)]
        variants = {a: conv_runs(shape, filters, kernel, stride, a, options.order) for a in algorithms}
        if with_torch:
            variants["torch"] = torch_conv_runs(shape, filters, kernel, stride)
        results[title] = measure(variants, options.rounds)
        table(f"{title} {shape} -> {filters}, {kernel}x{kernel} stride {stride}, ms", results[title])
    for title, shape in POOLS:
        if options.only not in title:
            continue
        shape = (options.batch or shape[0], *shape[1:])
        variants = {"numpy": pool_runs(shape, options.order)}
        if with_torch:
            variants["torch"] = torch_pool_runs(shape)
        results[title] = measure(variants, options.rounds)
        table(f"{title} {shape}, ms", results[title])
    print("\n" + json.dumps({"order": options.order, "batch": options.batch, "ms": results}))


if __name__ == "__main__":
    main()
