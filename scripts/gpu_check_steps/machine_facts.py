"""Print the GPU, its driver and the versions of its libraries; save cuDNN's description of the device.

python machine_facts.py [FOLDER]

Without FOLDER it prints the GPU alone.  FOLDER gets `cudnn_device.json`, from which cuDNN plans can be built on machines without a GPU.
A library that is not installed is reported and is no failure.  A GPU that does not answer is one.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def emit(**result: object) -> None:
    print("RESULT " + json.dumps(result), flush=True)


def gpu() -> dict[str, object]:
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    return {
        "card": properties["name"].decode(),
        "gib": properties["totalGlobalMem"] >> 30,
        "capability": cupy.cuda.Device(0).compute_capability,
        "multiprocessors": cupy.cuda.Device(0).attributes["MultiProcessorCount"],
    }


def driver() -> dict[str, object]:
    import cupy

    nvrtc = importlib.import_module("cupy_backends.cuda.libs.nvrtc")
    runtime = cupy.cuda.runtime
    return {
        "driver": runtime.driverGetVersion(),
        "runtime": runtime.runtimeGetVersion(),
        "nvrtc": ".".join(map(str, nvrtc.getVersion())),
        "cupy": cupy.__version__,
        "python": platform.python_version(),
    }


def shared_library(name: str, function: str) -> Callable[[], dict[str, object]]:
    """A reader of the version number that a C library returns."""

    def version() -> dict[str, object]:
        query = getattr(ctypes.CDLL(name), function)
        query.restype = ctypes.c_size_t
        return {name.split(".")[0]: query()}

    return version


def nccl() -> dict[str, object]:
    return {"nccl": importlib.import_module("cupy.cuda.nccl").get_version()}


def torch() -> dict[str, object]:
    if importlib.util.find_spec("torch") is None:
        return {"torch": "not installed"}
    return {"torch": importlib.import_module("torch").__version__}


def cudnn_device(folder: Path) -> dict[str, object]:
    if importlib.util.find_spec("cudnn") is None:
        return {"cudnn_device": "not there: nvidia-cudnn-frontend is not installed"}
    cudnn = importlib.import_module("cudnn")
    described = cudnn.create_device_properties(0).serialize()
    target = folder / "cudnn_device.json"
    target.write_bytes(described if isinstance(described, bytes) else bytes(described) if isinstance(described, list) else str(described).encode())
    return {"cudnn_device": target.name}


def nvidia_smi() -> None:
    command = shutil.which("nvidia-smi")
    if command is None:
        emit(nvidia_smi="not there")
        return
    done = subprocess.run([command], capture_output=True, text=True, timeout=10, check=False)
    print(done.stdout or done.stderr, flush=True)


def main(folder: Path | None = None) -> None:
    emit(**gpu())
    if folder is not None:
        libraries(folder)


def libraries(folder: Path) -> None:
    nvidia_smi()
    emit(**driver())
    emit(**{name: shutil.which(name) or "not there" for name in ("git", "mpiexec", "compute-sanitizer", "ncu")})
    optional = (
        torch,
        shared_library("libcudnn.so.9", "cudnnGetVersion"),
        shared_library("libcublasLt.so.13", "cublasLtGetVersion"),
        nccl,
        lambda: cudnn_device(folder),
    )
    for facts in optional:
        try:
            emit(**facts())
        except (ImportError, OSError, AttributeError, RuntimeError) as error:
            emit(missing=f"{type(error).__name__}: {error}"[:150])
    import cupy

    cupy.show_config()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
