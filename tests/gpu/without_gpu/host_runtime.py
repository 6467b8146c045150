"""Real CuPy on a machine without a GPU: what it calls of the CUDA runtime is answered here, from memory of the host.

    import host_runtime
    counts, texts = host_runtime.install()      # before the first `import cupy`

CuPy's own host code runs as it is: which types and layouts it takes, which kernels it writes, what it launches, copies and waits
for.  Copies are carried out.  Kernels and products are not: they are counted, the texts of kernels are kept, and values are zeros.

CuPy's compiled modules call each other through tables of C functions (`__pyx_capi__`) in which every entry names its C type.  The
entries that a step needs are replaced by functions of this file.  cuBLAS is a library that CuPy links against: `blas` builds one with
its names, whose functions do nothing; that takes a C compiler.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

VERSION = 13000
#: bytes; the alignment of what cudaMalloc gives
ALIGNMENT = 512
#: a GPU of compute capability 9.0 with 132 multiprocessors, by the numbers of cudaDeviceAttr
ATTRIBUTES = {75: 9, 76: 0, 16: 132, 10: 32, 1: 1024, 8: 49152}
HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
#: functions of cuBLAS that compute nothing
ORGANISING = re.compile(r"cublas(Create|Destroy|Get|Set)(?!r[fis]Batched)")
C_TYPES: dict[str, Any] = {
    "PyObject *": ctypes.py_object,
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "intptr_t": ctypes.c_ssize_t,
    "size_t": ctypes.c_size_t,
}


@dataclass
class Counts:
    """What was asked of the GPU since the start."""

    cublas: ctypes.c_long = field(default_factory=ctypes.c_long)
    launches: int = 0
    synchronisations: int = 0
    to_device: int = 0
    to_host: int = 0
    within: int = 0
    allocations: int = 0

    def now(self) -> dict[str, int]:
        numbers = {name: value for name, value in vars(self).items() if name != "cublas"}
        return {"products": self.cublas.value, **numbers}


@dataclass
class Runtime:
    """The functions of cudart and of the driver that CuPy calls, by their names there."""

    counts: Counts = field(default_factory=Counts)
    _memory: dict[int, Any] = field(default_factory=dict)
    _ids: Any = field(default_factory=lambda: itertools.count(1000))

    def malloc(self, size: int, *_: int) -> int:
        whole = np.zeros(size + 2 * ALIGNMENT, np.uint8)
        address = -(-whole.ctypes.data // ALIGNMENT) * ALIGNMENT
        self._memory[address] = whole
        self.counts.allocations += 1
        return address

    def free(self, address: int) -> bool:
        self._memory.pop(address, None)
        return True

    def copy(self, target: int, source: int, size: int, kind: int, *_: int) -> bool:
        ctypes.memmove(target, source, size)
        if kind == HOST_TO_DEVICE:
            self.counts.to_device += 1
        elif kind == DEVICE_TO_HOST:
            self.counts.to_host += 1
        else:
            self.counts.within += 1
        return True

    def fill(self, target: int, value: int, size: int, *_: int) -> bool:
        ctypes.memset(target, value, size)
        return True

    def launch(self, *_: Any) -> bool:
        self.counts.launches += 1
        return True

    def synchronize(self, *_: int) -> bool:
        self.counts.synchronisations += 1
        return True

    def new_id(self, *_: Any) -> int:
        return next(self._ids)

    def functions(self) -> tuple[dict[str, Callable[..., Any]], dict[str, Callable[..., Any]]]:
        """Those of cupy_backends' `runtime`, and those of its `driver`.  A None would not be counted by ctypes: what gives nothing gives True."""

        def nothing(*_: Any) -> bool:
            return True

        def zero(*_: Any) -> int:
            return 0

        runtime = {
            **dict.fromkeys(("deviceSynchronize", "streamSynchronize", "eventSynchronize"), self.synchronize),
            **dict.fromkeys(("setDevice", "_deviceEnsurePeerAccess", "deviceEnablePeerAccess", "_ensure_context"), nothing),
            **dict.fromkeys(("eventDestroy", "eventRecord", "streamDestroy", "streamWaitEvent"), nothing),
            **dict.fromkeys(
                ("eventCreate", "eventCreateWithFlags", "streamCreate", "streamCreateWithFlags", "streamCreateWithPriority"), self.new_id
            ),
            **dict.fromkeys(("getDevice", "deviceCanAccessPeer", "streamIsCapturing", "pointerGetMemoryType"), zero),
            **dict.fromkeys(("eventQuery", "streamQuery"), zero),
            **dict.fromkeys(("driverGetVersion", "runtimeGetVersion"), lambda *_: VERSION),
            **dict.fromkeys(("malloc", "hostAlloc"), self.malloc),
            **dict.fromkeys(("free", "freeHost"), self.free),
            **dict.fromkeys(("memcpy", "memcpyAsync"), self.copy),
            **dict.fromkeys(("memset", "memsetAsync"), self.fill),
            "getDeviceCount": lambda *_: 1,
            "_getCUDAMajorVersion": lambda *_: VERSION // 1000,
            "deviceGetAttribute": lambda attribute, *_: ATTRIBUTES.get(attribute, 0),
            "deviceGetPCIBusId": lambda *_: "0000:00:00.0",
            "memGetInfo": lambda *_: (1 << 37, 1 << 37),
            "getDeviceProperties": lambda *_: {
                "name": b"none",
                "totalGlobalMem": 1 << 37,
                "gcnArchName": b"",
                "major": 9,
                "minor": 0,
                "warpSize": 32,
            },
        }
        driver = {
            "launchKernel": self.launch,
            **dict.fromkeys(("moduleUnload", "funcSetAttribute"), nothing),
            **dict.fromkeys(("moduleLoadData", "moduleGetFunction", "ctxGetCurrent"), self.new_id),
            **dict.fromkeys(("funcGetAttribute", "ctxGetDevice"), zero),
        }
        return runtime, driver


def missing() -> str:
    """What this needs and the machine lacks; "" if nothing."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed: pip install '.[gpu-checks]'"
    if compiler() is None:
        return "there is no C compiler (cc) to build the names of cuBLAS with"
    return ""


def compiler() -> str | None:
    return shutil.which(os.environ.get("CC", "cc"))


def blas(folder: Path) -> ctypes.c_long:
    """Load a library with the names of cuBLAS that CuPy wants; CuPy's own request for it then finds this one.  Gives its count of products."""
    spec = importlib.util.find_spec("cupy_backends.cuda.libs.cublas")
    assert spec is not None and spec.origin is not None
    names = sorted(set(re.findall(rb"\0(cublas[A-Z]\w*)(?=\0)", Path(spec.origin).read_bytes())))
    functions = ["long products;", "int cublasCreate_v2(void **handle) { *handle = (void *)1; return 0; }"]
    for name in (n.decode() for n in names if n != b"cublasCreate_v2"):
        functions.append(f"int {name}(void) {{ {'' if ORGANISING.match(name) else 'products++; '}return 0; }}")
    source, versions, library = folder / "cublas.c", folder / "cublas.map", folder / "libcublas.so.13"
    source.write_text("\n".join(functions) + "\n")
    versions.write_text("libcublas.so.13 { global: *; };\n")
    made = [
        compiler() or "cc",
        "-shared",
        "-fPIC",
        f"-Wl,--version-script={versions}",
        f"-Wl,-soname,{library.name}",
        str(source),
        "-o",
        str(library),
    ]
    subprocess.run(made, check=True, capture_output=True, timeout=60)
    loaded = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    importlib.import_module("cupy_backends.cuda.libs.cublas")  # directly: by the way that CuPy takes, all of CUDA would be looked for
    return ctypes.c_long.in_dll(loaded, "products")


_kept: list[Any] = []
_real: dict[str, Any] = {}
_api = ctypes.pythonapi
_api.PyCapsule_GetName.restype, _api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
_api.PyCapsule_New.restype, _api.PyCapsule_New.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def _replace(module: Any, name: str, function: Callable[..., Any]) -> None:
    """The function, for Python and for other compiled modules."""
    setattr(module, name, function)
    table = module.__pyx_capi__
    if name not in table:
        return
    declared = ctypes.create_string_buffer(_api.PyCapsule_GetName(table[name]))
    match = re.fullmatch(r"(.*?) ?\((.*)\)", declared.value.decode())
    assert match is not None, declared.value
    arguments = [] if match[2] == "void" else [a.strip() for a in match[2].split(",")]
    skipped = sum("__pyx" in a for a in arguments)
    types = [C_TYPES.get(a, ctypes.c_void_p if "*" in a else ctypes.c_int) for a in arguments]

    def called(*given: Any) -> Any:
        return function(*given[: len(given) - skipped])

    callback = ctypes.CFUNCTYPE(C_TYPES[match[1]], *types)(called)
    _kept.extend((callback, declared))
    table[name] = _api.PyCapsule_New(ctypes.cast(callback, ctypes.c_void_p), declared, None)


def compile_for(architecture: str, text: str, options: tuple[str, ...], name: str) -> Any:
    """The binary code of a text, by NVRTC."""
    return _real["compile"](text, options, architecture, name)[0]


def install(folder: Path) -> tuple[Counts, dict[str, tuple[str, ...]]]:
    """What is counted, and text -> options of every kernel that is compiled; `folder` is for what has to be built."""
    os.environ["CUPY_ACCELERATORS"] = ""
    os.environ["JOBFLOW_CACHE"] = str(folder / "cache")  # no text is known from earlier, and no GPU may find what stands here for binary code
    here = Runtime()
    runtime = importlib.import_module("cupy_backends.cuda.api.runtime")
    driver = importlib.import_module("cupy_backends.cuda.api.driver")
    for module, functions in zip((runtime, driver), here.functions(), strict=True):
        for name, function in functions.items():
            _replace(module, name, function)
    here.counts.cublas = blas(folder)
    importlib.import_module("cupy")
    compiling = importlib.import_module("cupy.cuda.compiler")
    loading = importlib.import_module("cupy.cuda.function")
    sorting = importlib.import_module("cupy.cuda.thrust")
    texts: dict[str, tuple[str, ...]] = {}

    def compile_(source: str, options: tuple[str, ...], *_: Any, **__: Any) -> Any:
        texts[source] = tuple(options)
        module = loading.Module()
        module.load(b"a kernel")
        return module

    def compile_text(source: str, options: tuple[str, ...], *_: Any, **__: Any) -> Any:
        texts[source] = tuple(options)
        return b"a kernel", {}

    compiling._compile_with_cache_cuda = compile_
    _real["compile"] = compiling.compile_using_nvrtc
    compiling.compile_using_nvrtc = compile_text
    compiling._get_arch = lambda: "90"
    for name in ("sort", "argsort", "lexsort"):
        setattr(sorting, name, here.launch)
    return here.counts, texts
