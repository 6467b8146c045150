"""Capture one CUDA graph and replay it on new data: a printed kernel, then an all-reduce of one rank by NCCL on a second stream.

cublasLt products and cuDNN attention are not implemented; the step reports them as not there.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobflow.kernels import registry
from jobflow.kernels.target import target_of
from jobflow.ops.op import Call
from jobflow.ops.softmax import Softmax
from jobflow.runtime.device.cuda_device import CudaDevice

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
    device = CudaDevice(0)
    device.activate()
    side, forked, joined = device.new_stream(), device.new_event(), device.new_event()
    x, y, reduced = (device.allocate(4 * SHAPE[0] * SHAPE[1]).view(np.float32).reshape(SHAPE) for _ in range(3))
    calls = registry.bind(Softmax(1), target_of("gpu", "auto"), device, [x], [y])
    run(calls)
    device.synchronize()
    reduce = None if stub else all_reduce_of(cupy, y, reduced)
    if reduce is not None:
        reduce(side)  # NCCL allocates at its first call, which a capture does not allow
        side.synchronize()
        around = [(forked.record, (device.stream,)), (side.wait_event, (forked,)), (reduce, (side,)), (joined.record, (side,))]
        graph = device.capture([*calls, *around, (device.stream.wait_event, (joined,))])
    else:
        graph = device.capture(calls)
    random = np.random.RandomState(0)
    for _ in range(REPLAYS):
        values = random.standard_normal(SHAPE).astype(np.float32)
        device.upload(x, values)
        graph()
        results = device.to_host_together([y, reduced if reduce is not None else y])
        if not stub:
            compare(values, results)
    run(calls)
    if not stub and not np.array_equal(*device.to_host_together([y, reduced if reduce is not None else y])):
        raise SystemExit("the replayed all-reduce differs from the kernel launched alone")
    del graph  # before the communicator that it captured
    absent = ["a product by cublasLt", "attention by cuDNN", *([] if reduce is not None else ["NCCL"])]
    print(f"NOT THERE {', '.join(absent)}; the rest of the graph was replayed {REPLAYS} times", flush=True)


def run(calls: Sequence[Call]) -> None:
    for function, arguments in calls:
        function(*arguments)


def compare(values: Any, results: Sequence[Any]) -> None:
    """Print the distance of each result from the softmax of `values` in float64; exit if it exceeds the tolerance."""
    exponentials = np.exp(values.astype(np.float64) - values.max(axis=1, keepdims=True))
    expected = exponentials / exponentials.sum(axis=1, keepdims=True)
    for what, array in zip(("kernel", "all-reduce"), results, strict=True):
        distance = float(np.max(np.abs(array - expected)) / np.max(expected))
        print("RESULT " + json.dumps({"replayed": what, "distance": distance}), flush=True)
        if not distance <= TOLERANCE:
            raise SystemExit(f"the {what} of a replayed graph is {distance:.2e} away from float64, more than {TOLERANCE:g}")


if __name__ == "__main__":
    main()
