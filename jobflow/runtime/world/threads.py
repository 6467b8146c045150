"""The world of threads: one thread of this process per rank.

The calling thread only waits, so that Ctrl-C works: it stops the ranks at their next communication, unless `runtime.interrupts` delays it.

The threads are daemons.  `close`, the end of the world object, or the exit of the process joins them.  Python joins other threads before it runs
functions registered for exit, and would wait for idle ranks forever.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

from jobflow.core.errors import AbortedError, JobError
from jobflow.kernels import blas_threads as blas
from jobflow.runtime.comm.thread_communicator import ThreadsCommunicator, ThreadsState
from jobflow.runtime.comm.transports import device_communicator, facts
from jobflow.runtime.device.device import Device
from jobflow.runtime.device.numpy_device import aligned_zeros
from jobflow.runtime.interrupts import caught
from jobflow.runtime.thread_start import start_thread
from jobflow.runtime.world.node_map import NodeMap
from jobflow.runtime.world.world import Command, Rank, each_argument, failure

#: seconds to wait for a busy rank in `close`
FAREWELL = 5.0


class CommandRun:
    """The execution of one command on all ranks."""

    def __init__(self, command: Command, arguments: Sequence[Any], ranks: Sequence[Rank]) -> None:
        self.command = command
        self.arguments = arguments
        self._ranks = ranks
        self.results: list[Any] = [None] * len(arguments)
        #: (rank, error) in order of occurrence
        self.failures: list[tuple[int, BaseException]] = []
        self._left = len(arguments)
        self._guard = threading.Lock()
        self.over = False
        #: released at the end
        self.done = threading.Lock()
        self.done.acquire()

    def abort(self, reason: str) -> None:
        """Abort every rank separately, because a rank that waits for its device cannot be reached through other ranks."""
        for rank in self._ranks:
            rank.outermost.abort(reason)

    def finish(self) -> None:
        with self._guard:
            self._left -= 1
            last = self._left == 0
        if last:
            self.over = True
            self.done.release()


class Worker:
    """The thread of one rank, idle until `start`."""

    def __init__(self, rank: Rank, state: ThreadsState) -> None:
        self.rank = rank
        self._state = state
        self._run: CommandRun | None = None
        #: errors of the end of the rank
        self.failures: list[BaseException] = []
        self._wake = threading.Lock()
        self._wake.acquire()
        self.thread = start_thread(self._serve, f"jobflow rank {rank.index}")

    def start(self, run: CommandRun | None) -> None:
        """Execute the command of `run` in the thread; None ends the thread."""
        self._run = run
        self._wake.release()

    def _close(self) -> None:
        """Free the memory of the rank, and close its communicator together with the other ranks."""
        try:
            self.rank.device.activate()
            self.rank.memory.clear()
            self.rank.outermost.close()
        except BaseException as error:  # noqa: BLE001 - raised by the thread that closes the world
            self.failures.append(error)

    def _serve(self) -> None:
        active = False
        while True:
            self._wake.acquire()
            run, self._run = self._run, None
            if run is None:
                self._close()
                return
            try:
                if not active:
                    self.rank.device.activate()
                    active = True
                run.results[self.rank.index] = run.command(self.rank, run.arguments[self.rank.index])
                self._state.ended.add(self.rank.index)
            except BaseException as error:  # noqa: BLE001 - the client raises it
                run.failures.append((self.rank.index, error))
                run.abort(f"rank {self.rank.index} failed: {type(error).__name__}: {error}")
            finally:
                run.finish()  # even if the report fails for lack of memory, because the client waits
            del run  # an idle rank keeps no arguments alive


class ThreadsWorld:
    """A world of one thread per device."""

    multi = False
    unwinding = False

    def __init__(self, devices: Sequence[Device]) -> None:
        self.size = len(devices)
        self.map = NodeMap.of_one(self.size)
        self.tags: Sequence[str] = tuple([device.tag for device in devices])
        self._state = state = ThreadsState(self.size)
        known = [facts(device) for device in devices]
        comms = [device_communicator(ThreadsCommunicator(state, i, aligned_zeros), device, known) for i, device in enumerate(devices)]
        self.ranks: Sequence[Rank] = [Rank(i, self.size, device, comm) for i, (device, comm) in enumerate(zip(devices, comms, strict=True))]
        self._calling = threading.Lock()
        self._workers = _workers(self.ranks, state)
        self._blas_threads = blas.limit(1)
        self._end = weakref.finalize(self, _shut_down, self._workers, self._blas_threads, state)

    def call(self, command: Command, arguments: Sequence[Any] | None = None) -> list[Any]:
        if not self._end.alive:
            raise JobError("call of a command: this world has been closed; create another one")
        self.ranks[0].check_process()
        if threading.current_thread() in {worker.thread for worker in self._workers}:
            raise JobError("a rank cannot call its own world from inside a command, because all ranks are executing that command")
        run = CommandRun(command, each_argument(self.size, arguments), self.ranks)
        with self._calling:
            self._state.ended.clear()
            self._perform(run)
        if run.failures:
            raise self._first(run)
        return run.results

    def _perform(self, run: CommandRun) -> None:
        """Execute a command on all ranks; return only after all have stopped, even after an interrupt such as Ctrl-C."""

        def stop() -> None:
            if not run.over:
                run.abort("the client was interrupted")

        with caught(stop) as interrupt:
            for worker in self._workers:
                worker.start(run)
            while not run.over:
                try:
                    run.done.acquire()
                except BaseException as error:  # noqa: BLE001 - raised when all ranks have stopped
                    interrupt.error = error
                    stop()
            if run.failures or interrupt.error is not None:
                self._reset()

    def _first(self, run: CommandRun) -> BaseException:
        for rank, error in run.failures:
            if not isinstance(error, AbortedError):
                return failure(rank, self.size, error)
        return failure(*run.failures[0][:1], self.size, run.failures[0][1])

    def _reset(self) -> None:
        for rank in self.ranks:
            rank.outermost.reset()

    def broadcast(self, item: Any, what: str) -> Any:
        return item

    def close(self) -> None:
        self._end()


def _workers(ranks: Sequence[Rank], state: ThreadsState) -> list[Worker]:
    """Start a thread for each rank; end them all if one of them cannot start."""
    workers: list[Worker] = []
    try:
        for rank in ranks:
            workers.append(Worker(rank, state))
    except JobError:
        _shut_down(workers, None, state)
        raise
    return workers


def _shut_down(workers: Sequence[Worker], blas_threads: int | None, state: ThreadsState) -> None:
    """End the ranks together: each closes its communicator in its own thread, because NCCL waits there for the other ranks."""
    state.ended.clear()
    for worker in workers:
        worker.start(None)
    if not _joined(workers):
        for worker in workers:
            worker.rank.outermost.abort("the world is closed while a rank is busy")
        _joined(workers)
    if blas_threads is not None:
        blas.limit(blas_threads)
    for error in (error for worker in workers for error in worker.failures):
        raise error


def _joined(workers: Sequence[Worker]) -> bool:
    """Wait for the threads; return False if one of them has not ended within the limit."""
    deadline = time.monotonic() + FAREWELL
    for worker in workers:
        worker.thread.join(max(0.0, deadline - time.monotonic()))
    return not any(worker.thread.is_alive() for worker in workers)
