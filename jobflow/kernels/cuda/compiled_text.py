"""Compilation of kernel texts by NVRTC, once per text and GPU architecture, with a cache on disk."""

from __future__ import annotations

import hashlib
import importlib
import threading
from functools import cache
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.kernels.object_cache import ObjectCache

#: C++17 for hexadecimal floats; no flushing to zero, exact division and square root
OPTIONS = ("--std=c++17", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
#: blocks per multiprocessor; kernels loop over the remaining elements
BLOCKS = 8


@dataclass(frozen=True)
class KernelFunction:
    """A kernel on a GPU: the address that a launch needs, and the text of its module.  It keeps the module loaded."""

    loaded: Any
    ptr: int
    name: str
    text: str
    #: the number of the GPU
    index: int


def options(exact: bool) -> tuple[str, ...]:
    """Return the options of NVRTC; without `exact`, a product and a sum become one fused multiply-add."""
    return (*OPTIONS, f"--fmad={'false' if exact else 'true'}")


@dataclass(frozen=True)
class LoadedText:
    """The functions of a compiled text, loaded on a GPU."""

    loaded: Any
    text: str
    index: int

    def function(self, name: str) -> KernelFunction:
        function = self.loaded.get_function(name)
        return KernelFunction(function, int(function.ptr), name, self.text, self.index)


class TextCompiler:
    """A compiler of kernel texts for the GPU with the index `index`."""

    def __init__(self, index: int, cache: ObjectCache | None = None) -> None:
        self.index = index
        self._cupy = importlib.import_module("cupy")
        self._nvrtc = importlib.import_module("cupy.cuda.compiler")
        device = self._cupy.cuda.Device(index)
        self.architecture: str = device.compute_capability
        self.blocks: int = BLOCKS * int(device.attributes["MultiProcessorCount"])
        self.cache = cache or ObjectCache()
        self._modules: dict[tuple[str, bool], LoadedText] = {}
        self._lock = threading.Lock()

    def module(self, text: str, exact: bool = False) -> LoadedText:
        """Return the functions of a text; `exact` rounds products before they are added, as CPUs do."""
        with self._lock:
            module = self._modules.get((text, exact))
            if module is None:
                loaded = importlib.import_module("cupy.cuda.function").Module()
                loaded.load(self._binary(text, options(exact)))
                self._modules[text, exact] = module = LoadedText(loaded, text, self.index)
        return module

    def _binary(self, text: str, flags: tuple[str, ...]) -> bytes:
        version = importlib.import_module("cupy_backends.cuda.libs.nvrtc").getVersion()
        key = hashlib.sha256("\0".join([*map(str, version), self.architecture, *flags, text]).encode()).hexdigest()
        cached = self.cache.read(key)
        if cached is not None:
            return cached
        # RawModule would flush subnormal numbers to zero, even with --ftz=false
        compiled, _ = self._nvrtc.compile_using_nvrtc(text, flags, self.architecture, "fused.cu")
        # CuPy drops the last byte, which is zero: the driver loads the rest, but nvdisasm refuses it
        binary = (compiled if isinstance(compiled, bytes) else compiled.encode()) + b"\0"
        self.cache.write(key, binary)
        return binary


@cache
def compiler(index: int) -> TextCompiler:
    return TextCompiler(index)


class NumberArgument(np.int64):
    """The bits of a number that a kernel receives by value, which are never an address."""


def integer_argument(value: int, wide: bool) -> Any:
    """Convert an integer to a kernel argument of 64 or 32 bits."""
    return np.int64(value) if wide else np.int32(value)
