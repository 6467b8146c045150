"""The base of communicators of ranks on GPUs: everything except tensors is exchanged through a communicator of the hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobflow.core.types import Array
from jobflow.runtime.comm.communicator import Communicator, Waited


class DeviceCommunicator(Communicator):
    """A communicator that allocates on the device and delegates everything except tensors to the communicator of the host."""

    def __init__(self, inner: Communicator, device: Any) -> None:
        self.rank = inner.rank
        self.size = inner.size
        self.members = inner.members
        self._inner = inner
        self._device = self.device = device

    @property
    def host(self) -> Communicator:
        return self._inner.host

    def allocate(self, nbytes: int) -> Array:
        self._inner.allocate(0)  # collective: ranks without a GPU allocate shared memory
        return self._device.allocate(nbytes)

    def allocate_common(self, nbytes: int) -> Array | None:
        return self._inner.allocate_common(nbytes)  # only CPU devices call this

    def barrier(self) -> None:
        self._inner.barrier()

    def exchange(self, item: Any) -> list[Any]:
        return self._inner.exchange(item)

    def compare_digests(self, digest: int, what: Callable[[], str]) -> None:
        self._inner.compare_digests(digest, what)

    def check(self) -> None:
        self._inner.check()

    def observe(self, waited: Waited | None) -> None:
        self._inner.observe(waited)

    def abort(self, reason: str) -> None:
        self._inner.abort(reason)
