"""NVIDIA's compiler for CUDA C, if installed: NVRTC of the wheel `nvidia-cuda-nvrtc`, else nvcc of a toolkit.  No GPU is needed."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from jobflow.kernels.cuda.compiled_text import options


def nvrtc() -> Path | None:
    """Return the library of the wheel, or None."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    return next((file for folder in folders for file in sorted(Path(folder).glob("cu*/lib/libnvrtc.so.*"))), None)


def missing() -> str:
    """Return the reason no compiler is available, or ""."""
    return "" if nvrtc() or shutil.which("nvcc") else "neither nvidia-cuda-nvrtc (pip install '.[gpu-checks]') nor nvcc is installed"


def compiled(text: str, architecture: str, exact: bool = False) -> bytes:
    """Return the machine code for an architecture such as "sm_90"; `exact` rounds products before they are added."""
    library = nvrtc()
    flags = options(exact)
    return _by_nvcc(text, architecture, flags) if library is None else _by_nvrtc(library, text, architecture, flags)


def _by_nvrtc(library: Path, text: str, architecture: str, flags: Sequence[str]) -> bytes:
    calls, program = ctypes.CDLL(str(library)), ctypes.c_void_p()
    assert calls.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"fused.cu", 0, None, None) == 0
    words = [*(flag.encode() for flag in flags), f"--gpu-architecture={architecture}".encode()]
    failed = calls.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words))
    size = ctypes.c_size_t()
    if failed:
        calls.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        calls.nvrtcGetProgramLog(program, log)
        raise AssertionError(log.value.decode())
    assert calls.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
    code = ctypes.create_string_buffer(size.value)
    assert calls.nvrtcGetCUBIN(program, code) == 0
    calls.nvrtcDestroyProgram(ctypes.byref(program))
    return code.raw


def _by_nvcc(text: str, architecture: str, flags: Sequence[str]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "fused.cu"), Path(folder, "fused.cubin")
        source.write_text(text)
        done = subprocess.run(
            ["nvcc", *flags, f"-arch={architecture}", "-cubin", str(source), "-o", str(output)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return output.read_bytes()
