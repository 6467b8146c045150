"""Texts of kernels to functions of a GPU: compiled by NVRTC, once for each text and kind of GPU, and kept on disk."""

from __future__ import annotations

import hashlib
import importlib
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.kernels.object_cache import ObjectCache

#: C++17 for hexadecimal numbers; nothing is contracted, flushed to zero or divided roughly
OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
#: blocks for each multiprocessor; kernels go over what is left
BLOCKS = 8
#: launches a function of a GPU: grid, block, arguments
Launcher = Callable[[tuple[int, ...], tuple[int, ...], tuple[Any, ...]], None]


@dataclass(frozen=True)
class LoadedText:
    """The functions of a text on the current GPU."""

    loaded: Any

    def function(self, name: str) -> Launcher:
        found: Launcher = self.loaded.get_function(name)
        return found


class TextCompiler:
    """For the GPU with this number."""

    def __init__(self, index: int, cache: ObjectCache | None = None) -> None:
        self._cupy = importlib.import_module("cupy")
        self._nvrtc = importlib.import_module("cupy.cuda.compiler")
        device = self._cupy.cuda.Device(index)
        self.architecture: str = device.compute_capability
        self.blocks: int = BLOCKS * int(device.attributes["MultiProcessorCount"])
        self.cache = cache or ObjectCache()
        self._modules: dict[str, LoadedText] = {}
        self._lock = threading.Lock()

    def module(self, text: str) -> LoadedText:
        with self._lock:
            found = self._modules.get(text)
            if found is None:
                loaded = importlib.import_module("cupy.cuda.function").Module()
                loaded.load(self._binary(text))
                self._modules[text] = found = LoadedText(loaded)
        return found

    def _binary(self, text: str) -> bytes:
        version = importlib.import_module("cupy_backends.cuda.libs.nvrtc").getVersion()
        key = hashlib.sha256("\0".join([*map(str, version), self.architecture, *OPTIONS, text]).encode()).hexdigest()
        kept = self.cache.read(key)
        if kept is not None:
            return kept
        # not RawModule: that flushes small numbers to zero, whatever it is told
        made, _ = self._nvrtc.compile_using_nvrtc(text, OPTIONS, self.architecture, "fused.cu")
        binary = made if isinstance(made, bytes) else made.encode()
        self.cache.write(key, binary)
        return binary


@cache
def compiler(index: int) -> TextCompiler:
    return TextCompiler(index)


def whole_number(value: int, wide: bool) -> Any:
    """An argument of a kernel, whose type is its size."""
    return np.int64(value) if wide else np.int32(value)
