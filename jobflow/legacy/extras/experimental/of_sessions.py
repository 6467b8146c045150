"""Functions of `flow.experimental` that inspect the session or change its variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, did_you_mean, user_line
from jobflow.core.types import Array, Tensor
from jobflow.engine.job import Job, returned_values
from jobflow.engine.session import started_session
from jobflow.graph.graph_text import graph_text
from jobflow.legacy.elements import logical_slice, slice_update
from jobflow.legacy.variables import assign
from jobflow.storage.session_variables import get_all_variables, load_variables


@dataclass(frozen=True)
class JobSet:
    """The traces of the session's jobs by name, as text with one operation per line."""

    job: Mapping[str, str]

    def __str__(self) -> str:
        return "\n".join(self.job.values())


def get_job_set() -> JobSet:
    """Return the traces of the session's jobs for their declared shapes."""
    session, result = started_session(), {}
    for job in session.jobs.values():
        assert isinstance(job, Job)
        program, results = job.traces(session, job.declared_shapes(session))[0]
        result[job.name] = graph_text(program.graph(returned_values(results)))
    return JobSet(result)


def enable_typing_check(val: bool = True) -> None:
    """Do nothing: annotations are always checked."""


def get_interface_blob_value(op_name: str) -> Array:
    """Return the value of the variable `op_name` as an array; raise ArgumentError if there is no such variable."""
    known = get_all_variables()
    if not isinstance(op_name, str) or op_name not in known:
        raise ArgumentError(f"get_interface_blob_value at {user_line()}: the session has no variable {op_name!r}{did_you_mean(str(op_name), known)}")
    return known[op_name].numpy()


def set_interface_blob_value(op_name: str, ndarray: Any) -> None:
    """Set the variable `op_name` of the session to the array `ndarray`.

    Raises: CheckpointError if there is no such variable, or if its shape or element type differs.
    """
    load_variables({op_name: ndarray}, ignore_mismatch=False)


def logical_slice_assign(x: Tensor, value: Tensor, slice_tup_list: Sequence[Any], name: str | None = None) -> None:
    """Set x[start:stop:step] of the variable x, a result of get_variable, to `value` at the end of the run; steps must be positive."""
    logical_slice(x, slice_tup_list)  # raises for wrong slices
    assign(x, slice_update(x, value, slice_tup_list))


def eager_assign_121(ref: Tensor, value: Tensor) -> None:
    """Set the variable `ref`, a result of get_variable, to `value` at the end of the run."""
    assign(ref, value)
