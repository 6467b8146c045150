"""The namespace `flow.serving`: execution of models saved by `flow.saved_model`, in a separate session.

with flow.serving.InferenceSession() as session:
    session.load_saved_model("models", model_version=1)
    session.launch()
    outputs = session.run("predict_job", image=array)         # by name, and by position
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, CheckpointError, JobError, did_you_mean_or, user_line
from jobflow.core.types import Array
from jobflow.engine.session import clear_default_session, config
from jobflow.legacy.declare import global_function
from jobflow.legacy.extras import saved_program
from jobflow.legacy.extras.saved_model import FORMAT, PROGRAMS, VARIABLES
from jobflow.legacy.variables import current_job
from jobflow.storage import session_variables as stored
from jobflow.storage.store import load
from jobflow.storage.untrusted import HEADER, content, json_tree
from jobflow.typing import Bundle, Numpy

__all__ = ["InferenceSession", "ModelVersionPolicy", "SessionOption"]


class ModelVersionPolicy(enum.Enum):
    """Rules that select the version of a model to load: the latest or the first version."""

    LATEST = "latest"
    FIRST = "first"


class SessionOption:
    """Options of an InferenceSession: the device type and the number of devices."""

    def __init__(self) -> None:
        self.device_tag = "cpu"
        self.device_num = 1
        self.is_mirrored_view = False


class Outputs(dict[str, Array]):
    """The results of a call, indexed by name or position."""

    def __missing__(self, key: Any) -> Array:
        if isinstance(key, int):
            return list(self.values())[key]
        raise KeyError(f"the job has no output {key!r}; its outputs are {', '.join(self)}")


class InferenceSession:
    """A session that loads saved models and runs their jobs."""

    def __init__(self, option: SessionOption | None = None) -> None:
        self.option = option or SessionOption()
        self._root = scope.Root()
        self._graphs: dict[str, dict[str, Any]] = {}
        self._variables: list[str] = []
        self._signatures: dict[str, str] = {}
        self._batches: dict[str, int] = {}
        self._jobs: dict[str, Callable[..., Any]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _inside(self) -> AbstractContextManager[Any]:
        return scope.using(root=self._root, interpreter=None, placement=None, view="consistent", namespace=())

    # ---------------------------------------------------------------- loading

    def load_saved_model(
        self,
        saved_model_dir: str,
        model_version: int | ModelVersionPolicy = ModelVersionPolicy.LATEST,
        saved_model_meta_file_basename: str | None = None,
        graph_name: str | None = None,
        signature_name: str | None = None,
    ) -> None:
        """Load all jobs of the model in `saved_model_dir`, or only `graph_name`; select `signature_name` for them if it is not None.

        `saved_model_meta_file_basename` has no effect.

        Raises: CheckpointError if the version does not exist or has another format; ArgumentError for an unknown name; JobError after `launch`.
        """
        what = f"InferenceSession.load_saved_model at {user_line()}"
        self._not_launched(what)
        root = Path(saved_model_dir)
        versions = sorted((int(path.name) for path in root.glob("*") if path.name.isdigit() and (path / PROGRAMS).is_file()), reverse=True)
        if isinstance(model_version, ModelVersionPolicy) and versions:
            model_version = versions[0 if model_version is ModelVersionPolicy.LATEST else -1]
        if model_version not in versions:
            raise CheckpointError(f"{what}: {root} has no version {model_version}; it has {versions or 'none'}")
        folder = root / str(model_version)
        tree = json_tree(content(folder / PROGRAMS, HEADER, CheckpointError))
        if not isinstance(tree, dict) or tree.get("format") != FORMAT:
            raise CheckpointError(f"{what}: {folder / PROGRAMS} has another format than {FORMAT}; save the model again with this version")
        graphs = tree["graphs"]
        if graph_name is not None:
            graphs = {graph_name: graphs[_known(what, "job", graph_name, graphs)]}
        self._graphs |= graphs
        for name in graphs:
            if signature_name is not None:
                self.set_job_signature(name, signature_name)
        self._variables.append(str(folder / VARIABLES))

    def set_checkpoint_path(self, checkpoint_path: str) -> None:
        """Let `launch` load variables from the checkpoint, in place of variables with the same names that are saved with the model."""
        self._variables.append(checkpoint_path)

    def set_job_signature(self, job_name: str, signature_name: str) -> None:
        """Select the signature `signature_name` for calls of the job `job_name`; raise ArgumentError for an unknown job or signature."""
        what = f"InferenceSession.set_job_signature at {user_line()}"
        signatures = self._graphs[_known(what, "job", job_name, self._graphs)]["signatures"]
        self._signatures[job_name] = _known(what, "signature", signature_name, signatures)

    def set_job_batch_size(self, job_name: str, batch_size: int) -> None:
        """Set the size of axis 0 of all arguments of a job; raise ArgumentError for an unknown job, and JobError after `launch`."""
        what = f"InferenceSession.set_job_batch_size at {user_line()}"
        self._not_launched(what)
        self._batches[_known(what, "job", job_name, self._graphs)] = batch_size

    def _not_launched(self, what: str) -> None:
        if self._jobs is not None:
            raise JobError(f"{what}: the session is already launched; call close() first")

    # ---------------------------------------------------------------- running

    def launch(self) -> None:
        """Declare the jobs and load their variables; raise JobError if no job is loaded or the session is already launched."""
        what = f"InferenceSession.launch at {user_line()}"
        self._not_launched(what)
        if not self._graphs:
            raise JobError(f"{what}: no job is loaded; call load_saved_model first")
        with self._inside():
            (config.gpu_device_num if self.option.device_tag == "gpu" else config.cpu_device_num)(self.option.device_num)
            self._jobs = {name: self._job(name) for name in self._graphs}
            values: dict[str, Any] = {}
            for path in self._variables:
                values |= load(path).stored
            if values:
                stored.load_variables(values)

    def _job(self, name: str) -> Callable[..., Any]:
        program, types = self._graphs[name], self._types(name)
        outputs = self._signature(name)["outputs"]

        def body(*arguments: Any) -> Any:
            return saved_program.record(current_job("InferenceSession"), program, dict(zip(types, arguments, strict=True)), outputs)

        body.__name__ = name
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [
            inspect.Parameter(f"argument_{i}", kind, annotation=Numpy.Placeholder(type.shape, type.dtype)) for i, type in enumerate(types.values())
        ]
        body.__signature__ = inspect.Signature(parameters, return_annotation=Bundle[Numpy])  # type: ignore[attr-defined]
        return global_function("predict")(body)

    def _types(self, name: str) -> dict[str, Any]:
        types = {argument: saved_program.type_of(entry) for argument, entry in self._graphs[name]["inputs"].items()}
        rows = self._batches.get(name)
        return {argument: type if rows is None else type.with_shape((rows, *type.shape[1:])) for argument, type in types.items()}

    def _signature(self, name: str) -> Mapping[str, Any]:
        graph = self._graphs[name]
        own = {"inputs": {argument: argument for argument in graph["inputs"]}, "outputs": graph["returned"]}
        chosen = self._signatures.get(name) or next(iter(graph["signatures"]), None)
        return own if chosen is None else graph["signatures"][chosen]

    def run(self, job_name: str, **inputs: Any) -> Outputs:
        """Call the job `job_name` with arrays by the input names of its signature, and return the results by output name.

        Raises: JobError before `launch`; ArgumentError for an unknown job or input, and for a missing input.
        """
        what = f"InferenceSession.run at {user_line()}"
        if self._jobs is None:
            raise JobError(f"{what}: call launch() first")
        signature, job = self._signature(_known(what, "job", job_name, self._graphs)), self._jobs[job_name]
        for name in inputs:
            _known(f"{what}: job {job_name}", "input", name, signature["inputs"])
        arguments = {argument: name for name, argument in signature["inputs"].items()}
        missing = [name for name in arguments.values() if name not in inputs]
        if missing:
            raise ArgumentError(f"{what}: job {job_name} requires the input {missing[0]!r}; pass an array by this name")
        with self._inside():
            return Outputs(job(*[inputs[arguments[argument]] for argument in self._types(job_name)]))

    async def async_run(self, job_name: str, **inputs: Any) -> Outputs:
        """Call a job as `run` does, in a coroutine; the call is complete when the coroutine returns."""
        return self.run(job_name, **inputs)

    def close(self) -> None:
        """End the session; it may load models again afterwards."""
        with self._inside():
            clear_default_session()
        self._jobs = None

    # ---------------------------------------------------------------- inspection

    def list_jobs(self) -> list[str]:
        """Return the names of the loaded jobs."""
        return list(self._graphs)

    def list_inputs(self) -> list[str]:
        """Return the input names of all loaded jobs, according to their selected signatures."""
        return [name for job in self._graphs for name in self._signature(job)["inputs"]]

    def list_outputs(self) -> list[str]:
        """Return the output names of all loaded jobs, according to their selected signatures."""
        return [name for job in self._graphs for name in self._signature(job)["outputs"]]

    def input_info(self, input_name: str, job_name: str | None = None) -> dict[str, Any]:
        """Return {"shape": ..., "dtype": ...} of an input, with a NumPy type; a `job_name` of None means the first loaded job.

        Raises: ArgumentError for an unknown job or input.
        """
        what = f"InferenceSession.input_info at {user_line()}"
        job = self._one(what, job_name)
        argument = self._signature(job)["inputs"][_known(what, "input", input_name, self._signature(job)["inputs"])]
        type = self._types(job)[argument]
        return {"shape": type.shape, "dtype": type.dtype.numpy.type}

    def output_info(self, output_name: str, job_name: str | None = None) -> dict[str, Any]:
        """Return {"shape": ..., "dtype": ...} of an output, with a NumPy type; a `job_name` of None means the first loaded job.

        Raises: JobError before `launch`; ArgumentError for an unknown job or output.
        """
        what = f"InferenceSession.output_info at {user_line()}"
        job = self._one(what, job_name)
        if self._jobs is None:
            raise JobError(f"{what}: call launch() first")
        names = self._signature(job)["outputs"]
        position = list(names).index(_known(what, "output", output_name, names))
        with self._inside():
            declared, session = self._jobs[job].job, self._root.session  # type: ignore[attr-defined]
            type = session.compiled(declared, declared.declared_shapes(session)).graph.outputs[position].tensor_type
        return {"shape": type.shape, "dtype": type.dtype.numpy.type}

    def _one(self, what: str, job_name: str | None) -> str:
        return _known(what, "job", next(iter(self._graphs), "") if job_name is None else job_name, self._graphs)


def _known(what: str, kind: str, name: str, names: Mapping[str, Any]) -> str:
    if name not in names:
        raise ArgumentError(f"{what}: unknown {kind} {name!r}{did_you_mean_or(name, names, 'choose from ' + (', '.join(names) or 'none'))}")
    return name
