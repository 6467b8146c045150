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
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

import cublaslt
from captures import error
from cuda_calls import ALIGNMENT, C_SOURCE, IN_C, MEMORY, TRAMPOLINES, Counts, Runtime

#: a status of CUDA
MEMORY_ALLOCATION = 2
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


def missing() -> str:
    """Return the missing requirement of the stub, or ""."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed: pip install '.[gpu-checks]'"
    if compiler() is None:
        return "C compiler cc not found; install gcc or clang, or set CC"
    return ""


def compiler() -> str | None:
    return shutil.which(os.environ.get("CC", "cc"))


def _compile(source: str, target: Path) -> None:
    """Compile C code to a shared library, whose name is that of its file."""
    with tempfile.TemporaryDirectory(dir=target.parent) as private:
        text, versions, shared_object = (Path(private) / name for name in ("stub.c", "stub.map", "stub.so"))
        text.write_text(source)
        versions.write_text(f"{target.name} {{ global: *; }};\n")
        options = ["-shared", "-fPIC", "-O1", f"-Wl,--version-script={versions}", f"-Wl,-soname,{target.name}"]
        subprocess.run([compiler() or "cc", *options, str(text), "-o", str(shared_object)], check=True, capture_output=True, timeout=60)
        shared_object.replace(target)


def library(folder: Path) -> Path:
    """Compile C_SOURCE and the names of cuBLAS that CuPy links against to `folder`, unless an earlier process did."""
    target = folder / "libcublas.so.13"
    if target.exists():
        return target
    spec = importlib.util.find_spec("cupy_backends.cuda.libs.cublas")
    assert spec is not None and spec.origin is not None
    names = sorted(set(re.findall(rb"\0(cublas[A-Z]\w*)(?=\0)", Path(spec.origin).read_bytes())))
    functions = [f"#define ALIGNMENT {ALIGNMENT}", f"#define TRAMPOLINES {TRAMPOLINES}", C_SOURCE]
    functions += [f"TRAMPOLINE({k})" for k in range(TRAMPOLINES)]
    for name in (n.decode() for n in names if n != b"cublasCreate_v2"):
        functions.append(f"int {name}(void) {{ {'' if ORGANISING.match(name) else '__sync_fetch_and_add(&products, 1); '}return 0; }}")
    _compile(cublaslt.source(), folder / cublaslt.NAME)
    _compile("\n".join([*functions, ""]), target)  # last: it stands for both
    return target


def _load(folder: Path) -> ctypes.PyDLL:
    """Load the library; CuPy's request for cuBLAS then finds this one.  Its functions need the interpreter lock, because they raise errors."""
    loaded = ctypes.PyDLL(str(library(folder)), mode=ctypes.RTLD_GLOBAL)
    loaded.stub_malloc.restype, loaded.stub_malloc.argtypes = ctypes.c_ssize_t, [ctypes.c_size_t]
    loaded.stub_host_malloc.restype, loaded.stub_host_malloc.argtypes = ctypes.c_ssize_t, [ctypes.c_size_t]
    loaded.stub_release.restype, loaded.stub_release.argtypes = None, [ctypes.c_ssize_t]
    loaded.stub_fill.restype, loaded.stub_fill.argtypes = None, [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_size_t]
    loaded.stub_was_refused.restype, loaded.stub_was_refused.argtypes = ctypes.c_long, []
    for name, arguments in {"stub_set_error": (), "stub_refuse": (), "stub_set_limit": (ctypes.c_long,)}.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = None, [*arguments, ctypes.py_object, ctypes.py_object]
    return loaded


def _load_cublaslt(path: Path, product: Callable[[int], int]) -> None:
    """Load cublasLt before CuPy and jobflow request it by name."""
    loaded = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_ssize_t)(product)
    _live_callbacks.extend((loaded, callback))
    ctypes.c_void_p.in_dll(loaded, "stub_product").value = ctypes.cast(callback, ctypes.c_void_p).value


_live_callbacks: list[Any] = []
_trampolines = itertools.count()
_real: dict[str, Any] = {}
_api = ctypes.pythonapi
_api.PyCapsule_GetName.restype, _api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
_api.PyCapsule_New.restype, _api.PyCapsule_New.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def _replace(module: Any, name: str, function: Callable[..., Any], loaded: ctypes.PyDLL) -> None:
    """Replace a function for Python, and for other compiled modules."""
    setattr(module, name, function)
    table = module.__pyx_capi__
    if name not in table:
        return
    declared = ctypes.create_string_buffer(_api.PyCapsule_GetName(table[name]))
    callback = getattr(loaded, IN_C[name]) if name in IN_C else _callback(declared.value.decode(), name, function, loaded)
    _live_callbacks.extend((callback, declared))
    table[name] = _api.PyCapsule_New(ctypes.cast(callback, ctypes.c_void_p), declared, None)


def _callback(declared: str, name: str, function: Callable[..., Any], loaded: ctypes.PyDLL) -> Any:
    """Return a C function of the declared type, which drops Cython's internal arguments and raises the errors of `function`."""
    match = re.fullmatch(r"(.*?) ?\((.*)\)", declared)
    assert match is not None, declared
    arguments = [] if match[2] == "void" else [a.strip() for a in match[2].split(",")]
    skipped = sum("__pyx" in a for a in arguments)
    types = [C_TYPES.get(a, ctypes.c_void_p if "*" in a else ctypes.c_int) for a in arguments]
    result = C_TYPES[match[1]]

    def call(*arguments: Any) -> Any:
        passed = arguments[: len(arguments) - skipped]
        if name == "streamBeginCapture" and arguments[-1]:  # the mode is in a struct of optional arguments, after their number
            passed = (*passed, ctypes.c_int.from_address(arguments[-1] + ctypes.sizeof(ctypes.c_int)).value)
        try:
            return function(*passed)
        except Exception as failure:  # noqa: BLE001 - the C function raises it
            loaded.stub_set_error(type(failure), failure)
            return True

    callback = ctypes.CFUNCTYPE(result, *types)(call)
    if result is ctypes.c_float:
        return callback
    number = next(_trampolines)
    _live_callbacks.append(callback)
    (ctypes.c_void_p * TRAMPOLINES).in_dll(loaded, "stub_callbacks")[number] = ctypes.cast(callback, ctypes.c_void_p).value
    return getattr(loaded, f"stub_call_{number}")


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
    limit = int(os.environ.get("JOBFLOW_GPU_STUB_MEMORY", MEMORY))
    full = error(MEMORY_ALLOCATION)
    counts.library.stub_set_limit(limit, type(full), full)
    calls = Runtime(counts)
    _load_cublaslt(folder / cublaslt.NAME, calls.product)
    for module, functions in zip((runtime, driver), calls.functions(), strict=True):
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
