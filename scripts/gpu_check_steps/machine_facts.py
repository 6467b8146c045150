"""Print the GPU, its driver and the versions of its libraries; save cuDNN's description of the device.

python machine_facts.py [FOLDER]

Without FOLDER it prints the GPU alone.  FOLDER gets `cudnn_device.json`, from which cuDNN plans can be built on machines without a GPU.
A library that is not installed is reported and is no failure.  A GPU that does not answer is one.
"""

from __future__ import annotations

import ctypes
import glob
import importlib
import importlib.util
import json
import platform
import shutil
import site
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import cuda_tools


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
    """Return a function that queries a C library's version, also of a library in NVIDIA's packages."""

    def version() -> dict[str, object]:
        packaged = [path for folder in site.getsitepackages() for path in glob.glob(f"{folder}/nvidia/*/lib/{name}")]
        query = getattr(ctypes.CDLL(packaged[0] if packaged else name), function)
        query.restype = ctypes.c_size_t
        return {name.split(".")[0]: query()}

    return version


def nccl() -> dict[str, object]:
    module = importlib.import_module("cupy.cuda.nccl")
    return {"nccl": module.get_version() if module.available else "not installed"}


def torch() -> dict[str, object]:
    try:
        return {"torch": metadata.version("torch")}
    except metadata.PackageNotFoundError:
        return {"torch": "not installed"}


def cudnn_device(folder: Path) -> dict[str, object]:
    if importlib.util.find_spec("cudnn") is None:
        return {"cudnn_device": "not there: nvidia-cudnn-frontend is not installed"}
    cudnn = importlib.import_module("cudnn")
    target = folder / "cudnn_device.json"
    target.write_text(cudnn.create_device_properties(0).serialize(), encoding="utf-8")
    return {"cudnn_device": target.name}


def nvidia_smi() -> None:
    command = shutil.which("nvidia-smi")
    if command is None:
        emit(nvidia_smi="not there")
        return
    try:
        done = subprocess.run([command], capture_output=True, text=True, timeout=5, check=False)
    except subprocess.TimeoutExpired:
        emit(nvidia_smi="no answer within 5 s")
        return
    print(done.stdout or done.stderr, flush=True)


def main(folder: Path | None = None) -> None:
    emit(**gpu())
    if folder is not None:
        libraries(folder)


def libraries(folder: Path) -> None:
    nvidia_smi()
    emit(**driver())
    emit(**{name: cuda_tools.find(name) or "not there" for name in ("git", "mpiexec", "compute-sanitizer", "ncu")})
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
        except Exception as error:  # noqa: BLE001 - each library has errors of its own, and the other facts are still wanted
            emit(not_installed=f"{type(error).__name__}: {error}"[:150])
    import cupy

    cupy.show_config()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
