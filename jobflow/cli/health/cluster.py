"""Checks of `jobflow doctor` among ranks: the nodes, the routes between them with their speed, and the shared directory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from jobflow.cli.health.finding import NOTE, OK, Finding, judged
from jobflow.cli.health.probes.ranks_probe import messages, window
from jobflow.runtime.comm.shared_memory import TRANSPORTS
from jobflow.runtime.world.environment import Launch
from jobflow.runtime.world.mpi import MpiProcess, mpi_process
from jobflow.runtime.world.node_map import NodeMap

#: bytes per second below which messages between nodes are slow
SLOW = 0.1e9
INTERFACE = "if the nodes have a faster network, select its interface on all nodes, such as: export UCX_NET_DEVICES=eth1"
ROOM = "enlarge /dev/shm, and permit shared memory between processes; for a container: docker run --ipc=host"


def cluster(launch: Launch) -> Iterator[Finding]:
    """Check the ranks of this job; every rank calls this, and rank 0 uses the findings."""
    here = mpi_process(launch)
    places = here.map
    nodes = list(dict.fromkeys(places.nodes))
    count = f"{places.count} node{'s' * (places.count > 1)}"
    yield Finding("ranks", OK, f"{launch.size} on {count}, by {launch.launcher}, with equal versions")
    for first in nodes:
        yield _node(here, places, first)
    for first in nodes[1:]:
        yield _messages(here, places, first)
    yield _directory(here, places)


def _node(here: MpiProcess, places: NodeMap, first: int) -> Finding:
    """Measure the shared memory of the first two ranks of a node."""
    pair, named = places.ranks_of(first)[:2], places.node_text(first)
    if len(pair) < 2:
        return Finding("node", OK, f"{named}: no other rank to share memory with")

    def measure(comm: Any) -> tuple[float, str]:
        try:
            return window(here.mpi, comm), ""
        except (here.mpi.Exception, RuntimeError) as error:
            return 0.0, " ".join(str(error).split())[:200]

    read, trouble = _of_pair(here, pair, measure)
    return judged(
        "node",
        f"{named}: ",
        (not read, NOTE, f"no shared memory ({trouble}), so these ranks exchange tensors by messages", ROOM, ""),
        (True, OK, f"shared memory, {read / 1e9:.1f} GB/s", "", ""),
    )


def _messages(here: MpiProcess, places: NodeMap, first: int) -> Finding:
    """Measure the messages between rank 0 and the first rank of another node."""
    latency, sent = _of_pair(here, (0, first), messages)
    text = f"{places.hosts[0]} - {places.hosts[first]}: MPI messages, {1e6 * latency:.0f} us, {sent / 1e9:.2f} GB/s"
    chosen = f", with {TRANSPORTS}={os.environ[TRANSPORTS]}" if TRANSPORTS in os.environ else ""
    return judged("network", text + chosen, (sent < SLOW, NOTE, ": slow", INTERFACE, ""), (True, OK, "", "", ""))


def _of_pair(here: MpiProcess, pair: Sequence[int], measure: Any) -> Any:
    """Return the result of `measure(comm)` on the first of two ranks; the other ranks wait.  Collective."""
    rank = here.control.rank
    comm = here.world.Split(0 if rank in pair else here.mpi.UNDEFINED, rank)
    result = None
    if rank in pair:
        result = measure(comm)
        comm.Free()
    return here.world.bcast(result, pair[0])


def _directory(here: MpiProcess, places: NodeMap) -> Finding:
    """Check that a file that rank 0 writes to the working directory exists on all nodes."""
    world, rank, folder = here.world, here.control.rank, Path.cwd()
    with ExitStack() as stack:
        name, trouble = "", ""
        if rank == 0:
            try:
                name = stack.enter_context(tempfile.NamedTemporaryFile(dir=folder, prefix=".jobflow-doctor-")).name
            except OSError as error:
                trouble = error.strerror or str(error)
        name, trouble = world.bcast((name, trouble), 0)
        visible = world.allgather(bool(name) and os.path.exists(name))
    nodes_without = ", ".join(places.node_text(first) for first in dict.fromkeys(places.nodes[i] for i, exists in enumerate(visible) if not exists))
    fix = "set checkpoint.directory to a directory that all nodes share, or to an object store"
    return judged(
        "directory",
        f"{folder}: ",
        (trouble, NOTE, f"rank 0 cannot write there ({trouble})", "change to a directory on a shared disk", ""),
        (nodes_without, NOTE, f"{places.hosts[0]} has written a file that is not visible on {nodes_without}", fix, ""),
        (True, OK, "all ranks see the files of rank 0", "", ""),
    )
