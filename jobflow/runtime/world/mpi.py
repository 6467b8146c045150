"""The world of MPI: one process per rank.

Single client: rank 0 runs the user's program.  The others run it up to the point where they too make an `MpiWorld` and then
`serve`: they perform the commands that rank 0 sends, and leave when its program ends.
Multi client: every process runs the program and calls the same commands, each with the argument of its own rank, and all
get all results.

A process makes one `Station` and keeps it until it ends, since MPI can start only once.  Worlds come and go on it.
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
from jobflow.runtime.comm.mpi_communicator import MpiCommunicator, Site
from jobflow.runtime.comm.nccl_communicator import device_communicator
from jobflow.runtime.comm.post import LEAVING, Control, Post, write
from jobflow.runtime.comm.waits import Need, WayCount
from jobflow.runtime.device.device import Device
from jobflow.runtime.device.numpy_device import CpuDevice
from jobflow.runtime.thread_start import check_space, has_limit
from jobflow.runtime.world import environment as variables
from jobflow.runtime.world import launched as launch
from jobflow.runtime.world import mpi_end, rendezvous, versions, watcher
from jobflow.runtime.world.launched import Launch
from jobflow.runtime.world.mailbox import Mailbox
from jobflow.runtime.world.rank_authentication import longest_wait
from jobflow.runtime.world.world import Command, Rank, each_argument

#: bytes of address space for the library and the start of MPI
MPI_SPACE = 64 << 20


def cpu_device(local: int) -> Device:
    """The device of the rank that is number `local` in its node: any is as good as another."""
    return CpuDevice()


class Station:
    """MPI in this process: the words and letters between the ranks, and what the session is."""

    def __init__(self, started: Launch) -> None:
        self.mpi = _import_mpi(started)
        world = self.mpi.COMM_WORLD
        if world.Get_size() != started.size:
            found = f"{started.launcher} started {started.size} ranks, but the MPI library that mpi4py uses sees {world.Get_size()}"
            raise JobError(f"{found}: they are not of one kind; start the program with the mpiexec that belongs to mpi4py's MPI")
        node = world.Split_type(self.mpi.COMM_TYPE_SHARED)
        self.local: int = node.Get_rank()
        sharing = [set(cores) for cores in node.allgather(sorted(variables.usable_cores()))]
        neighbours = sum(1 for cores in sharing if cores & variables.usable_cores())
        self.threads = max(1, len(variables.usable_cores()) // neighbours)
        if self.local == 0:
            # MPICH removes the names of the memory that this job shares only at an orderly end: one that is killed would leave some MiB for good.
            # The memory itself lasts as long as a process maps it, which all ranks of the node do, as the allgather above says.
            watcher.forget(watcher.names_of(os.getpid()))
        node.Free()
        versions.compare(world.allgather(versions.own_versions()), world.Get_rank())
        agree(world.allgather(own_class()))
        self.world = world.Dup()
        self.control = Control(self.mpi, world.Dup(), crowded=neighbours > len(variables.usable_cores()))
        self.post = Post(self.mpi, world.Dup(), self.control, "letters", range(world.Get_size()))
        self._begun = WayCount("session")
        self.control.ways += [self.post.ways, [self._begun]]
        self.launch = started
        #: "" before the first world, then "single client" or "multi client"
        self.session = ""
        self.stopped = False
        #: how many worlds there have been
        self.opened = 0
        #: by number, those that this rank left by an exception: peers may still look at their memory
        self.left_open: dict[int, Rank] = {}

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self.control.size) if rank != self.control.rank]

    def begin(self, session: str) -> None:
        """Wait until all ranks begin a session; they must begin the same."""
        if self.session:
            if self.session != session:
                raise JobError(f"this job runs as {self.session} and cannot become {session}")
            return
        self.session = session
        self._begun.done = 1
        self.control.say(session)
        words = self.control.words
        what = "the start of a session"
        self.control.wait(lambda: self._heard() and all(words), what, lambda: [Need(rank, "session", 1) for rank in self.others if not words[rank]])
        for rank in self.others:
            if words[rank][0] == LEAVING:
                raise self.control.left(rank, what)
            if words[rank][0] != session:
                raise JobError(f"rank {self.control.rank} starts a session as {session}, rank {rank} as {words[rank][0]}; all must agree")

    def _heard(self) -> bool:
        self.control.listen()
        return True

    def leave(self) -> None:
        """At the end of the script: stop the servers, and wait until every rank is here, for MPI ends on all at once."""
        if self.session == "single client" and self.control.rank == 0:
            self.send_all(("stop",))
        self.control.say(LEAVING)
        words = self.control.words
        self.control.wait(lambda: self._heard() and all(LEAVING in said for said in words), "the end of the job", lambda: (), patient=True)

    def send_all(self, order: tuple[Any, ...]) -> None:
        head = write(order)
        self.post.hand_over(dict.fromkeys(self.others, head), f"sending {order[0]!r}")

    def close_left(self, numbers: Sequence[set[int]]) -> None:
        """Close the worlds that all ranks have left; `numbers[rank]` are those that each has."""
        for number in sorted(set.intersection(*numbers)):
            rank = self.left_open.pop(number)
            rank.memory.clear()
            rank.comm.close()

    def fail(self, error: BaseException) -> NoReturn:
        """This rank cannot go on, so the job ends."""
        launch.end_job(error, self.launch)


def _import_mpi(started: Launch) -> Any:
    shared_memory.prepare_mpi(variables.ranks_here(started))
    if has_limit() and "mpi4py.MPI" not in sys.modules:
        check_space(f"start of MPI on rank {started.rank} of {started.size}", MPI_SPACE)  # MPI ends the process without it
    try:
        if started.master:
            return rendezvous.start_mpi(rendezvous.member())
        if "mpi4py.MPI" in sys.modules:
            return importlib.import_module("mpi4py.MPI")
        settings = importlib.import_module("mpi4py").rc
        settings.thread_level = "serialized"  # one thread per rank talks
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


_station: list[Station] = []


def station(started: Launch) -> Station:
    """The one of this process; made when first asked for, which waits for the other processes.  JobError in a child by fork."""
    launch.check_member()
    if not _station:
        _station.append(Station(started))
    return _station[0]


def leave(started: Launch) -> None:
    """What `launch.guard` does at the end of a script, whether it had a session or not."""
    if not started.master:
        with suppress(JobError):  # no MPI here: no other rank can have got further
            station(started)
    try:
        if _station:
            _station[0].leave()
        if started.master:  # such ranks need no MPI to tell each other of their end
            rendezvous.member().leave()
    except BaseException as error:  # noqa: BLE001 - there is nobody left to raise it to
        launch.end_job(error, started)


def guard() -> Launch | None:
    """Guard this process if it is one of several; called when jobflow is imported."""
    if launch.starts_ranks():
        return None
    started = launch.launched()
    if started is None:
        return None
    fail = rendezvous.join(started, launch.ended_elsewhere).fail if started.master else None
    variables.mark()
    launch.guard(started, lambda: leave(started), fail)
    return started


def kind_of(command: Command) -> int:
    """A number that commands have in common which all ranks may perform together: what else they say may be a rank's own.

    Those of different Python threads have none: they belong to different calls.
    """
    word = getattr(command, "__qualname__", type(command).__qualname__)
    return zlib.crc32(f"{word} {getattr(command, 'number', '')}{_in_thread()}".encode())


def _in_thread() -> str:
    caller = scope.caller()
    return f" in Python thread {caller!r}" if caller else ""


def name_of(command: Command) -> str:
    """A command, as messages have it."""
    return str(getattr(command, "__name__", command))


class MpiWorld:
    """A world of one process per rank.  `device(local)` makes the device of the rank that is number `local` in its node.

    `shared=False` and `nodes` are those of a communicator's `Site`.
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
        self._station = here = station(started)
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
        return self.multi or self._station.control.rank == 0

    @property
    def parting(self) -> bool:
        return self.multi and self._station.control.passing is not None

    def _open(self) -> None:
        device, shared, nodes = self._settings
        here = self._station
        here.opened += 1
        self._number = here.opened
        comm = MpiCommunicator(Site(here.mpi, here.control, f"world {here.opened}", shared, nodes), tuple(range(self.size)))
        comm.open(here.world.Dup(), here.post)
        if self.multi:
            here.close_left(comm.exchange(set(here.left_open)))
        self._mailbox = None if self.multi else Mailbox(comm, here.control, here.post, f"commands {here.opened}")
        mine = device(here.local)
        mine.activate()
        self._rank = Rank(here.control.rank, self.size, mine, device_communicator(comm, mine, comm.exchange(mine.identity)))
        self._rank.compare = self._compare if self.multi else None
        self.ranks: Sequence[Rank] = (self._rank,)

    def _shut(self) -> None:
        self.ranks = ()
        self._rank.compare = None
        self._rank.memory.clear()
        if self._mailbox is not None:
            self._mailbox.close()
            self._mailbox = None
        self._rank.comm.close()

    def call(self, command: Command, arguments: Sequence[Any] | None = None) -> list[Any]:
        if self._closed:
            raise JobError("this world has been closed")
        self._rank.check_process()
        if not self.is_client:
            raise JobError(f"rank {self._rank.index} serves and cannot call; only rank 0 can, or all ranks as multi client")
        items = each_argument(self.size, arguments)
        self._rank.device.activate()  # this is the user's thread: another device may have become current in it
        # what cannot be pickled is the caller's mistake, and noticed before any rank begins
        letters = {} if self.multi else self._letters(command, items if arguments is not None else None)
        try:
            return self._together(command, items) if self.multi else self._drive(command, items, letters)
        except SystemExit:
            raise
        except BaseException as error:  # noqa: BLE001 - an error inside a command ends the job
            self._station.fail(error)

    def _letters(self, command: Command, items: Sequence[Any] | None) -> dict[int, list[Any]]:
        """What calls `command` on the other ranks."""
        if items is None:
            bare = write(("call", command, None)) if self._mailbox is None else self._mailbox.bare(command)
            return dict.fromkeys(self._station.others, bare)
        return {rank: write(("call", command, items[rank])) for rank in self._station.others}

    def _drive(self, command: Command, items: Sequence[Any], letters: dict[int, list[Any]]) -> list[Any]:
        assert self._mailbox is not None
        # all of it is handed over before this rank computes: while it waits for a peer's flag, MPI would not move
        self._mailbox.send(letters, "sending a command")
        results = [command(self._rank, items[0])]
        return results + [self._mailbox.receive(rank, f"{name_of(command)} of rank {rank}") for rank in self._station.others]

    def _together(self, command: Command, items: Sequence[Any]) -> list[Any]:
        # commands of different kinds would meet in the same flags and letters, and take each other's numbers
        if not getattr(command, "compares", False):
            self._compare(command)
        result = command(self._rank, items[self._rank.index])
        return self._station.post.exchange(result, lambda: f"{name_of(command)} of all ranks")

    def _compare(self, command: Command) -> None:
        self._rank.comm.agree(kind_of(command), lambda: f"{name_of(command)} at {user_line()}{_in_thread()}")

    def serve(self) -> NoReturn:
        """Perform what rank 0 sends until its program ends; then end this process."""
        here = self._station
        try:
            while not here.stopped:
                self._obey(*self._next(here))
        except BaseException as error:  # noqa: BLE001 - an error inside a command ends the job
            here.fail(error)
        launch.leave_now()

    def _next(self, here: Station) -> Any:
        what = "the next command"
        return here.post.receive(0, what, patient=True) if self._mailbox is None else self._mailbox.receive(0, what, patient=True)

    def _obey(self, order: str, *rest: Any) -> None:
        here = self._station
        if order == "call":
            command, argument = rest
            assert self._mailbox is not None
            self._mailbox.answer(command(self._rank, argument), f"the result of {command}")
        elif order == "close":
            self._shut()
        elif order == "open":
            self._settings = rest[0]
            self._open()
        else:
            here.stopped = True

    def close(self) -> None:
        """Give the ranks' memory back.  Servers stay: they end with the program of rank 0, and take part in its next world."""
        if self._closed or self._rank.pid != os.getpid():
            return
        self._closed = True
        if self.parting:
            self._station.left_open[self._number] = self._rank
            return
        if not self.multi:
            self._station.send_all(("close",))
        self._shut()
