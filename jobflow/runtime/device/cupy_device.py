"""A GPU through CuPy, which is imported when the first device is created.

One allocation per buffer and one non-blocking stream per device.  CuPy keeps the current device and stream per thread, so
`activate` must be called in the thread that runs the rank.
"""

from __future__ import annotations

import importlib
import importlib.util
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from jobflow.core.errors import PlacementError, counted
from jobflow.core.types import Array, DType, Xp
from jobflow.runtime.device.device import Scratch

#: alignment in bytes for the widest vectorised loads and library kernels
ALIGNMENT = 256
#: maximum bytes of page-locked memory for asynchronous uploads; larger uploads are synchronous
STAGED = 64 << 20
#: polls of the stream before a listening host sleeps: about a millisecond
SPINS = 1000
#: seconds between later polls
NAP = 50e-6


def available() -> int:
    """Return the number of usable GPUs: 0 if CuPy is not installed or finds no driver."""
    if importlib.util.find_spec("cupy") is None:
        return 0
    cupy = importlib.import_module("cupy")
    if not cupy.cuda.is_available():  # never raises, unlike getDeviceCount without a driver
        return 0
    return int(cupy.cuda.runtime.getDeviceCount())


def nccl() -> Any:
    """Return CuPy's module for NCCL; its attribute `available` is True if the library is installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy warns without NCCL; device_communicator prints a notice instead
        return importlib.import_module("cupy.cuda.nccl")  # no attribute of cupy.cuda before it is imported


class CudaDevice:
    """GPU number `index` of this node."""

    tag = "gpu"
    #: raises if another rank has failed; called while the host waits for the stream, and afterwards
    listen: Callable[[], None] | None = None

    def __init__(self, index: int) -> None:
        count = available()
        if not 0 <= index < count:
            raise PlacementError(f"gpu {index} does not exist: this machine has {counted(count, 'usable GPU')}")
        self.index = index
        self._cupy = importlib.import_module("cupy")
        try:
            importlib.import_module("cupy_backends.cuda.libs.nvrtc").getVersion()
        except (ImportError, OSError, RuntimeError) as error:
            what = "CuPy finds no NVRTC, which compiles kernels; pip install 'cupy-cuda13x[ctk]'"
            raise PlacementError(f"gpu {index} cannot be used: {what} ({error})") from error
        # import the lazy modules of CuPy here, because two threads must not import them at the same time
        self._empty_pinned = importlib.import_module("cupyx").empty_pinned
        importlib.import_module("cupyx.scipy.special")
        #: page-locked memory of asynchronous copies to the GPU, the bytes in use of its last array, and of all arrays
        self._staged: list[Array] = []
        self._used = self._under_way = 0
        with self._cupy.cuda.Device(index):
            # not the legacy stream, which waits for every other stream and cannot be captured
            self.stream = self._cupy.cuda.Stream(non_blocking=True)

    @property
    def xp(self) -> Xp:
        return self._cupy

    @cached_property
    def _scratch(self) -> Scratch:
        return Scratch(self, ALIGNMENT)

    @cached_property
    def identity(self) -> str:
        """The machine and PCI address: equal for two ranks only if they use the same GPU."""
        if not nccl().available:
            return ""
        return f"{platform.node()} {self._cupy.cuda.runtime.deviceGetPCIBusId(self.index)}"

    def activate(self) -> None:
        self._cupy.cuda.Device(self.index).use()
        self.stream.use()

    def allocate(self, nbytes: int) -> Array:
        # the pool has one free list per stream: a block is reused in stream order only
        with self._cupy.cuda.Device(self.index), self.stream:
            array = self._cupy.zeros(max(nbytes, 1), "uint8")[:nbytes]
        self.stream.synchronize()
        return array

    def scratch(self, shape: tuple[int, ...], dtype: DType) -> Array:
        return self._scratch.take(shape, dtype)

    def begin_instruction(self) -> None:
        self._scratch.rewind()

    def new_stream(self) -> Any:
        """Return a stream for work concurrent with the kernels."""
        with self._cupy.cuda.Device(self.index):
            return self._cupy.cuda.Stream(non_blocking=True)

    def new_event(self) -> Any:
        """Return an event, by which one stream waits for another."""
        with self._cupy.cuda.Device(self.index):
            return self._cupy.cuda.Event(disable_timing=True)

    def upload(self, target: Array, value: Array) -> None:
        if not target.size:
            return
        large = target.nbytes > STAGED
        host = np.empty(target.shape, target.dtype) if large else self._staging(target.nbytes).view(target.dtype).reshape(target.shape)
        np.copyto(host, value, casting="unsafe")
        # `set` needs a contiguous array
        contiguous = target if target.flags.c_contiguous else self._cupy.empty(target.shape, target.dtype)
        contiguous.set(host, stream=self.stream)
        if contiguous is not target:
            target[...] = contiguous
        if large:
            self.synchronize()

    def _staging(self, nbytes: int) -> Array:
        """Return page-locked memory for an asynchronous copy to the GPU; `synchronize` frees it."""
        if self._under_way + nbytes > STAGED:
            self.synchronize()
        if not self._staged or self._used + nbytes > self._staged[-1].size:
            before = self._staged[-1].size if self._staged else 0
            self._staged.append(self.host_array(max(nbytes, min(2 * before, STAGED), 1 << 16), "uint8"))
            self._used = 0
        staged: Array = self._staged[-1][self._used : self._used + nbytes]
        self._used = -(-(self._used + nbytes) // ALIGNMENT) * ALIGNMENT
        self._under_way += nbytes
        return staged

    def to_host(self, array: Array) -> Any:
        return self._cupy.asnumpy(array, stream=self.stream)  # blocking: returns when the copy is complete

    def to_host_together(self, arrays: Sequence[Array]) -> list[Array]:
        hosts = [self.host_array(array.size, array.dtype).reshape(array.shape) for array in arrays]
        for array, host in zip(arrays, hosts, strict=True):
            array.get(stream=self.stream, out=host, blocking=False)
        self.synchronize()
        return [np.array(host) for host in hosts]

    def host_array(self, count: int, dtype: Any) -> Array:
        """Return page-locked host memory, which the GPU copies to and from at full speed."""
        return self._empty_pinned(count, dtype)

    def fetch(self, source: Array, host: Array) -> None:
        """Copy `source` to `host`; complete on return."""
        source.get(stream=self.stream, out=host)  # blocking
        self.stream.synchronize()

    def put(self, target: Array, host: Array) -> None:
        """Copy `host` to `target`; complete on return."""
        # the default is the legacy stream, which is not ordered with this device's stream
        target.set(host, stream=self.stream)
        self.stream.synchronize()

    def synchronize(self) -> None:
        self._wait()
        del self._staged[:-1]  # keeps the largest
        self._used = self._under_way = 0

    def _wait(self) -> None:
        if self.listen is None:
            self.stream.synchronize()
            return
        looks = 0
        while not self.stream.done:
            looks += 1
            if looks > SPINS:
                self.listen()
                time.sleep(NAP)
        self.stream.synchronize()  # raises errors of the stream
        self.listen()
