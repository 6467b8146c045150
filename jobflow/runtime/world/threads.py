"""The world of threads: one thread of this process per rank.

The calling thread only waits, so that Ctrl-C works: it stops the ranks at their next communication, unless `runtime.interrupts` holds it.
The threads are daemons that `close`, the end of the world object, or the end of the process joins: Python joins other threads before
it runs what is registered for exit, and would wait for idle ranks forever.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

from jobflow.core.errors import AbortedError, JobError
from jobflow.kernels import blas_threads as blas
from jobflow.runtime.comm.nccl_communicator import device_communicator
from jobflow.runtime.comm.thread_communicator import Room, ThreadsCommunicator
from jobflow.runtime.device.device import Device
from jobflow.runtime.device.numpy_device import aligned_zeros
from jobflow.runtime.interrupts import caught
from jobflow.runtime.thread_start import start_thread
from jobflow.runtime.world.world import Command, Rank, each_argument, failure

#: seconds that closing waits for a rank that is still busy
FAREWELL = 5.0


class Round:
    """One command on its way through the ranks."""

    def __init__(self, command: Command, arguments: Sequence[Any], ranks: Sequence[Rank]) -> None:
        self.command = command
        self.arguments = arguments
        self._ranks = ranks
        self.results: list[Any] = [None] * len(arguments)
        #: first failure first
        self.failures: list[tuple[int, BaseException]] = []
        self._left = len(arguments)
        self._guard = threading.Lock()
        self.over = False
        #: released when it is over
        self.done = threading.Lock()
        self.done.acquire()

    def abort(self, reason: str) -> None:
        """Let every rank give up; each on its own, because a device may wait for others where no other rank reaches it."""
        for rank in self._ranks:
            rank.comm.abort(reason)

    def finish(self) -> None:
        with self._guard:
            self._left -= 1
            last = self._left == 0
        if last:
            self.over = True
            self.done.release()


class Worker:
    """The thread of one rank; idle until `start` gives it a round."""

    def __init__(self, rank: Rank, room: Room) -> None:
        self.rank = rank
        self._room = room
        self._round: Round | None = None
        self._wake = threading.Lock()
        self._wake.acquire()
        self.thread = start_thread(self._serve, f"jobflow rank {rank.index}")

    def start(self, round: Round | None) -> None:
        """None ends the thread."""
        self._round = round
        self._wake.release()

    def _serve(self) -> None:
        active = False
        while True:
            self._wake.acquire()
            round, self._round = self._round, None
            if round is None:
                return
            try:
                if not active:
                    self.rank.device.activate()
                    active = True
                round.results[self.rank.index] = round.command(self.rank, round.arguments[self.rank.index])
                self._room.ended.add(self.rank.index)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the client raises it
                round.failures.append((self.rank.index, error))
                round.abort(f"rank {self.rank.index} failed: {type(error).__name__}: {error}")
            finally:
                round.finish()  # also if the report runs out of memory: the client waits
            del round  # an idle rank keeps no arguments alive


class ThreadsWorld:
    """A world of one thread per device."""

    multi = False
    parting = False

    def __init__(self, devices: Sequence[Device]) -> None:
        self.size = len(devices)
        self._room = room = Room(self.size)
        identities = [device.identity for device in devices]
        comms = [device_communicator(ThreadsCommunicator(room, i, aligned_zeros), device, identities) for i, device in enumerate(devices)]
        self.ranks: Sequence[Rank] = [Rank(i, self.size, device, comm) for i, (device, comm) in enumerate(zip(devices, comms, strict=True))]
        self._calling = threading.Lock()
        self._workers = _workers(self.ranks, room)
        self._blas_threads = blas.limit(1)
        self._end = weakref.finalize(self, _dismiss, self._workers, self._blas_threads)

    def call(self, command: Command, arguments: Sequence[Any] | None = None) -> list[Any]:
        if not self._end.alive:
            raise JobError("this world has been closed")
        self.ranks[0].check_process()
        if threading.current_thread() in {worker.thread for worker in self._workers}:
            raise JobError("a rank cannot call its own world from inside a command: all ranks are busy with that command")
        round = Round(command, each_argument(self.size, arguments), self.ranks)
        with self._calling:
            self._room.ended.clear()
            self._perform(round)
        if round.failures:
            raise self._first(round)
        return round.results

    def _perform(self, round: Round) -> None:
        """Have all ranks do it.  None of them runs on behind the client's back, whatever interrupts that: Ctrl-C, or another signal's handler."""

        def stop() -> None:
            if not round.over:
                round.abort("the client was interrupted")

        with caught(stop) as interrupt:
            for worker in self._workers:
                worker.start(round)
            while not round.over:
                try:
                    round.done.acquire()
                except BaseException as error:  # noqa: BLE001 - raised when all ranks have stopped
                    interrupt.error = error
                    stop()
            if round.failures or interrupt.error is not None:
                self._reset()

    def _first(self, round: Round) -> BaseException:
        for rank, error in round.failures:
            if not isinstance(error, AbortedError):
                return failure(rank, self.size, error)
        return failure(*round.failures[0][:1], self.size, round.failures[0][1])

    def _reset(self) -> None:
        for rank in self.ranks:
            rank.comm.reset()

    def close(self) -> None:
        self._end()


def _workers(ranks: Sequence[Rank], room: Room) -> list[Worker]:
    """Start a thread for each rank; end them all if one of them cannot start."""
    workers: list[Worker] = []
    try:
        for rank in ranks:
            workers.append(Worker(rank, room))
    except JobError:
        _dismiss(workers, None)
        raise
    return workers


def _dismiss(workers: Sequence[Worker], blas_threads: int | None) -> None:
    for worker in workers:
        worker.start(None)
    for worker in workers:
        worker.thread.join(FAREWELL)
    for worker in workers:
        worker.rank.memory.clear()
        worker.rank.comm.close()
    if blas_threads is not None:
        blas.limit(blas_threads)
