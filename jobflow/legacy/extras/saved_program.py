"""Programs as files: the trace of a predict job as JSON, one node per line, and its reconstruction.

    {"name": "hidden", "op": ["MatMul", {"transpose_b": true}], "inputs": [0, 1], "local": false}

No code in a file is executed. An op is the name of a class of jobflow, and its attributes are numbers, strings and names.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import jobflow.core.layout as layouts
import jobflow.core.scope as scope
import jobflow.ops
from jobflow.compiler.front.simplify import drop_dead
from jobflow.compiler.front.trace import RUN_COUNTER
from jobflow.core.errors import CheckpointError, JobError, did_you_mean_or
from jobflow.core.layout import B
from jobflow.core.types import DType, Tensor, TensorType, dtype_named
from jobflow.engine.distribute import current_placement
from jobflow.engine.job import Job, returned_values
from jobflow.engine.session import Session
from jobflow.engine.staged_job import StagedBody
from jobflow.graph.ir import Variable
from jobflow.legacy.optimizer.named_tensors import name_of
from jobflow.ops.op import Op
from jobflow.ops.source import Constant, Input, ReadVariable
from jobflow.storage.untrusted import shape_of

#: names of the job's arguments or tensors by name in a signature
Names = Mapping[str, str]
#: names of ops and attributes in files of earlier versions -> current names
RENAMED_OPS = {
    "AddWhereTheyAre": "AddLocalRows",
    "Checked": "RuntimeAssertion",
    "Crossing": "ViewConversion",
    "GatherWhereTheyAre": "GatherLocalRows",
    "Positions": "IndexAssertion",
    "Unless": "GuardedUpdate",
    "Weights": "WeightAssertion",
}
RENAMED_ATTRIBUTES = {("ToLayout", "asked"): "requested_by"}


def of_job(job: Job, session: Session, outputs: Names) -> dict[str, Any]:
    """Return a predict job as a JSON tree; `outputs` are additional results by `logical_blob_name`.

    Raises: JobError for a train job or an unknown output. A job that reads files, assigns variables, or has dynamic shapes or host pipeline stages
    also raises JobError.
    """
    what = f"saved_model: job {job.name} ({job.where})"
    if job.trainable:
        raise JobError(f"{what} is a train job; save a predict job that has the same variables")
    program, results = job.traces(session, job.declared_shapes(session))[0]
    does = {
        "reads its batches from files": program.feed,
        "assigns variables": program.updates,
        "has dynamic shapes or host pipeline stages": program.phases,
    }
    for word in (word for word, result in does.items() if result):
        raise JobError(f"{what} {word}; save a job with static shapes that computes only from its arguments")
    named = {name_of(value): value for node in program.nodes for value in node.outputs}
    for name in outputs.values():
        if name not in named:
            raise JobError(f'{what} has no tensor "{name}"{did_you_mean_or(name, named, "pass the logical_blob_name of a tensor")}')
    returned = returned_values(results)
    graph = drop_dead(program.graph([*returned, *[named[name] for name in outputs.values()]]))
    number = {value: i for i, value in enumerate(value for node in graph.nodes for value in node.outputs)}
    nodes = [
        {"name": node.name, "op": _written(node.op), "inputs": [number[v] for v in node.inputs], "local": any(v.local for v in node.outputs)}
        for node in graph.nodes
    ]
    inputs = {name: {"shape": list(declared.type.shape), "dtype": declared.type.dtype.name} for name, declared in job.signature.placeholders()}
    arguments = {f"output_{i}" if len(returned) > 1 else "output": number[value] for i, value in enumerate(returned)}
    return {"inputs": inputs, "nodes": nodes, "returned": arguments, "outputs": {name: number[named[lbn]] for name, lbn in outputs.items()}}


def record(body: StagedBody, program: Mapping[str, Any], arguments: Mapping[str, Tensor], outputs: Mapping[str, int]) -> dict[str, Tensor]:
    """Trace the saved `program` into `body`, and return its values with the numbers `outputs` by output name.

    `arguments` are the tensors of the program's inputs by name.
    """
    values: list[Tensor] = []
    for entry in program["nodes"]:
        op = _read(entry["op"])
        if isinstance(op, Input):
            result: Sequence[Tensor] = [body.run_counter() if op.key == RUN_COUNTER else arguments[op.key]]
        elif isinstance(op, ReadVariable):
            result = [_variable(body, op)]
        else:
            with scope.using(view="mirrored" if entry["local"] else "consistent"):
                result = body.apply(op, [values[i] for i in entry["inputs"]], entry["name"])
        values.extend(result)
    return {name: values[i] for name, i in outputs.items()}


def variables_of(program: Mapping[str, Any]) -> list[str]:
    """Return the names of the variables that the program reads."""
    return [op.key for entry in program["nodes"] if isinstance(op := _read(entry["op"]), ReadVariable)]


def type_of(entry: Mapping[str, Any]) -> TensorType:
    """Return the type of an input from its JSON entry."""
    return TensorType(shape_of(entry["shape"]), dtype_named(entry["dtype"]))


def _variable(body: StagedBody, op: ReadVariable) -> Tensor:
    placement = current_placement("saved_model")
    first = Constant(op.shape, op.dtype, 0)
    return body.variable(Variable(op.key, TensorType(op.shape, op.dtype), first, placement, (B,) * len(placement.mesh), trainable=False))


# Attributes ----------------------------------------------------------------------------------------------------------


@cache
def _classes() -> dict[str, type]:
    """Return the classes of ops and layouts by name; files may contain instances of these classes."""
    for module in pkgutil.iter_modules(jobflow.ops.__path__):
        importlib.import_module(f"jobflow.ops.{module.name}")
    every, result = [Op], {name: each for name, each in vars(layouts).items() if isinstance(each, type) and each.__module__ == layouts.__name__}
    while every:
        one = every.pop()
        result[one.__name__] = one
        every.extend(one.__subclasses__())
    return result


def _written(value: Any) -> Any:
    """Return an attribute as JSON: an int, bool, string or None unchanged, and another value as a pair of type name and content.

    Raises: JobError for a value of an unsupported type.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, tuple | list):
        return ["tuple", [_written(each) for each in value]]
    if isinstance(value, DType):
        return ["dtype", value.name]
    if isinstance(value, enum.Enum):
        return [type(value).__name__, value.value]
    if _classes().get(type(value).__name__) is type(value) and dataclasses.is_dataclass(value):
        fields = {each.name: _written(getattr(value, each.name)) for each in dataclasses.fields(value) if each.init}
        return [type(value).__name__, fields]
    raise JobError(f"saved_model: an attribute is {value!r}, which cannot be written to a file")


def _read(tree: Any) -> Any:
    """Return the attribute that `_written` encoded as `tree`; raise CheckpointError for an unknown class or attribute name."""
    if not isinstance(tree, list):
        return tree
    word: str = tree[0] if len(tree) == 2 else ""
    content: Any = tree[-1] if tree else None
    if word == "float":
        return float.fromhex(content)
    if word == "tuple":
        return tuple(_read(each) for each in content)
    if word == "dtype":
        return dtype_named(content)
    word = RENAMED_OPS.get(word, word)
    result: Any = _classes().get(word)
    if result is None:
        raise CheckpointError(
            f"saved_model: this version of jobflow has no class {word!r}; load the model with the version that saved it, or save the model again"
        )
    if issubclass(result, enum.Enum):
        return result(content)
    attributes = {RENAMED_ATTRIBUTES.get((word, name), name): _read(value) for name, value in content.items()}
    known = [each.name for each in dataclasses.fields(result) if each.init]
    for name in attributes:
        if name not in known:
            raise CheckpointError(
                f"saved_model: op {word} has no attribute {name!r} in this version{did_you_mean_or(name, known, 'save the model again')}"
            )
    return result(**attributes)
