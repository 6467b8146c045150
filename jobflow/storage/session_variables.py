"""The variables of the session as arrays: `get_all_variables`, `load_variables`, and checkpoints of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.errors import CheckpointError, did_you_mean, user_line
from jobflow.core.types import Array, type_of
from jobflow.engine.session import Session, current_session, started_session
from jobflow.program.commands import Initialize
from jobflow.storage import sessions, store
from jobflow.storage.checkpoint_reader import Stored
from jobflow.storage.export import save_legacy


class StoredVariable:
    """A variable as a program sees it from outside its jobs; `numpy()` gives its current value."""

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self.name = name
        self.shape = session.variables[name].type.shape
        self.dtype = session.variables[name].type.dtype

    def __repr__(self) -> str:
        return f"<variable {self.name} {self._session.variables[self.name].type}>"

    def numpy(self) -> Array:
        """The whole value now."""
        return self._session.read([self.name])[self.name]


@scope.alone
def get_all_variables() -> dict[str, StoredVariable]:
    """Every variable of the session by name: parameters, optimizer slots, train steps."""
    session = started_session()
    return {name: StoredVariable(session, name) for name in session.variables}


@scope.alone
def load_variables(value_dict: Mapping[str, Any], ignore_mismatch: bool = True) -> None:
    """Set variables from arrays, or from what `checkpoint.get` or `get_all_variables` gave.

    Names that no variable has are skipped, with one notice, or raise CheckpointError (also RuntimeError) with ignore_mismatch=False.
    Shape and element type must be the variable's (CheckpointError, also AssertionError).  Nothing has been changed then.
    """
    session = started_session()
    here = f"load_variables at {user_line()}"
    if not isinstance(value_dict, Mapping):
        raise CheckpointError(f"{here}: value_dict is {type(value_dict).__name__}, not values by name, as checkpoint.get(path) gives them")
    unknown = [name for name in value_dict if name not in session.variables]
    if unknown and not ignore_mismatch:
        raise CheckpointError(f'{here}: there is no variable "{unknown[0]}"{did_you_mean(unknown[0], session.variables)}')
    known = [name for name in value_dict if name in session.variables]
    session.write({name: _array(value_dict[name]) for name in known})
    sessions.tell_the_rest(session, here, known, known, value_dict)


def _array(value: Any) -> Array:
    return np.asarray(value.numpy() if callable(getattr(value, "numpy", None)) else value)


@scope.alone
def initialize() -> None:
    """Give every variable its first value; those of modules keep theirs."""
    session = started_session()
    own = session.tensors
    names = tuple(name for name in session.variables if own is None or name not in own)
    session.start().call(Initialize(names))
    session.loaded.update(names)


@scope.alone
def save(path: str, var_dict: Mapping[str, Any] | None = None) -> None:
    """Write variables (all of the session unless `var_dict` names some) to the directory `path`, whole or not at all.

    If `path` exists and is not an empty directory, the first free one of path-2, path-3, ... takes its place, and a notice names it.
    `config.checkpoint_format("oneflow")`: a folder `<variable>` for each, with its bytes in `out` and its type in `meta`, and the file snapshot_done.
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
    """The tensors of a checkpoint by name, read when needed; that of a legacy variable's own folder alone.

    Without `meta` files they have the types of the session's variables.
    """
    types = {name: variable.type for name, variable in current_session().variables.items()}
    with store.located("get"):
        found = store.load(path, types)
    return next(iter(found.stored.values())) if found.single else dict(found.stored)


def restore(path: str) -> None:
    """Set the variables that a checkpoint has, and go on with its counts of runs, so that dropout goes on too.

    A notice names what only one of both has.  Raises: CheckpointError if `path` is not a checkpoint, or has no variable of the session.
    """
    sessions.load(started_session(), path, strict="some")
