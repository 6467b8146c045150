"""NVRTC and the loading of kernels on a machine without a GPU: texts are compiled by g++ and run on the host (`tests/kernels/host_cuda.py`)."""

from __future__ import annotations

import tempfile
import types
from pathlib import Path
from typing import Any

import host_cuda


class Module:
    def load(self, binary: bytes) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.library = host_cuda.library([binary.decode()], Path(self.folder.name))

    def get_function(self, name: str) -> Any:
        return lambda grid, block, arguments: host_cuda.launch(self.library, name, grid, block, arguments)


def modules() -> dict[str, types.ModuleType]:
    names = ("cupy.cuda.compiler", "cupy.cuda.function", "cupy_backends.cuda.libs.nvrtc")
    compiler, function, nvrtc = all_modules = [types.ModuleType(name) for name in names]
    vars(compiler).update(compile_using_nvrtc=lambda text, options, architecture, name: (text.encode(), {}))
    vars(function).update(Module=Module)
    vars(nvrtc).update(getVersion=lambda: ("by g++",))
    return {module.__name__: module for module in all_modules}
