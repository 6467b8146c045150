"""The namespace `flow.onnx`: export of predict jobs to ONNX files.

flow.checkpoint.save("weights")
flow.onnx.export(predict_job, "weights", "net.onnx")
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from jobflow.compiler.front.simplify import drop_dead
from jobflow.core.errors import ArgumentError, CheckpointError, JobError, user_line
from jobflow.core.extras import optional
from jobflow.core.notices import notice
from jobflow.core.types import Array
from jobflow.core.version import __version__
from jobflow.engine.job import Job, job_of, returned_values
from jobflow.engine.session import Session, started_session
from jobflow.graph.ir import Graph, Node
from jobflow.legacy.onnx_nodes import OPSET, Nodes, translated
from jobflow.ops.source import Input, ReadVariable
from jobflow.storage import session_variables as stored
from jobflow.storage.store import load

__all__ = ["export"]

#: the first version of the file format with opset 18
IR_VERSION = 8
#: ONNX domain of ops without an ONNX equivalent
DOMAIN = "jobflow"


def export(
    job_func: Any,
    model_save_dir: str,
    onnx_filename: str,
    continue_on_error: bool = False,
    opset: int | None = None,
    extra_opset: Any = None,
    shape_override: Mapping[str, Any] | None = None,
    external_data: bool = False,
) -> None:
    """Write a predict job as an ONNX file, with variables from the checkpoint `model_save_dir`, or the session's variables if it is "".

    Inputs have the names of the job's arguments; outputs are `output`, or `output_0`, `output_1`, ... An op without an ONNX equivalent raises
    JobError, or with `continue_on_error` becomes a node of the domain "jobflow". With `external_data` large tensors are in a separate file. The
    opset is 18, with a notice for an earlier `opset`; `extra_opset` has no effect. Requires the package onnx.
    """
    what, onnx = f"onnx.export at {user_line()}", optional("onnx", "flow.onnx")
    if shape_override:
        raise ArgumentError(f"{what}: shape_override {shape_override} is not supported; declare the job with these shapes")
    if opset is not None and opset > OPSET:
        raise ArgumentError(f"{what}: opset {opset} is not supported; pass at most {OPSET}")
    if opset is not None and opset < OPSET:
        notice(f"{what}: the file uses opset {OPSET}, of 2022, instead of opset {opset}")
    job, session = job_of(job_func, "onnx.export"), started_session()
    if job.trainable:
        raise JobError(f"{what}: job {job.name} ({job.where}) is a train job; export a predict job that has the same variables")
    model = _model(onnx, job, session, model_save_dir, continue_on_error)
    if session.writes_files:
        os.makedirs(os.path.dirname(os.path.abspath(onnx_filename)), exist_ok=True)
        beside = {"save_as_external_data": True, "location": f"{os.path.basename(onnx_filename)}.data"} if external_data else {}
        onnx.save_model(model, onnx_filename, **beside)


def _model(onnx: Any, job: Job, session: Session, folder: str, anything: bool) -> Any:
    program, results = job.traces(session, job.declared_shapes(session))[0]
    if program.phases:
        raise JobError(
            f"onnx.export at {user_line()}: job {job.name} ({job.where}) has dynamic shapes or host pipeline stages; "
            f"export a job with static shapes that computes only from its arguments"
        )
    graph = drop_dead(program.graph(returned_values(results)))
    arguments = dict(job.signature.placeholders())
    values = _variables(graph, folder)
    nodes, names = Nodes(), dict[Any, str]()
    for node in graph.nodes:
        names.update(zip(node.outputs, _outputs(nodes, node, [names[v] for v in node.inputs], set(arguments), values, anything), strict=True))
    single = len(graph.outputs) == 1
    outputs = ["output" if single else f"output_{i}" for i in range(len(graph.outputs))]
    nodes.nodes.extend(onnx.helper.make_node("Identity", [names[v]], [name]) for v, name in zip(graph.outputs, outputs, strict=True))
    info = onnx.helper.make_tensor_value_info
    accepted = [info(name, nodes.element_type(d.type.dtype.numpy), d.type.shape) for name, d in arguments.items()]
    passed = [info(name, nodes.element_type(v.dtype.numpy), v.shape) for name, v in zip(outputs, graph.outputs, strict=True)]
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in values.items()]
    result = onnx.helper.make_graph(nodes.nodes, job.name, accepted, passed, [*weights, *nodes.constants.values()])
    sets = [onnx.helper.make_opsetid("", OPSET), *([onnx.helper.make_opsetid(DOMAIN, 1)] if anything else [])]
    model = onnx.helper.make_model(result, opset_imports=sets, ir_version=IR_VERSION, producer_name="jobflow", producer_version=__version__)
    onnx.checker.check_model(model)
    return model


def _outputs(nodes: Nodes, node: Node, inputs: list[str], arguments: set[str], values: Mapping[str, Array], anything: bool) -> list[str]:
    op = node.op
    if isinstance(op, ReadVariable):
        return [op.key]
    if isinstance(op, Input):
        if op.key not in arguments:
            raise JobError(f"onnx.export: op {node.name} at {node.where} samples random numbers or reads files; export a job without such ops")
        return [op.key]
    try:
        return translated(nodes, node, inputs)
    except JobError:
        if not anything:
            raise
    result = nodes.add(type(op).__name__, *inputs, outputs=len(node.outputs), domain=DOMAIN)
    return [result] if isinstance(result, str) else list(result)


def _variables(graph: Graph, folder: str) -> dict[str, Array]:
    """Return the values of the variables that `graph` reads, from the checkpoint `folder`, or the session if it is "".

    Raises: CheckpointError if the checkpoint lacks a variable.
    """
    names = sorted({node.op.key for node in graph.nodes if isinstance(node.op, ReadVariable)})
    if not folder:
        every = stored.get_all_variables()
        return {name: every[name].numpy() for name in names}
    result = load(folder, {name: graph.variables[name].type for name in names})
    missing = [name for name in names if name not in result]
    if missing:
        raise CheckpointError(f'onnx.export at {user_line()}: checkpoint {folder} has no variable "{missing[0]}"; pass a checkpoint of this job')
    return {name: result[name] for name in names}
