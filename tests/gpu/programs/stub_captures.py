"""Captures on the stub GPU with real CuPy: a graph of a kernel and a copy, and the calls that a capture refuses.

python stub_captures.py FOLDER        prints JSON
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "without_gpu"), str(HERE.parents[1] / "ops"), str(HERE.parents[2])]

import host_runtime  # noqa: E402
import numpy as np  # noqa: E402


def main(folder: str) -> dict[str, Any]:
    counts, _ = host_runtime.install(Path(folder))
    cupy = importlib.import_module("cupy")
    from jobflow.runtime.device.cuda_device import CudaDevice

    device = CudaDevice(0)
    device.activate()
    source, target = device.constant(np.arange(1000.0)), device.allocate(8000).view(np.float64)
    event, other = device.new_event(), device.new_stream()
    print_kernel = cupy.ElementwiseKernel("float64 x", "float64 y", "y = x", "copied")

    def copy() -> None:
        target.data.copy_from_device_async(source.data, target.nbytes, device.stream)

    def across() -> None:
        """A kernel on a second stream, which the first one waits for."""
        event.record(device.stream)
        other.wait_event(event)
        with other:
            print_kernel(source, target)
        event.record(other)
        device.stream.wait_event(event)

    def kernel() -> None:
        print_kernel(source, target)

    factors, product = (source.reshape(40, 25), source.reshape(25, 40)), cupy.empty((40, 40))
    cupy.matmul(*factors, out=product)  # creates the handle
    print_kernel(source, target)  # compiles
    graph = device.capture([(kernel, ()), (copy, ()), (across, ())])
    before = counts.now()
    assert not target.get().any(), "the copy ran during the capture"
    graph()
    device.synchronize()
    after = counts.now()
    results: dict[str, Any] = {
        "stream": cupy.cuda.get_current_stream().ptr == device.stream.ptr,
        "replayed": bool((device.to_host(target) == np.arange(1000.0)).all()),
        "counts": {name: after[name] - before[name] for name in ("launches", "graph_launches", "graph_nodes", "allocations")},
    }

    refused: dict[str, Callable[[], Any]] = {
        "allocation": lambda: cupy.cuda.runtime.malloc(1 << 20),
        "allocation by the pool": lambda: cupy.cuda.memory.alloc(1 << 24),
        "page-locked allocation": lambda: cupy.cuda.runtime.hostAlloc(1 << 20, 0),
        "copy to the host": lambda: target.get(),
        "wait for the stream": device.synchronize,
        "wait for the device": cupy.cuda.runtime.deviceSynchronize,
        "query of the stream": lambda: device.stream.done,
        "query of an event": lambda: device.new_event().done,
        "wait for an event": lambda: device.new_event().synchronize(),
        "product by CuPy": lambda: cupy.matmul(*factors, out=product),
        "stream that is not joined": lambda: (event.record(device.stream), other.wait_event(event)),
        "event of another stream": lambda: (event.record(other), device.stream.wait_event(event)),
    }
    for name, function in refused.items():
        try:
            device.capture([(function, ())])
            results[name] = "captured"
        except (cupy.cuda.runtime.CUDARuntimeError, NotImplementedError, RuntimeError) as error:
            results[name] = f"{type(error).__name__}: {error}"
        device.capture([(kernel, ())])()  # the device is usable after a refusal
    return results


if __name__ == "__main__":
    print("RESULT " + json.dumps(main(sys.argv[1])), flush=True)
    os._exit(0)  # CuPy frees memory when the interpreter has already removed the stub's functions
