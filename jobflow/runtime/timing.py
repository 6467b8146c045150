"""Timeline of a rank: the begin and end of every prepared call of its plans, and of its waits for other ranks.

A recording replaces the calls of an executor by timed ones, and restores them afterwards.  Without a recording, timing costs nothing.  Calls
on a GPU are timed until the device has finished them.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import Literal, TypeAlias

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import NOWHERE, SourceLine
from jobflow.core.types import Array
from jobflow.ops.op import Call
from jobflow.plan.plan import Collective, Completion, Compute, Instruction, Transfer, Wait
from jobflow.runtime.comm.communicator import Communicator
from jobflow.runtime.executor import Executor
from jobflow.runtime.world.service.members import node_name

Category: TypeAlias = Literal["compute", "communication"]
#: barriers for the comparison of clocks
MEETINGS = 9


@dataclass(frozen=True)
class TimedCall:
    """A prepared call in a timeline: the name of its instruction, and the `kernel` that does the work."""

    name: str
    kernel: str
    category: Category
    where: str
    #: element types and shapes, or the transferred data
    what: str = ""


@dataclass(frozen=True)
class TimedRun:
    """One run of a plan: `times[i]` are the begin and the end of call i, in seconds of the rank's clock."""

    begin: float
    end: float
    times: np.ndarray[tuple[int, int], np.dtype[np.float64]]


@dataclass(frozen=True)
class Timeline:
    """The timeline of one rank: calls and runs by job, and waits for other ranks.

    A time plus `offset` is the time on the clock of rank 0.
    """

    rank: int
    host: str
    offset: float
    calls: dict[str, tuple[tuple[TimedCall, ...], ...]]
    #: per job, per plan of the job
    runs: dict[str, tuple[tuple[TimedRun, ...], ...]]
    waits: np.ndarray[tuple[int, int], np.dtype[np.float64]]


class TimedExecutor(Executor):
    """An executor that records the begin and end of its calls; it uses the memory of the executor `plain`."""

    def __init__(self, plain: Executor) -> None:
        vars(self).update(vars(plain))
        self.plain = plain
        self.ran: list[TimedRun] = []
        self._times: list[float] = []
        sync = self.device.synchronize if self.device.tag == "gpu" else None
        words = {id(instruction): described(instruction) for instruction in plain.call_instructions}
        names = [words[id(instruction)] for instruction in plain.call_instructions]  # one object per instruction
        meeting = TimedCall("all ranks meet before variables change", "meet", "communication", "")
        departing = TimedCall("all ranks meet after variables changed", "meet", "communication", "")
        middle = [] if plain.meet is None else [meeting]
        last = [] if plain.depart is None else [departing]
        first = [] if plain.begin is None else [TimedCall("all ranks begin the same job", "meet", "communication", "")]
        cut = len(plain.body)
        self.calls: tuple[TimedCall, ...] = (*first, *names[:cut], *middle, *names[cut:], *last)
        self.body = [self._timed(call, sync) for call in plain.body]
        self.epilogue = [self._timed(call, sync) for call in plain.epilogue]
        self.replays = []  # single calls are timed
        self.begin = None if plain.begin is None else self._timed((plain.begin, ()), None)[0]
        self.meet = None if plain.meet is None else self._timed((plain.meet, ()), None)[0]
        self.depart = None if plain.depart is None else self._timed((plain.depart, ()), None)[0]

    def _timed(self, call: Call, sync: Callable[[], None] | None) -> Call:
        (function, arguments), note, clock = call, self._times.append, perf_counter

        def timed() -> None:
            note(clock())
            function(*arguments)
            note(clock())

        def finished() -> None:
            note(clock())
            function(*arguments)
            sync()  # type: ignore[misc]
            note(clock())

        return (timed if sync is None else finished), ()

    def start(self, arguments: Mapping[str, Array]) -> Callable[[], list[tuple[int, Array]]]:
        outputs = self.run(arguments)
        return lambda: outputs

    def run(self, arguments: Mapping[str, Array] | None) -> list[tuple[int, Array]]:
        self._times.clear()
        begin = perf_counter()
        outputs = super().run(arguments)
        end = perf_counter()
        self.ran.append(TimedRun(begin, end, np.array(self._times).reshape(-1, 2)))
        return outputs


def described(instruction: Instruction) -> TimedCall:
    """Return the timeline entry of an instruction: name, operation, category, user's line, and types of operands."""
    match instruction:
        case Compute(op, inputs, outputs, name, where):
            shapes = [str(slot.type) for slot in (*inputs, *outputs)]
            return TimedCall(name, op.word(), "compute", line_text(where), " ".join(shapes))
        case Collective(kind, ranks, source, _, _, _, _, _, name, where):
            return TimedCall(name, kind, "communication", line_text(where), f"{source.type} among ranks {list(ranks)}")
        case Completion(_, target, _, name, where):
            return TimedCall(name, "completion", "communication", line_text(where), str(target.type))
        case Transfer(peer, sends, slot, _, name, where):
            return TimedCall(
                name, "send" if sends else "receive", "communication", line_text(where), f"{slot.type} {'to' if sends else 'from'} rank {peer}"
            )
        case Wait(peer, sends, slot, _, name, where):
            return TimedCall(
                name, "sent" if sends else "received", "communication", line_text(where), f"{slot.type} {'to' if sends else 'from'} rank {peer}"
            )


def line_text(where: SourceLine) -> str:
    """Return the user's line as text; "" for an unknown line."""
    return "" if where == NOWHERE else str(where)


class Recording:
    """A recording of all executors of a rank, from the constructor to `end`; both are collective."""

    def __init__(self, rank: int, comm: Communicator, executors: dict[int, Executor], clock: Callable[[], float] = perf_counter) -> None:
        self._rank = rank
        self._comm = comm
        self._executors = executors
        self._waits: list[tuple[float, float]] = []
        self._host = host()
        self._offset = offset(comm, self._host, clock)
        executors.update({number: TimedExecutor(plain) for number, plain in executors.items()})
        comm.observe(lambda began, ended: self._waits.append((began, ended)))

    def end(self) -> Timeline:
        """Restore the calls of the executors and return the recorded timeline."""
        self._comm.observe(None)
        calls: dict[str, tuple[tuple[TimedCall, ...], ...]] = {}
        runs: dict[str, tuple[tuple[TimedRun, ...], ...]] = {}
        for number, executor in list(self._executors.items()):
            if isinstance(executor, TimedExecutor):
                self._executors[number] = executor.plain
                if executor.ran:
                    job = executor.plan.job
                    calls[job] = (*calls.get(job, ()), executor.calls)
                    runs[job] = (*runs.get(job, ()), tuple(executor.ran))
        return Timeline(self._rank, self._host, self._offset, calls, runs, np.array(self._waits).reshape(-1, 2))


def host() -> str:
    """Return the identity of the machine: its name, and a unique identifier.  Processes of one machine share a clock."""
    return f"{platform.node()} {node_name()}"


def offset(comm: Communicator, machine: str, clock: Callable[[], float] = perf_counter) -> float:
    """Return the seconds by which the clock of rank 0 is ahead of this rank's clock.

    The result is 0 if all ranks run on one machine, and otherwise the median difference at the ends of `MEETINGS` barriers.
    """
    machines = comm.exchange(machine)
    if len(set(machines)) == 1:
        return 0.0
    moments = []
    for _ in range(MEETINGS):
        comm.barrier()
        moments.append(clock())
    first: Sequence[float] = comm.exchange(moments)[0]
    return median(theirs - mine for theirs, mine in zip(first, moments, strict=True))
