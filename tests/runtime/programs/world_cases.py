"""Programs that end in every way: `world_cases.py CASE`, under mpiexec.  `test_mpi_world.py` states the expected end of each."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import contract
import numpy as np

from jobflow.core.layout import SUM
from jobflow.kernels import machine_class
from jobflow.runtime.comm import message_queue, shared_memory
from jobflow.runtime.comm import shared_windows as windows
from jobflow.runtime.comm.communicator import Communicator
from jobflow.runtime.world import launched as launch
from jobflow.runtime.world import mpi
from jobflow.runtime.world.mpi import MpiWorld
from jobflow.runtime.world.world import Rank

started = mpi.guard()
assert started is not None
case = sys.argv[1]
me = started.rank
if case == "machines" and me == 1:
    os.environ["JOBFLOW_CPU"] = "avx2"


def accident() -> None:
    """Print the time of the event that must end the job."""
    print(f"accident {time.time()}", file=sys.stderr, flush=True)


def world(**options: Any) -> MpiWorld:
    created = MpiWorld(started, **options)  # type: ignore[arg-type]
    if not created.is_client:
        created.serve()
    return created


@dataclass(frozen=True)
class Scale:
    """A command with an attribute: multiply the argument's array by `by`."""

    by: int

    def __call__(self, rank: Rank, argument: dict[str, Any]) -> dict[str, Any]:
        rank.memory["calls"] = rank.memory.get("calls", 0) + 1
        return {"rank": rank.index, "scaled": argument["x"] * self.by, "calls": rank.memory["calls"]}


def fail_on(rank: Rank, who: set[int]) -> None:
    if rank.index in who:
        accident()
        raise ValueError(f"no luck with {rank.index + 40}")
    rank.comm.barrier()


def die_on(rank: Rank, who: int) -> None:
    print("computing", file=sys.stderr)
    if rank.index == who:
        accident()
        os.kill(os.getpid(), signal.SIGKILL)
    rank.comm.barrier()


def late(rank: Rank, seconds: float) -> None:
    """Reach an all_reduce, a barrier and an exchange late on the last rank."""
    everybody = tuple(range(rank.size))
    calls = rank.comm.bind_all_reduce(everybody, np.ones(3), np.zeros(3), SUM, name="fc2.grad")
    rank.comm.seal()
    for wait in (lambda: contract.run(calls), rank.comm.barrier, lambda: rank.comm.exchange(1)):
        if rank.index == rank.size - 1:
            time.sleep(seconds)
        wait()
        rank.comm.barrier()


def call() -> None:
    w = world()
    for step in range(3):
        for n in (0, 3, 100_000):
            got = w.call(Scale(step), [{"x": np.arange(n) + r} for r in range(w.size)])
            assert [g["rank"] for g in got] == list(range(w.size))
            for r, g in enumerate(got):
                np.testing.assert_array_equal(g["scaled"], (np.arange(n) + r) * step)
                g["scaled"] += 1  # results are writable
    assert all(g["calls"] == 10 for g in w.call(Scale(1), [{"x": np.zeros(1)}] * w.size))
    print("called")


def call_twice_opened() -> None:
    for _ in range(3):
        w = world()
        assert all(g["calls"] == 1 for g in w.call(Scale(1), [{"x": np.zeros(1)}] * w.size)), "memory outlived its world"
        w.call(contract.all_reduce, [(100, "float32", "shared", SUM)] * w.size)
        w.call(contract.groups_in_turns, [3] * w.size)
        w.close()
        assert not windows._unfreed, "shared memory outlived its world"
    print("opened three times")


def multi() -> None:
    print("muted until the session starts", flush=True)
    w = world(multi=True)
    for step in range(3):
        arguments: list[Any] = [None] * w.size
        arguments[me] = {"x": np.full(100_000, me + step)}
        got = w.call(Scale(2), arguments)
        assert [int(g["scaled"][0]) for g in got] == [2 * (r + step) for r in range(w.size)]
    print(f"rank {me} done", flush=True)


def multi_exit() -> None:
    w = world(multi=True)
    w.call(contract.exchange)
    if me == 1:
        accident()
        sys.exit(0)
    w.call(contract.exchange)


def multi_exit_in_messages() -> None:
    w = world(multi=True, shared=False)
    w.call(contract.exchange)
    if me == 1:
        accident()
        return
    w.ranks[0].comm.barrier()


def in_the_middle(of_rank_1: Callable[[Communicator, Communicator], Any]) -> None:
    """Run an event on rank 1 while the others wait for it in different operations, after common work in the world and in a group."""
    comm = world(multi=True).ranks[0].comm
    pair = comm.group((1, 0)) if me < 2 else comm
    for step in range(3):
        for ours in (comm, pair)[: 2 if me < 2 else 1]:
            ours.compare_digests(step, lambda: "all the same")
    if me == 1:
        time.sleep(0.3)
        accident()
        of_rank_1(comm, pair)
        return
    pair.compare_digests(7, lambda: f"numpy() of float32[4,6] at train.py:{me + 10}")


def raise_in_the_middle() -> None:
    def no_luck(comm: Communicator, pair: Communicator) -> None:
        raise ValueError("no luck with 41")

    in_the_middle(no_luck)


def exit_in_the_middle() -> None:
    in_the_middle(lambda comm, pair: sys.exit(0))


def end_in_the_middle() -> None:
    in_the_middle(lambda comm, pair: None)


def kill_in_the_middle() -> None:
    print("computing", file=sys.stderr)
    in_the_middle(lambda comm, pair: os.kill(os.getpid(), signal.SIGKILL))


def part_in_the_middle() -> None:
    in_the_middle(lambda comm, pair: pair.compare_digests(8, lambda: "x.sum() at train.py:15"))


def part_by_order() -> None:
    in_the_middle(lambda comm, pair: comm.compare_digests(8, lambda: "x.sum() at train.py:15"))


def disagree() -> None:
    accident()
    world(multi=me == 0)


def mute() -> None:
    print("before", flush=True)
    os.system("echo from below")
    w = world()
    w.call(contract.exchange)
    print("after")


def error() -> None:
    world().call(fail_on, [{1}] * started.size)


def error_everywhere() -> None:
    world().call(fail_on, [set(range(started.size))] * started.size)


def error_on_client() -> None:
    world().call(fail_on, [{0}] * started.size)


def error_before_session() -> None:
    if me == 1:
        accident()
        raise ValueError("no luck with 41")
    time.sleep(20)


def error_before_session_awaited() -> None:
    if me == 1:
        time.sleep(0.3)
        accident()
        raise ValueError("no luck with 41")
    world()


def error_before_session_everywhere() -> None:
    accident()
    raise ValueError("no luck with 41")


def error_in_program() -> None:
    world().call(contract.exchange)
    accident()
    raise ValueError("no luck with 40")


def unpicklable() -> None:
    w = world()
    try:
        w.call(lambda rank, argument: None)
    except Exception as error:  # noqa: BLE001
        print(f"refused: {type(error).__name__}")
    w.call(contract.exchange)
    print("still usable")


def exit_early() -> None:
    if me == 1:
        accident()
        sys.exit(0)
    world()


def end_early() -> None:
    if me == 0:
        world()
    accident()


def exit_all() -> None:
    time.sleep(0.2 * me)


def exit_code() -> None:
    world().call(contract.exchange)
    sys.exit(3)


def segments() -> None:
    """Print the shared memory of MPICH, before a session removes its name."""
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    if me == 0:
        with open("/proc/self/maps") as maps:
            name = next((line.split()[-1] for line in maps if "/dev/shm/mpich_shm_" in line), "")
        print("segments", name, file=sys.stderr)


def kill() -> None:
    segments()
    world().call(die_on, [1] * started.size)


def kill_client() -> None:
    segments()
    world().call(die_on, [0] * started.size)


def kill_idle() -> None:
    segments()
    w = world()
    pids = w.call(pid)
    print("computing", file=sys.stderr)
    accident()
    os.kill(pids[1], signal.SIGKILL)
    time.sleep(20)


def pid(rank: Rank, argument: None) -> int:
    return os.getpid()


def stall() -> None:
    message_queue.PATIENCE = 0.4
    world().call(late, [1.0] * started.size)
    print("came through")


def stall_in_messages() -> None:
    message_queue.PATIENCE = 0.4
    world(shared=False).call(late, [1.0] * started.size)
    print("came through")


def little_memory() -> None:
    os.environ[shared_memory.LIMIT] = "0"
    w = world()
    for law in (contract.all_gather, contract.all_to_all, contract.transfer):
        w.call(law, [(5000, "float32", "shared")] * w.size)
    w.call(contract.all_reduce, [(5000, "float32", "shared", SUM)] * w.size)
    print("without shared memory")


def memory_returns() -> None:
    """Rebind repeatedly without using more and more shared memory."""
    w = world()
    w.call(bind_often, [200] * w.size)
    print("bounded")


def machines() -> None:
    """Choose as the least capable rank would, on CPUs of different classes."""
    w = world()
    print(*sorted(set(w.call(class_here, [None] * w.size))))


def class_here(rank: Rank, _: None) -> str:
    return machine_class.machine_class()


def bind_often(rank: Rank, times: int) -> None:
    world_ranks = tuple(range(rank.size))
    for _ in range(times):
        source, target = (rank.comm.allocate(1 << 18).view("float32") for _ in range(2))
        calls = rank.comm.bind_all_reduce(world_ranks, source, target, SUM)
        rank.comm.seal()
        source[:] = rank.index + 1
        contract.run(calls)
        assert (target == sum(range(1, rank.size + 1))).all()
    assert rank.comm._windows.total < 8 << 20, rank.comm._windows.total  # type: ignore[attr-defined]


def abort(**options: Any) -> None:
    w = MpiWorld(started, multi=True, **options)
    print(contract.abort_wakes(w.ranks[0], None), flush=True)
    w._station.mpi.COMM_WORLD.Barrier()
    time.sleep(0.3)
    launch.abort(started)  # the only end of a job after an abort


def abort_in_messages() -> None:
    abort(shared=False)


globals()[case]()
