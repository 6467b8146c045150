"""The function `add_loss`, for train jobs whose optimizer is set in their configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import jobflow.core.scope as scope
from jobflow.core.errors import JobError, user_line
from jobflow.core.types import Tensor, TensorType

__all__ = ["add_loss"]


class TrainJob(Protocol):
    """The protocol of a train job being traced, for functions that set its losses and optimizer."""

    @property
    def name(self) -> str: ...

    @property
    def variables(self) -> Mapping[str, Any]: ...

    @property
    def tracer(self) -> Any: ...

    def add_loss(self, loss: Any) -> None: ...

    def minimize(self, optimizer: Any, losses: Sequence[Any]) -> None: ...


def job_in_force(what: str) -> TrainJob:
    """Return the job being traced; raise JobError if `what` is called outside of a train job."""
    interpreter = scope.current().interpreter
    if interpreter is None or not hasattr(interpreter, "minimize"):
        raise JobError(f'{what} at {user_line()}: called outside a job; call it in the body of a @global_function(type="train")')
    return cast(TrainJob, interpreter)


def check_loss(what: str, loss: Any) -> Tensor:
    """Return `loss` if it is a tensor; raise JobError otherwise."""
    if not isinstance(getattr(loss, "tensor_type", None), TensorType):
        raise JobError(f"{what} at {user_line()}: loss must be a tensor of the job, not {loss!r}")
    return cast(Tensor, loss)


def add_loss(loss: Tensor) -> None:
    """Minimize the mean of `loss`, in addition to earlier losses, with the optimizer of the job's configuration."""
    job_in_force("add_loss").add_loss(check_loss("add_loss", loss))
