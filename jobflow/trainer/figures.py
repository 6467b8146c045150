"""Figures of a compiled job, and a description of the machine.

The figures are the memory and communication of each rank, the parameters, and the arithmetic operations.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata

import numpy as np
import psutil

from jobflow.compiler.layouts.box import Reroute
from jobflow.core.dataclass import dataclass
from jobflow.core.layout import Local
from jobflow.core.version import __version__
from jobflow.engine.session import Session
from jobflow.graph.ir import Physical
from jobflow.kernels import blas_threads
from jobflow.kernels.target import CPU, Target
from jobflow.plan.footprint import Footprint
from jobflow.plan.plan import Collective, Compute, Transfer
from jobflow.plan.storage import is_common
from jobflow.plan.traffic import Traffic, planned
from jobflow.program.allocation import memory_of
from jobflow.program.program import Program, StorageChoice
from jobflow.runtime.world.environment import usable_cores
from jobflow.runtime.world.launched import launched
from jobflow.runtime.world.mpi import node_map
from jobflow.strategies.pipeline import flops
from jobflow.tools.explain import Change, boxing_rows
from jobflow.trainer.units import size_text

#: tables omit redistributions that send at most this number of bytes
QUIET = 0.0


@dataclass(frozen=True)
class RankFigures:
    """Memory and communication of one rank in one run of a job.

    `common` counts the bytes of variables that are stored once per machine and shared by its ranks.
    """

    rank: int
    memory: Footprint
    common: int
    traffic: dict[str, Traffic]
    #: number of instructions that compute, and of instructions that communicate
    computing: int
    communicating: int
    #: bytes of buffers that peers read
    shared: int

    @property
    def sent(self) -> int:
        """Bytes sent to other ranks."""
        return sum(traffic.nbytes for traffic in self.traffic.values())


@dataclass(frozen=True)
class Figures:
    """Memory, communication, parameters and arithmetic operations of a compiled job."""

    ranks: tuple[RankFigures, ...]
    #: number of trainable elements, number of variables, and bytes of all variables (about the size of a checkpoint)
    parameters: int
    variables: int
    variable_bytes: int
    #: multiplications and additions in products and convolutions of one run, over all ranks
    operations: float
    changes: tuple[Change, ...]

    @property
    def largest(self) -> int:
        """Bytes allocated on the rank that needs most memory."""
        return max((figures.memory.total for figures in self.ranks), default=0)

    def kinds(self) -> list[str]:
        """Return the kinds of communication in the job."""
        return sorted({kind for figures in self.ranks for kind in figures.traffic})


def figures_in(session: Session, programs: Sequence[Physical], most: int | None = None) -> Figures:
    """Return the figures of a job under the settings of this session, for all ranks or for the first `most` ranks."""
    on_hosts, multi = session.device_tag == "cpu", session.multi or launched() is not None
    io_buffers = on_hosts and not multi and all(program is programs[0] for program in programs)
    share, processes = session.settings.share_variables and on_hosts, launched() is not None
    return figures_of(programs, share=share, io_buffers=io_buffers, most=most, target=session.target(), processes=processes)


def figures_of(
    programs: Sequence[Physical],
    *,
    share: bool = True,
    io_buffers: bool = False,
    most: int | None = None,
    target: Target = CPU,
    processes: bool = False,
) -> Figures:
    """Return the figures of a job from the programs of its ranks, for all ranks or for the first `most` ranks.

    With `share`, variables that are whole on all ranks are stored once, as on one machine without GPUs. With `io_buffers`, ranks read arguments
    from the buffers of a single client. With `processes`, ranks are processes that share memory by windows.
    """
    graph = programs[0].graph
    storage = StorageChoice(share=share, io_buffers=io_buffers)
    ranks = [rank_figures(Program(program, storage, target), rank, len(programs), processes) for rank, program in enumerate(programs[:most])]
    trained = sum(v.type.size for v in graph.variables.values() if v.trainable)
    nbytes = sum(v.type.nbytes for v in graph.variables.values())
    changes = tuple(row for row in boxing_rows(programs[0]) if row.nbytes > QUIET)
    operations = operations_of(programs[0])
    return Figures(tuple(ranks), trained, len(graph.variables), nbytes, operations, changes)


def rank_figures(program: Program, rank: int, ranks: int, processes: bool = False) -> RankFigures:
    plan = program.plan(rank, ranks)
    common = sum(slot.type.nbytes for slot in plan.variables.values() if is_common(slot.buffer))
    computing = sum(isinstance(instruction, Compute) for instruction in plan.instructions)
    communicating = sum(isinstance(instruction, Collective | Transfer) for instruction in plan.instructions)
    memory, shared = memory_of(program, rank, ranks, processes), plan.buffers.get("shared", 0)
    return RankFigures(plan.rank, memory, common, planned(plan), computing, communicating, shared)


def operations_of(program: Physical) -> float:
    """Count the multiplications and additions of products and convolutions in one run; local tensors count once per rank."""
    total = 0.0
    for node in program.graph.nodes:
        if len(node.inputs) > 1 and not isinstance(node.op, Reroute):
            own = isinstance(program.layouts[node.outputs[0]], Local)
            total += flops(node) * (node.placement.size if own else 1)
    return total


# -------------------------------------------------------------------- the machine


def environment(ranks: int | None = None) -> dict[str, str]:
    """Return versions, hardware and the command line that can influence a result, as texts by name; with `ranks`, also their number and launcher."""
    facts = {
        "jobflow": __version__,
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        "NumPy": np.__version__,
        "BLAS": blas_text(),
        "machine": f"{platform.node()}, {platform.system()} {platform.release()}, {platform.machine()}",
        "processor": processor(),
        "cores": f"{len(usable_cores())} usable of {os.cpu_count() or '?'}",
        "memory": size_text(host_memory()),
    }
    if ranks is not None:
        started = launched()
        facts["ranks"] = f"{ranks} ({f'processes, by {started.launcher}' if started is not None else 'threads' if ranks > 1 else 'this process'})"
        if started is not None:
            facts["MPI"] = f"mpi4py {metadata.version('mpi4py')}"
        if nodes := node_map().text():
            facts["nodes"] = nodes
    facts["command"] = " ".join(sys.argv) or "?"
    return facts


def blas_text() -> str:
    """Describe the BLAS library and its threads, such as "OpenBLAS 0.3.30, 1 thread a process"."""
    threads = blas_threads.threads()
    return blas_threads.library() + ("" if threads is None else f", {threads} thread{'s' if threads != 1 else ''} a process")


def processor() -> str:
    """Return the name of the processor, or its architecture if the system has no name."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def host_memory() -> int:
    """Return the size of the machine's memory in bytes."""
    return int(psutil.virtual_memory().total)
