"""Recorder of cuDNN's plans for the convolutions of ResNet-50 in data/convolution_plans.txt: 256 images of 224 x 224, for an H100.

    python tests/gpu/record_convolutions.py            print the table; the exit code is 1 if the record of this version of cuDNN differs
    python tests/gpu/record_convolutions.py --write    write the record

No GPU is needed: cuDNN builds plans from a description of the device.  cuDNN, its frontend and a C compiler are needed; the compiler builds a driver
library whose functions do nothing.  A line is an operation, the number of its calls in a step, its plan, and the megabytes of the workspace.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TARGET = HERE / "data" / "convolution_plans.txt"
if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "examples" / "zoo"), str(HERE)]

import numpy as np  # noqa: E402
import resnet50  # noqa: E402

import jobflow as flow  # noqa: E402
from jobflow.core.types import DType, TensorType, bfloat16, float32  # noqa: E402
from jobflow.engine.job import job_of  # noqa: E402
from jobflow.kernels.cuda import cudnn_library  # noqa: E402
from jobflow.kernels.cuda.cudnn_convolution import ConvolutionGraph, channels_last_strides, refused_operands  # noqa: E402
from jobflow.kernels.registry import at  # noqa: E402
from jobflow.kernels.target import ProductMode  # noqa: E402
from jobflow.ops.conv import ConvOp  # noqa: E402
from jobflow.tools.explain import laid_out  # noqa: E402

#: functions of the driver that cuDNN looks up
DRIVER = (
    *("cuModuleLoadData", "cuModuleGetFunction", "cuModuleUnload", "cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col", "cuGetErrorName"),
    *("cuCtxGetCurrent", "cuCtxGetLimit", "cuCtxPopCurrent", "cuCtxPushCurrent", "cuStreamGetCtx", "cuDriverGetVersion", "cuLinkCreate"),
    *("cuLinkAddData", "cuLinkComplete", "cuLinkDestroy", "cuLaunchKernel", "cuLaunchCooperativeKernel", "cuLaunchKernelEx", "cuDeviceGetCount"),
    *("cuDeviceGet", "cuLibraryLoadData", "cuLibraryLoadFromFile", "cuLibraryGetKernel", "cuLibraryUnload", "cuKernelSetAttribute"),
    *("cuKernelGetAttribute", "cuKernelGetFunction", "cuOccupancyMaxPotentialClusterSize"),
)
#: cuDNN's description of an H100; clock rates are those of its data sheet
H100 = {
    "deviceName": "NVIDIA H100 80GB HBM3",
    "cudaDeviceId": 0,
    "deviceVer": 900,
    "driverVer": 13000,
    "multiProcessorCount": 132,
    "warpSize": 32,
    "maxGridSize": [(1 << 31) - 1, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64],
    "regsPerBlock": 65536,
    "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448,
    "reservedSharedMemoryPerBlock": 1024,
    "oversizedSharedMemoryPerBlock": 0,
    "maxRegistersPerSM": 65536,
    "maxCtasPerSM": 32,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048,
    "pciDeviceId": 0,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
    "smClockRateKHz": 1980000,
    "memClockRateKHz": 2619000,
    "memoryBusWidth": 5120,
    "l2CacheSize": 50 << 20,
    "totalGlobalMem": 85024112640,
}
#: a convolution or a gradient, and the types of its operands and result
Convolution = tuple[ConvOp, tuple[TensorType, ...]]


def missing() -> str:
    """Return the reason plans cannot be built here, or ""."""
    if shutil.which("cc") is None:
        return "there is no C compiler (cc)"
    return cudnn_library.missing()


@cache
def driver() -> Any:
    """Load a driver library that does nothing, in place of a driver that is not installed."""
    functions = [f"int {name}(void) {{ return 0; }}" for name in DRIVER]
    functions.append('int cuGetErrorString(int error, const char **text) { *text = "no driver"; return 0; }')
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "driver.c"), Path(folder, "libcuda.so.1")
        source.write_text("\n".join(functions) + "\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o", library, source], check=True)
        return ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


def convolutions(dtype: DType) -> Counter[Convolution]:
    """Return the convolutions of a training step with operands of this type, and the number of their calls."""
    flow.clear_default_session()
    job, _ = resnet50.make_jobs(resnet50.Size())
    graph = laid_out(job_of(job), 1).logical
    result: Counter[Convolution] = Counter()
    for node in graph.nodes:
        if isinstance(node.op, ConvOp):
            result[node.op, tuple(value.tensor_type.with_dtype(dtype) for value in (*node.inputs, *node.outputs))] += 1
    flow.clear_default_session()
    return result


def plan(op: ConvOp, types: tuple[TensorType, ...]) -> tuple[str, int]:
    """Return the name of cuDNN's plan for operands with the channels innermost, and the bytes of its workspace."""
    driver()
    cudnn = cudnn_library.importlib.import_module("cudnn")
    arrays: list[np.ndarray[Any, Any]] = []
    for k, type in enumerate(types):
        strides = tuple(step * type.dtype.itemsize for step in channels_last_strides(type.shape))
        arrays.append(at(type, strides, (k + 1) << 40))
    assert not refused_operands(op, arrays[:2], arrays[2:])
    device = cudnn.create_device_properties(json.dumps(H100))
    graph = ConvolutionGraph(op, arrays, ProductMode(timed=False), device_property=device, sm_version=90)
    index, nbytes = next(graph.supported())
    return graph.name(index), nbytes


def rows() -> Iterator[str]:
    yield f"# cuDNN {cudnn_library.importlib.import_module('cudnn').backend_version()}; 256 images, H100; written by record_convolutions.py"
    for dtype in (bfloat16, float32):
        for (op, types), count in convolutions(dtype).items():
            name, nbytes = plan(op, types)
            yield "; ".join([op.word(), ", ".join(map(str, types)), f"strides {op.strides}", f"calls {count}", name, f"{nbytes / 1e6:.1f} MB"])


def main() -> None:
    reason = missing()
    if reason:
        sys.exit(f"record_convolutions: {reason}")
    lines = list(rows())
    print("\n".join(lines))
    if "--write" in sys.argv[1:]:
        TARGET.write_text("\n".join(lines) + "\n", encoding="utf-8")
    elif TARGET.read_text(encoding="utf-8").splitlines() != lines:
        sys.exit(1)


if __name__ == "__main__":
    main()
