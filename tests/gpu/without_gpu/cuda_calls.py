"""The functions of CUDA's runtime and driver in host memory, which count, and the C code of the stub GPU."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from captures import UNSUPPORTED, Captures, error

VERSION = 13000
#: alignment in bytes of memory from cudaMalloc
ALIGNMENT = 512
#: a GPU of compute capability 9.0 with 132 multiprocessors, by the numbers of cudaDeviceAttr
ATTRIBUTES = {75: 9, 76: 0, 16: 132, 10: 32, 1: 1024, 8: 49152}
HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
#: bytes of the device's memory, unless the variable JOBFLOW_GPU_STUB_MEMORY has another number
MEMORY = 1 << 37
#: functions that Python replaces, with room for more
TRAMPOLINES = 96
#: written in C because CuPy calls them while the interpreter exits, when no Python function can run, and because only C code can return NULL
#: with a Python exception
C_SOURCE = """
#define _DEFAULT_SOURCE
#define PAGE 4096UL
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
extern struct _object _Py_NoneStruct;
void Py_IncRef(struct _object *);
void Py_DecRef(struct _object *);
void PyErr_SetObject(struct _object *, struct _object *);
long allocations, pinned, products;
/* bytes of the device, and bytes in use */
long stub_limit, stub_held;
struct _object *stub_full, *stub_full_type;
void stub_set_limit(long limit, struct _object *type, struct _object *error) {
    stub_limit = limit; stub_full_type = type; stub_full = error;
    Py_IncRef(error);
}
/* the error of the function that Python has just replaced, its type, and the error of an allocation while this thread captures */
__thread struct _object *stub_error, *stub_error_type, *stub_refusal, *stub_refusal_type;
__thread long stub_refused;
void stub_set_error(struct _object *type, struct _object *error) { Py_IncRef(error); stub_error_type = type; stub_error = error; }
void stub_refuse(struct _object *type, struct _object *error) {
    stub_refusal_type = type; stub_refusal = error == &_Py_NoneStruct ? 0 : error; stub_refused = 0;
}
long stub_was_refused(void) { return stub_refused; }
static void *none(void) { Py_IncRef(&_Py_NoneStruct); return &_Py_NoneStruct; }
static intptr_t memory(size_t size, long *count) {
    if (stub_refusal) { stub_refused = 1; PyErr_SetObject(stub_refusal_type, stub_refusal); return 0; }
    int on_device = count == &allocations;
    char *whole = on_device && stub_held + (long)size > stub_limit ? 0 : calloc(size + 2 * ALIGNMENT, 1);
    if (!whole) { PyErr_SetObject(stub_full_type, stub_full); return 0; }
    char *start = (char *)(((uintptr_t)whole / ALIGNMENT + 1) * ALIGNMENT);
    ((void **)start)[-1] = whole;
    ((long *)start)[-2] = on_device ? (long)size : 0;
    if (on_device) __sync_fetch_and_add(&stub_held, (long)size);
    __sync_fetch_and_add(count, 1);
    return (intptr_t)start;
}
intptr_t stub_malloc(size_t size) { return memory(size, &allocations); }
intptr_t stub_host_malloc(size_t size) { return memory(size, &pinned); }
void stub_release(intptr_t start) {
    if (!start) return;
    __sync_fetch_and_sub(&stub_held, ((long *)start)[-2]);
    free(((void **)start)[-1]);
}
void stub_fill(intptr_t start, int value, size_t size) {
    if (value || size < PAGE) { memset((void *)start, value, size); return; }
    /* new pages are zero, and use no memory until they are written */
    uintptr_t first = (start + PAGE - 1) & ~(PAGE - 1), last = (start + size) & ~(PAGE - 1);
    memset((void *)start, 0, first - start);
    madvise((void *)first, last - first, MADV_DONTNEED);
    memset((void *)last, 0, start + size - last);
}
void *stub_free(intptr_t start) { stub_release(start); return none(); }
void *stub_none(void) { return none(); }
int stub_zero(void) { return 0; }
int cublasCreate_v2(void **handle) { *handle = (void *)1; return 0; }
typedef intptr_t (*callback)(intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t);
callback stub_callbacks[TRAMPOLINES];
#define TRAMPOLINE(k) intptr_t stub_call_##k(intptr_t a, intptr_t b, intptr_t c, intptr_t d, intptr_t e, intptr_t f, intptr_t g, \\
                                             intptr_t h, intptr_t i, intptr_t j, intptr_t l, intptr_t m) { \\
    intptr_t result = stub_callbacks[k](a, b, c, d, e, f, g, h, i, j, l, m); \\
    if (!stub_error) return result; \\
    struct _object *error = stub_error; \\
    stub_error = 0; \\
    PyErr_SetObject(stub_error_type, error); \\
    Py_DecRef(error); \\
    return 0; \\
}
"""
#: functions of CuPy's `runtime` and `driver` -> functions of C_SOURCE
IN_C = {
    "malloc": "stub_malloc",
    "hostAlloc": "stub_host_malloc",
    **dict.fromkeys(("free", "freeHost"), "stub_free"),
    **dict.fromkeys(("eventDestroy", "streamDestroy", "moduleUnload", "setDevice", "_ensure_context"), "stub_none"),
    **dict.fromkeys(("graphDestroy", "graphExecDestroy"), "stub_none"),
    "getDevice": "stub_zero",
}


@dataclass
class Counts:
    """Calls of the GPU since the stub was installed: launches and copies by the host, and the nodes of launched graphs."""

    library: ctypes.CDLL
    launches: int = 0
    graph_launches: int = 0
    graph_nodes: int = 0
    synchronisations: int = 0
    to_device: int = 0
    to_host: int = 0
    within: int = 0

    def memory(self) -> tuple[int, int]:
        """Return the free bytes and all bytes of the device."""
        held, limit = (ctypes.c_long.in_dll(self.library, name).value for name in ("stub_held", "stub_limit"))
        return limit - held, limit

    def now(self) -> dict[str, int]:
        in_python = {name: value for name, value in vars(self).items() if name != "library"}
        return {name: ctypes.c_long.in_dll(self.library, name).value for name in ("products", "allocations", "pinned")} | in_python


@dataclass
class Runtime:
    """The functions of cudart and of the driver that CuPy calls, by their names there."""

    counts: Counts
    captures: Captures = field(default_factory=Captures)
    _forbidden: Exception | None = None
    _ids: Any = field(default_factory=lambda: itertools.count(1000))

    def malloc(self, size: int, *_: int) -> int:
        return int(self.counts.library.stub_malloc(size))

    def host_malloc(self, size: int, *_: int) -> int:
        return int(self.counts.library.stub_host_malloc(size))

    def free(self, address: int) -> bool:
        self.counts.library.stub_release(address)
        return True

    def copy(self, target: int, source: int, size: int, kind: int, *_: int) -> bool:
        self.captures.refuse()
        return self._copied(target, source, size, kind)

    def copy_on(self, target: int, source: int, size: int, kind: int, stream: int, *_: int) -> bool:
        return self.captures.add(stream, "copy", lambda: self._copied(target, source, size, kind)) or self._copied(target, source, size, kind)

    def _copied(self, target: int, source: int, size: int, kind: int) -> bool:
        ctypes.memmove(target, source, size)
        if kind == HOST_TO_DEVICE:
            self.counts.to_device += 1
        elif kind == DEVICE_TO_HOST:
            self.counts.to_host += 1
        else:
            self.counts.within += 1
        return True

    def fill(self, target: int, value: int, size: int, *_: int) -> bool:
        self.captures.refuse()
        self.counts.library.stub_fill(target, value, size)
        return True

    def fill_on(self, target: int, value: int, size: int, stream: int, *_: int) -> bool:
        if not self.captures.add(stream, "fill", lambda: self.counts.library.stub_fill(target, value, size)):
            self.counts.library.stub_fill(target, value, size)
        return True

    def launch(self, *arguments: Any) -> bool:
        stream = arguments[8]
        if not self.captures.add(stream, "kernel", lambda: None):
            self.counts.launches += 1
        return True

    def product(self, stream: int) -> int:
        """Count a product of cublasLt, or add it to the capture of its stream; return the status of success."""
        if not self.captures.add(stream, "product", lambda: None):
            ctypes.c_long.in_dll(self.counts.library, "products").value += 1
        return 0

    def synchronize(self, point: int = 0, *_: int) -> bool:
        self.captures.refuse(point)
        self.counts.synchronisations += 1
        return True

    def query_stream(self, stream: int, *_: int) -> int:
        self.captures.refuse(stream)
        return 0

    def query_event(self, event: int, *_: int) -> int:
        self.captures.query(event)
        return 0

    def wait_for_event(self, event: int, *_: int) -> bool:
        self.captures.query(event)
        self.counts.synchronisations += 1
        return True

    def record(self, event: int, stream: int, *_: int) -> bool:
        self.captures.record(event, stream)
        return True

    def stream_wait(self, stream: int, event: int, *_: int) -> bool:
        self.captures.wait(stream, event)
        return True

    def begin_capture(self, stream: int, mode: int = 2, *_: int) -> bool:
        self.captures.begin(stream, mode)
        self._forbid_allocation()
        return True

    def end_capture(self, stream: int, *_: int) -> int:
        allocated = self.counts.library.stub_was_refused()
        capture = self.captures.of_thread()
        if allocated and capture is not None:
            capture.valid = False
        try:
            return self.captures.end(stream)
        finally:
            self._forbid_allocation()

    def _forbid_allocation(self) -> None:
        """Let allocations by this thread fail while it captures."""
        if self.captures.of_thread() is None:
            self.counts.library.stub_refuse(None, None)
            return
        self._forbidden = error(UNSUPPORTED)
        self.counts.library.stub_refuse(type(self._forbidden), self._forbidden)

    def launch_graph(self, graph: int, stream: int, *_: int) -> bool:
        self.counts.graph_launches += 1
        nodes = self.captures.graphs[graph]
        self.counts.graph_nodes += len(nodes)
        for _, work in nodes:
            work()
        return True

    def forget_graph(self, graph: int, *_: int) -> bool:
        self.captures.forget(graph)
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
            **dict.fromkeys(("deviceSynchronize", "streamSynchronize"), self.synchronize),
            **dict.fromkeys(("setDevice", "_deviceEnsurePeerAccess", "deviceEnablePeerAccess", "_ensure_context"), nothing),
            **dict.fromkeys(("eventDestroy", "streamDestroy", "graphUpload"), nothing),
            **dict.fromkeys(
                ("eventCreate", "eventCreateWithFlags", "streamCreate", "streamCreateWithFlags", "streamCreateWithPriority"), self.new_id
            ),
            **dict.fromkeys(("getDevice", "deviceCanAccessPeer", "pointerGetMemoryType"), zero),
            "eventSynchronize": self.wait_for_event,
            "eventQuery": self.query_event,
            "eventRecord": self.record,
            "streamQuery": self.query_stream,
            "streamWaitEvent": self.stream_wait,
            "streamBeginCapture": self.begin_capture,
            "streamEndCapture": self.end_capture,
            "streamIsCapturing": lambda stream, *_: int(self.captures.is_capturing(stream)),
            "graphInstantiate": lambda graph, *_: self.captures.instantiate(graph),
            "graphLaunch": self.launch_graph,
            **dict.fromkeys(("graphDestroy", "graphExecDestroy"), self.forget_graph),
            **dict.fromkeys(("driverGetVersion", "runtimeGetVersion"), lambda *_: VERSION),
            "malloc": self.malloc,
            "hostAlloc": self.host_malloc,
            **dict.fromkeys(("free", "freeHost"), self.free),
            "memcpy": self.copy,
            "memcpyAsync": self.copy_on,
            "memset": self.fill,
            "memsetAsync": self.fill_on,
            "eventElapsedTime": lambda *_: 1.0,
            **dict.fromkeys(("profilerStart", "profilerStop"), nothing),
            "getDeviceCount": lambda *_: 1,
            "_getCUDAMajorVersion": lambda *_: VERSION // 1000,
            "deviceGetAttribute": lambda attribute, *_: ATTRIBUTES.get(attribute, 0),
            "deviceGetPCIBusId": lambda *_: "0000:00:00.0",
            "memGetInfo": lambda *_: self.counts.memory(),
            "getDeviceProperties": lambda *_: {
                "name": b"none",
                "totalGlobalMem": self.counts.memory()[1],
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
