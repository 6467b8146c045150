"""Show every stage of a job: its graph, its layouts, what is boxed and what that costs, memory, and the plan of a rank; as text or as a page."""

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
from jobflow.compiler.rank.local import Program
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, JobError, SourceLine, counted, did_you_mean_or
from jobflow.core.imports import ImportFailedError, module_named
from jobflow.core.tables import TextTable
from jobflow.engine.allocation import memory_of
from jobflow.engine.binding import Loaded, StorageChoice
from jobflow.engine.job import Job, job_of, returned_values
from jobflow.engine.session import current_session
from jobflow.graph.graph_text import graph_text, physical_text, sharded_text
from jobflow.graph.ir import Graph, Node, Physical, Sharded, Value
from jobflow.graph.rewrite import consumers
from jobflow.kernels.target import fallback
from jobflow.plan.footprint import footprint_text
from jobflow.plan.plan import Plan
from jobflow.plan.plan_text import plan_text
from jobflow.plan.traffic import planned
from jobflow.strategies import named
from jobflow.tools import STAGES
from jobflow.tools.kernel_tables import kernel_tables
from jobflow.tools.picture import graph_page


def load_job(target: str) -> Job:
    """The job that "path/to/file.py:name" or "module:name" means; in place of the name a call of a function that makes a job may stand.

    Such a call, as in "examples/gpt.py:make_train_job(Size())", is Python in the names of the module.
    """
    where, _, name = target.partition(":")
    if not name:
        raise ConfigError(f'"{target}" does not name a job; write path/to/file.py:job or module:job')
    module = _load(where)
    if "(" in name:
        return job_of(eval(name, vars(module)))
    if not hasattr(module, name):
        jobs = [key for key, value in vars(module).items() if isinstance(getattr(value, "job", None), Job)]
        raise JobError(f"{where} has no job {name}{did_you_mean_or(name, jobs, 'it has: ' + (', '.join(jobs) or 'none'))}")
    return job_of(getattr(module, name))


def _load(where: str) -> ModuleType:
    if not where.endswith(".py"):
        try:
            return module_named(where)
        except ImportFailedError as error:
            raise ConfigError(str(error)) from error.__cause__
    if not os.path.isfile(where):
        raise ConfigError(f"there is no file {where}")
    sys.path.insert(0, os.path.dirname(os.path.abspath(where)))
    spec = importlib.util.spec_from_file_location(os.path.splitext(os.path.basename(where))[0], where)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Explained:
    """A job laid out over devices; `traced` to `physical` are what its first half makes, plans are made when asked for."""

    traced: Graph
    logical: Graph
    sharded: Sharded
    physical: Physical
    devices: int
    schedule: str | None = None

    def program(self, rank: int) -> Program:
        """What a rank does, without addresses."""
        return self._loaded(True).program(rank, self.devices)

    def plan(self, rank: int, share: bool = True) -> Plan:
        """What a rank does, with addresses; unless `share`, the ranks have no memory in common."""
        return self._loaded(share).plan(rank, self.devices)

    def _loaded(self, share: bool) -> Loaded:
        return Loaded(
            self.physical, StorageChoice(share=share and current_session().settings.share_variables, io_buffers=share), current_session().target()
        )

    def memory(self) -> str:
        """What the memory of every rank is used for."""
        return footprint_text({rank: memory_of(self._loaded(True), rank, self.devices) for rank in range(self.devices)})

    def kernels(self, rank: int) -> str:
        """Who computes each instruction of a rank, why nobody better does, and what stays out of regions, and why."""
        loaded = self._loaded(True)
        return kernel_tables(
            loaded.plan(rank, self.devices), loaded.target, loaded.ordered(rank, self.devices), fallback(current_session().settings.kernels)
        )

    def boxing(self, rank: int) -> str:
        """Every change of layout, and what a rank hands on in all: less where ranks have memory in common."""
        if not any(isinstance(node.op, Reroute) for node in self.physical.graph.nodes):
            return "nothing moves between ranks"
        alone, once = (sum(traffic.nbytes for traffic in planned(self.plan(rank, share)).values()) for share in (False, True))
        less = f", {once} if the ranks share memory" if once != alone else ""
        rows = [(row.route, f"{row.nbytes:.0f}", *row[2:]) for row in boxing_rows(self.physical)]
        table = TextTable(["route", "bytes/rank", "tensors", "from", "to", "for", "line"], rows)
        return f"{table}\nrank {rank} sends {alone} bytes per step{less}"

    def pipeline(self) -> str:
        """Who works on which microbatch when."""
        found = pipeline_of(self.sharded.graph, self.schedule or USUAL)
        if found is None or found.form.stages == 1:
            return "there are no stages that work on microbatches"
        return str(found)


def laid_out(job: Job, devices: int, strategy: str | None = None) -> Explained:
    """The job for `devices` CPU devices, one process, by its own strategy unless one is named.  Nothing runs."""
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
    graph = logical(program, outputs).graph
    sharded = shard(graph)
    return Explained(program.graph(outputs), graph, sharded, bucket(box(sharded)), devices, program.schedule)


def explain(job: Job, *, devices: int = 1, rank: int = 0, stages: Sequence[str] = STAGES, strategy: str | None = None) -> str:
    """The artifacts of a job for `devices` CPU devices, and the plan of one `rank`, as text.  Nothing runs."""
    found = laid_out(job, devices, strategy)
    texts = {
        "trace": lambda: graph_text(found.traced),
        "graph": lambda: graph_text(found.logical),
        "layouts": lambda: sharded_text(found.sharded),
        "boxing": lambda: found.boxing(rank),
        "physical": lambda: physical_text(found.physical),
        "program": lambda: str(found.program(rank)),
        "plan": lambda: plan_text(found.plan(rank)),
        "kernels": lambda: found.kernels(rank),
        "memory": found.memory,
        "pipeline": found.pipeline,
    }
    return "\n\n".join(f"== {stage} ==\n{texts[stage]()}" for stage in STAGES if stage in stages)


def explain_page(job: Job, *, devices: int = 1, rank: int = 0, strategy: str | None = None) -> str:
    """The same as one HTML file that needs nothing else: the physical graph drawn, then the tables.  Nothing runs."""
    found = laid_out(job, devices, strategy)
    tables = {
        "Pipeline": found.pipeline(),
        "What moves between ranks": found.boxing(rank),
        "Memory of each rank": found.memory(),
        f"Plan of rank {rank}": plan_text(found.plan(rank)),
    }
    return graph_page(found.physical, tables)


class Change(NamedTuple):
    """One change of layout: the bytes are those that the busiest rank sends, `readers` the ops for which it is made."""

    route: str
    nbytes: float
    tensors: str
    source: str
    target: str
    readers: str
    where: SourceLine


def boxing_rows(physical: Physical) -> list[Change]:
    """Every change of layout of a job, in order."""
    rows = []
    readers = consumers(physical.graph)
    for node in physical.graph.nodes:
        if isinstance(node.op, Reroute):
            sent = node.op.bytes_per_rank(*(value.tensor_type for value in node.inputs))
            rows.append(Change(node.op.name, sent, node.name, str(node.op.source), str(node.op.target), _readers(node, readers), node.where))
    return rows


def _readers(node: Node, readers: Mapping[Value, Sequence[Node]]) -> str:
    """The ops for which a tensor is brought into another layout."""
    words = [reader.op.word() for value in node.outputs for reader in readers[value]]
    return ", ".join(dict.fromkeys(words)) or "result"
