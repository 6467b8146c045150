"""Checks of the GPUs: the driver, CuPy, a kernel, NCCL, memory of other processes, cublasLt and cuDNN."""

from __future__ import annotations

import glob
import importlib.util
from collections.abc import Iterator
from typing import Any

from jobflow.cli.health.child import ask, probe
from jobflow.cli.health.finding import GIB, NOTE, OK, PROBLEM, Finding, judged
from jobflow.core.errors import counted

INSTALL = 'pip install "jobflow-sbp[gpu]"'
INSTALL_FAST = 'pip install "jobflow-sbp[gpu-fast]"'
#: the least version of NCCL
NCCL = (2, 27, 7)
#: time limit in seconds, with the compilation of a first kernel
LIMIT = 120.0


def gpu() -> Iterator[Finding]:
    """Check the GPUs through CuPy; without CuPy, report only the number of GPUs."""
    devices, cupy = glob.glob("/dev/nvidia[0-9]*"), importlib.util.find_spec("cupy") is not None
    if not devices and not cupy:
        yield Finding("GPU", OK, "there is no NVIDIA GPU here: jobs run on the CPU")
    elif not cupy:
        yield Finding("GPU", NOTE, f"{counted(len(devices), 'GPU')}, but CuPy is not installed: jobs run on the CPU", "", INSTALL)
    else:
        answer = ask(probe("gpu"), limit=LIMIT)
        if answer.failure:
            yield Finding("GPU", PROBLEM, f"CuPy does not work: {answer.failure}", "install the CuPy of your CUDA version", INSTALL)
        else:
            yield from cupy_findings(answer.data, len(devices))


def cupy_findings(data: dict[str, Any], devices: int) -> Iterator[Finding]:
    """Report the devices of CuPy, and the results of a kernel and of the libraries; `devices` is the number of GPUs of the system."""
    version = f"CuPy {data['cupy']}"
    if not data["gpus"]:
        if devices:
            yield Finding(
                "GPU", PROBLEM, f"{version} detects none of {counted(devices, 'GPU')}: {data['trouble']}", "update the NVIDIA driver", "nvidia-smi"
            )
        else:
            fix = "nothing, unless this machine has a GPU; then check its driver"
            yield Finding("GPU", NOTE, f"{version} is installed, but there is no GPU or no driver: jobs run on the CPU", fix, "nvidia-smi")
        return
    named = ", ".join(f"{name} ({memory / GIB:.0f} GiB)" for name, memory in data["gpus"])
    text = f"{named}; {version}, CUDA {data['runtime']}, driver for {data['driver']}, NVRTC {data['nvrtc'] or 'missing'}"
    if data["trouble"]:
        fix = "install the parts of CUDA that CuPy compiles with, or a CuPy for the CUDA version of the driver"
        yield Finding("GPU", PROBLEM, f"{text}; a kernel failed: {data['trouble']}", fix, 'pip install "cupy-cuda13x[ctk]"')
        return
    yield Finding("GPU", OK, f"{text}; a kernel and a matrix product are correct")
    unusable = f"not usable ({data['nccl_trouble']}): several GPUs exchange tensors through the host"
    old = data["nccl"] is not None and tuple(map(int, data["nccl"].split("."))) < NCCL
    older = f"; jobflow needs {'.'.join(map(str, NCCL))} or newer"
    yield judged("NCCL", data["nccl"] or "", (data["nccl"] is None, NOTE, unusable, "", INSTALL), (old, PROBLEM, older, "", f"{INSTALL} --upgrade"))
    if len(data["gpus"]) > 1:
        yield Finding("GPU transport", OK, data["transport"])
        closed = f"not possible ({data['ipc']}): NCCL copies between processes through the host"
        text = "other processes can open memory of a GPU" if not data["ipc"] else ""
        yield judged("CUDA IPC", text, (data["ipc"], NOTE, closed, "permit shared memory between processes", "docker run --ipc=host"))
    unusable = f"not usable ({data['cublaslt_trouble']}): CuPy computes matrix products, and biases and activations are separate kernels"
    yield judged("cublasLt", data["cublaslt"] or "", (data["cublaslt"] is None, NOTE, unusable, "", INSTALL_FAST))
    unusable = f"not usable ({data['cudnn_trouble']}): printed kernels compute attention and convolutions"
    yield judged("cuDNN", data["cudnn"] or "", (data["cudnn"] is None, NOTE, unusable, "", INSTALL_FAST))
