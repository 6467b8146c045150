"""A GPU through CuPy, which is imported only when a device is made.

One allocation per buffer and one non-blocking stream per device.  CuPy keeps the current device and stream per thread, so
`activate` must be called in the thread that runs the rank.
"""

from __future__ import annotations

import importlib
import importlib.util
import platform
from functools import cached_property
from typing import Any

from jobflow.errors import PlacementError
from jobflow.runtime.device.base import Scratch
from jobflow.types import Array, DType, Xp

#: bytes; what the widest vectorised loads and library kernels ask for
ALIGNMENT = 256


def available() -> int:
    """How many GPUs can be used here: 0 where CuPy is not installed, or finds no driver."""
    if importlib.util.find_spec("cupy") is None:
        return 0
    cupy = importlib.import_module("cupy")
    if not cupy.cuda.is_available():  # never raises, unlike getDeviceCount without a driver
        return 0
    return int(cupy.cuda.runtime.getDeviceCount())


class CudaDevice:
    """GPU number `index` of this node."""

    tag = "gpu"

    def __init__(self, index: int) -> None:
        count = available()
        if not 0 <= index < count:
            raise PlacementError(f"gpu {index} does not exist: this machine has {count} usable GPUs")
        self.index = index
        self._cupy = importlib.import_module("cupy")
        with self._cupy.cuda.Device(index):
            # the legacy stream would wait for every other stream, and cannot be captured
            self.stream = self._cupy.cuda.Stream(non_blocking=True)

    @property
    def xp(self) -> Xp:
        return self._cupy

    @cached_property
    def _scratch(self) -> Scratch:
        return Scratch(self, ALIGNMENT)

    @cached_property
    def identity(self) -> str:
        """Machine and PCI address: equal for two ranks only if they drive the same GPU."""
        return f"{platform.node()} {self._cupy.cuda.runtime.deviceGetPCIBusId(self.index)}"

    def activate(self) -> None:
        self._cupy.cuda.Device(self.index).use()
        self.stream.use()

    def allocate(self, nbytes: int) -> Array:
        # the pool's free lists belong to the current stream: a block is only reused in the order of that stream
        with self._cupy.cuda.Device(self.index), self.stream:
            array = self._cupy.zeros(max(nbytes, 1), "uint8")[:nbytes]
        self.stream.synchronize()
        return array

    def scratch(self, shape: tuple[int, ...], dtype: DType) -> Array:
        return self._scratch.take(shape, dtype)

    def begin_instruction(self) -> None:
        self._scratch.rewind()

    def to_host(self, array: Array) -> Any:
        with self._cupy.cuda.Device(self.index):
            return self._cupy.asnumpy(array, stream=self.stream)  # blocking: returns when the copy is complete

    def host_array(self, count: int, dtype: Any) -> Array:
        """Page-locked host memory, which the GPU copies to and from at full speed."""
        return importlib.import_module("cupyx").empty_pinned(count, dtype)

    def fetch(self, source: Array, host: Array) -> None:
        """host = source, complete on return."""
        source.get(stream=self.stream, out=host)  # blocking
        self.stream.synchronize()

    def put(self, target: Array, host: Array) -> None:
        """target = host, complete on return."""
        target.set(host, stream=self.stream)
        self.stream.synchronize()

    def synchronize(self) -> None:
        self.stream.synchronize()
