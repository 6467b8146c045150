"""A GPU through CuPy, which is imported when the first device is created.

All calls of CUDA outside of kernels go through this class: memory, streams, events, copies, graphs, and the modules that it imports in the main
thread.  Kernels run on one non-blocking stream per device.  CuPy keeps the current device and stream per thread, so `activate` must be called in
the thread that runs the rank.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import platform
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar
from weakref import WeakMethod, WeakSet

import numpy as np

from jobflow.core.errors import PlacementError, counted
from jobflow.core.types import Array, DType, Xp
from jobflow.ops.op import Call
from jobflow.runtime.device.cuda_arrivals import Arrivals
from jobflow.runtime.device.cuda_copies import LARGEST, SIDES, Downloads, Feeder, Uploads, block_bytes
from jobflow.runtime.device.cuda_errors import FIND, KernelFailure, is_kernel_failure
from jobflow.runtime.device.cuda_graph import CapturedGraph, captured
from jobflow.runtime.device.cuda_memory import ALIGNMENT, CudaMemory
from jobflow.runtime.device.current_stream import current_stream
from jobflow.runtime.device.device import OutOfMemory, Scratch

T = TypeVar("T")

#: polls of the stream before a listening host sleeps: about a millisecond
SPINS = 1000
#: seconds between later polls
NAP = 50e-6
#: bytes of the first scratch buffer of a stream, and the factor to the next
SCRATCH, SCRATCH_GROWTH = 32 << 20, 4


def available() -> int:
    """Return the number of usable GPUs: 0 if CuPy is not installed or finds no driver."""
    if importlib.util.find_spec("cupy") is None:
        return 0
    cupy = importlib.import_module("cupy")
    if not cupy.cuda.is_available():  # never raises, unlike getDeviceCount without a driver
        return 0
    return int(cupy.cuda.runtime.getDeviceCount())


def cupy_version() -> str | None:
    """Return the version of CuPy, or None if it is not installed."""
    return None if importlib.util.find_spec("cupy") is None else str(importlib.import_module("cupy").__version__)


def nccl() -> Any:
    """Return CuPy's module for NCCL; its attribute `available` is True if the library is installed."""
    os.environ.setdefault("NCCL_LAUNCH_ORDER_IMPLICIT", "1")  # the calls of one process are ordered, also with those of other libraries
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy warns without NCCL; device_communicator prints a notice instead
        return importlib.import_module("cupy.cuda.nccl")  # no attribute of cupy.cuda before it is imported


class CudaDevice:
    """GPU number `index` of this node."""

    tag = "gpu"
    #: raises if another rank has failed; called while the host waits for the device, and afterwards
    listen: Callable[[], None] | None = None
    #: True during the capture of a graph, whose thread holds `lock`
    captures = False

    def __init__(self, index: int) -> None:
        count = available()
        if not 0 <= index < count:
            raise PlacementError(f"gpu {index} does not exist: this machine has {counted(count, 'usable GPU')}")
        self.index = index
        #: held during a capture, and while another thread enqueues work on the captured streams, which would become a part of the graph.
        #: A thread that holds it acquires no other lock, and waits for the GPU only in array functions of CuPy.
        self.lock = threading.RLock()
        self._cupy = importlib.import_module("cupy")
        _import_in_main_thread(index)
        self._empty_pinned = importlib.import_module("cupyx").empty_pinned
        with self._cupy.cuda.Device(index):
            # not the legacy stream, which waits for every other stream and cannot be captured
            self.stream = self._cupy.cuda.Stream(non_blocking=True)
        #: the stream of the calls that are prepared, see `on`
        self._binding = self.stream
        self._memory = CudaMemory(self._cupy, index, self.stream, self.lock)
        self._scratches: dict[int, Scratch] = {}
        self._graphs: WeakSet[CapturedGraph] = WeakSet()
        self._arrivals: list[Arrivals] = []
        #: called after a wait of the host, for example to raise an error that the GPU has reported meanwhile
        self.after_waits: list[WeakMethod[Callable[[], None]]] = []

    @property
    def xp(self) -> Xp:
        return self._cupy

    @cached_property
    def nccl_version(self) -> int:
        library = nccl()
        return int(library.get_version()) if library.available else 0

    @cached_property
    def identity(self) -> str:
        """The machine and PCI address: equal for two ranks only if they use the same GPU."""
        return f"{platform.node()} {self._cupy.cuda.runtime.deviceGetPCIBusId(self.index)}"

    def activate(self) -> None:
        self._cupy.cuda.Device(self.index).use()
        self.stream.use()

    # ---------------------------------------------------------------- memory

    def allocate(self, nbytes: int) -> Array:
        return self._with_spare_memory(self._memory.take, nbytes)

    def require(self, nbytes: int) -> None:
        self._with_spare_memory(self._memory.require, nbytes)

    def _with_spare_memory(self, function: Callable[[int], T], nbytes: int) -> T:
        """Call the function; if the memory is full, call it again without the spare memory of arrivals."""
        try:
            return function(nbytes)
        except OutOfMemory:
            if not self._arrivals:
                raise
        for arrivals in self._arrivals:
            arrivals.clear()
        return function(nbytes)

    def constant(self, value: Array) -> Array:
        """Return a copy of a NumPy array on the device, in memory that no other array uses."""
        value = np.asarray(value)
        array = self.allocate(value.nbytes).view(value.dtype).reshape(value.shape)
        self.upload(array, value)
        return array

    def scratch(self, shape: tuple[int, ...], dtype: DType) -> Array:
        scratch = self._scratches.get(self.queue)
        if scratch is None:
            scratch = self._scratches[self.queue] = Scratch(self, ALIGNMENT, SCRATCH, SCRATCH_GROWTH)
        return scratch.take(shape, dtype)

    def begin_instruction(self) -> None:
        for scratch in self._scratches.values():
            scratch.rewind()

    def host_array(self, count: int, dtype: Any) -> Array:
        """Return page-locked host memory, which the GPU copies to and from at full speed."""
        return self._empty_pinned(count, dtype)

    # ---------------------------------------------------------------- streams, events, graphs

    @property
    def queue(self) -> int:
        """The address of the stream on which calls run that are prepared now."""
        return int(self._binding.ptr)

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """Prepare calls for `stream` in this context: their launches are enqueued there, with scratch memory of that stream."""
        before, self._binding = self._binding, stream
        try:
            with current_stream(self._cupy, self.index, stream):
                yield
        finally:
            self._binding = before

    def new_stream(self) -> Any:
        """Return a stream for work concurrent with the kernels."""
        with self._cupy.cuda.Device(self.index):
            return self._cupy.cuda.Stream(non_blocking=True)

    def new_event(self) -> Any:
        """Return an event, by which one stream waits for another."""
        with self._cupy.cuda.Device(self.index):
            return self._cupy.cuda.Event(disable_timing=True)

    @cached_property
    def communication(self) -> Any:
        """The stream of the communication with other ranks."""
        return self.new_stream()

    def capture(self, calls: Sequence[Call]) -> CapturedGraph:
        """Capture prepared calls as a graph; nothing runs before the graph is launched.

        The calls must not allocate memory, wait, or call libraries through CuPy.  Their error is raised, and the device stays usable.
        Other threads that enqueue work on this device wait until the end of the capture.
        """
        with self.lock, current_stream(self._cupy, self.index, self.stream):
            self.captures = True
            try:
                graph = captured(self._cupy, self.stream, calls)
            finally:
                self.captures = False
        self._graphs.add(graph)
        graph.follow(self._join_communication)
        return graph

    def _join_communication(self) -> None:
        """Let the kernels wait for the communication started before, so that a graph that contains communication follows it."""
        self._joined.record(self.communication)
        self.stream.wait_event(self._joined)

    @cached_property
    def _joined(self) -> Any:
        return self.new_event()

    def release_graphs(self) -> None:
        """Destroy the captured graphs that contain communication, which cannot be launched afterwards."""
        for graph in list(self._graphs):
            if graph.communicates:
                graph.release()

    # ---------------------------------------------------------------- copies

    @cached_property
    def _uploads(self) -> Uploads:
        return Uploads(self.stream, self.new_event, self.host_array, self.wait, self.lock)

    @cached_property
    def _downloads(self) -> Downloads:
        return Downloads(self.stream, self.new_event, self.host_array, self.wait, self.lock)

    @cached_property
    def _copying(self) -> Any:
        """The stream of copies from the host that are concurrent with kernels."""
        return self.new_stream()

    def upload(self, target: Array, value: Array) -> None:
        if not target.size:
            return
        if not isinstance(value, np.ndarray):  # an array of this GPU
            with self.lock:
                target[...] = value
            return
        # CuPy copies from the host to contiguous arrays only
        contiguous = target if target.flags.c_contiguous else self._cupy.empty(target.shape, target.dtype)
        self._uploads.copy(contiguous, value)
        if contiguous is not target:
            with self.lock:
                target[...] = contiguous

    def feeder(self, targets: Sequence[Array]) -> Feeder:
        """Return the copies of a step's arguments to `targets`, concurrent with the kernels of the step before."""
        nbytes = max(block_bytes(targets), 1)
        memory = self.allocate(SIDES * nbytes)
        blocks = [(self.host_array(nbytes, "uint8"), memory[k * nbytes : (k + 1) * nbytes]) for k in range(SIDES)]
        return Feeder(targets, self.stream, self._copying, self.new_event, blocks, self.wait)

    def arrivals(self, allocate: Callable[[int], Array]) -> Arrivals:
        """Return the new arrays that receive values of the host concurrent with kernels, in memory of `allocate(nbytes)`."""
        arrivals = Arrivals(self, self._copying, allocate)
        self._arrivals.append(arrivals)
        return arrivals

    def to_host(self, array: Array) -> Array:
        return self.to_host_together([array])[0]

    def to_host_together(self, arrays: Sequence[Array]) -> list[Array]:
        """Return NumPy copies of several arrays, with one wait."""
        return self.start_to_host(arrays)()

    def start_to_host(self, arrays: Sequence[Array]) -> Callable[[], list[Array]]:
        if not arrays:
            return list
        large = {k for k, array in enumerate(arrays) if array.nbytes > LARGEST}
        finish = self._downloads.start([array for k, array in enumerate(arrays) if k not in large])
        pieces = {k: self._downloads.large_array(self._cupy, arrays[k]) for k in sorted(large)}
        if not large:
            return finish

        def merged() -> list[Array]:
            small = iter(finish())
            return [pieces[k] if k in large else next(small) for k in range(len(arrays))]

        return merged

    def fetch(self, source: Array, host: Array) -> None:
        """Copy `source` to page-locked memory; complete on return."""
        with self.lock:
            source.get(stream=self.stream, out=host, blocking=False)
        self.wait(self.stream)

    def fetch_later(self, source: Array, host: Array, done: Any) -> None:
        """Start a copy of `source` to page-locked memory; the event `done` marks its end."""
        with self.lock:
            source.get(stream=self.stream, out=host, blocking=False)
            done.record(self.stream)

    def put_later(self, target: Array, host: Array, done: Any) -> None:
        """Start a copy of page-locked memory to `target`; the event `done` marks its end."""
        with self.lock:
            target.set(host, stream=self.stream)
            done.record(self.stream)

    def put(self, target: Array, host: Array) -> None:
        """Copy page-locked memory to `target`; complete on return."""
        # the default is the legacy stream, which is not ordered with this device's stream
        with self.lock:
            target.set(host, stream=self.stream)
        self.wait(self.stream)

    # ---------------------------------------------------------------- waits

    def synchronize(self) -> None:
        self.wait(self.stream)

    def synchronize_all(self) -> None:
        """Wait for the kernels, and for the communication with other ranks."""
        self.wait(self.stream)
        self.wait(self.communication)

    @property
    def is_idle(self) -> bool:
        """True if all kernels have ended."""
        with self.lock:  # a query of a captured stream invalidates the capture
            return bool(self.stream.done)

    def wait(self, point: Any) -> None:
        """Wait for a stream or an event; raise the error of a failed rank, whose messages never arrive.

        Raises: KernelFailure if a kernel has failed.
        """
        try:
            if isinstance(point, self._cupy.cuda.Stream):
                point = self._end(point)
            if self.listen is None:
                point.synchronize()
            else:
                self._wait_and_listen(point, self.listen)
        except RuntimeError as error:
            if not is_kernel_failure(error):
                raise
            raise KernelFailure(f"gpu {self.index}: an earlier kernel failed: {error}; {FIND}") from error
        for reference in tuple(self.after_waits):
            method = reference()
            if method is None:
                with contextlib.suppress(ValueError):  # another thread has removed it
                    self.after_waits.remove(reference)
            else:
                method()

    def _end(self, stream: Any) -> Any:
        """Return an event after the work of a stream; threads may wait for it during a capture, which a wait for the stream invalidates."""
        done = self.new_event()
        with self.lock:
            done.record(stream)
        return done

    def _wait_and_listen(self, point: Any, listen: Callable[[], None]) -> None:
        looks = 0
        while not point.done:
            looks += 1
            if looks > SPINS:
                listen()
                time.sleep(NAP)
        point.synchronize()  # raises errors of the device
        listen()


def _import_in_main_thread(index: int) -> None:
    """Import the lazy modules of CuPy, because two threads must not import them, or load their libraries, at the same time.

    Raises: PlacementError if NVRTC is missing.
    """
    try:
        importlib.import_module("cupy_backends.cuda.libs.nvrtc").getVersion()
    except (ImportError, OSError, RuntimeError) as error:
        what = "CuPy finds no NVRTC, which compiles kernels; pip install 'cupy-cuda13x[ctk]'"
        raise PlacementError(f"gpu {index} cannot be used: {what} ({error})") from error
    importlib.import_module("cupyx.scipy.special")
