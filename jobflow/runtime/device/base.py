"""What the executor asks of a device: memory, an array module, and a way to and from the host."""

from __future__ import annotations

from typing import Protocol

from jobflow.types import Array, DType, Xp


class Device(Protocol):
    """One CPU rank or one GPU."""

    #: "cpu" or "gpu"
    tag: str

    @property
    def xp(self) -> Xp:
        """`numpy` or `cupy`."""
        ...

    def allocate(self, nbytes: int) -> Array:
        """A zeroed uint8 array, aligned to 64 bytes (256 on a GPU)."""
        ...

    def scratch(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Memory that the calls of one instruction may use while they run."""
        ...

    def begin_instruction(self) -> None:
        """All scratch handed out before may be handed out again."""
        ...

    def to_host(self, array: Array) -> Array:
        """A NumPy copy."""
        ...

    def synchronize(self) -> None:
        """Wait until everything launched has finished."""
        ...
