"""Capture one CUDA graph and replay it on new data: a printed kernel, then an all-reduce of one rank by NCCL on a second stream.

cublasLt products and cuDNN attention are not implemented; the step reports them as not there.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS / "gpu"), str(TESTS / "ops")]

import on_device  # noqa: E402

from jobflow.kernels import registry  # noqa: E402
from jobflow.kernels.target import target_of  # noqa: E402
from jobflow.ops.softmax import Softmax  # noqa: E402

SHAPE = (256, 1000)
REPLAYS = 3
#: softmax tolerance relative to the largest element
TOLERANCE = 1e-5


def all_reduce_of(cupy: Any, source: Any, target: Any) -> Callable[[Any], None] | None:
    """Return a one-rank all-reduce on a given stream, or None without NCCL."""
    nccl = importlib.import_module("cupy.cuda.nccl")
    if not nccl.available:
        return None
    communicator = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0)

    def reduce(stream: Any) -> None:
        communicator.allReduce(source.data.ptr, target.data.ptr, source.size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr)

    return reduce


def main() -> None:
    stub = "JOBFLOW_GPU_STUB" in os.environ
    cupy = importlib.import_module("cupy")
    compute, side = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    forked, joined = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
    x, y, reduced = (cupy.zeros(SHAPE, np.float32) for _ in range(3))
    with compute:
        calls = registry.bind(Softmax(1), target_of("gpu", "auto"), on_device.Bench(cupy), [x], [y])
    if stub:
        print("NOT THERE the stub captures no graphs; the kernel was bound", flush=True)
        return
    cupy.cuda.runtime.deviceSynchronize()  # the arrays were cleared on another stream
    with compute:
        for function, arguments in calls:
            function(*arguments)
    compute.synchronize()
    reduce = all_reduce_of(cupy, y, reduced)
    if reduce is not None:
        reduce(side)  # NCCL allocates at its first call, which a capture does not allow
        side.synchronize()
    gc.disable()  # freeing memory during capture invalidates the capture
    with compute:
        compute.begin_capture()
        for function, arguments in calls:
            function(*arguments)
        if reduce is not None:
            forked.record(compute)
            side.wait_event(forked)
            reduce(side)
            joined.record(side)
            compute.wait_event(joined)
        graph = compute.end_capture()
    gc.enable()
    random = np.random.RandomState(0)
    for _ in range(REPLAYS):
        values = random.standard_normal(SHAPE).astype(np.float32)
        x.set(values, stream=compute)
        graph.launch(compute)
        compute.synchronize()
        exponentials = np.exp(values.astype(np.float64) - values.max(axis=1, keepdims=True))
        expected = exponentials / exponentials.sum(axis=1, keepdims=True)
        for what, array in (("kernel", y), ("all-reduce", reduced if reduce is not None else y)):
            distance = float(np.max(np.abs(cupy.asnumpy(array) - expected)) / np.max(expected))
            print("RESULT " + json.dumps({"replayed": what, "distance": distance}), flush=True)
            if not distance <= TOLERANCE:
                raise SystemExit(f"the {what} of a replayed graph is {distance:.2e} away from float64, more than {TOLERANCE:g}")
    with compute:
        for function, arguments in calls:
            function(*arguments)
    compute.synchronize()
    if not np.array_equal(cupy.asnumpy(y), cupy.asnumpy(reduced if reduce is not None else y)):
        raise SystemExit("the replayed all-reduce differs from the kernel launched alone")
    del graph  # before the communicator that it captured
    absent = ["a product by cublasLt", "attention by cuDNN", *([] if reduce is not None else ["NCCL"])]
    print(f"NOT THERE {', '.join(absent)}; the rest of the graph was replayed {REPLAYS} times", flush=True)


if __name__ == "__main__":
    main()
