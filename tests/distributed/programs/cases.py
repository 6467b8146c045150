"""Programs for ranks started in every way: `cases.py CASE`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np

import jobflow as flow
import jobflow.typing as tp
from jobflow import distributed
from jobflow.runtime.world import rendezvous
from jobflow.runtime.world.start import start_world
from jobflow.runtime.world.world import Rank, World

case = sys.argv[1]
me, size = distributed.get_rank(), distributed.get_world_size()


def say(text: str) -> None:
    print(f"rank {me} of {size}: {text}", flush=True)


def accident() -> None:
    """Print the time of the event that must end the job."""
    print(f"accident {time.time()}", file=sys.stderr, flush=True)


def world() -> World:
    return start_world("cpu", None, multi=True)


def swap(rank: Rank, argument: None) -> list[int]:
    return [int(result) for result in rank.comm.exchange(rank.index * 10)]


def exchange() -> None:
    say(str(world().call(swap)))


def job() -> None:
    """Call the job on every rank with the whole array; the default client of ranks without mpiexec."""
    if "PMI_RANK" in os.environ:
        flow.env.client("multi")

    @flow.global_function()
    def doubled(x: tp.Numpy.Placeholder((8,))) -> tp.Numpy:
        return flow.math.reduce_sum(x * 2.0)

    say(f"{float(doubled(np.arange(8, dtype=np.float32))[0]):g}")


def single() -> None:
    """Call on rank 0 while the others serve, as chosen by the program."""
    flow.env.client("single")

    @flow.global_function()
    def doubled(x: tp.Numpy.Placeholder((8,))) -> tp.Numpy:
        return flow.math.reduce_sum(x * 2.0)

    doubled(np.zeros(8, np.float32))
    say("called")


def rank_numbers() -> None:
    """Read rank numbers without loading MPI, also at the end of the program."""
    say(f"local {distributed.get_local_rank()}, {distributed.get_node_size()} nodes")
    assert "mpi4py" not in sys.modules


def alone() -> None:
    """Run with WORLD_SIZE=1, without MPI."""
    say(str(world().call(swap)))
    assert "mpi4py" not in sys.modules


def descendants() -> None:
    """Start a child process, which inherits the variables of a rank and is not a rank."""
    code = "from jobflow import distributed; print(distributed.get_rank(), distributed.get_world_size(), flush=True)"
    subprocess.run([sys.executable, "-c", code], check=True)
    child = os.fork()
    if child == 0:
        sys.exit(0)  # through the ordinary end
    os.waitpid(child, 0)
    exchange()


def announce() -> None:
    rendezvous.PATIENCE = 0.2
    exchange()


def slow() -> None:
    """Join on rank 1, but do not need the others for a while."""
    rendezvous.PATIENCE = 0.2
    if me == 1:
        time.sleep(1.5)
    exchange()


def started() -> None:
    world().call(swap)
    print("started", flush=True)
    time.sleep(30)


def fail(how: str) -> None:
    accident()
    if how == "raise":
        raise ValueError("no luck with 41")
    if how == "exit":
        sys.exit(3)
    if how == "osexit":
        os._exit(4)
    if how == "zero":
        os._exit(0)
    if how == "child":  # it has what the rank has open
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1.5)"], close_fds=False)
    if how == "manager":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(30)
    os.kill(os.getpid(), signal.SIGKILL)


def together(how: str) -> None:
    """Fail on rank 1 while the others wait for it."""
    ranks = world()
    ranks.call(swap)
    if me == 1:
        fail(how)
    ranks.call(swap)


def asleep(how: str) -> None:
    """Fail on rank 1 while the others do not communicate."""
    world().call(swap)
    if me == 1:
        fail(how)
    time.sleep(30)


def early(how: str) -> None:
    """Fail on rank 1 before the start of MPI, in which rank 0 waits."""
    if me == 1:
        if "MASTER_ADDR" in os.environ:
            rendezvous.member().nodes()  # all have come: of a process that dies before, nobody can know
        fail(how)
    world()


def everywhere() -> None:
    accident()
    raise ValueError("no luck with 41")


def noisy() -> None:
    """Print output after the traceback of rank 1."""
    world().call(swap)
    if me == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        rendezvous.member()._ended = lambda text, show: None  # a rank that does not hear
        for _ in range(100):
            print("still here", file=sys.stderr, flush=True)
            time.sleep(0.05)
    time.sleep(0.2)
    fail("raise")


def attacked() -> None:
    """Connect unauthenticated peers to the service while the ranks work; rank 1 prints as usual."""
    ranks = world()
    ranks.call(swap)
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    first = json.dumps({"jobflow": 3, "challenge": "a"}).encode()
    about = json.dumps({"rank": 1, "size": size, "pid": os.getppid(), "node": "a", "host": "b", "memory": "m", "screen": "c"})
    proof = json.dumps({"about": about, "proof": "0"}).encode()
    for noise in (b'{"rank": 1e400, "size": 2}', b"[" * 200_000, b"cmd=abort exitcode=7", first + b"\n" + proof):
        with contextlib.suppress(OSError), socket.create_connection(where) as sock:
            sock.sendall(noise + b"\n")
    ranks.call(swap)
    say(f"secret of {len(os.environ.get('JOBFLOW_SECRET', ''))} characters")


def stubborn() -> None:
    """Ignore SIGTERM, in a rank and its child process."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(30)"])
    print("ready", flush=True)
    time.sleep(30)


name, _, how = case.partition(":")
globals()[name](*filter(None, [how]))
