"""Capture and replay one CUDA graph: a printed kernel, a product by cublasLt, and an all-reduce by NCCL on a second stream.

Attention by cuDNN is not part of the graph.  The step reports libraries that are not installed as not there.
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
from jobflow.kernels.cuda import cublaslt_library
from jobflow.kernels.cuda.epilogue_product import EpilogueProduct
from jobflow.kernels.target import target_of
from jobflow.ops.matmul import MatMul
from jobflow.ops.op import Call
from jobflow.ops.softmax import Softmax
from jobflow.runtime.device.cuda_device import CudaDevice

SHAPE = (256, 1000)
#: the product with the softmax: columns, and the operation
COLUMNS = 64
EPILOGUE = EpilogueProduct(MatMul(), bias=True, gelu="forward", keeps=True)
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
    product = product_of(device, y)
    calls += [] if product is None else product.calls
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
            if product is not None:
                product.compare(results[0])
    run(calls)
    if not stub and not np.array_equal(*device.to_host_together([y, reduced if reduce is not None else y])):
        raise SystemExit("the replayed all-reduce differs from the kernel launched alone")
    del graph  # before the communicator that it captured
    absent = [*([] if product is not None else ["a product by cublasLt"]), *([] if reduce is not None else ["NCCL"])]
    if absent:
        print(f"NOT THERE {', '.join(absent)}; the rest of the graph was replayed {REPLAYS} times", flush=True)


class CapturedProduct:
    """The product of the softmax and a weight, with a bias and GELU, by cublasLt."""

    def __init__(self, device: CudaDevice, x: Any) -> None:
        random = np.random.RandomState(1)
        self.weight, self.bias = random.standard_normal((SHAPE[1], COLUMNS)).astype(np.float32), random.standard_normal(COLUMNS).astype(np.float32)
        self._device = device
        operands = [x, *(device.constant(a) for a in (self.weight, self.bias))]
        self.outputs = [device.allocate(4 * SHAPE[0] * COLUMNS).view(np.float32).reshape((SHAPE[0], COLUMNS)) for _ in range(2)]
        self.calls = registry.bind(EPILOGUE, target_of("gpu", "auto"), device, operands, self.outputs)

    def compare(self, x: Any) -> None:
        """Print the distance of the results from float64; exit if it exceeds the tolerance."""
        expected = [np.empty((SHAPE[0], COLUMNS)) for _ in range(2)]
        EPILOGUE.kernel(np, *(np.asarray(a, np.float64) for a in (x, self.weight, self.bias)), *expected)
        for what, ours, theirs in zip(("product", "input of GELU"), self._device.to_host_together(self.outputs), expected, strict=True):
            distance = float(np.max(np.abs(ours - theirs)) / np.max(np.abs(theirs)))
            print("RESULT " + json.dumps({"replayed": what, "distance": distance}), flush=True)
            if not distance <= TOLERANCE:
                raise SystemExit(f"the {what} of a replayed graph is {distance:.2e} away from float64, more than {TOLERANCE:g}")


def product_of(device: CudaDevice, x: Any) -> CapturedProduct | None:
    """Return the product of the softmax x, or None without cublasLt."""
    return None if cublaslt_library.find().library is None else CapturedProduct(device, x)


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
