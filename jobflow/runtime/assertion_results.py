"""Results of the runtime assertions of a program on GPUs.

The assertions write to one block of device memory.  A copy to the host follows the last one.  So the host waits for the assertions, and not for
the instructions after them.  If printed kernels alone update the variables, the host does not wait at all.  A flag on the GPU then stops
the updates, of this run and of later ones, until the host has read the results.

Ranks whose GPUs communicate without their hosts gather the blocks of all ranks, so that each rank finds all failures by itself.  The flags of all
ranks are equal: no rank updates variables in a run in which an assertion of any rank fails.

One rank reads the results when it waits for the GPU, or two runs later.  Several ranks must raise the error, and continue to update, at the same
run.  They read the results at the end of a run with outputs, or else two runs later.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jobflow.core.errors import JobflowError, counted
from jobflow.core.notices import notice
from jobflow.core.types import Array
from jobflow.ops.op import Call
from jobflow.ops.runtime_assertions import RuntimeAssertion
from jobflow.plan.plan import Compute, Instruction
from jobflow.runtime.comm.communicator import Binding, Communicator, Transfers
from jobflow.runtime.device.cuda_copies import finish
from jobflow.runtime.failed_assertions import FailedAssertion, located, orders_before, raise_first

#: bytes of a result: the position of the first rejected element plus 1, or 0; and the element
_AT, _VALUE = 8, 16
#: copies of the results on the host
_SIDES = 2


class RankAssertions(NamedTuple):
    """The assertions in the body of one rank."""

    rank: int
    instructions: tuple[Compute, ...]
    #: the order of the last communication before each assertion; -1 if there is none
    before: tuple[int, ...]

    @classmethod
    def of(cls, rank: int, body: Sequence[Instruction]) -> RankAssertions:
        return cls(rank, *orders_before(body))


class RunFailures:
    """The failed assertions of one run, empty until the host has read them; a future of the run raises them at every read."""

    def __init__(self) -> None:
        self.failures: Sequence[FailedAssertion | None] = ()

    def raise_first(self) -> None:
        """Raise the first failure, if there is one."""
        raise_first(self.failures)


class AssertionResults:
    """The results of the assertions of one program: on one rank, or on all `ranks` of a communicator; `me` is the position of this rank."""

    def __init__(self, device: Any, ranks: Sequence[RankAssertions], me: int, prints: bool) -> None:
        """`prints` is True if printed kernels compute the assertions that have one."""
        self._device, self._ranks, self._prints = device, tuple(ranks), prints
        self._indices = {id(each): number for number, each in enumerate(ranks[me].instructions)}
        #: an assertion, for messages about the gathering
        self.last = next(each.instructions[-1] for each in reversed(self._ranks) if each.instructions)
        #: the order of the last communication before an assertion of any rank
        self.order = max(max(each.before, default=-1) for each in ranks)
        self._each = (_AT + _VALUE) * max(len(each.instructions) for each in ranks)
        self._results: Array = device.allocate(self._each)
        self._gathered: Array = device.allocate(self._each * len(ranks)) if len(ranks) > 1 else self._results
        self._hosts: list[Array] = [device.host_array(self._each * len(ranks), "uint8") for _ in range(_SIDES)]
        self._copied = [device.new_event() for _ in range(_SIDES)]
        #: copies that the host has not read, the oldest first
        self._pending: list[int] = []
        weakref.finalize(self, _report_unread, self._pending, self._copied, self._hosts, self._ranks).atexit = False
        #: held while a thread reads results, because any thread that waits for the GPU reads them
        self._reading = threading.Lock()
        self._side = 0
        #: the failures of the last run, and of the run of each copy
        self.last_run = RunFailures()
        self._runs = [self.last_run] * _SIDES
        self._flag: Array | None = None
        #: the copy that the run in progress has started
        self._current: int | None = None
        self._undo: weakref.WeakMethod[Callable[[int], None]] | None = None

    def calls(self, instruction: Compute, source: Array, target: Array) -> list[Call]:
        """Return the calls that check `source` and write the result to `target`."""
        assert isinstance(instruction.op, RuntimeAssertion)
        at, value = _parts(self._results, self._indices[id(instruction)], instruction)
        arrays = (source, target, at, value)
        launches = None
        if self._prints:
            from jobflow.kernels.cuda.assertion_kernels import assertion_launches

            launches = assertion_launches(instruction.op, self._device.index, arrays, self._device.allocate, self._device.scratch)
        return [(instruction.op.note, (self._device.xp, *arrays))] if launches is None else launches

    def gather(self, comm: Communicator) -> Transfers:
        """Bind the exchange of the results among all ranks of the communicator."""
        counts = (self._each,) * comm.size
        return comm.bind_concurrent(Binding("all_gather", range(comm.size), self._results, self._gathered, counts, name="results of assertions"))

    @property
    def copy(self) -> Call:
        """The call that starts the copy of all results to the host."""
        return self._copy, ()

    def guard(self, updates: Sequence[Call]) -> tuple[Call, list[Call]] | None:
        """Return the call that sets the flag, and the updates that read it; None if a call is no printed kernel."""
        from jobflow.kernels.cuda.guarded_launches import guarded, halt

        flag = self._device.allocate(8).view("int64")
        launches = guarded(updates, flag)
        if launches is None:
            return None
        self._flag = flag
        return halt(self._device.index, self._gathered, self._gathered.size // (_AT + _VALUE), (_AT + _VALUE) // 8, flag), launches

    def release_guard(self) -> None:
        """Read the results of each run before its updates, because an update of some rank cannot read the flag."""
        self._flag = None

    def read_after_waits(self) -> None:
        """Raise the error of a run after any wait for the GPU; for programs of one rank."""
        self._device.after_waits.append(weakref.WeakMethod(self.raise_completed))

    def undo_by(self, undo: Callable[[int], None]) -> None:
        """Call `undo(count)` before the error of a run is raised: the last `count` runs have returned, and changed no variable."""
        self._undo = weakref.WeakMethod(undo)

    def end(self) -> None:
        """Note that the run in progress returns or raises."""
        self._current = None

    def begin(self) -> None:
        """Make room for the results of a run; raise the error of an earlier run."""
        if self._flag is None:
            return
        if len(self._pending) == _SIDES:
            oldest = self._copied[self._pending[0]]
            if not oldest.done:  # the host is two runs ahead
                self._device.wait(oldest)
            with self._reading:
                self._raise_oldest()
        if len(self._ranks) == 1:
            self.raise_completed()

    def settle(self) -> None:
        """Wait for the results of all runs, and raise the first error."""
        while self._flag is not None and self._pending:
            self._device.wait(self._copied[self._pending[0]])
            with self._reading:
                self._raise_oldest()

    def failures(self) -> list[FailedAssertion | None]:
        """Wait for the results of the run, and return the first failed assertion of each rank."""
        side = self._pending.pop()
        self._device.wait(self._copied[side])
        return _failures(self._hosts[side], self._ranks)

    def raise_completed(self) -> None:
        """Raise the first error in the results that have been copied to the host; the updates run again afterwards."""
        with self._reading:
            while self._pending and self._copied[self._pending[0]].done:
                self._raise_oldest()

    def _raise_oldest(self) -> None:
        """Read the oldest copy; raise its first error, after which the updates run again."""
        if not self._pending:  # read in a wait
            return
        side = self._pending.pop(0)
        self._runs[side].failures = failures = _failures(self._hosts[side], self._ranks)
        if not any(failures):
            return
        assert self._flag is not None
        later = tuple(self._pending)
        self._pending.clear()
        for each in later:
            self._copied[each].synchronize()
            self._runs[each].failures = _failures(self._hosts[each], self._ranks)
        self._flag.fill(0)
        undo = None if self._undo is None else self._undo()
        if undo is not None:
            undo(sum(each != self._current for each in (side, *later)))
        try:
            raise_first(failures)
        except JobflowError as failure:
            if later:
                failure.add_note(f"{counted(len(later), 'later run')} of the job did not change variables either")
            raise

    def _copy(self) -> None:
        self._side = (self._side + 1) % _SIDES
        self._runs[self._side] = self.last_run = RunFailures()
        self._device.fetch_later(self._gathered, self._hosts[self._side], self._copied[self._side])
        self._pending.append(self._side)
        self._current = self._side


def _failures(host: Array, ranks: Sequence[RankAssertions]) -> list[FailedAssertion | None]:
    """Return the first failed assertion of each rank, in the order of its body, from a copy of all results on the host."""
    blocks = host.reshape(len(ranks), -1)
    return [next(_failures_of(block, each), None) for block, each in zip(blocks, ranks, strict=True)]


def _failures_of(block: Array, assertions: RankAssertions) -> Iterator[FailedAssertion]:
    for number, (instruction, before) in enumerate(zip(assertions.instructions, assertions.before, strict=True)):
        at, value = _parts(block, number, instruction)
        if at[0]:
            assert isinstance(instruction.op, RuntimeAssertion)
            error = instruction.op.failure(value[0].item(), int(at[0]) - 1, instruction.inputs[0].type.shape)
            yield FailedAssertion(before, assertions.rank, type(error), located(error, instruction.where))


def _parts(memory: Array, number: int, instruction: Compute) -> tuple[Array, Array]:
    """Return the position and the element in result `number` of a block."""
    start = (_AT + _VALUE) * number
    dtype = instruction.inputs[0].type.dtype
    return memory[start : start + _AT].view("int64"), memory[start + _AT : start + _AT + dtype.itemsize].view(dtype.numpy)


def _report_unread(pending: Sequence[int], copied: Sequence[Any], hosts: Sequence[Array], ranks: Sequence[RankAssertions]) -> None:
    """Print the failure of a last run that nothing has waited for; its program is released."""
    finish(copied)
    for side in pending:
        failures = [failure for failure in _failures(hosts[side], ranks) if failure is not None]
        for failure in failures[:1]:
            notice(f"{failure.text}; the run changed no variable, and no result was read after it")
