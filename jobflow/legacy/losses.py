"""`add_loss` marks what a train job minimises when its optimizer is given by the job's configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import jobflow.core.scope as scope
from jobflow.core.errors import JobError, user_line
from jobflow.core.types import Tensor, TensorType

__all__ = ["add_loss"]


class TrainJob(Protocol):
    """What a tracer is to those who say what a train job minimises, and how."""

    @property
    def name(self) -> str: ...

    @property
    def variables(self) -> Mapping[str, Any]: ...

    @property
    def tracer(self) -> Any: ...

    def add_loss(self, loss: Any) -> None: ...

    def minimize(self, optimizer: Any, losses: Sequence[Any]) -> None: ...


def job_in_force(what: str) -> TrainJob:
    """The job whose body is running; JobError if `what` was called elsewhere."""
    interpreter = scope.current().interpreter
    if interpreter is None or not hasattr(interpreter, "minimize"):
        raise JobError(f'{what} at {user_line()} was called outside a job; call it in the body of a @global_function(type="train")')
    return cast(TrainJob, interpreter)


def check_loss(what: str, loss: Any) -> Tensor:
    """`loss` if it is a tensor; JobError otherwise."""
    if not isinstance(getattr(loss, "tensor_type", None), TensorType):
        raise JobError(f"{what} at {user_line()}: a loss is a tensor that the job computes; got {loss!r}")
    return cast(Tensor, loss)


def add_loss(loss: Tensor) -> None:
    """Have the optimizer of the job's configuration minimise the mean of `loss`, beside the losses added before."""
    job_in_force("add_loss").add_loss(check_loss("add_loss", loss))
