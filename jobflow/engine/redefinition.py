"""Redefined jobs: a job that is declared again under its name, for example in the cell of a notebook, with variables of other shapes.

The new job uses the variables of the earlier one if their types are equal.  Otherwise the job starts anew: all variables that earlier jobs of this
name have used are released, and get initial values.  A variable that another declared job uses is never released.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jobflow.core.errors import JobError
from jobflow.core.types import TensorType

if TYPE_CHECKING:
    from jobflow.engine.job import Job
    from jobflow.graph.ir import Variable


class VariableUsers:
    """The jobs that use the variables of a session."""

    def __init__(self) -> None:
        #: name of a variable -> name of a job -> the latest job of that name that uses the variable
        self._jobs: dict[str, dict[str, weakref.ref[Job]]] = {}

    def add(self, job: Job, variables: Mapping[str, Variable]) -> None:
        """Record that a job uses these variables."""
        for name in variables:
            self._jobs.setdefault(name, {})[job.name] = weakref.ref(job)

    def remove(self, variables: Sequence[str]) -> None:
        """Forget the users of released variables."""
        for name in variables:
            self._jobs.pop(name, None)

    def of(self, variable: str, declared: Mapping[str, Job]) -> list[Job]:
        """Return the users of a variable among the jobs `declared`, which are the latest ones of their names."""
        return [job for name, user in self._jobs.get(variable, {}).items() if (job := user()) is not None and declared.get(name) == job]

    def released_by(self, job: Job, declared: Mapping[str, Job]) -> list[str]:
        """Return the variables that jobs of this name have used, and no declared job."""
        return [name for name, users in self._jobs.items() if job.name in users and not self.of(name, declared)]

    def advise(self, error: JobError, job: Job, declared: Mapping[str, Job]) -> None:
        """Add to an error about `error.variable` the jobs that use this variable, and a way to release it."""
        assert error.variable is not None
        others = [f"job {user.name} at {user.where}" for user in self.of(error.variable, declared) if user is not job]
        afresh = "to forget the variables of earlier jobs, call clear_default_session() before the jobs are declared"
        if others:
            verb, them = ("uses", "it") if len(others) == 1 else ("use", "them")
            afresh = f'{" and ".join(others)} {verb} "{error.variable}" too; declare {them} anew together with {job.name}, or, {afresh}'
        error.args = (f"{error}; {afresh}",)


def restart_notice(job: Job, name: str, before: TensorType, after: TensorType, count: int) -> str:
    """Return the notice that a redefined job starts anew, because the variable `name` changed; `count` variables are released."""
    what = "belongs to another module" if before == after else f"was {before} and is {after}"
    return f'job {job.name} at {job.where}: variable "{name}" {what} in the new definition, so all {count} variables of the job start anew'
