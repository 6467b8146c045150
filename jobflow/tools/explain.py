"""The compilation stages of a job as text or page: graphs, layouts, redistributions and their cost, memory, and the plan of a rank."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import NamedTuple

from jobflow.compiler.compile import logical
from jobflow.compiler.front.pipeline_order import USUAL, pipeline_of
from jobflow.compiler.layouts.box import Reroute, box
from jobflow.compiler.layouts.bucket import bucket
from jobflow.compiler.layouts.shard import shard
from jobflow.compiler.rank.local import RankProgram
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, JobError, SourceLine, counted, did_you_mean_or
from jobflow.core.imports import ImportFailedError, module_named
from jobflow.core.tables import TextTable
from jobflow.engine.common_target import common_target
from jobflow.engine.job import Job, job_of, returned_values
from jobflow.engine.session import current_session
from jobflow.graph.graph_text import graph_text, physical_text, sharded_text
from jobflow.graph.ir import Graph, Node, Physical, Sharded, Value
from jobflow.graph.rewrite import consumers
from jobflow.kernels.target import Target, fallback
from jobflow.plan.footprint import footprint_text
from jobflow.plan.plan import Plan
from jobflow.plan.plan_text import plan_text
from jobflow.plan.traffic import planned
from jobflow.program.allocation import memory_of
from jobflow.program.program import Program, StorageChoice
from jobflow.strategies import named
from jobflow.tools import STAGES
from jobflow.tools.call_tables import floor_tables, kernel_tables
from jobflow.tools.picture import graph_page


def load_job(target: str) -> Job:
    """Return the job that "path/to/file.py:name" or "module:name" names.

    In place of a name, a call such as "examples/gpt.py:make_train_job(Size())" is evaluated with the names of the module.
    Raises: ConfigError if `target` has no name, or if the file or module is missing; JobError if the name is missing or not a job.
    """
    where, _, name = target.partition(":")
    if not name:
        raise ConfigError(f'"{target}" does not name a job; write path/to/file.py:job or module:job')
    module = _load(where)
    if "(" in name:
        return job_of(eval(name, vars(module)), target)
    if not hasattr(module, name):
        jobs = [key for key, value in vars(module).items() if isinstance(getattr(value, "job", None), Job)]
        raise JobError(f"{where} has no job {name}{did_you_mean_or(name, jobs, 'it has: ' + (', '.join(jobs) or 'none'))}")
    return job_of(getattr(module, name), target)


def _load(where: str) -> ModuleType:
    if not where.endswith(".py"):
        try:
            return module_named(where)
        except ImportFailedError as error:
            raise ConfigError(str(error)) from error.__cause__
    if not os.path.isfile(where):
        raise ConfigError(f"there is no file {where}; pass path/to/file.py:job or module:job")
    sys.path.insert(0, os.path.dirname(os.path.abspath(where)))
    spec = importlib.util.spec_from_file_location(os.path.splitext(os.path.basename(where))[0], where)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Explained:
    """A job compiled for several devices.

    The fields are results of the first compiler stages; programs and plans of single ranks are computed on demand.
    """

    traced: Graph
    logical: Graph
    sharded: Sharded
    physical: Physical
    devices: int
    target: Target
    schedule: str | None = None

    def program(self, rank: int) -> RankProgram:
        """Return the program of a rank before its buffers get addresses."""
        return self._program(True).rank_program(rank, self.devices)

    def plan(self, rank: int, share: bool = True) -> Plan:
        """Return the program of a rank with buffer addresses.

        With `share`, ranks may share variables and read arguments from the client's buffers.
        """
        return self._program(share).plan(rank, self.devices)

    def _program(self, share: bool) -> Program:
        return Program(self.physical, StorageChoice(share=share and current_session().settings.share_variables, io_buffers=share), self.target)

    def memory(self) -> str:
        """Return a table of the memory of every rank by category."""
        text = footprint_text({rank: memory_of(self._program(True), rank, self.devices) for rank in range(self.devices)})
        return text if self.target.kind == "cpu" else f"{text}; staging and scratch of GPUs are not included"

    def kernels(self, rank: int) -> str:
        """Return a table of a rank's instructions with their implementations, the reasons against faster ones, and fusion refusals."""
        program = self._program(True)
        why = fallback(current_session().settings.kernels) if self.target.kind == "cpu" else None
        return kernel_tables(program.plan(rank, self.devices), program.target, program.ordered(rank, self.devices), why)

    def floors(self, rank: int) -> str:
        """Return tables of the least times of a rank's calls on a GPU, and of the kernels that compute them."""
        if self.target.kind == "cpu":
            return "bounds of times are computed for GPUs; pass --device cuda"
        return floor_tables(self.plan(rank), self.target)

    def boxing(self, rank: int) -> str:
        """Return a table of all redistributions, and the bytes that a rank sends per step with and without shared memory."""
        if not any(isinstance(node.op, Reroute) for node in self.physical.graph.nodes):
            return "no communication between ranks"
        alone, once = (sum(traffic.nbytes for traffic in planned(self.plan(rank, share)).values()) for share in (False, True))
        less = f", {once} if the ranks share memory" if once != alone else ""
        rows = [(row.route, f"{row.nbytes:.0f}", *row[2:]) for row in boxing_rows(self.physical)]
        table = TextTable(["route", "bytes/rank", "tensors", "from", "to", "for", "line"], rows)
        return f"{table}\nrank {rank} sends {alone} bytes per step{less}"

    def pipeline(self) -> str:
        """Return the schedule of microbatches on the pipeline stages as text."""
        pipeline = pipeline_of(self.sharded.graph, self.schedule or USUAL)
        if pipeline is None or pipeline.form.stages == 1:
            return "the job has no pipeline stages"
        return str(pipeline)


def laid_out(job: Job, devices: int, strategy: str | None = None, target: Target | None = None) -> Explained:
    """Compile a job for `devices` devices in one process, with the job's own strategy if `strategy` is None.  Nothing runs.

    The devices are CPUs unless `target` is the target of GPUs.
    """
    session = current_session()
    if session.started and session.device_count() != devices:
        raise ConfigError(
            f"explain: job {job.name} cannot be compiled for {counted(devices, 'device')}: its program has already started on "
            f'{counted(session.device_count(), "device")} by calling a job; put such calls below if __name__ == "__main__":'
        )
    job = job if strategy is None else job.with_strategy(named(strategy))
    session.settings.gpu_device_num, session.settings.cpu_device_num = None, devices
    placement = job.placement(session)
    shapes = [shape[0] if d.per_device else shape for (_, d), shape in zip(job.signature.placeholders(), job.declared_shapes(session), strict=True)]
    program, results = job.trace(session, placement, shapes)
    outputs = returned_values(results)
    target = target or common_target(session)
    graph = logical(program, outputs, target).graph
    sharded = shard(graph)
    return Explained(program.graph(outputs), graph, sharded, bucket(box(sharded), target, job.config.sum_dtype), devices, target, program.schedule)


def target_for(device: str | None, devices: int) -> Target | None:
    """Return the target of a device "cpu" or "cuda", which need not exist, or None for the default."""
    if device is None:
        return None
    return current_session().settings.computing.target("gpu" if device == "cuda" else device, timed=devices == 1)


def explain(
    job: Job, *, devices: int = 1, rank: int = 0, stages: Sequence[str] | None = None, strategy: str | None = None, device: str | None = None
) -> str:
    """Return the compilation stages of a job for `devices` devices as text, with the plan of one `rank`.  Nothing runs.

    `stages` selects names of `STAGES`; by default all, except "floors" on CPUs.  `device` is "cpu", "cuda", or None for the device of the session.
    """
    compiled = laid_out(job, devices, strategy, target_for(device, devices))
    if stages is None:
        stages = [stage for stage in STAGES if stage != "floors" or compiled.target.kind == "cuda"]
    texts = {
        "trace": lambda: graph_text(compiled.traced),
        "graph": lambda: graph_text(compiled.logical),
        "layouts": lambda: sharded_text(compiled.sharded),
        "boxing": lambda: compiled.boxing(rank),
        "physical": lambda: physical_text(compiled.physical),
        "program": lambda: str(compiled.program(rank)),
        "plan": lambda: plan_text(compiled.plan(rank)),
        "kernels": lambda: compiled.kernels(rank),
        "memory": compiled.memory,
        "floors": lambda: compiled.floors(rank),
        "pipeline": compiled.pipeline,
    }
    return "\n\n".join(f"== {stage} ==\n{texts[stage]()}" for stage in STAGES if stage in stages)


def explain_page(job: Job, *, devices: int = 1, rank: int = 0, strategy: str | None = None, device: str | None = None) -> str:
    """Return the compilation stages as one self-contained HTML page: a drawing of the physical graph, then tables.  Nothing runs."""
    compiled = laid_out(job, devices, strategy, target_for(device, devices))
    times = {f"Least times of rank {rank}": compiled.floors(rank)} if compiled.target.kind == "cuda" else {}
    tables = {
        "Pipeline": compiled.pipeline(),
        "Redistributions": compiled.boxing(rank),
        "Memory of each rank": compiled.memory(),
        **times,
        f"Plan of rank {rank}": plan_text(compiled.plan(rank)),
    }
    return graph_page(compiled.physical, tables)


class Change(NamedTuple):
    """A redistribution of a tensor.

    `nbytes` is the number of bytes that the busiest rank sends; `readers` are the operations that read the result.
    """

    route: str
    nbytes: float
    tensors: str
    source: str
    target: str
    readers: str
    where: SourceLine


def boxing_rows(physical: Physical) -> list[Change]:
    """Return every redistribution of a job, in program order."""
    rows = []
    readers = consumers(physical.graph)
    for node in physical.graph.nodes:
        if isinstance(node.op, Reroute):
            sent = node.op.bytes_per_rank(*(value.tensor_type for value in node.inputs))
            rows.append(Change(node.op.name, sent, node.name, str(node.op.source), str(node.op.target), _readers(node, readers), node.where))
    return rows


def _readers(node: Node, readers: Mapping[Value, Sequence[Node]]) -> str:
    """Return the distinct names of the operations that read the redistributed tensor, separated by commas; "result" without readers."""
    words = [reader.op.word() for value in node.outputs for reader in readers[value]]
    return ", ".join(dict.fromkeys(words)) or "result"
