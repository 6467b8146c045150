"""The world of MPI: one process per rank.

Single client: rank 0 runs the user's program.  The other ranks run it up to the construction of their `MpiWorld` and then `serve`.  They execute
the commands of rank 0, and exit when its program ends.
Multi client: every process runs the program and calls the same commands, each with the argument of its own rank.  All ranks get all results.

A process has one `MpiProcess` until it ends, because MPI can start only once.  Worlds are created and closed on it.
"""

from __future__ import annotations

import importlib
import os
import sys
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import jobflow.core.scope as scope
from jobflow.core.errors import JobError, user_line
from jobflow.kernels import blas_threads as blas
from jobflow.kernels.machine_class import agree, own_class
from jobflow.runtime.comm import shared_memory
from jobflow.runtime.comm.message_queue import LEAVING, Control, MessageQueue, write
from jobflow.runtime.comm.mpi_communicator import MpiCommunicator, MpiSettings
from jobflow.runtime.comm.transports import device_communicator, facts
from jobflow.runtime.comm.waits import PlainCounter, WaitEdge
from jobflow.runtime.device.device import Device
from jobflow.runtime.device.numpy_device import cpu_device
from jobflow.runtime.thread_start import check_space, has_limit
from jobflow.runtime.world import environment as variables
from jobflow.runtime.world import launched as launch
from jobflow.runtime.world import lingering, monitor, mpi_end, rendezvous, versions
from jobflow.runtime.world.command_queue import CommandQueue
from jobflow.runtime.world.launched import Launch
from jobflow.runtime.world.lingering import Awaited
from jobflow.runtime.world.node_connections import NodeConnections
from jobflow.runtime.world.node_map import NodeMap
from jobflow.runtime.world.rank_authentication import longest_wait
from jobflow.runtime.world.world import Command, Rank, each_argument

#: bytes of address space for the library and the start of MPI
MPI_SPACE = 64 << 20


class MpiProcess:
    """MPI in this process: the status words and messages between ranks, and the mode of the session."""

    def __init__(self, started: Launch) -> None:
        self.mpi = _import_mpi(started)
        world = self.mpi.COMM_WORLD
        if world.Get_size() != started.size:
            sizes = f"{started.launcher} started {started.size} ranks, but the MPI library of mpi4py has {world.Get_size()}"
            raise JobError(f"start of MPI: {sizes}; start the program with the mpiexec of mpi4py's MPI library")
        node = world.Split_type(self.mpi.COMM_TYPE_SHARED)
        self.local: int = node.Get_rank()
        sharing = [set(cores) for cores in node.allgather(sorted(variables.usable_cores()))]
        neighbours = sum(1 for cores in sharing if cores & variables.usable_cores())
        self.threads = max(1, len(variables.usable_cores()) // neighbours)
        if self.local == 0:
            # MPICH removes the names of its shared memory only at an orderly exit, so a killed job would leak some MiB.
            # The memory itself lasts as long as a process maps it, and after the allgather above all ranks of the node do.
            monitor.forget(monitor.names_of(os.getpid()))
        own = versions.own_versions()
        rows = world.allgather((own, node.bcast(world.Get_rank(), 0)))
        node.Free()
        versions.compare([row for row, _ in rows], world.Get_rank())
        self.map = NodeMap([str(row["host"]) for row, _ in rows], [first for _, first in rows])
        agree(world.allgather(own_class()))
        self.world = world.Dup()
        self.control = Control(self.mpi, world.Dup(), crowded=neighbours > len(variables.usable_cores()))
        self.queue = MessageQueue(self.mpi, world.Dup(), self.control, "messages", range(world.Get_size()))
        self._begun = PlainCounter("session")
        self.control.counters += [self.queue.counters, [self._begun]]
        self.launch = started
        #: "" before the first world, then "single client" or "multi client"
        self.session = ""
        self.stopped = False
        #: number of worlds created so far
        self.opened = 0
        #: by number, worlds that this rank left by an exception; peers may still read their memory
        self.left_open: dict[int, Rank] = {}
        if not started.master and self.map.count > 1:
            NodeConnections(world, self.map, launch.ended_by_silence)

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self.control.size) if rank != self.control.rank]

    def begin(self, session: str) -> None:
        """Wait until all ranks begin a session; raise JobError if their modes differ, or if an earlier session had another mode."""
        if self.session:
            if self.session != session:
                raise JobError(
                    f"start of a session: the job runs as {self.session} and cannot change to {session}; set the mode once, before the first session"
                )
            return
        self.session = session
        self._begun.done = 1
        self.control.say(session)
        words = self.control.words
        what = "the start of a session"
        self.control.wait(
            lambda: self._heard() and all(words), what, lambda: [WaitEdge(rank, "session", 1) for rank in self.others if not words[rank]]
        )
        for rank in self.others:
            if words[rank][0] == LEAVING:
                raise self.control.left(rank, what)
            if words[rank][0] != session:
                raise JobError(
                    f"start of a session: rank {self.control.rank} runs as {session}, rank {rank} as {words[rank][0]}; "
                    f"start all ranks in the same mode"
                )

    def _heard(self) -> bool:
        self.control.listen()
        return True

    def end(self) -> None:
        """Stop the serving ranks at the end of the script, and wait for every rank, because MPI ends on all ranks together."""
        if self.session == "single client" and self.control.rank == 0:
            self.send_all(("stop",))
        self.control.say(LEAVING)
        words = self.control.words
        self.control.wait(
            lambda: self._heard() and all(LEAVING in words_of_rank for words_of_rank in words), "the end of the job", lambda: (), patient=True
        )

    def send_all(self, order: tuple[Any, ...]) -> None:
        head = write(order)
        self.queue.hand_over(dict.fromkeys(self.others, head), f"sending {order[0]!r}")

    def close_left(self, worlds: Sequence[set[int]]) -> None:
        """Close the worlds that all ranks have left by an exception; `worlds[rank]` are the numbers of the worlds that a rank has left."""
        for number in sorted(set.intersection(*worlds)):
            rank = self.left_open.pop(number)
            rank.memory.clear()
            rank.outermost.close()

    def progress(self) -> int:
        """Return the number of points that this rank has reached, summed over all counters."""
        return sum(counter.done for counters in self.control.counters for counter in counters)

    def waiting(self) -> dict[int, str]:
        """Return the operation of each rank that waits for this one; call it while no other thread of this process communicates."""
        control = self.control
        control.listen()
        waits = {**control.waits, control.rank: control.here()}
        return {rank: waiting.what for rank, waiting in control.waits.items() if rank != control.rank and control.rank in waiting.missing(waits)}

    def fail(self, error: BaseException) -> NoReturn:
        """End the job because of an error on this rank."""
        launch.end_job(error, self.launch)


def _import_mpi(started: Launch) -> Any:
    shared_memory.prepare_mpi(variables.ranks_here(started))
    if not started.master and (variables.node_size_from_launcher() or 1) > 1:
        shared_memory.prepare_nodes()
    if has_limit() and "mpi4py.MPI" not in sys.modules:
        check_space(f"start of MPI on rank {started.rank} of {started.size}", MPI_SPACE)  # MPI ends the process without it
    try:
        if started.master:
            return rendezvous.start_mpi(rendezvous.member())
        if "mpi4py.MPI" in sys.modules:
            return importlib.import_module("mpi4py.MPI")
        settings = importlib.import_module("mpi4py").rc
        settings.thread_level = "serialized"  # one thread per rank calls MPI
        mpi_end.leave_to_us(settings)
        with launch.mpi_starts(longest_wait()):
            mpi = importlib.import_module("mpi4py.MPI")
        mpi_end.ends_with_interpreter(mpi)
        return mpi
    except JobError:
        raise
    except (ImportError, RuntimeError) as error:
        ranks = f"{started.launcher} started this program as {started.size} ranks"
        raise JobError(f'{ranks}, which needs mpi4py and an MPI library ({error}); install both with: pip install "jobflow-sbp[mpi]"') from error


_processes: list[MpiProcess] = []


def mpi_process(started: Launch) -> MpiProcess:
    """Return MPI in this process; the first call waits for the other processes.  Raise JobError in a forked child."""
    launch.check_member()
    if not _processes:
        _processes.append(MpiProcess(started))
    return _processes[0]


def node_map() -> NodeMap:
    """Return the nodes of the ranks; before the start of MPI, this process is a single rank."""
    return _processes[0].map if _processes else NodeMap.of_one(1)


def end_script(started: Launch) -> None:
    """End a script under `launch.guard`, with or without a session."""
    lingering.close()
    if not started.master:
        with suppress(JobError):  # without MPI here, no other rank has started it either
            mpi_process(started)
    try:
        if _processes:
            _processes[0].end()
        if started.master:  # such ranks report their end without MPI
            rendezvous.member().end()
    except BaseException as error:  # noqa: BLE001 - there is no caller left
        launch.end_job(error, started)


def _awaited(started: Launch) -> Awaited:
    """Return a function that the monitoring after the end of the main thread calls.

    The function returns the waiting ranks with their operations; None if this rank has communicated since, or is running a job.
    """
    before = _processes[0].progress() if _processes else None

    def awaited() -> dict[int, str] | None:
        held = scope.lock().acquire(blocking=False)
        try:
            if not held or (_processes and _processes[0].progress() != before):
                return None
            if _processes:
                return _processes[0].waiting()
            return dict.fromkeys(rendezvous.member().waiting(), "the start of a session") if started.master else {}
        finally:
            if held:
                scope.lock().release()

    return awaited


def guard() -> Launch | None:
    """Install the exit handlers and return the launch if this process is one of several ranks; called when jobflow is imported."""
    if launch.starts_ranks():
        return None
    started = launch.launched()
    if started is None:
        return None
    fail = rendezvous.join(started, launch.ended_elsewhere).fail if started.master else None
    variables.mark()
    launch.guard(started, lambda: end_script(started), fail)
    lingering.install(started, lambda: _awaited(started))
    return started


def kind_of(command: Command) -> int:
    """Return a number that is equal for commands that ranks may execute together; arguments may differ by rank.

    Commands of different Python threads never match, because they belong to different calls.
    """
    word = getattr(command, "__qualname__", type(command).__qualname__)
    return zlib.crc32(f"{word} {getattr(command, 'number', '')}{_in_thread()}".encode())


def _in_thread() -> str:
    caller = scope.caller()
    return f" in Python thread {caller!r}" if caller else ""


def name_of(command: Command) -> str:
    """Return the name of a command in messages."""
    return str(getattr(command, "__name__", command))


class MpiWorld:
    """A world of one process per rank.  `device(local)` returns the device of the rank number `local` on its node.

    `shared` and `nodes` have the meaning of `MpiSettings`.
    """

    def __init__(
        self,
        started: Launch,
        device: Callable[[int], Device] = cpu_device,
        *,
        multi: bool = False,
        shared: bool = True,
        nodes: Sequence[int] | None = None,
    ) -> None:
        self.multi = multi
        self.size = started.size
        self._process = here = mpi_process(started)
        self.map = here.map
        self._closed = False
        self._settings = (device, shared, nodes)
        try:
            again = bool(here.session)
            here.begin("multi client" if multi else "single client")
            if multi:
                launch.unmute()
            elif again and self.is_client:
                here.send_all(("open", self._settings))
            blas.limit(here.threads)
            self._open()
        except BaseException as error:  # noqa: BLE001 - the other ranks wait for this one
            here.fail(error)

    @property
    def is_client(self) -> bool:
        """True if this process runs the user's program; otherwise it must `serve`."""
        return self.multi or self._process.control.rank == 0

    @property
    def unwinding(self) -> bool:
        return self.multi and self._process.control.active_exception is not None

    def _open(self) -> None:
        device, shared, nodes = self._settings
        here = self._process
        here.opened += 1
        self._number = here.opened
        comm = MpiCommunicator(MpiSettings(here.mpi, here.control, f"world {here.opened}", shared, nodes), tuple(range(self.size)))
        comm.open(here.world.Dup(), here.queue)
        if self.multi:
            here.close_left(comm.exchange(set(here.left_open)))
        self._commands = None if self.multi else CommandQueue(comm, here.control, here.queue, f"commands {here.opened}")
        mine = device(here.local)
        mine.activate()
        devices = comm.exchange(facts(mine))
        self.tags: Sequence[str] = tuple([device.tag for device in devices])
        self._rank = Rank(here.control.rank, self.size, mine, device_communicator(comm, mine, devices))
        self._rank.compare = self._compare if self.multi else None
        self.ranks: Sequence[Rank] = (self._rank,)

    def _shut(self) -> None:
        self.ranks = ()
        self._rank.compare = None
        self._rank.memory.clear()
        if self._commands is not None:
            self._commands.close()
            self._commands = None
        self._rank.outermost.close()

    def call(self, command: Command, arguments: Sequence[Any] | None = None) -> list[Any]:
        if self._closed:
            raise JobError(f"{name_of(command)}: this world has been closed; create another one")
        self._rank.check_process()
        if not self.is_client:
            raise JobError(f"{name_of(command)}: rank {self._rank.index} only serves; call commands on rank 0, or on all ranks in multi-client mode")
        items = each_argument(self.size, arguments)
        self._rank.device.activate()  # the user's thread may have another current device
        # pickling errors are raised before any rank begins
        messages = {} if self.multi else self._messages(command, items if arguments is not None else None)
        try:
            return self._call_on_all(command, items) if self.multi else self._call_from_client(command, items, messages)
        except SystemExit:
            raise
        except BaseException as error:  # noqa: BLE001 - an error inside a command ends the job
            self._process.fail(error)

    def _messages(self, command: Command, items: Sequence[Any] | None) -> dict[int, list[Any]]:
        """Return the messages that call `command` on the other ranks."""
        if items is None:
            bare = write(("call", command, None)) if self._commands is None else self._commands.bare(command)
            return dict.fromkeys(self._process.others, bare)
        return {rank: write(("call", command, items[rank])) for rank in self._process.others}

    def _call_from_client(self, command: Command, items: Sequence[Any], messages: dict[int, list[Any]]) -> list[Any]:
        assert self._commands is not None
        # send everything before this rank computes, because MPI makes no progress while it polls the flag of a peer
        self._commands.send(messages, "sending a command")
        results = [command(self._rank, items[0])]
        return results + [self._commands.receive(rank, f"{name_of(command)} of rank {rank}") for rank in self._process.others]

    def _call_on_all(self, command: Command, items: Sequence[Any]) -> list[Any]:
        # different commands would use the same flags and messages, and read each other's data
        if not getattr(command, "compares", False):
            self._compare(command)
        result = command(self._rank, items[self._rank.index])
        return self._process.queue.exchange(result, lambda: f"{name_of(command)} of all ranks")

    def broadcast(self, item: Any, what: str) -> Any:
        if not self.multi:
            return item
        queue = self._process.queue
        try:
            if self._rank.index:
                return queue.receive(0, what)
            queue.hand_over(dict.fromkeys(self._process.others, write(item)), what)
            return item
        except BaseException as error:  # noqa: BLE001 - the other ranks wait for this one
            self._process.fail(error)

    def _compare(self, command: Command) -> None:
        self._rank.comm.compare_digests(kind_of(command), lambda: f"{name_of(command)} at {user_line()}{_in_thread()}")

    def serve(self) -> NoReturn:
        """Execute the commands of rank 0 until its program ends; then end this process."""
        here = self._process
        try:
            while not here.stopped:
                self._execute(*self._next(here))
        except BaseException as error:  # noqa: BLE001 - an error inside a command ends the job
            here.fail(error)
        launch.leave_now()

    def _next(self, here: MpiProcess) -> Any:
        what = "the next command"
        return here.queue.receive(0, what, patient=True) if self._commands is None else self._commands.receive(0, what, patient=True)

    def _execute(self, order: str, *rest: Any) -> None:
        here = self._process
        if order == "call":
            command, argument = rest
            assert self._commands is not None
            self._commands.answer(command(self._rank, argument), f"the result of {command}")
        elif order == "close":
            self._shut()
        elif order == "open":
            self._settings = rest[0]
            self._open()
        else:
            here.stopped = True

    def close(self) -> None:
        """Free the memory of the ranks.  Serving ranks remain until the program of rank 0 ends, and take part in its next world."""
        if self._closed or self._rank.pid != os.getpid():
            return
        self._closed = True
        if self.unwinding:
            self._process.left_open[self._number] = self._rank
            return
        if not self.multi:
            self._process.send_all(("close",))
        self._shut()
