"""The interface of a device: memory, an array module, and copies to and from the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from jobflow.core.errors import JobflowError
from jobflow.core.types import Array, DType, Xp


class OutOfMemory(JobflowError, MemoryError):
    """Error for a buffer that does not fit into the memory of a device."""


#: the remedies in messages about memory
ADVICE = "use smaller batches, activation checkpointing or ZeRO"


@contextmanager
def memory_of(what: str, contents: Callable[[], str] = str) -> Iterator[None]:
    """Begin the message of an OutOfMemory error in this context with `what`, such as a job and its arena.

    The result of `contents` follows the message, for example a table of the largest values.
    """
    try:
        yield
    except OutOfMemory as error:
        raise OutOfMemory("\n".join(filter(None, (f"{what}: {error}", contents())))) from error


class Device(Protocol):
    """One CPU rank or one GPU."""

    #: "cpu" or "gpu"
    tag: str

    @property
    def identity(self) -> str:
        """The machine and GPU, unique per GPU; "" for the host."""

    @property
    def nccl_version(self) -> int:
        """The version of NCCL, such as 22809 for 2.28.9; 0 for the host, and without NCCL."""

    @property
    def xp(self) -> Xp:
        """`numpy` or `cupy`."""

    def allocate(self, nbytes: int) -> Array:
        """Return a zeroed uint8 array, aligned to 64 bytes (256 on a GPU).

        Raises: OutOfMemory.
        """

    def require(self, nbytes: int) -> None:
        """Raise OutOfMemory if fewer than `nbytes` bytes are free; a CPU accepts every number."""

    def scratch(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Return an uninitialised array in scratch memory, valid during the calls of one instruction."""

    def begin_instruction(self) -> None:
        """Make all scratch memory available for the next instruction."""

    def activate(self) -> None:
        """Make this device (and its stream) the current one of the calling thread; a world does it once per rank."""

    def upload(self, target: Array, value: Array) -> None:
        """Copy `value`, a NumPy array or an array of the device, of the same shape and any element type, to `target`.

        A NumPy array may be changed after return.
        """

    def to_host(self, array: Array) -> Array:
        """Return a NumPy copy of an array."""

    def start_to_host(self, arrays: Sequence[Array]) -> Callable[[], list[Array]]:
        """Start copies of several arrays to the host; return a function that waits for them once and returns NumPy arrays.

        The arrays may be changed after return.  Without arrays there is no wait.
        """

    def synchronize(self) -> None:
        """Wait until all launched work has finished."""


class Scratch:
    """A bump allocator of temporary arrays, whose buffer only grows: call `take` for each array of an instruction, then `rewind`.

    Arrays from before a `rewind` remain valid memory but overlap later ones, which is correct for instructions that run one after another.
    `least` is the smallest size in bytes of a buffer: few sizes make few allocations.
    """

    def __init__(self, device: Device, alignment: int, least: int = 0, growth: int = 2) -> None:
        self._device = device
        self._alignment = alignment
        self._least, self._growth = least, growth
        self._buffer = device.allocate(0)
        self._used = 0

    def take(self, shape: tuple[int, ...], dtype: DType) -> Array:
        nbytes = dtype.itemsize
        for n in shape:
            nbytes *= n
        if self._used + nbytes > self._buffer.size:
            self._buffer = self._device.allocate(max(nbytes, self._growth * int(self._buffer.size), self._least))
            self._used = 0
        start = self._used
        self._used = -(-(start + nbytes) // self._alignment) * self._alignment
        return self._buffer[start : start + nbytes].view(dtype.numpy).reshape(shape)

    def rewind(self) -> None:
        self._used = 0
