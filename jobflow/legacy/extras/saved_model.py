"""The namespace `flow.saved_model`: predict jobs and their variables in a directory, for `flow.serving`.

builder = flow.saved_model.ModelBuilder("models").ModelName("net").Version(1)
signature = builder.AddFunction(predict_job).AddSignature("regress")
signature.Input("image", "images/out").Output("score", scores.logical_blob_name)
builder.Save()

models/1/saved_model.json      the programs and signatures
models/1/variables/            a checkpoint of the variables that the programs read
"""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any

from jobflow.core.errors import ArgumentError, CheckpointError, JobError, did_you_mean, user_line
from jobflow.engine.job import job_of
from jobflow.engine.session import started_session
from jobflow.legacy.extras import saved_program
from jobflow.storage import session_variables as stored

__all__ = ["GraphBuilder", "ModelBuilder", "SignatureBuilder"]

#: names of the file with the programs and of the folder with the variables
PROGRAMS, VARIABLES = "saved_model.json", "variables"
FORMAT = 1


class SignatureBuilder:
    """A builder of a signature: names of inputs and outputs, mapped to tensors of the job by `logical_blob_name`."""

    def __init__(self, name: str, graph_builder: GraphBuilder | None = None) -> None:
        self.name = name
        self.graph_builder = graph_builder
        self.inputs: dict[str, str] = {}
        self.outputs: dict[str, str] = {}

    def Input(self, input_name: str, lbn: str) -> SignatureBuilder:
        """Map the input `input_name` to the argument `lbn` of the job, and return this builder."""
        return self._add(self.inputs, "Input", input_name, lbn)

    def Output(self, output_name: str, lbn: str) -> SignatureBuilder:
        """Map the output `output_name` to the tensor `lbn` of the job, and return this builder."""
        return self._add(self.outputs, "Output", output_name, lbn)

    def _add(self, table: dict[str, str], what: str, name: str, lbn: str) -> SignatureBuilder:
        if not isinstance(lbn, str) or name in table:
            wrong = f"lbn must be a logical_blob_name, not {lbn!r}" if name not in table else "the name is already in use; choose another name"
            raise ArgumentError(f"saved_model: {what}({name!r}) of signature {self.name!r} at {user_line()}: {wrong}")
        table[name] = lbn
        return self

    def Complete(self) -> GraphBuilder | None:
        """Return the GraphBuilder that created this signature, or None, to continue a chain of calls."""
        return self.graph_builder


class GraphBuilder:
    """A builder of a saved job and its signatures; the first signature is the default."""

    def __init__(self, name: str, model_builder: ModelBuilder | None = None) -> None:
        self.name = name
        self.model_builder = model_builder
        self.signatures: dict[str, SignatureBuilder] = {}

    def AddSignature(self, signature_name: str) -> SignatureBuilder:
        """Return the builder of a new signature; raise ArgumentError if the name is in use."""
        if signature_name in self.signatures:
            raise ArgumentError(f"saved_model: signature {signature_name!r} of {self.name} at {user_line()} already exists; choose another name")
        return self.signatures.setdefault(signature_name, SignatureBuilder(signature_name, self))

    def Input(self, input_name: str, lbn: str) -> GraphBuilder:
        """Map the input `input_name` of the signature "default" to the argument `lbn` of the job, and return this builder."""
        self._one().Input(input_name, lbn)
        return self

    def Output(self, output_name: str, lbn: str) -> GraphBuilder:
        """Map the output `output_name` of the signature "default" to the tensor `lbn` of the job, and return this builder."""
        self._one().Output(output_name, lbn)
        return self

    def _one(self) -> SignatureBuilder:
        return self.signatures.get("default") or self.AddSignature("default")

    def Complete(self) -> ModelBuilder | None:
        """Return the ModelBuilder that created this builder, or None, to continue a chain of calls."""
        return self.model_builder


class ModelBuilder:
    """A builder of a saved model, which writes jobs of the session to `<save_path>/<version>`."""

    def __init__(self, save_path: str | PathLike[str]) -> None:
        if not isinstance(save_path, str | PathLike):
            raise ArgumentError(f"ModelBuilder at {user_line()}: save_path must be a str or a PathLike, not {save_path!r}")
        self.save_path = Path(save_path)
        self.name = self.save_path.name
        self.version = 1
        self.graphs: dict[str, tuple[Any, GraphBuilder]] = {}

    def ModelName(self, model_name: str) -> ModelBuilder:
        """Set the name of the model, and return this builder."""
        self.name = model_name
        return self

    def Version(self, version: int) -> ModelBuilder:
        """Set the version number, 1 by default, and return this builder."""
        if type(version) is not int or version < 0:
            raise ArgumentError(f"ModelBuilder.Version at {user_line()}: version must be a non-negative int, not {version!r}")
        self.version = version
        return self

    def AddFunction(self, func: Any) -> GraphBuilder:
        """Add a predict job and return its builder; raise ArgumentError if the model already contains the job."""
        job = job_of(func, "ModelBuilder.AddFunction")
        if job.name in self.graphs:
            raise ArgumentError(f"ModelBuilder.AddFunction at {user_line()}: job {job.name} is already part of the model; add it once")
        graph = GraphBuilder(job.name, self)
        self.graphs[job.name] = job, graph
        return graph

    Job = AddFunction

    def Save(self, save_model_before_graph_complete: bool = True) -> None:
        """Write the jobs, and the variables that they read, to `<save_path>/<version>`; `save_model_before_graph_complete` has no effect.

        Raises: CheckpointError if the version exists; JobError if there is no job, or if a job or signature cannot be saved.
        """
        session = started_session()
        folder = self.save_path / str(self.version)
        if not self.graphs:
            raise JobError(f"ModelBuilder.Save at {user_line()}: the model has no job; call AddFunction(job) first")
        programs: dict[str, Any] = {}
        for name, (job, graph) in self.graphs.items():
            lbns = {lbn: lbn for signature in graph.signatures.values() for lbn in signature.outputs.values()}
            programs[name] = saved_program.of_job(job, session, lbns)
            programs[name]["signatures"] = {each.name: _checked(name, programs[name], each) for each in graph.signatures.values()}
        if session.writes_files and folder.exists() and any(folder.iterdir()):
            raise CheckpointError(f"ModelBuilder.Save at {user_line()}: {folder} already exists; choose another version")
        names = {name for program in programs.values() for name in saved_program.variables_of(program)}
        values = stored.get_all_variables()
        stored.save(str(folder / VARIABLES), {name: values[name] for name in sorted(names)})
        if session.writes_files:
            text = json.dumps({"format": FORMAT, "name": self.name, "version": self.version, "graphs": programs})
            (folder / PROGRAMS).write_text(text, encoding="utf-8")


def _checked(name: str, program: dict[str, Any], signature: SignatureBuilder) -> dict[str, Any]:
    inputs = {arguments: lbn.partition("/")[0] for arguments, lbn in signature.inputs.items()}
    for arguments, argument in inputs.items():
        if argument not in program["inputs"]:
            near = did_you_mean(argument, program["inputs"])
            raise JobError(f'saved_model: input "{arguments}" of signature {signature.name!r}: job {name} has no argument "{argument}"{near}')
    missing = [argument for argument in program["inputs"] if argument not in inputs.values()]
    if missing:
        raise JobError(f"saved_model: signature {signature.name!r} of job {name} has no input for its argument {missing[0]!r}; add .Input(name, lbn)")
    if not signature.outputs:
        raise JobError(f"saved_model: signature {signature.name!r} of job {name} has no output; add .Output(name, lbn)")
    return {"inputs": inputs, "outputs": {arguments: program["outputs"][lbn] for arguments, lbn in signature.outputs.items()}}
