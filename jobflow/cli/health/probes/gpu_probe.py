"""A test of CuPy, NCCL, cublasLt and cuDNN.

Prints a JSON object.  "cupy" is CuPy's version, "gpus" a list of [name, bytes of memory], and "runtime" and "driver" are CUDA versions.
"transport" describes how ranks with one GPU each exchange tensors.  "trouble" is the error of CuPy or "".  "nccl" and "cublaslt" are the versions of
these libraries, or null if the library was not tested or failed with the error "nccl_trouble" or "cublaslt_trouble".  "cudnn" and "cudnn_trouble"
are the same for cuDNN with its Python frontend.  "nvrtc" is the version of NVRTC, and "ipc" the reason why no other process can open memory of
the GPU, or "".
"""

from __future__ import annotations

import json
from typing import Any

import cupy
import numpy as np

from jobflow.kernels.cuda import cublaslt_calls, cublaslt_library, cudnn_library
from jobflow.kernels.target import ProductMode
from jobflow.runtime.comm.transports import RankDevice, choose
from jobflow.runtime.device.cuda_device import nccl


def number(version: int) -> str:
    """Return a CUDA version as text: 12040 becomes "12.4"."""
    return f"{version // 1000}.{version % 1000 // 10}"


def compute() -> None:
    """Compile and run a kernel and a matrix product; raise RuntimeError if a result is wrong."""
    x = cupy.arange(1024, dtype=cupy.float32)
    twice = cupy.ElementwiseKernel("float32 a", "float32 b", "b = 2 * a + 1", "jobflow_doctor")(x)
    if not np.array_equal(twice.get(), 2 * np.arange(1024, dtype=np.float32) + 1):
        raise RuntimeError("a kernel returned wrong values")
    ones = cupy.ones((256, 256), cupy.float32)
    if not bool((ones @ ones == 256).all()):
        raise RuntimeError("a matrix product returned wrong values")


def multiply(library: cublaslt_library.CublasLt) -> str:
    """Multiply two matrices by cublasLt, and return its version; raise RuntimeError if the result is wrong."""
    gpu, size = cublaslt_calls.GpuProducts(library, 0), 256
    ones, product = cupy.ones((size, size), cupy.float32), cupy.empty((size, size), cupy.float32)
    problem = cublaslt_calls.Problem(size, size, size, (False, False), (size,) * 4, 1, (0,) * 4, "float32", "float32")
    pointers = cublaslt_calls.Pointers(*[x.data.ptr for x in (ones, ones, product, product)])
    mode = ProductMode(timed=False)
    choice = gpu.choice(problem, mode, pointers)
    if choice is None:
        raise RuntimeError("cublasLt has no algorithm for a product of float32")
    cublaslt_calls.ProductCall(gpu, problem, mode, pointers, choice, (ones, product))()
    if not bool((product == size).all()):
        raise RuntimeError("a matrix product returned wrong values")
    return library.version_text


def communicate(module: Any) -> str:
    """Run an all-reduce of NCCL on one GPU, and return NCCL's version; raise RuntimeError if the result is wrong."""
    comm = module.NcclCommunicator(1, module.get_unique_id(), 0)
    x = cupy.ones(1024, cupy.float32)
    comm.allReduce(x.data.ptr, x.data.ptr, x.size, module.NCCL_FLOAT32, module.NCCL_SUM, cupy.cuda.Stream.null.ptr)
    if not bool((x == 1).all()):
        raise RuntimeError("an all-reduce returned wrong values")
    version = module.get_version()
    return f"{version // 10000}.{version % 10000 // 100}.{version % 100}"


def attend() -> str:
    """Create a handle of cuDNN, and return the versions of cuDNN and of its frontend."""
    handle = cudnn_library.handle_of(0)
    module = handle.module
    version = int(module.backend_version())
    return f"{version // 10000}.{version % 10000 // 100}.{version % 100}, frontend {module.__version__}"


def shared() -> str:
    """Return the reason why no other process can open memory of GPU 0, or ""."""
    memory = cupy.cuda.alloc(1 << 20)
    try:
        runtime.ipcGetMemHandle(memory.ptr)
    except runtime.CUDARuntimeError as error:
        return str(error)
    return ""


runtime = cupy.cuda.runtime
report: dict[str, Any] = {"cupy": cupy.__version__, "gpus": [], "runtime": "", "driver": "", "trouble": "", "nccl": None, "nccl_trouble": ""}
report |= {"cublaslt": None, "cublaslt_trouble": "", "transport": "", "cudnn": None, "cudnn_trouble": "", "nvrtc": "", "ipc": ""}
try:
    for index in range(runtime.getDeviceCount()):
        properties = runtime.getDeviceProperties(index)
        report["gpus"].append([properties["name"].decode(), properties["totalGlobalMem"]])
    report["runtime"], report["driver"] = number(runtime.runtimeGetVersion()), number(runtime.driverGetVersion())
    report["nvrtc"] = ".".join(map(str, cupy.cuda.nvrtc.getVersion()))
    compute()
except Exception as error:  # noqa: BLE001 - whatever CuPy raises is the answer
    report["trouble"] = f"{type(error).__name__}: {error}".splitlines()[0]
if report["gpus"] and not report["trouble"]:
    module = nccl()
    if not module.available:
        report["nccl_trouble"] = "the library is missing"
    else:
        try:
            report["nccl"] = communicate(module)
        except Exception as error:  # noqa: BLE001 - whatever CuPy raises is the answer
            report["nccl_trouble"] = f"{type(error).__name__}: {error}".splitlines()[0]
    version = 0 if report["nccl"] is None else module.get_version()
    report["transport"] = str(choose([RankDevice("gpu", str(index), version, False) for index in range(len(report["gpus"]))]))
    search = cublaslt_library.find()
    if search.library is None:
        report["cublaslt_trouble"] = search.reason
    else:
        try:
            report["cublaslt"] = multiply(search.library)
        except Exception as error:  # noqa: BLE001 - whatever the library raises is the answer
            report["cublaslt_trouble"] = f"{type(error).__name__}: {error}".splitlines()[0]
    report["cudnn_trouble"] = cudnn_library.missing()
    if not report["cudnn_trouble"]:
        try:
            report["cudnn"] = attend()
        except Exception as error:  # noqa: BLE001 - whatever the library raises is the answer
            report["cudnn_trouble"] = f"{type(error).__name__}: {error}".splitlines()[0]
    report["ipc"] = shared()
print(json.dumps(report))
