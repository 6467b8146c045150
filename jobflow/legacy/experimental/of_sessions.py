"""Names of `experimental` that look at the session or change its variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jobflow.checkpoint.session_variables import get_all_variables, load_variables
from jobflow.core.errors import ArgumentError, user_line
from jobflow.core.types import Array, Tensor
from jobflow.engine.job import Job, returned_values
from jobflow.engine.session import started_session
from jobflow.graph.graph_text import graph_text
from jobflow.legacy.arrays import identity
from jobflow.legacy.elements import logical_slice, slice_update
from jobflow.legacy.math import add, subtract
from jobflow.legacy.variables import assign, current_job, variable_of
from jobflow.ops.scalar import Detach


@dataclass(frozen=True)
class JobSet:
    """The session's jobs: by name, the text of each as it was traced, an operation a line."""

    job: Mapping[str, str]

    def __str__(self) -> str:
        return "\n".join(self.job.values())


def get_job_set() -> JobSet:
    """What the session's jobs do, for the shapes that they declare."""
    session, found = started_session(), {}
    for job in session.jobs.values():
        assert isinstance(job, Job)
        program, results = job.traces(session, job.declared_shapes(session))[0]
        found[job.name] = graph_text(program.graph(returned_values(results)))
    return JobSet(found)


def ssp_variable_proxy(var: Tensor, buffer_size: int = 1, name: str | None = None) -> tuple[Tensor, Tensor]:
    """(var, its value `buffer_size` - 1 runs ago, or its first value before that): weights that a pipeline may compute with while others are new.

    Gradients of the value are var's.  The values on the way are variables `<variable>-ssp-<i>`.
    """
    key = variable_of(var)
    if key is None or buffer_size < 1:
        what = f"buffer_size is {buffer_size}; it is at least 1" if key else f"{var} is computed; pass what get_variable returned"
        raise ArgumentError(f"experimental.ssp_variable_proxy at {user_line()}: {what}")
    job = current_job("experimental.ssp_variable_proxy")
    known = job.variables[key]
    later: Tensor = var
    for i in range(buffer_size - 1):
        older = job.variable(replace(known, name=f"{key}-ssp-{i}", trainable=False, l1=0.0, l2=0.0))
        job.assign(f"{key}-ssp-{i}", later)
        later = older
    if later is var:
        return var, identity(var, name)
    (still,) = job.apply(Detach(), [subtract(later, var)], None)
    return var, add(var, still, name=name)


def enable_typing_check(val: bool = True) -> None:
    """Accepted: annotations are always checked."""


def get_interface_blob_value(op_name: str) -> Array:
    """The value of the variable of this name."""
    found: Array = get_all_variables()[op_name].numpy()
    return found


def set_interface_blob_value(op_name: str, ndarray: Any) -> None:
    """Set the variable of this name."""
    load_variables({op_name: ndarray}, ignore_mismatch=False)


def logical_slice_assign(x: Tensor, value: Tensor, slice_tup_list: Sequence[Any], name: str | None = None) -> None:
    """x[start:stop:step] <- value at the end of the run; x is what get_variable gave, and steps are positive."""
    logical_slice(x, slice_tup_list)  # which checks it
    assign(x, slice_update(x, value, slice_tup_list))


def eager_assign_121(ref: Tensor, value: Tensor) -> None:
    """ref <- value at the end of the run; ref is what get_variable gave."""
    assign(ref, value)
