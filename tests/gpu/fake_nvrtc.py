"""NVRTC and the driver on a machine without a GPU: texts are compiled by g++ and run on the host (`tests/kernels/host_cuda.py`)."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import sys
import tempfile
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_cublas
import fake_cupy
import fake_streams
import host_cuda
import pytest
from fake_streams import Stream

import jobflow as flow
from jobflow.core import scope
from jobflow.kernels.cuda import compiled_text

#: address -> library and name of a function
_FUNCTIONS: dict[int, tuple[Any, str]] = {}
_ADDRESSES = itertools.count(1)
#: a library holds the block and thread of a running kernel in static memory, which threads of ranks that share a GPU would overwrite
_LAUNCHING = threading.Lock()


class Function:
    """A function of a module, with the address that a launch needs."""

    def __init__(self, module: Module, name: str) -> None:
        self.module, self.ptr = module, next(_ADDRESSES)
        _FUNCTIONS[self.ptr] = module.library, name


@functools.cache
def _library(text: str) -> Any:
    """Compile a text once for all tests of the process; a loaded library does not need its file."""
    with tempfile.TemporaryDirectory() as folder:
        return host_cuda.library([text], Path(folder))


class Module:
    def load(self, binary: bytes) -> None:
        self.library = _library(binary.rstrip(b"\0").decode())

    def get_function(self, name: str) -> Function:
        return Function(self, name)


def launch_kernel(
    f: int, x: int, y: int, z: int, block_x: int, block_y: int, block_z: int, shared: int, stream: int, parameters: int, extra: int
) -> None:
    """Run a kernel on the host; the driver reads the arguments during this call."""
    assert (y, z, block_z, shared, extra) == (1, 1, 1, 0, 0) and f
    library, name = _FUNCTIONS[f]
    entry = getattr(library, f"call_{name}")

    def launch() -> None:
        with _LAUNCHING:
            assert library.launch(entry, ctypes.c_void_p(parameters), x, block_x, block_y), f"{name}: threads of a block wait at different barriers"

    if stream in Stream.all:
        Stream.all[stream].run(launch)
    else:  # the legacy stream
        launch()


def modules() -> dict[str, types.ModuleType]:
    names = ("cupy.cuda.compiler", "cupy.cuda.function", "cupy_backends.cuda.libs.nvrtc", "cupy_backends.cuda.api.driver")
    compiler, function, nvrtc, driver = all_modules = [types.ModuleType(name) for name in names]
    vars(compiler).update(compile_using_nvrtc=lambda text, options, architecture, name: (text.encode(), {}))
    vars(function).update(Module=Module)
    vars(nvrtc).update(getVersion=lambda: ("by g++",))
    vars(driver).update(launchKernel=launch_kernel)
    return {module.__name__: module for module in all_modules}


@contextlib.contextmanager
def installed(monkeypatch: pytest.MonkeyPatch, cupy: dict[str, types.ModuleType] | None = None) -> Iterator[Any]:
    """Replace CuPy by its imitation, whose kernels g++ compiles, in this context; `cupy` are its modules, by default for one GPU."""
    for name, module in ((fake_cupy.modules(1) if cupy is None else cupy) | fake_cublas.modules() | modules()).items():
        monkeypatch.setitem(sys.modules, name, module)
    compiled_text.compiler.cache_clear()
    yield sys.modules["cupy"]
    compiled_text.compiler.cache_clear()


@contextlib.contextmanager
def session_of_one_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace CuPy by its imitation, and run the jobs of this context on one GPU in a new session."""
    before = fake_streams.current.device
    with installed(monkeypatch), scope.using(root=scope.Root()):
        flow.config.gpu_device_num(1)
        yield
        flow.clear_default_session()
    fake_streams.current.device = before
    fake_streams.current.streams.clear()
