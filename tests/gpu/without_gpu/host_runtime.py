"""A stub GPU: real CuPy on a machine without a GPU, on top of a CUDA runtime in host memory.

    import host_runtime
    counts, texts = host_runtime.install(folder)      # before the first `import cupy`

CuPy's host code runs unchanged: type resolution, strides, memory pools, streams, kernel generation.  Copies are carried out.  Kernels and
products are only counted; outputs keep previous memory contents.  CuPy's reductions use CUB, as on a machine with a GPU.

CuPy's compiled modules call each other through tables of C functions (`__pyx_capi__`), in which every entry names its C type.  `install`
replaces the entries that a step needs.  `library` compiles the functions that CuPy calls while the interpreter exits, with the
system's C compiler. It also has the names of cuBLAS, which CuPy links against.

Programs that start other programs use `site/sitecustomize.py`, which installs the stub in each of them.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VERSION = 13000
#: bytes; the alignment of what cudaMalloc gives
ALIGNMENT = 512
#: a GPU of compute capability 9.0 with 132 multiprocessors, by the numbers of cudaDeviceAttr
ATTRIBUTES = {75: 9, 76: 0, 16: 132, 10: 32, 1: 1024, 8: 49152}
HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
#: cuBLAS functions other than products
ORGANISING = re.compile(r"cublas(Create|Destroy|Get|Set)(?!r[fis]Batched)")
C_TYPES: dict[str, Any] = {
    "PyObject *": ctypes.py_object,
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "intptr_t": ctypes.c_ssize_t,
    "size_t": ctypes.c_size_t,
    "float": ctypes.c_float,
}
#: written in C because CuPy calls them while the interpreter exits, when no Python function can run
C_SOURCE = """
#include <stdint.h>
#include <stdlib.h>
extern struct _object _Py_NoneStruct;
void Py_IncRef(struct _object *);
long allocations, products;
static void *none(void) { Py_IncRef(&_Py_NoneStruct); return &_Py_NoneStruct; }
intptr_t stub_malloc(size_t size) {
    char *whole = calloc(size + 2 * ALIGNMENT, 1);
    if (!whole) return 0;
    char *start = (char *)(((uintptr_t)whole / ALIGNMENT + 1) * ALIGNMENT);
    ((void **)start)[-1] = whole;
    __sync_fetch_and_add(&allocations, 1);
    return (intptr_t)start;
}
void stub_release(intptr_t start) { if (start) free(((void **)start)[-1]); }
void *stub_free(intptr_t start) { stub_release(start); return none(); }
void *stub_none(void) { return none(); }
int stub_zero(void) { return 0; }
int cublasCreate_v2(void **handle) { *handle = (void *)1; return 0; }
"""
#: functions of CuPy's `runtime` and `driver` -> functions of C_SOURCE
IN_C = {
    **dict.fromkeys(("malloc", "hostAlloc"), "stub_malloc"),
    **dict.fromkeys(("free", "freeHost"), "stub_free"),
    **dict.fromkeys(("eventDestroy", "streamDestroy", "moduleUnload", "setDevice", "_ensure_context"), "stub_none"),
    "getDevice": "stub_zero",
}


@dataclass
class Counts:
    """Calls of the GPU since the stub was installed."""

    library: ctypes.CDLL
    launches: int = 0
    synchronisations: int = 0
    to_device: int = 0
    to_host: int = 0
    within: int = 0

    def now(self) -> dict[str, int]:
        in_python = {name: value for name, value in vars(self).items() if name != "library"}
        return {name: ctypes.c_long.in_dll(self.library, name).value for name in ("products", "allocations")} | in_python


@dataclass
class Runtime:
    """The functions of cudart and of the driver that CuPy calls, by their names there."""

    counts: Counts
    _ids: Any = field(default_factory=lambda: itertools.count(1000))

    def malloc(self, size: int, *_: int) -> int:
        return int(self.counts.library.stub_malloc(size))

    def free(self, address: int) -> bool:
        self.counts.library.stub_release(address)
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
        """Return replacements for CuPy's runtime and driver functions.

        Those without a result return True, because ctypes cannot return None as a Python object.
        """

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
            "eventElapsedTime": lambda *_: 1.0,
            **dict.fromkeys(("profilerStart", "profilerStop"), nothing),
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
    """Return the missing requirement of the stub, or ""."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed: pip install '.[gpu-checks]'"
    if compiler() is None:
        return "C compiler cc not found; install gcc or clang, or set CC"
    return ""


def compiler() -> str | None:
    return shutil.which(os.environ.get("CC", "cc"))


def library(folder: Path) -> Path:
    """Compile C_SOURCE and the names of cuBLAS that CuPy links against to `folder`, unless an earlier process did."""
    target = folder / "libcublas.so.13"
    if target.exists():
        return target
    spec = importlib.util.find_spec("cupy_backends.cuda.libs.cublas")
    assert spec is not None and spec.origin is not None
    names = sorted(set(re.findall(rb"\0(cublas[A-Z]\w*)(?=\0)", Path(spec.origin).read_bytes())))
    functions = [f"#define ALIGNMENT {ALIGNMENT}", C_SOURCE]
    for name in (n.decode() for n in names if n != b"cublasCreate_v2"):
        functions.append(f"int {name}(void) {{ {'' if ORGANISING.match(name) else '__sync_fetch_and_add(&products, 1); '}return 0; }}")
    with tempfile.TemporaryDirectory(dir=folder) as private:
        source, versions, shared_object = (Path(private) / name for name in ("stub.c", "stub.map", "stub.so"))
        source.write_text("\n".join(functions) + "\n")
        versions.write_text(f"{target.name} {{ global: *; }};\n")
        options = ["-shared", "-fPIC", "-O1", f"-Wl,--version-script={versions}", f"-Wl,-soname,{target.name}"]
        subprocess.run([compiler() or "cc", *options, str(source), "-o", str(shared_object)], check=True, capture_output=True, timeout=60)
        shared_object.replace(target)
    return target


def _load(folder: Path) -> ctypes.CDLL:
    """Load the library; CuPy's request for cuBLAS then finds this one."""
    loaded = ctypes.CDLL(str(library(folder)), mode=ctypes.RTLD_GLOBAL)
    loaded.stub_malloc.restype, loaded.stub_malloc.argtypes = ctypes.c_ssize_t, [ctypes.c_size_t]
    loaded.stub_release.restype, loaded.stub_release.argtypes = None, [ctypes.c_ssize_t]
    return loaded


_live_callbacks: list[Any] = []
_real: dict[str, Any] = {}
_api = ctypes.pythonapi
_api.PyCapsule_GetName.restype, _api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
_api.PyCapsule_New.restype, _api.PyCapsule_New.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def _replace(module: Any, name: str, function: Callable[..., Any], loaded: ctypes.CDLL) -> None:
    """Replace a function for Python, and for other compiled modules."""
    setattr(module, name, function)
    table = module.__pyx_capi__
    if name not in table:
        return
    declared = ctypes.create_string_buffer(_api.PyCapsule_GetName(table[name]))
    callback = getattr(loaded, IN_C[name]) if name in IN_C else _callback(declared.value.decode(), function)
    _live_callbacks.extend((callback, declared))
    table[name] = _api.PyCapsule_New(ctypes.cast(callback, ctypes.c_void_p), declared, None)


def _callback(declared: str, function: Callable[..., Any]) -> Any:
    """Return a C callback of the declared type that drops Cython's internal arguments."""
    match = re.fullmatch(r"(.*?) ?\((.*)\)", declared)
    assert match is not None, declared
    arguments = [] if match[2] == "void" else [a.strip() for a in match[2].split(",")]
    skipped = sum("__pyx" in a for a in arguments)
    types = [C_TYPES.get(a, ctypes.c_void_p if "*" in a else ctypes.c_int) for a in arguments]

    def call(*arguments: Any) -> Any:
        return function(*arguments[: len(arguments) - skipped])

    return ctypes.CFUNCTYPE(C_TYPES[match[1]], *types)(call)


def compile_for(architecture: str, text: str, options: tuple[str, ...], name: str) -> Any:
    """Compile a text by NVRTC and return the binary code."""
    return _real["compile"](text, options, architecture, name)[0]


def install(folder: Path, texts_folder: Path | None = None) -> tuple[Counts, dict[str, tuple[str, ...]]]:
    """Install the stub, and return its counts and {text: options} of every kernel that is compiled from now on.

    `folder` holds the compiled library.  Each text is also saved to `texts_folder`, if that is set, as soon as it is compiled.
    """
    counts = before_cupy(folder)
    importlib.import_module("cupy")
    return counts, after_cupy(counts, texts_folder)


def before_cupy(folder: Path) -> Counts:
    os.environ["JOBFLOW_CACHE"] = str(folder / "cache")  # private: a machine with a GPU must not read the placeholders for binary code
    runtime = importlib.import_module("cupy_backends.cuda.api.runtime")
    driver = importlib.import_module("cupy_backends.cuda.api.driver")
    counts = Counts(_load(folder))
    for module, functions in zip((runtime, driver), Runtime(counts).functions(), strict=True):
        for name, function in functions.items():
            _replace(module, name, function, counts.library)
    # after the replacements, which it copies; directly, because CuPy's own import would search for all of CUDA
    importlib.import_module("cupy_backends.cuda.libs.cublas")
    return counts


def after_cupy(counts: Counts, texts_folder: Path | None = None) -> dict[str, tuple[str, ...]]:
    compiling = importlib.import_module("cupy.cuda.compiler")
    loading = importlib.import_module("cupy.cuda.function")
    texts: dict[str, tuple[str, ...]] = {}

    def keep(source: str, options: tuple[str, ...]) -> None:
        if source not in texts:
            texts[source] = tuple(options)
            if texts_folder is not None:
                save({source: texts[source]}, texts_folder)

    def compile_(source: str, options: tuple[str, ...], *_: Any, **__: Any) -> Any:
        keep(source, options)
        module = loading.Module()
        module.load(b"a kernel")
        return module

    def compile_text(source: str, options: tuple[str, ...], *_: Any, **__: Any) -> Any:
        keep(source, options)
        return b"a kernel", {}

    compiling._compile_with_cache_cuda = compile_
    _real["compile"] = compiling.compile_using_nvrtc
    compiling.compile_using_nvrtc = compile_text
    compiling._get_arch = lambda: "90"
    _count_compiled_kernels(counts)
    return texts


def _count_compiled_kernels(counts: Counts) -> None:
    """Count launches of kernels precompiled in CuPy's wheel, which never pass through `launchKernel`: Thrust and CUB."""

    def launch(*_: Any, **__: Any) -> None:
        counts.launches += 1

    sorting = importlib.import_module("cupy.cuda.thrust")
    for name in ("sort", "argsort", "lexsort"):
        setattr(sorting, name, launch)
    reducing = importlib.import_module("cupy.cuda.cub")
    for name in ("device_reduce", "device_segmented_reduce", "device_scan", "device_histogram"):
        setattr(reducing, name, _counted(getattr(reducing, name), launch))


def _counted(function: Callable[..., Any], count: Callable[[], None]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        count()
        return function(*arguments, **options)

    return call


def save(texts: dict[str, tuple[str, ...]], folder: Path) -> None:
    """Save each text to a file named by its hash; complete files only, so several processes may save to one folder."""
    for text, options in texts.items():
        target = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
        if not target.exists():
            private = target.with_suffix(f".{os.getpid()}")
            private.write_text(json.dumps({"text": text, "options": options}))
            private.replace(target)
