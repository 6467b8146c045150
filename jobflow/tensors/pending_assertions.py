"""Runtime assertions of eager operations on a GPU, whose results the host reads when it next waits for the GPU.

An assertion writes the position of the first rejected element to memory of the GPU, and replaces rejected elements by legal ones.  No operation
waits for that.  The next read of elements, or `cuda.synchronize()`, raises the error of the first failed assertion with the line that called it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jobflow.core.errors import SourceLine, user_line
from jobflow.core.types import Array
from jobflow.kernels.cuda.assertion_kernels import assertion_launches
from jobflow.ops.op import Call
from jobflow.ops.runtime_assertions import RuntimeAssertion
from jobflow.runtime.failed_assertions import located

if TYPE_CHECKING:
    from jobflow.tensors.eager_gpu import EagerGpu

#: the largest number of assertions whose results the host has not read
MOST = 1024


class PendingAssertion(NamedTuple):
    """An assertion whose result the host has not read."""

    op: RuntimeAssertion
    shape: tuple[int, ...]
    #: the first rejected element, on the GPU
    value: Array
    where: SourceLine


class PendingAssertions:
    """The assertions of one GPU whose results the host has not read; the flag of each is 0, or the position of a rejected element plus 1."""

    def __init__(self, gpu: EagerGpu) -> None:
        self._gpu = gpu
        self._flags: Any = None
        #: memory of the launches of an assertion, which leave it zeroed for the next one
        self._latest: Any = None
        self._pending: list[PendingAssertion] = []
        self._lock = threading.RLock()

    def check(self, op: RuntimeAssertion, x: Array, y: Array) -> None:
        """Launch an assertion on x that writes its result to y; wait for the GPU only if `MOST` assertions are pending."""
        with self._lock:
            if len(self._pending) == MOST:
                self._gpu.synchronize()
            if self._flags is None:
                self._flags, self._latest = (self._gpu.upload(np.zeros(n, np.int64)) for n in (MOST, 1))
            number = len(self._pending)
            value = self._gpu.empty((1,), x.dtype)
            self._gpu.enqueue(self._calls(op, (x, y, self._flags[number : number + 1], value)))
            if x.size:
                self._pending.append(PendingAssertion(op, tuple(x.shape), value, user_line()))

    def _calls(self, op: RuntimeAssertion, arrays: Sequence[Array]) -> list[Call]:
        """Return the launches of printed kernels, or a call of array functions for operations and arrays without such kernels."""
        printed = None
        if self._gpu.target.tier == "nvrtc":
            latest = self._latest.view("uint8")
            printed = assertion_launches(op, self._gpu.index, arrays, lambda nbytes: latest[:nbytes], self._gpu.scratch)
        return [(op.note, (self._gpu.xp, *arrays))] if printed is None else printed

    @property
    def are_pending(self) -> bool:
        """True if the host has not read the results of an assertion."""
        return bool(self._pending)

    def settle(self, where: SourceLine) -> None:
        """Wait for an assertion that the line `where` has launched, and raise its error before the line overwrites a tensor."""
        if self._pending and self._pending[-1].where == where:
            self._gpu.synchronize()

    def raise_first(self) -> None:
        """Raise the error of the first failed assertion; the GPU has completed all assertions."""
        if not self._pending:
            return
        with self._lock:
            pending, self._pending = self._pending, []
            flags = self._gpu.device.to_host(self._flags[: len(pending)])
            failed = np.flatnonzero(flags)
            if not failed.size:
                return
            first = pending[failed[0]]
            value = self._gpu.device.to_host(first.value)[0].item()
            error = first.op.failure(value, int(flags[failed[0]]) - 1, first.shape)
        raise type(error)(located(error, first.where))
