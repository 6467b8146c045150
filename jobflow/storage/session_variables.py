"""The variables of the session as arrays: `get_all_variables`, `load_variables`, and checkpoints of variables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.errors import CheckpointError, JobError, did_you_mean, user_line
from jobflow.core.types import Array, type_of
from jobflow.engine.session import Session, current_session, started_session
from jobflow.program.commands import Initialize
from jobflow.storage import sessions, store
from jobflow.storage.checkpoint_reader import Stored
from jobflow.storage.export import save_legacy


class StoredVariable:
    """A variable of the session as seen outside of jobs; `numpy()` returns its current value."""

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self._variable = session.variables[name]
        self.name = name
        self.shape = self._variable.type.shape
        self.dtype = self._variable.type.dtype

    def __repr__(self) -> str:
        return f"<variable {self.name} {self._variable.type}>"

    def _repr_html_(self) -> str:
        """Return the repr with a drawing of the layout, for notebooks."""
        from jobflow.core.layout_html import layout_html

        return layout_html(self._variable.type, self._variable.layout, repr(self))

    def numpy(self) -> Array:
        """Return the current value of the whole variable, in any layout.  Raises: JobError if a redefined job released the variable."""
        if self._session.variables.get(self.name) is not self._variable:
            raise JobError(f'variable "{self.name}" at {user_line()}: its job was redefined with other variables; call get_all_variables() again')
        return self._session.read([self.name])[self.name]


@scope.alone
def get_all_variables() -> dict[str, StoredVariable]:
    """Return every variable of the session by name, including optimizer slots and train steps."""
    session = started_session()
    return {name: StoredVariable(session, name) for name in session.variables}


@scope.alone
def load_variables(value_dict: Mapping[str, Any], ignore_mismatch: bool = True) -> None:
    """Set variables from arrays, or from the result of `checkpoint.get` or `get_all_variables`.

    Names without a variable are skipped with one notice; with ignore_mismatch=False they raise CheckpointError (also RuntimeError).
    Raises: CheckpointError if `value_dict` is not a mapping; CheckpointError (also AssertionError) if a shape or element type differs from the
    variable's. After an error no variable has changed.
    """
    session = started_session()
    here = f"load_variables at {user_line()}"
    if not isinstance(value_dict, Mapping):
        raise CheckpointError(f"{here}: value_dict is a {type(value_dict).__name__}; pass a dict of values by name, such as checkpoint.get(path)")
    unknown = [name for name in value_dict if name not in session.variables]
    if unknown and not ignore_mismatch:
        raise CheckpointError(f'{here}: the session has no variable "{unknown[0]}"{did_you_mean(unknown[0], session.variables)}')
    known = [name for name in value_dict if name in session.variables]
    session.write({name: _array(value_dict[name]) for name in known})
    sessions.report_unmatched(session, here, known, known, value_dict)


def _array(value: Any) -> Array:
    return np.asarray(value.numpy() if callable(getattr(value, "numpy", None)) else value)


@scope.alone
def initialize() -> None:
    """Set every variable to its initial value, except the variables of modules."""
    session = started_session()
    own = session.tensors
    names = tuple(name for name in session.variables if own is None or name not in own)
    session.start().call(Initialize(names))
    session.loaded.update(names)


@scope.alone
def save(path: str, var_dict: Mapping[str, Any] | None = None) -> None:
    """Write all variables of the session, or those in `var_dict`, to the directory `path` atomically.

    If `path` exists and is not an empty directory, the first free path of path-2, path-3, ... is used instead, and a notice names it.
    With `config.checkpoint_format("oneflow")`, write one folder per variable, with its bytes in `out` and its type in `meta`, and the file
    snapshot_done.
    """
    session = started_session()
    with store.located("save"):
        free = sessions.free_path(session, path)
    legacy = session.settings.checkpoint_format == "oneflow"
    if var_dict is None and not legacy:
        sessions.save(session, free)
        return
    arrays = session.read(list(session.variables)) if var_dict is None else {name: _array(value) for name, value in var_dict.items()}
    with store.located("save"):
        if legacy:
            types = {name: type_of(array) for name, array in arrays.items()}
            sessions.on_first(session, partial(save_legacy, arrays, types, str(free)))
            return
        sessions.save_on_first(session, free, arrays, {"seed": session.settings.seed, "runs": dict(session.runs)})


def get(path: str) -> dict[str, Stored] | Stored:
    """Return the tensors of a checkpoint by name, read on demand; for the folder of one legacy variable, return that tensor.

    Tensors without `meta` files have the types of the session's variables.
    Raises: CheckpointError if there is no checkpoint in `path`, or if files are missing or inconsistent.
    """
    types = {name: variable.type for name, variable in current_session().variables.items()}
    with store.located("get"):
        checkpoint = store.load(path, types)
    return next(iter(checkpoint.stored.values())) if checkpoint.single else dict(checkpoint.stored)


def restore(path: str) -> None:
    """Set the variables that a checkpoint contains, and the run counts of jobs, so that dropout continues its random sequence.

    A notice lists names that exist only in the checkpoint or only in the session.
    Raises: CheckpointError if `path` is not a checkpoint or contains no variable of the session, or if a tensor is damaged or of another type.
    After an error no variable has changed.
    """
    sessions.load(started_session(), path, strict="some")
