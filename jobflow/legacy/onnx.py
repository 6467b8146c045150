"""The namespace `flow.onnx`: export of predict jobs and modules to ONNX files.

flow.checkpoint.save("weights")
flow.onnx.export(predict_job, "weights", "net.onnx")
flow.onnx.export(module, (x,), "net.onnx")
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

import jobflow.core.scope as scope
from jobflow.compiler.front.simplify import drop_dead
from jobflow.core.errors import ArgumentError, CheckpointError, JobError, user_line
from jobflow.core.extras import optional
from jobflow.core.notices import notice
from jobflow.core.types import Array, dtype_of
from jobflow.core.version import __version__
from jobflow.engine.job import Job, job_of, returned_values
from jobflow.engine.job_config import FunctionConfig
from jobflow.engine.options import EnvSettings
from jobflow.engine.session import Session, started_session
from jobflow.engine.staged_job import StagedJob
from jobflow.graph.ir import Graph, Node
from jobflow.legacy.onnx_nodes import OPSET, Nodes, translated
from jobflow.legacy.optimizer.from_options import optimizer_of
from jobflow.ops.source import Input, ReadVariable
from jobflow.storage import session_variables as stored
from jobflow.storage.store import load
from jobflow.typing.annotations import Bundle, Numpy

__all__ = ["export"]

#: the first version of the file format with opset 18
IR_VERSION = 8
#: ONNX domain of ops without an ONNX equivalent
DOMAIN = "jobflow"


def export(
    job_func: Any,
    model_save_dir: Any,
    onnx_filename: str | os.PathLike[str],
    continue_on_error: bool = False,
    opset: int | None = None,
    extra_opset: Any = None,
    shape_override: Mapping[str, Any] | None = None,
    external_data: bool = False,
) -> None:
    """Write a predict job as an ONNX file, with variables from the checkpoint `model_save_dir`, or the session's variables if it is "".

    `job_func` may also be a module; `model_save_dir` is then an example input, or a tuple of them, whose shapes and types the file has. The module
    is exported in evaluation mode, with its parameters.
    Inputs have the names of the job's or the forward function's arguments; outputs are `output`, or `output_0`, `output_1`, ..., or the keys of a
    module's dict. An op without an ONNX equivalent raises JobError, or with `continue_on_error` becomes a node of the domain "jobflow". With
    `external_data` large tensors are in a separate file. The opset is 18, with a notice for an earlier `opset`; `extra_opset` has no effect.
    Requires the package onnx.
    """
    what = f"onnx.export at {user_line()}"
    if shape_override:
        raise ArgumentError(f"{what}: shape_override {shape_override} is not supported; declare the job with these shapes")
    if opset is not None and opset > OPSET:
        raise ArgumentError(f"{what}: opset {opset} is not supported; pass at most {OPSET}")
    if opset is not None and opset < OPSET:
        notice(f"{what}: the file uses opset {OPSET}, of 2022, instead of opset {opset}")
    if callable(getattr(job_func, "named_parameters", None)):
        model, writes = module_model(what, job_func, model_save_dir, continue_on_error), True
    else:
        job, session = job_of(job_func, "onnx.export"), started_session()
        if job.trainable:
            raise JobError(f"{what}: job {job.name} ({job.where}) is a train job; export a predict job that has the same variables")
        model, writes = model_of(job, session, partial(_variables, model_save_dir), anything=continue_on_error), session.writes_files
    if writes:
        write(model, onnx_filename, external_data)


def write(model: Any, path: str | os.PathLike[str], external_data: bool = False) -> None:
    """Write an ONNX model to a file; with `external_data`, large tensors are in a second file beside it."""
    onnx = optional("onnx", "flow.onnx")
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    options = {"save_as_external_data": True, "location": f"{os.path.basename(path)}.data"} if external_data else {}
    onnx.save_model(model, os.fspath(path), **options)


def module_model(what: str, module: Any, example: Any, anything: bool) -> Any:
    """Return the ONNX model of a module in evaluation mode, for inputs with the shapes and types of the example inputs."""
    inputs = example if isinstance(example, tuple | list) else (example,)
    if not inputs or not all(hasattr(x, "numpy") or isinstance(x, np.ndarray) for x in inputs):
        raise ArgumentError(f"{what}: the inputs of {type(module).__name__} are {example!r:.100}; pass a tensor, or a tuple of tensors")
    arrays = [np.asarray(x.numpy() if hasattr(x, "numpy") else x) for x in inputs]
    try:
        names = list(inspect.signature(module.forward).bind(*arrays).arguments)
    except TypeError as error:
        raise ArgumentError(f"{what}: forward of {type(module).__name__} and {len(inputs)} inputs: {error}; pass one input per argument") from None
    if len(names) != len(inputs):  # the forward function has *args
        names = [f"input_{i}" for i in range(len(inputs))]
    outputs: list[str] = []

    def body(*values: Any) -> Any:
        modes = [(each, each.training) for each in module.modules()]
        module.eval()
        try:
            results = module(*values)
        finally:
            for each, mode in modes:
                each.training = mode
        outputs[:] = list(results) if isinstance(results, Mapping) else []
        return results

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    placeholders = [Numpy.Placeholder(array.shape, dtype_of(array.dtype)) for array in arrays]
    parameters = [inspect.Parameter(name, kind, annotation=placeholder) for name, placeholder in zip(names, placeholders, strict=True)]
    body.__name__ = type(module).__name__
    body.__signature__ = inspect.Signature(parameters, return_annotation=Bundle[Numpy])  # type: ignore[attr-defined]
    session = Session()
    with scope.using(root=scope.Root(session, EnvSettings()), interpreter=None, placement=None):
        job = StagedJob(body, False, FunctionConfig(), user_line(), optimizer_of)
        values = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return model_of(job, session, lambda graph: {name: values[name].numpy() for name in read_by(graph)}, lambda: outputs, anything=anything)


def model_of(
    job: Job,
    session: Session,
    values_of: Callable[[Graph], Mapping[str, Array]],
    output_names: Callable[[], Sequence[str]] = list,
    *,
    anything: bool = False,
) -> Any:
    """Return the ONNX model of a predict job; `values_of` returns the variables that a graph reads, by name.

    `output_names` is called after the trace. Without names, outputs are numbered. With `anything`, the model may have nodes of the domain "jobflow".
    """
    onnx = optional("onnx", "flow.onnx")
    program, results = job.traces(session, job.declared_shapes(session))[0]
    if program.phases:
        raise JobError(
            f"onnx.export at {user_line()}: job {job.name} ({job.where}) has dynamic shapes or host pipeline stages; "
            f"export a job with static shapes that computes only from its arguments"
        )
    graph = drop_dead(program.graph(returned_values(results)))
    arguments = dict(job.signature.placeholders())
    values = values_of(graph)
    nodes, names = Nodes(), dict[Any, str]()
    for node in graph.nodes:
        names.update(zip(node.outputs, _outputs(nodes, node, [names[v] for v in node.inputs], set(arguments), values, anything), strict=True))
    single = len(graph.outputs) == 1
    outputs = list(output_names()) or ["output" if single else f"output_{i}" for i in range(len(graph.outputs))]
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


def read_by(graph: Graph) -> list[str]:
    """Return the names of the variables that `graph` reads, sorted."""
    return sorted({node.op.key for node in graph.nodes if isinstance(node.op, ReadVariable)})


def _variables(folder: str, graph: Graph) -> dict[str, Array]:
    """Return the values of the variables that `graph` reads, from the checkpoint `folder`, or the session if it is "".

    Raises: CheckpointError if the checkpoint lacks a variable.
    """
    names = read_by(graph)
    if not folder:
        every = stored.get_all_variables()
        return {name: every[name].numpy() for name in names}
    result = load(folder, {name: graph.variables[name].type for name in names})
    missing = [name for name in names if name not in result]
    if missing:
        raise CheckpointError(f'onnx.export at {user_line()}: checkpoint {folder} has no variable "{missing[0]}"; pass a checkpoint of this job')
    return {name: result[name] for name in names}
