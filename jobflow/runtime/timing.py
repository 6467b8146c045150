"""Record when a rank does what: every prepared call of its plans, and its waits for others inside them.

A recording replaces the calls of an executor by timed ones and gives them back afterwards, so an executor that is not recorded runs
what it always runs.  Calls on a GPU are timed until the device has finished them.
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
from jobflow.plan.plan import Collective, Compute, Instruction, Transfer, Wait
from jobflow.runtime.comm.communicator import Communicator
from jobflow.runtime.executor import Executor
from jobflow.runtime.world.service.members import node_name

Category: TypeAlias = Literal["compute", "communication"]
#: how often ranks meet to compare their clocks
MEETINGS = 9


@dataclass(frozen=True)
class Timed:
    """A prepared call: the instruction it belongs to, and `kernel`, which does the work."""

    name: str
    kernel: str
    category: Category
    where: str
    #: element types and shapes, or what is sent
    what: str = ""


@dataclass(frozen=True)
class Ran:
    """One run of a plan: `times[i]` are the begin and the end of call i, in seconds of the rank's clock."""

    begin: float
    end: float
    times: np.ndarray[tuple[int, int], np.dtype[np.float64]]


@dataclass(frozen=True)
class Recorded:
    """What one rank did: per job its calls and runs, and when it waited for others.  `offset` is added to its clock to get that of rank 0."""

    rank: int
    host: str
    offset: float
    calls: dict[str, tuple[tuple[Timed, ...], ...]]
    #: per job, per plan of the job
    runs: dict[str, tuple[tuple[Ran, ...], ...]]
    waits: np.ndarray[tuple[int, int], np.dtype[np.float64]]


class TimedExecutor(Executor):
    """An executor whose calls note when they begin and end; `plain` is the one whose memory it uses."""

    def __init__(self, plain: Executor) -> None:
        vars(self).update(vars(plain))
        self.plain = plain
        self.ran: list[Ran] = []
        self._times: list[float] = []
        sync = self.device.synchronize if self.device.tag == "gpu" else None
        words = {id(instruction): described(instruction) for instruction in plain.origin}
        names = [words[id(instruction)] for instruction in plain.origin]  # the calls of one instruction have one object
        meeting = Timed("all ranks meet before variables change", "meet", "communication", "")
        parting = Timed("all ranks meet after variables changed", "meet", "communication", "")
        middle = [] if plain.meet is None else [meeting]
        last = [] if plain.depart is None else [parting]
        first = [] if plain.begin is None else [Timed("all ranks begin the same job", "meet", "communication", "")]
        cut = len(plain.body)
        self.calls: tuple[Timed, ...] = (*first, *names[:cut], *middle, *names[cut:], *last)
        self.body = [self._timed(call, sync) for call in plain.body]
        self.epilogue = [self._timed(call, sync) for call in plain.epilogue]
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

    def run(self, arguments: Mapping[str, Array] | None) -> list[tuple[int, Array]]:
        self._times.clear()
        begin = perf_counter()
        given = super().run(arguments)
        end = perf_counter()
        self.ran.append(Ran(begin, end, np.array(self._times).reshape(-1, 2)))
        return given


def described(instruction: Instruction) -> Timed:
    """What a trace says about an instruction."""
    match instruction:
        case Compute(op, inputs, outputs, name, where):
            shapes = [str(slot.type) for slot in (*inputs, *outputs)]
            return Timed(name, op.word(), "compute", place(where), " ".join(shapes))
        case Collective(kind, ranks, source, _, _, _, _, _, name, where):
            return Timed(name, kind, "communication", place(where), f"{source.type} among ranks {list(ranks)}")
        case Transfer(peer, sends, slot, _, name, where):
            return Timed(name, "send" if sends else "receive", "communication", place(where), f"{slot.type} {'to' if sends else 'from'} rank {peer}")
        case Wait(peer, sends, slot, _, name, where):
            return Timed(name, "sent" if sends else "received", "communication", place(where), f"{slot.type} {'to' if sends else 'from'} rank {peer}")


def place(where: SourceLine) -> str:
    """A line of the user's program; nothing for what has none."""
    return "" if where == NOWHERE else str(where)


class Recording:
    """All executors of a rank under the clock, from its making until `end`.  Both are collective."""

    def __init__(self, rank: int, comm: Communicator, executors: dict[int, Executor], clock: Callable[[], float] = perf_counter) -> None:
        self._rank = rank
        self._comm = comm
        self._executors = executors
        self._waits: list[tuple[float, float]] = []
        self._host = host()
        self._offset = offset(comm, self._host, clock)
        executors.update({number: TimedExecutor(plain) for number, plain in executors.items()})
        comm.observe(lambda began, ended: self._waits.append((began, ended)))

    def end(self) -> Recorded:
        """Give the executors their own calls back; what was recorded."""
        self._comm.observe(None)
        calls: dict[str, tuple[tuple[Timed, ...], ...]] = {}
        runs: dict[str, tuple[tuple[Ran, ...], ...]] = {}
        for number, executor in list(self._executors.items()):
            if isinstance(executor, TimedExecutor):
                self._executors[number] = executor.plain
                if executor.ran:
                    job = executor.plan.job
                    calls[job] = (*calls.get(job, ()), executor.calls)
                    runs[job] = (*runs.get(job, ()), tuple(executor.ran))
        return Recorded(self._rank, self._host, self._offset, calls, runs, np.array(self._waits).reshape(-1, 2))


def host() -> str:
    """The machine, which has one clock: its name, and what tells it from others of that name."""
    return f"{platform.node()} {node_name()}"


def offset(comm: Communicator, machine: str, clock: Callable[[], float] = perf_counter) -> float:
    """What to add to this rank's clock to get that of rank 0: nothing on one machine, else the median difference when all leave a meeting."""
    machines = comm.exchange(machine)
    if len(set(machines)) == 1:
        return 0.0
    moments = []
    for _ in range(MEETINGS):
        comm.barrier()
        moments.append(clock())
    first: Sequence[float] = comm.exchange(moments)[0]
    return median(theirs - mine for theirs, mine in zip(first, moments, strict=True))
