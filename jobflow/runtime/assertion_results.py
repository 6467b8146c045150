"""Results of the runtime assertions of a program on a GPU.

The assertions write to one block of device memory.  A copy to the host follows the last one.  So the host waits for the assertions, and not for
the instructions after them.  If printed kernels alone update the variables, the host does not wait at all.  A flag on the GPU then stops
the updates, of this run and of later ones, until the host has read the results.  It reads them when it waits for the GPU, or two runs later.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from jobflow.core.errors import JobflowError, counted
from jobflow.core.notices import notice
from jobflow.core.types import Array
from jobflow.ops.op import Call
from jobflow.ops.runtime_assertions import RuntimeAssertion
from jobflow.plan.plan import Compute
from jobflow.runtime.device.cuda_copies import finish
from jobflow.runtime.failed_assertions import located

#: bytes of a result: the position of the first rejected element plus 1, or 0; and the element
_AT, _VALUE = 8, 16
#: copies of the results on the host
_SIDES = 2


class AssertionResults:
    """The results of the assertions of one program."""

    def __init__(self, device: Any, instructions: Sequence[Compute], prints: bool) -> None:
        """`prints` is True if printed kernels compute the assertions that have one."""
        self._device, self.instructions, self._prints = device, instructions, prints
        self._indices = {id(each): number for number, each in enumerate(instructions)}
        size = (_AT + _VALUE) * len(instructions)
        self._results: Array = device.allocate(size)
        self._hosts: list[Array] = [device.host_array(size, "uint8") for _ in range(_SIDES)]
        self._copied = [device.new_event() for _ in range(_SIDES)]
        #: copies that the host has not read, the oldest first
        self._pending: list[int] = []
        weakref.finalize(self, _report_unread, self._pending, self._copied, self._hosts, instructions).atexit = False
        #: held while a thread reads results, because any thread that waits for the GPU reads them
        self._reading = threading.Lock()
        self._side = 0
        self._flag: Array | None = None
        self._fail: weakref.WeakMethod[Callable[[Compute, JobflowError], None]] | None = None

    def calls(self, instruction: Compute, source: Array, target: Array) -> list[Call]:
        """Return the calls that check `source` and write the result to `target`."""
        assert isinstance(instruction.op, RuntimeAssertion)
        at, value = _parts(self._results, self._indices[id(instruction)], instruction)
        arrays = (source, target, at, value)
        launches = None
        if self._prints:
            from jobflow.kernels.cuda.assertion_kernels import assertion_launches

            launches = assertion_launches(instruction.op, self._device.index, arrays, self._device.allocate)
        return [(instruction.op.note, (self._device.xp, *arrays))] if launches is None else launches

    @property
    def copy(self) -> Call:
        """The call that starts the copy of all results to the host."""
        return self._copy, ()

    def guard(self, updates: Sequence[Call], fail: Callable[[Compute, JobflowError], None]) -> tuple[Call, list[Call]] | None:
        """Return the call that sets the flag, and the updates that read it; None if a call is no printed kernel.

        `fail(instruction, error)` raises the error of a run, which later runs and waits then find.
        """
        from jobflow.kernels.cuda.guarded_launches import guarded, halt

        flag = self._device.allocate(8).view("int64")
        launches = guarded(updates, flag)
        if launches is None:
            return None
        self._flag, self._fail = flag, weakref.WeakMethod(fail)  # its object refers to this one
        self._device.after_waits.append(weakref.WeakMethod(self.raise_completed))
        return halt(self._device.index, self._results, len(self.instructions), (_AT + _VALUE) // 8, flag), launches

    def begin(self) -> None:
        """Make room for the results of a run; raise the error of an earlier run."""
        if self._flag is not None:
            if len(self._pending) == _SIDES:
                self._device.wait(self._copied[self._pending[0]])
            self.raise_completed()

    def failures(self) -> list[tuple[Compute, JobflowError]]:
        """Wait for the results of the run, and return the failed assertions with their errors, in the order of the body."""
        side = self._pending.pop()
        self._device.wait(self._copied[side])
        return _failures(self._hosts[side], self.instructions)

    def raise_completed(self) -> None:
        """Raise the first error in the results that have been copied to the host; the updates run again afterwards."""
        with self._reading:
            while self._pending and self._copied[self._pending[0]].done:
                failures = _failures(self._hosts[self._pending.pop(0)], self.instructions)
                if failures:
                    self._raise(*failures[0])

    def _raise(self, instruction: Compute, error: JobflowError) -> None:
        assert self._flag is not None and self._fail is not None
        later = tuple(self._pending)
        self._pending.clear()
        for side in later:
            self._copied[side].synchronize()
        self._flag.fill(0)
        fail = self._fail()
        assert fail is not None, "the program waits, so it exists"
        try:
            fail(instruction, error)
        except JobflowError as failure:
            if later:
                failure.add_note(f"{counted(len(later), 'later run')} of the job did not change variables either")
            raise

    def _copy(self) -> None:
        self._side = (self._side + 1) % _SIDES
        self._device.fetch_later(self._results, self._hosts[self._side], self._copied[self._side])
        self._pending.append(self._side)


def _failures(host: Array, instructions: Sequence[Compute]) -> list[tuple[Compute, JobflowError]]:
    """Return the failed assertions with their errors, in the order of the body, from a copy of the results on the host."""
    failed = []
    for number, instruction in enumerate(instructions):
        at, value = _parts(host, number, instruction)
        if at[0]:
            assert isinstance(instruction.op, RuntimeAssertion)
            failed.append((instruction, instruction.op.failure(value[0].item(), int(at[0]) - 1, instruction.inputs[0].type.shape)))
    return failed


def _parts(memory: Array, number: int, instruction: Compute) -> tuple[Array, Array]:
    """Return the position and the element in result `number` of a block."""
    start = (_AT + _VALUE) * number
    dtype = instruction.inputs[0].type.dtype
    return memory[start : start + _AT].view("int64"), memory[start + _AT : start + _AT + dtype.itemsize].view(dtype.numpy)


def _report_unread(pending: Sequence[int], copied: Sequence[Any], hosts: Sequence[Array], instructions: Sequence[Compute]) -> None:
    """Print the failure of a last run that nothing has waited for; its program is released."""
    finish(copied)
    for side in pending:
        for instruction, error in _failures(hosts[side], instructions)[:1]:
            notice(f"{located(error, instruction.where)}; the run changed no variable, and no result was read after it")
