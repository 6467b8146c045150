"""Prepared calls of cublasLt: descriptors made at binding, and one algorithm for each product.

The algorithm is chosen before a step runs, because cublasLt cannot propose algorithms while a stream is captured.  It proposes up to eight.
In a program of one rank, they are timed on the GPU.  The kernel cache keeps the fastest, by the version of the library, the GPU and the shapes.
Programs of several ranks, and deterministic ones, use the first proposal: ranks that compute the same value must compute the same bits.
A call that fails raises an error; no other algorithm takes its place.

Split-K algorithms sum in float32 at most, and only if k is a multiple of 128: some versions of cublasLt drop the rest of k otherwise.
Deterministic programs use none.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, replace
from functools import cache
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobflowError
from jobflow.core.types import Array
from jobflow.kernels.cuda import cublaslt_library as lt
from jobflow.kernels.cuda.cublaslt_library import Algorithm, CublasLt, HeuristicResult
from jobflow.kernels.object_cache import ObjectCache
from jobflow.kernels.target import ProductMode
from jobflow.ops.op import Call

#: bytes of the workspace of a stream, the size that cuBLAS uses on compute capability 9.0
WORKSPACE = 32 << 20
#: proposals of cublasLt that are timed, and launches of each
PROPOSALS, LAUNCHES = 8, 5
#: split-K needs k to be a multiple of this; the largest block of k
SPLIT_MULTIPLE = 128
#: alignments in bytes that distinguish problems
ALIGNMENTS = (256, 16, 8, 4, 2, 1)


@dataclass(frozen=True)
class Problem:
    """A product D = A B + C of column-major matrices with an epilogue.  Equal problems have one algorithm.

    Tuples of four are for A, B, C and D; strides are in elements.
    """

    #: sizes of D, and of the summed axis
    rows: int
    columns: int
    depth: int
    #: True for A, and for B, if the matrix in memory is the transpose
    transposed: tuple[bool, bool]
    leading: tuple[int, int, int, int]
    #: number of products in a batch, and the distances of two of them
    count: int
    steps: tuple[int, int, int, int]
    #: element types of A and B, and of C and D
    operands: str
    result: str
    #: a key of `EPILOGUES`
    epilogue: str = ""
    #: True if C is added, and if C is D
    adds: bool = False
    in_place: bool = False
    #: leading dimension of the epilogue's matrix, or 0
    aux_leading: int = 0
    #: alignments of the addresses, in bytes
    alignments: tuple[int, int, int, int] = (256, 256, 256, 256)

    def __str__(self) -> str:
        what = f" with {self.epilogue}" if self.epilogue else ""
        return f"{self.count} x {self.operands}[{self.columns},{self.depth}] x [{self.depth},{self.rows}] in {self.result}{what}"


@dataclass(frozen=True)
class Pointers:
    """Addresses of the operands; `vector` is the bias or the sums, and `aux` the matrix of the epilogue; 0 for none."""

    a: int
    b: int
    c: int
    d: int
    vector: int = 0
    aux: int = 0


class Descriptors:
    """The descriptors of one call: the product, and the layouts of A, B, C and D."""

    def __init__(self, library: CublasLt, problem: Problem, mode: ProductMode, pointers: Pointers) -> None:
        self.library = library
        double = problem.operands == "float64"
        single = lt.COMPUTE_TF32 if mode.tf32 and problem.operands == "float32" else lt.COMPUTE_32F
        scale = lt.DATA_TYPES["float64" if double else "float32"]
        self._pointers: list[tuple[str, ctypes.c_void_p]] = []
        weakref.finalize(self, _destroy, library, self._pointers)
        self.product = self._created(lt.PRODUCT, lt.COMPUTE_64F if double else single, scale)
        self.point_to(problem, pointers)
        self.layouts = tuple(self._layout(problem, operand) for operand in range(4))

    def _created(self, kind: str, *arguments: Any) -> ctypes.c_void_p:
        pointer = self.library.created(kind, *arguments)
        self._pointers.append((kind, pointer))
        return pointer

    def point_to(self, problem: Problem, pointers: Pointers) -> None:
        """Set the epilogue and its addresses."""
        values: list[tuple[int, Any]] = [
            (lt.PRODUCT_TRANSPOSES_A, ctypes.c_int32(problem.transposed[0])),
            (lt.PRODUCT_TRANSPOSES_B, ctypes.c_int32(problem.transposed[1])),
            (lt.PRODUCT_EPILOGUE, ctypes.c_int32(lt.EPILOGUES[problem.epilogue])),
        ]
        if pointers.vector:
            values.append((lt.PRODUCT_BIAS, ctypes.c_void_p(pointers.vector)))
            values.append((lt.PRODUCT_BIAS_TYPE, ctypes.c_int32(lt.DATA_TYPES[problem.result])))
        if pointers.aux:
            values.append((lt.PRODUCT_AUX, ctypes.c_void_p(pointers.aux)))
            values.append((lt.PRODUCT_AUX_LEADING, ctypes.c_int64(problem.aux_leading)))
        for attribute, value in values:
            self.library.assign(lt.PRODUCT, self.product, attribute, value)

    def _layout(self, problem: Problem, operand: int) -> ctypes.c_void_p:
        """Return the layout of operand 0 to 3: A, B, C, D."""
        sizes = ((problem.rows, problem.depth), (problem.depth, problem.columns), *[(problem.rows, problem.columns)] * 2)[operand]
        if operand < 2 and problem.transposed[operand]:
            sizes = sizes[::-1]
        kind = lt.DATA_TYPES[problem.operands if operand < 2 else problem.result]
        layout = self._created(lt.LAYOUT, kind, *sizes, problem.leading[operand])
        if problem.count > 1:
            self.library.assign(lt.LAYOUT, layout, lt.LAYOUT_BATCH_COUNT, ctypes.c_int32(problem.count))
            self.library.assign(lt.LAYOUT, layout, lt.LAYOUT_BATCH_OFFSET, ctypes.c_int64(problem.steps[operand]))
        return layout


def _destroy(library: CublasLt, pointers: list[tuple[str, ctypes.c_void_p]]) -> None:
    while pointers:
        library.destroy(*pointers.pop())


@dataclass(frozen=True)
class ChosenAlgorithm:
    """The algorithm of a problem, and the workspace that it needs in bytes."""

    algorithm: Algorithm
    workspace: int

    def stored(self) -> bytes:
        return self.workspace.to_bytes(8, "little") + bytes(self.algorithm)


class GpuProducts:
    """cublasLt on one GPU: its handle, a workspace for each stream, and the choice of algorithms."""

    def __init__(self, library: CublasLt, index: int, cache: ObjectCache | None = None) -> None:
        self.library = library
        self._cupy = importlib.import_module("cupy")
        device = self._cupy.cuda.Device(index)
        self._gpu = f"{device.compute_capability} {device.attributes['MultiProcessorCount']}"
        with device:
            self.handle = library.handle()
        self.cache = cache or ObjectCache()
        self._choices: dict[tuple[Problem, ProductMode], ChosenAlgorithm | None] = {}
        self._shared: dict[tuple[Problem, ProductMode], Descriptors] = {}
        self._workspaces: dict[int, Array] = {}
        self._lock = threading.RLock()

    def stream(self) -> int:
        """Return the address of the current stream of this thread, on which prepared calls run."""
        return int(self._cupy.cuda.get_current_stream().ptr)

    def workspace(self, stream: int) -> int:
        """Return the address of the stream's workspace, which is allocated at its first use."""
        memory = self._workspaces.get(stream)
        if memory is None:
            with self._lock:
                memory = self._workspaces.setdefault(stream, self._cupy.empty(WORKSPACE, np.uint8))
        return int(memory.data.ptr)

    def descriptors(self, problem: Problem, mode: ProductMode, pointers: Pointers) -> Descriptors:
        """Return descriptors of a problem; calls without an address in them share one set."""
        if pointers.vector or pointers.aux:
            return Descriptors(self.library, problem, mode, pointers)
        with self._lock:
            if (problem, mode) not in self._shared:
                self._shared[problem, mode] = Descriptors(self.library, problem, mode, pointers)
            return self._shared[problem, mode]

    def choice(self, problem: Problem, mode: ProductMode, pointers: Pointers) -> ChosenAlgorithm | None:
        """Return the algorithm of a problem; None if cublasLt has no algorithm for it."""
        with self._lock:
            key = problem, mode
            if key not in self._choices:
                self._choices[key] = self._lookup(problem, mode, pointers)
            return self._choices[key]

    def _lookup(self, problem: Problem, mode: ProductMode, pointers: Pointers) -> ChosenAlgorithm | None:
        """Return the choice of an earlier process; else choose, and keep the choice for later processes."""
        name = self._key(*astuple(problem), *astuple(mode))
        stored = self.cache.read(name)
        descriptors = self.descriptors(problem, mode, pointers)
        if stored is not None:
            choice = ChosenAlgorithm(Algorithm.from_buffer_copy(stored[8:]), int.from_bytes(stored[:8], "little"))
            self._check(choice, descriptors, problem)
            return choice
        chosen = self._chosen(problem, mode, descriptors, pointers)
        if chosen is not None:
            self.cache.write(name, chosen.stored())
        return chosen

    def _check(self, choice: ChosenAlgorithm, descriptors: Descriptors, problem: Problem) -> None:
        """Raise JobflowError unless cublasLt accepts a stored algorithm."""
        arguments = (self.handle, descriptors.product, *descriptors.layouts, ctypes.byref(choice.algorithm), ctypes.byref(HeuristicResult()))
        status = self.library.status("cublasLtMatmulAlgoCheck", *arguments)
        if status:
            raise JobflowError(
                f"{problem}: cublasLt refuses the stored algorithm with {lt.STATUSES.get(status, status)}; delete the folder {self.cache.folder}"
            )

    def _chosen(self, problem: Problem, mode: ProductMode, descriptors: Descriptors, pointers: Pointers) -> ChosenAlgorithm | None:
        proposals = self.proposals(problem, mode, descriptors)
        if len(proposals) > 1 and mode.timed:
            return self._fastest(problem, mode, proposals, pointers)
        return proposals[0] if proposals else None

    def proposals(self, problem: Problem, mode: ProductMode, descriptors: Descriptors) -> list[ChosenAlgorithm]:
        """Return the algorithms that cublasLt proposes, the fastest by its estimate first."""
        preference = self.library.created(lt.PREFERENCE)
        try:
            reductions = lt.REDUCE_NOTHING if mode.deterministic or problem.depth % SPLIT_MULTIPLE else lt.REDUCE_IN_COMPUTE_TYPE
            values = [(lt.PREFER_WORKSPACE, ctypes.c_uint64(WORKSPACE)), (lt.PREFER_REDUCTIONS, ctypes.c_uint32(reductions))]
            values += [(name, ctypes.c_uint32(n)) for name, n in zip(lt.PREFER_ALIGNMENTS, problem.alignments, strict=True)]
            for attribute, value in values:
                self.library.assign(lt.PREFERENCE, preference, attribute, value)
            results, count = (HeuristicResult * PROPOSALS)(), ctypes.c_int()
            arguments = (self.handle, descriptors.product, *descriptors.layouts, preference, PROPOSALS, results, ctypes.byref(count))
            status = self.library.status("cublasLtMatmulAlgoGetHeuristic", *arguments)
        finally:
            self.library.destroy(lt.PREFERENCE, preference)
        if status == lt.NOT_SUPPORTED:
            return []
        lt.check(status, f"{problem}: cublasLtMatmulAlgoGetHeuristic")
        usable = [result for result in results[: count.value] if result.state == 0 and result.workspace <= WORKSPACE]
        choices = [ChosenAlgorithm(Algorithm.from_buffer_copy(result.algorithm), int(result.workspace)) for result in usable]
        return [choice for choice in choices if self.reduction(choice) in (lt.REDUCE_NOTHING, reductions)]

    def reduction(self, choice: ChosenAlgorithm) -> int:
        """Return the reduction scheme of an algorithm, 0 if it does not split k."""
        splits, scheme = (self._attribute(choice, name) for name in (lt.ALGORITHM_SPLITS, lt.ALGORITHM_REDUCTION))
        return scheme if splits > 1 else lt.REDUCE_NOTHING

    def _attribute(self, choice: ChosenAlgorithm, name: int) -> int:
        value, written = ctypes.c_uint32(), ctypes.c_size_t()
        arguments = (ctypes.byref(choice.algorithm), name, ctypes.byref(value), ctypes.sizeof(value), ctypes.byref(written))
        self.library.call("cublasLtMatmulAlgoConfigGetAttribute", *arguments)
        return value.value

    def _fastest(self, problem: Problem, mode: ProductMode, proposals: Sequence[ChosenAlgorithm], pointers: Pointers) -> ChosenAlgorithm:
        """Return the proposal with the shortest time on the GPU.  Results go to temporary memory, because the outputs may hold live values."""
        written = _written_bytes(problem)
        free, _ = self._cupy.cuda.runtime.memGetInfo()
        if 2 * sum(written.values()) > free:
            return proposals[0]
        memory = {name: self._cupy.empty(1 << (n - 1).bit_length(), np.uint8) for name, n in written.items()}
        places = {name: int(array.data.ptr) for name, array in memory.items()}
        if problem.in_place:
            places["c"] = places["d"]
        own = replace(pointers, **places)
        times: list[float] = []
        for choice in proposals:
            call = ProductCall(self, problem, mode, own, choice, tuple(memory.values()))
            times.append(self._seconds([(call, ())]))
        return proposals[int(np.argmin(times))]

    def fastest_calls(self, what: str, mode: ProductMode, alternatives: Callable[[], Iterable[Sequence[Call]]]) -> int:
        """Return the index of the fastest of several lists of calls; `what` names the operation and its operands in the kernel cache."""
        with self._lock:
            name = self._key("way", what, mode)
            stored = self.cache.read(name)
            if stored is None:
                stored = bytes([int(np.argmin([self._seconds(calls) for calls in alternatives()]))])
                self.cache.write(name, stored)
            return stored[0]

    def _seconds(self, calls: Sequence[Call]) -> float:
        """Return the time of some runs of the calls, after one run that loads the kernels."""
        stream = self._cupy.cuda.get_current_stream()
        start, stop = (self._cupy.cuda.Event() for _ in range(2))
        for run in range(1 + LAUNCHES):
            if run == 1:
                start.record(stream)
            for function, arguments in calls:
                function(*arguments)
        stop.record(stream)
        stop.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(start, stop))

    def _key(self, *parts: object) -> str:
        """Return the name in the kernel cache of a decision that holds for this GPU and this version of the library."""
        text = "\0".join(map(str, ("cublasLt", self.library.version, self._gpu, *parts)))
        return hashlib.sha256(text.encode()).hexdigest()


def _written_bytes(problem: Problem) -> dict[str, int]:
    """Return the sizes in bytes of the operands that a call writes."""
    size = np.dtype(np.float64).itemsize if problem.result == "float64" else 4 if problem.result == "float32" else 2
    matrix = ((problem.count - 1) * problem.steps[3] + (problem.columns - 1) * problem.leading[3] + problem.rows) * size
    sizes = {"d": matrix}
    if problem.epilogue.startswith("gelu aux"):
        sizes["aux"] = problem.columns * problem.aux_leading * size
    if "sums" in problem.epilogue:
        sizes["vector"] = max(problem.rows, problem.columns) * size
    return sizes


class ProductCall:
    """A prepared call of cublasLt on the current stream of the thread, with the workspace of that stream.  It keeps its arrays alive."""

    #: a graph may capture it: it allocates nothing, if it was bound or has run on the stream, and waits for nothing
    capturable = True

    def __init__(
        self, gpu: GpuProducts, problem: Problem, mode: ProductMode, pointers: Pointers, choice: ChosenAlgorithm, arrays: Sequence[Array]
    ) -> None:
        self.problem = problem
        self._gpu, self._arrays, self._choice = gpu, tuple(arrays), choice
        self._multiply = gpu.library.multiply
        self._descriptors = gpu.descriptors(problem, mode, pointers)
        self._scalars = np.array([1, problem.adds], np.float64 if problem.operands == "float64" else np.float32)
        one = self._scalars.ctypes.data
        a, b, c, d = self._descriptors.layouts
        self._arguments = (
            *(gpu.handle, self._descriptors.product, one),
            *(pointers.a, a, pointers.b, b, one + self._scalars.itemsize),
            *(pointers.c if problem.adds else pointers.d, c, pointers.d, d),
            ctypes.byref(choice.algorithm),
        )
        gpu.workspace(gpu.stream())

    def __call__(self) -> None:
        stream = self._gpu.stream()
        status = self._multiply(*self._arguments, self._gpu.workspace(stream), WORKSPACE, stream)
        if status:
            lt.check(status, f"{self.problem}: cublasLtMatmul")


def alignment(*addresses: int) -> int:
    """Return the largest of `ALIGNMENTS` that divides all addresses."""
    return next(n for n in ALIGNMENTS if not any(address % n for address in addresses))


@cache
def on_gpu(index: int) -> GpuProducts:
    """Return cublasLt on the GPU number `index`; callers have checked that `find` returns a library."""
    library = lt.find().library
    assert library is not None
    return GpuProducts(library, index)
