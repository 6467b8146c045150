"""cublasLt through ctypes: the shared library, its functions, and the constants that jobflow passes to them.

cublasLt computes D = alpha A B + beta C on column-major matrices, followed by an epilogue such as a bias.  CuPy has no functions for it.  The library
is part of every CUDA toolkit, and of the wheel `nvidia-cublas`.  It is used at binding, for descriptors and algorithms, and for each product.

Constants have the values of the public headers cublasLt.h and cublas_api.h of CUDA 13.1; a test compares them, if the wheel is installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
from collections.abc import Iterator
from ctypes import POINTER, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobflowError

#: CUDA major version -> the name of the library, and its folder below the package `nvidia` of the wheels
LIBRARIES = {13: ("libcublasLt.so.13", "cu13/lib"), 12: ("libcublasLt.so.12", "cublas/lib")}
#: environment variables with the folder of a CUDA toolkit, as CuPy reads them
TOOLKITS = ("CUDA_PATH", "CUDA_HOME")
INSTALL = 'pip install "jobflow-sbp[gpu-fast]"'

#: cudaDataType of library_types.h: CUDA_R_32F, CUDA_R_64F, CUDA_R_16F, CUDA_R_16BF
DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
#: cublasComputeType_t of cublas_api.h: CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_64F, CUBLAS_COMPUTE_32F_FAST_TF32
COMPUTE_32F, COMPUTE_64F, COMPUTE_TF32 = 68, 70, 77
#: cublasLtMatrixLayoutAttribute_t; the type, the rows and columns, and the leading dimension are arguments of cublasLtMatrixLayoutCreate
LAYOUT_BATCH_COUNT, LAYOUT_BATCH_OFFSET = 5, 6
#: cublasLtMatmulDescAttributes_t: TRANSA, TRANSB, EPILOGUE, BIAS_POINTER, EPILOGUE_AUX_POINTER, EPILOGUE_AUX_LD, BIAS_DATA_TYPE
PRODUCT_TRANSPOSES_A, PRODUCT_TRANSPOSES_B, PRODUCT_EPILOGUE, PRODUCT_BIAS = 3, 4, 7, 8
PRODUCT_AUX, PRODUCT_AUX_LEADING, PRODUCT_BIAS_TYPE = 11, 12, 26
#: cublasLtEpilogue_t; GELU is the approximation by tanh
EPILOGUES = {
    "": 1,  # CUBLASLT_EPILOGUE_DEFAULT
    "bias": 4,  # CUBLASLT_EPILOGUE_BIAS
    "gelu": 32,  # CUBLASLT_EPILOGUE_GELU
    "gelu bias": 36,  # CUBLASLT_EPILOGUE_GELU_BIAS
    "gelu aux": 160,  # CUBLASLT_EPILOGUE_GELU_AUX
    "gelu aux bias": 164,  # CUBLASLT_EPILOGUE_GELU_AUX_BIAS
    "dgelu": 192,  # CUBLASLT_EPILOGUE_DGELU
    "dgelu sums": 208,  # CUBLASLT_EPILOGUE_DGELU_BGRAD
    "sums a": 256,  # CUBLASLT_EPILOGUE_BGRADA
    "sums b": 512,  # CUBLASLT_EPILOGUE_BGRADB
}
#: cublasLtMatmulPreferenceAttributes_t: MAX_WORKSPACE_BYTES, REDUCTION_SCHEME_MASK, MIN_ALIGNMENT_A_BYTES to MIN_ALIGNMENT_D_BYTES
PREFER_WORKSPACE, PREFER_REDUCTIONS, PREFER_ALIGNMENTS = 1, 3, (5, 6, 7, 8)
#: cublasLtReductionScheme_t: CUBLASLT_REDUCTION_SCHEME_NONE, and CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
REDUCE_NOTHING, REDUCE_IN_COMPUTE_TYPE = 0, 2
#: cublasLtMatmulAlgoConfigAttributes_t: SPLITK_NUM, REDUCTION_SCHEME
ALGORITHM_SPLITS, ALGORITHM_REDUCTION = 2, 3
#: cublasStatus_t of cublas_api.h
STATUSES = {
    1: "CUBLAS_STATUS_NOT_INITIALIZED",
    3: "CUBLAS_STATUS_ALLOC_FAILED",
    7: "CUBLAS_STATUS_INVALID_VALUE",
    8: "CUBLAS_STATUS_ARCH_MISMATCH",
    11: "CUBLAS_STATUS_MAPPING_ERROR",
    13: "CUBLAS_STATUS_EXECUTION_FAILED",
    14: "CUBLAS_STATUS_INTERNAL_ERROR",
    15: "CUBLAS_STATUS_NOT_SUPPORTED",
    16: "CUBLAS_STATUS_LICENSE_ERROR",
}
NOT_SUPPORTED = 15


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t: plain data, which the same version of the library may read again in another process."""

    _fields_ = [("data", c_uint64 * 8)]


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm, the workspace that it needs in bytes, and the status of this result."""

    _fields_ = [("algorithm", Algorithm), ("workspace", c_size_t), ("state", c_int), ("waves", c_float), ("reserved", c_int * 4)]


#: argument types of the functions, which return a cublasStatus_t; handles and descriptors are pointers
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (POINTER(c_void_p),),
    "cublasLtDestroy": (c_void_p,),
    "cublasLtMatmulDescCreate": (POINTER(c_void_p), c_int, c_int),
    "cublasLtMatmulDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulDescDestroy": (c_void_p,),
    "cublasLtMatrixLayoutCreate": (POINTER(c_void_p), c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatrixLayoutDestroy": (c_void_p,),
    "cublasLtMatmulPreferenceCreate": (POINTER(c_void_p),),
    "cublasLtMatmulPreferenceSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulPreferenceDestroy": (c_void_p,),
    "cublasLtMatmulAlgoGetHeuristic": (*[c_void_p] * 7, c_int, POINTER(HeuristicResult), POINTER(c_int)),
    "cublasLtMatmulAlgoCheck": (*[c_void_p] * 6, POINTER(Algorithm), POINTER(HeuristicResult)),
    "cublasLtMatmulAlgoConfigGetAttribute": (POINTER(Algorithm), c_int, c_void_p, c_size_t, POINTER(c_size_t)),
    # handle, product, alpha, A and its layout, B and its layout, beta, C and its layout, D and its layout, algorithm, workspace, bytes, stream
    "cublasLtMatmul": (*[c_void_p] * 12, POINTER(Algorithm), c_void_p, c_size_t, c_void_p),
}
#: descriptor kinds: prefix of the functions that create and destroy the kind
PRODUCT, LAYOUT, PREFERENCE = "cublasLtMatmulDesc", "cublasLtMatrixLayout", "cublasLtMatmulPreference"


class CublasLt:
    """The loaded library; `version` is, for example, 130100 for cuBLAS 13.1."""

    def __init__(self, library: ctypes.CDLL, path: str) -> None:
        self.path = path
        self._functions: dict[str, Any] = {}
        for name, arguments in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int32
            self._functions[name] = function
        library.cublasLtGetVersion.argtypes, library.cublasLtGetVersion.restype = (), c_size_t
        self.version = int(library.cublasLtGetVersion())
        self.multiply = self._functions["cublasLtMatmul"]

    @property
    def version_text(self) -> str:
        return f"{self.version // 10000}.{self.version % 10000 // 100}"

    def status(self, name: str, *arguments: Any) -> int:
        """Call a function and return its status."""
        return int(self._functions[name](*arguments))

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function.  Raises: JobflowError if its status is not success."""
        check(self.status(name, *arguments), name)

    def created(self, kind: str, *arguments: Any) -> c_void_p:
        """Return a new descriptor of this kind, which the caller destroys by `destroy`."""
        pointer = c_void_p()
        self.call(f"{kind}Create", ctypes.byref(pointer), *arguments)
        return pointer

    def destroy(self, kind: str, pointer: c_void_p) -> None:
        self.call(f"{kind}Destroy", pointer)

    def assign(self, kind: str, pointer: c_void_p, attribute: int, value: Any) -> None:
        """Set an attribute of a descriptor to a ctypes value, whose size must be the size of the attribute."""
        self.call(f"{kind}SetAttribute", pointer, attribute, ctypes.byref(value), ctypes.sizeof(value))

    def handle(self) -> c_void_p:
        """Return a new handle for the current GPU."""
        pointer = c_void_p()
        self.call("cublasLtCreate", ctypes.byref(pointer))
        return pointer


def check(status: int, name: str) -> None:
    """Raise JobflowError with the name of the function and of the status, unless the status is success."""
    if status:
        raise JobflowError(f"{name}: {STATUSES.get(status, 'unknown status')} ({status}); run `jobflow doctor` and update cuBLAS")


@dataclass(frozen=True)
class LibrarySearch:
    """The library, or the reason why there is none."""

    library: CublasLt | None
    reason: str = ""


@cache
def find() -> LibrarySearch:
    """Load the library that belongs to CuPy's CUDA version: the one that CuPy loaded, or the one of a wheel or of a toolkit."""
    if importlib.util.find_spec("cupy") is None:
        return LibrarySearch(None, "CuPy is not installed")
    major = int(importlib.import_module("cupy").cuda.runtime.runtimeGetVersion()) // 1000
    if major not in LIBRARIES:
        return LibrarySearch(None, f"jobflow has no name of cublasLt for CUDA {major}")
    for path in _paths(*LIBRARIES[major]):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        try:
            return LibrarySearch(CublasLt(library, path))
        except AttributeError as error:
            return LibrarySearch(None, f"{path} is not a cublasLt of CUDA {major}: {error}")
    return LibrarySearch(None, f"{LIBRARIES[major][0]} is not installed")


def _paths(name: str, folder: str) -> Iterator[str]:
    """Yield the paths at which to load the library.  A bare name is the library that the process has loaded, or one of the system."""
    with contextlib.suppress(ImportError, OSError):  # without CuPy's cuBLAS, the library may still be in a wheel
        importlib.import_module("cupy_backends.cuda.libs.cublas")  # loads the cublasLt of the same version
    yield name
    wheels = importlib.util.find_spec("nvidia")
    for base in (wheels.submodule_search_locations or ()) if wheels is not None else ():
        yield str(Path(base) / folder / name)
    for toolkit in filter(None, map(os.environ.get, TOOLKITS)):
        yield str(Path(toolkit) / "lib64" / name)
