"""Export of a trained model: an ONNX file of its predict job, or its parameters as a safetensors or npz file."""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, CheckpointError, ConfigError, did_you_mean
from jobflow.core.extras import optional
from jobflow.core.types import Array, TensorType, dtype_of
from jobflow.engine.job import Job
from jobflow.graph.ir import Graph
from jobflow.legacy import onnx as onnx_files
from jobflow.storage import export as tensor_files
from jobflow.storage import store
from jobflow.storage.checkpoint_reader import Checkpoint
from jobflow.storage.remote import AnyPath
from jobflow.trainer.config import Loaded
from jobflow.trainer.evaluate import trained
from jobflow.trainer.jobs import Fields, Jobs
from jobflow.trainer.network import layered
from jobflow.trainer.resume import together

#: writers of parameters by suffix
TENSORS: Mapping[str, Callable[..., list[str]]] = {".safetensors": tensor_files.to_safetensors, ".npz": tensor_files.to_npz}
ONNX = ".onnx"
FORMATS = (ONNX, *TENSORS)


@dataclass(frozen=True)
class Exported:
    """An exported file: its path and checkpoint, and the types of its inputs (ONNX only) and tensors by name."""

    path: Path
    checkpoint: AnyPath
    inputs: Mapping[str, TensorType]
    tensors: Mapping[str, TensorType]
    #: tensors that were written with another element type, because the format lacks theirs
    converted: tuple[str, ...] = ()


def export(loaded: Loaded, target: str | Path, checkpoint: str | Path | None = None, *, rows: int = 1, replace: bool = False) -> Exported:
    """Write the model of a checkpoint to a .onnx, .safetensors or .npz file on rank 0; optimizer states are omitted.

    `checkpoint` defaults to the newest valid checkpoint. An ONNX file computes the outputs of `jobflow predict` for `rows` samples.
    Raises: ArgumentError for another suffix; CheckpointError if the file exists and `replace` is False; JobError for an op without an ONNX
    equivalent.
    """
    path = Path(target)
    if path.suffix not in FORMATS:
        near = did_you_mean(path.suffix, FORMATS)
        raise ArgumentError(f"export to {path}: the suffix must be {', '.join(FORMATS[:-1])} or {FORMATS[-1]}{near}")
    if path.suffix == ONNX:
        optional("onnx", "jobflow export")
    with trained(loaded, checkpoint) as (jobs, source, extra):
        together(jobs.session, partial(_check_target, path, replace))
        job = _predict_job(jobs, source, extra, rows)
        inputs = {name: declared.type for name, declared in job.signature.placeholders()} if path.suffix == ONNX else {}
        model = onnx_files.model_of(job, jobs.session, partial(_values, source), lambda: jobs.outputs) if inputs else None
        names = _names(jobs, job)
        return together(jobs.session, lambda: _written(path, source, names, replace, model, inputs))


def _check_target(path: Path, replace: bool) -> None:
    if path.is_dir() or (path.exists() and not replace):
        raise CheckpointError(f"export to {path}: this path already exists; pass another name, or --force to replace a file")


def _predict_job(jobs: Jobs, source: AnyPath, extra: Mapping[str, Any], rows: int) -> Job:
    """Return the predict job for the fields that the checkpoint records; the readers of the configuration are not opened."""
    fields = extra.get("fields")
    if not isinstance(fields, Mapping):
        raise ConfigError(f"export of {source}: the checkpoint lacks the types of its samples; save it with this version of jobflow")
    try:
        jobs.fields = {str(name): TensorType(tuple(shape), dtype_of(dtype)) for name, (shape, dtype) in fields.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{source}: the types of its samples are damaged ({error}); pass another checkpoint") from error
    jobs.network = layered(jobs.network, jobs.fields)
    return jobs.exported(rows)


def _names(jobs: Jobs, job: Job) -> list[str]:
    """Return the names of the model's parameters and buffers, without states of the optimizer."""
    module = jobs.network.module
    if module is not None:
        return [*dict(module.named_parameters()), *dict(module.named_buffers())]
    program, _ = job.traces(jobs.session, job.declared_shapes(jobs.session))[0]
    return list(program.variables)


def _values(source: AnyPath, graph: Graph) -> dict[str, Array]:
    """Return the values of the variables that `graph` reads; raise CheckpointError if one is missing or has another shape."""
    checkpoint = store.load(source)
    return {name: _stored(checkpoint, name, graph.variables[name].type) for name in onnx_files.read_by(graph)}


def _stored(checkpoint: Checkpoint, name: str, type: TensorType) -> Array:
    if name not in checkpoint:
        raise CheckpointError(f"{checkpoint.path} has no variable {name}{did_you_mean(name, checkpoint)}")
    if checkpoint.stored[name].type != type:
        raise CheckpointError(f"{checkpoint.path}: {name} is {checkpoint.stored[name].type}, and the model has {type}; restore the model")
    return checkpoint[name]


def _written(path: Path, source: AnyPath, names: list[str], replace: bool, model: Any, inputs: Fields) -> Exported:
    checkpoint = store.load(source)
    present = [name for name in names if name in checkpoint]
    types = {name: checkpoint.stored[name].type for name in present}
    path.parent.mkdir(parents=True, exist_ok=True)
    if model is None:
        converted = TENSORS[path.suffix](checkpoint, path, [glob.escape(name) for name in present], replace=replace)
        return Exported(path, source, {}, types, tuple(converted))
    tensor_files.to_file(path, replace, lambda file: onnx_files.write(model, file))
    return Exported(path, source, inputs, types)
