"""Show every stage of a job: its graph, its layouts, what is boxed and what that costs, memory, and the plan of a rank; as text or as a page."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from jobflow.compiler.box import Reroute, box
from jobflow.compiler.bucket import bucket
from jobflow.compiler.compile import logical, plan_rank
from jobflow.compiler.fuse import fuse
from jobflow.compiler.local import Program
from jobflow.compiler.lower import lower
from jobflow.compiler.shard import shard
from jobflow.compiler.write import write
from jobflow.errors import ConfigError, JobError, did_you_mean
from jobflow.graph.ir import Graph, Node, Physical, Sharded, Value
from jobflow.graph.rewrite import consumers
from jobflow.graph.text import graph_text, physical_text, sharded_text
from jobflow.job import Job, job_of, returned_values
from jobflow.picture import page
from jobflow.plan.footprint import footprint, footprint_text
from jobflow.plan.plan import Plan, Slot
from jobflow.plan.storage import place_variables
from jobflow.plan.text import plan_text
from jobflow.session import current_session

#: What can be shown, in the order of a job's life.
STAGES = ("trace", "graph", "layouts", "boxing", "physical", "program", "plan", "memory")


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
        raise JobError(f"{where} has no job {name}{did_you_mean(name, jobs)} It has: {', '.join(jobs) or 'none'}.")
    return job_of(getattr(module, name))


def _load(where: str) -> ModuleType:
    if not where.endswith(".py"):
        return importlib.import_module(where)
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
    sharded: Sharded
    physical: Physical
    devices: int

    def program(self, rank: int) -> Program:
        """What a rank does, without addresses."""
        return fuse(write(lower(self.physical, rank, self._slots(rank))))

    def plan(self, rank: int) -> Plan:
        """What a rank does, with addresses."""
        return plan_rank(self.physical, rank, self._slots(rank))

    def _slots(self, rank: int) -> dict[str, Slot]:
        return place_variables(self.physical.graph.variables.values(), rank)[0]

    def memory(self) -> str:
        """What the memory of every rank is used for."""
        return footprint_text({rank: footprint(self.plan(rank)) for rank in range(self.devices)})


def laid_out(job: Job, devices: int) -> Explained:
    """The job for `devices` CPU devices, one process.  Nothing runs."""
    session = current_session()
    session.settings.gpu_device_num, session.settings.cpu_device_num = None, devices
    placement = job.placement(session)
    shapes = [shape[0] if d.per_device else shape for (_, d), shape in zip(job.signature.placeholders(), job.declared_shapes(session), strict=True)]
    tracer, results = job.trace(session, placement, shapes)
    outputs = returned_values(results)
    traced = tracer.graph(outputs)
    sharded = shard(logical(tracer, outputs))
    return Explained(traced, sharded, bucket(box(sharded)), devices)


def explain(job: Job, *, devices: int = 1, rank: int = 0, stages: Sequence[str] = STAGES) -> str:
    """The artifacts of a job for `devices` CPU devices, and the plan of one `rank`, as text.  Nothing runs."""
    found = laid_out(job, devices)
    texts = {
        "trace": lambda: graph_text(found.traced),
        "graph": lambda: graph_text(found.sharded.graph),
        "layouts": lambda: sharded_text(found.sharded),
        "boxing": lambda: boxing_table(found.physical),
        "physical": lambda: physical_text(found.physical),
        "program": lambda: str(found.program(rank)),
        "plan": lambda: plan_text(found.plan(rank)),
        "memory": found.memory,
    }
    return "\n\n".join(f"== {stage} ==\n{texts[stage]()}" for stage in STAGES if stage in stages)


def explain_page(job: Job, *, devices: int = 1, rank: int = 0) -> str:
    """The same as one HTML file that needs nothing else: the physical graph drawn, then the tables.  Nothing runs."""
    found = laid_out(job, devices)
    tables = {
        "What moves between ranks": boxing_table(found.physical),
        "Memory of each rank": found.memory(),
        f"Plan of rank {rank}": plan_text(found.plan(rank)),
    }
    return page(found.physical, tables)


def boxing_table(physical: Physical) -> str:
    """Every change of layout: route, bytes the busiest rank sends, tensor, for which op, and the user's line."""
    rows: list[tuple[Any, ...]] = [("route", "bytes/rank", "tensors", "from", "to", "for", "line")]
    readers = consumers(physical.graph)
    total = 0.0
    for node in physical.graph.nodes:
        if isinstance(node.op, Reroute):
            sent = node.op.bytes_per_rank(*(value.type for value in node.inputs))
            total += sent
            rows.append((node.op.name, f"{sent:.0f}", node.name, node.op.source, node.op.target, _readers(node, readers), node.where))
    if len(rows) == 1:
        return "nothing moves between ranks"
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, f"{total:.0f} bytes per rank and step"])


def _readers(node: Node, readers: Mapping[Value, Sequence[Node]]) -> str:
    """The ops for which a tensor is brought into another layout."""
    words = [reader.op.word() for value in node.outputs for reader in readers[value]]
    return ", ".join(dict.fromkeys(words)) or "result"
